"""The kernel level as a specification: rules as data, checked in order, each relying on those
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.dtypes import DType, f32
from bringup.errors import GraphError
from bringup.graph import Instr
from bringup.graph.index import Axis, Dyn, Expr
from bringup.graph.verify import LevelSpec, verify
from bringup.kernel.form import Fold, Kernel, Stage
from bringup.kernel.ops import KERNEL_OPS
from bringup.kernel.ranges import Mask, outside, uncovered
from bringup.ops.monoids import MONOIDS
from bringup.ops.table import Kind, OpDef, Trait
from bringup.records import record
from bringup.types import TensorType

#: What is wrong with a kernel; empty if nothing.
Check = Callable[[Kernel], Iterator[str]]


@record
class KernelRule:
    """One rule: its name, what it says, and the check that lists violations."""

    name: str
    says: str
    check: Check


def verify_kernel(kernel: Kernel) -> None:
    """Check every rule of `KERNEL_RULES`.  Raises GraphError with the rule broken first and the
    kernel's text.

    Sizes too large to look at position by position are accepted where intervals do not decide;
    `evaluate_kernel` is exact.
    """
    for rule in KERNEL_RULES:
        for what in rule.check(kernel):
            raise GraphError(
                f"kernel {kernel.name}: {what}",
                notes=tuple(str(kernel).splitlines()),
                fix=f"rule {rule.name}: {rule.says}",
            )


def _buffers(kernel: Kernel) -> Iterator[str]:
    if not kernel.outputs:
        yield "nothing is written: no buffer is out"
    for i, decl in enumerate(kernel.buffers):
        if decl.role not in ("in", "out", "tile"):
            yield f"b{i} has the role {decl.role!r}"


def _axes(kernel: Kernel) -> Iterator[str]:
    nests = [("the grid", kernel.grid, 0)]
    nests += [(f"stage {n}", s.axes, len(kernel.grid)) for n, s in enumerate(kernel.stages)]
    for what, axes, first in nests:
        if [a.id for a in axes] != list(range(first, first + len(axes))):
            yield f"the axes of {what} are {' '.join(map(str, axes))}, not numbered from a{first}"
        for axis in axes:
            if axis.size < 0:
                yield f"axis {axis} of {what} has a negative size"


def _allowed(instr: Instr) -> str | None:
    """What a body has against an instruction: it computes on scalars, one op of the table at a
    time.
    """
    if any(v.type.rank for v in (*instr.operands, *instr.results)):
        return f"{instr.op.name} is not on scalars"
    if instr.op.name in KERNEL_OPS or instr.literal is not None:
        return None
    op = instr.op
    if not isinstance(op, OpDef) or (
        op.kind is not Kind.ELEMENTWISE and Trait.POINTWISE not in op.traits
    ):
        return f"{op.name} is not an op of a kernel's body"
    return None


#: What may stand in a stage's body.
BODY = LevelSpec("body", allowed=_allowed)


def _bodies(kernel: Kernel) -> Iterator[str]:
    registers: list[TensorType] = []
    for n, stage in enumerate(kernel.stages):
        try:
            verify(stage.body, BODY)
        except GraphError as error:
            yield f"stage {n}: {error.what}"
        found = [v.type for v in stage.body.inputs]
        if found != registers:
            before = _listed(registers)
            yield f"stage {n} takes {_listed(found)}, the registers before it are {before}"
        if len(stage.sinks) != len(stage.body.outputs):
            yield f"stage {n} has {len(stage.body.outputs)} outputs and {len(stage.sinks)} sinks"
        registers += [TensorType((), f.dtype) for f in stage.folds]


def _listed(types: list[TensorType]) -> str:
    return ", ".join(map(str, types)) or "none"


def _sinks(kernel: Kernel) -> Iterator[str]:
    for n, stage in enumerate(kernel.stages):
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Fold):
                what = _fold(sink)
                wanted = sink.dtype
            else:
                what = _written(kernel, sink.buffer)
                wanted = value.dtype if what else kernel.buffers[sink.buffer].type.dtype
            if what:
                yield f"stage {n}: {sink}: {what}"
            if value.dtype is not wanted:
                yield f"stage {n}: {sink} gets a {value.dtype}"


def _fold(fold: Fold) -> str | None:
    if fold.kind not in MONOIDS:
        return f"there is no fold {fold.kind!r}"
    if fold.dtype not in fold.monoid.dtypes:
        return f"kind {fold.kind!r} does not take {fold.dtype}"
    if fold.precision != "highest" and not (fold.product and fold.dtype is f32):
        return f"{fold.precision} is for products of f32"
    return "a product is summed" if fold.product and fold.kind != "add" else None


def _written(kernel: Kernel, buffer: int) -> str | None:
    if not 0 <= buffer < len(kernel.buffers):
        return f"there is no b{buffer}"
    return "an in buffer is only read" if kernel.buffers[buffer].role == "in" else None


def _accesses(kernel: Kernel) -> Iterator[str]:
    for n, stage in enumerate(kernel.stages):
        for instr in stage.loads():
            buffer, dtype = instr.attrs["buffer"], instr.attrs["dtype"]
            if not 0 <= buffer < len(kernel.buffers):
                yield f"stage {n} loads b{buffer}, which does not exist"
            elif kernel.buffers[buffer].role == "out":
                yield f"stage {n} loads b{buffer}, an out buffer is only written"
            elif kernel.buffers[buffer].type.dtype is not dtype:
                yield f"stage {n} loads {dtype} from b{buffer}, which is {kernel.buffers[buffer]}"


def _indices(kernel: Kernel) -> Iterator[str]:
    for n, stage in enumerate(kernel.stages):
        scope = {*kernel.grid, *stage.axes}
        for expr, operands in _expressions(stage):
            strange = sorted(map(str, expr.axes() - scope))
            if strange:
                axes = ", ".join(strange)
                yield f"stage {n}: index {expr} uses {axes}, which no loop around it has"
            dyns = [a.operand for a in expr.atoms() if isinstance(a, Dyn)]
            if any(not 0 <= d < len(operands) or not operands[d].is_integer for d in dyns):
                yield f"stage {n}: index {expr} names operands that are no loaded integers"


def _expressions(stage: Stage) -> Iterator[tuple[Expr, list[DType]]]:
    for instr in stage.body.instrs:
        dtypes = [v.dtype for v in instr.operands]
        if instr.op.name in ("load", "index"):
            yield instr.attrs["index"], dtypes
        if instr.op.name in ("load", "inside"):
            yield from ((b.expr, dtypes) for b in instr.attrs["mask"])
    for store in stage.stores:
        yield store.index, []
        yield from ((b.expr, []) for b in store.mask)


def _limits(kernel: Kernel) -> Iterator[str]:
    for n, stage in enumerate(kernel.stages):
        limited = [limit.axis for limit in stage.limits]
        if len(set(limited)) < len(limited):
            yield f"stage {n} has two limits of one axis"
        for limit in stage.limits:
            if limit.axis not in stage.axes:
                yield f"stage {n}: {limit}: it has no such axis"
            strange = sorted(map(str, limit.end.axes() - {*kernel.grid}))
            if strange:
                yield f"stage {n}: {limit}: {', '.join(strange)} is no grid axis"
            if any(isinstance(atom, Dyn) for atom in limit.end.atoms()):
                yield f"stage {n}: {limit}: it depends on a loaded index"
            if limit.end.first < 1:
                yield f"stage {n}: {limit}: there may be no iteration"


def _in_range(kernel: Kernel) -> Iterator[str]:
    for n, stage in enumerate(kernel.stages):
        axes = (*kernel.grid, *stage.axes)
        for done, buffer, index, mask in _touched(stage):
            size = kernel.buffers[buffer].type.size
            wrong = outside(index, (*mask, *stage.bounds), axes, size)
            if wrong is not None:
                found = f"element {wrong} of b{buffer}, which has {size}"
                yield f"stage {n} {done} {found}: index {index}"


def _touched(stage: Stage) -> Iterator[tuple[str, int, Expr, Mask]]:
    for instr in stage.loads():
        yield "reads", instr.attrs["buffer"], instr.attrs["index"], instr.attrs["mask"]
    for store in stage.stores:
        yield "writes", store.buffer, store.index, store.mask


def _outputs_covered(kernel: Kernel) -> Iterator[str]:
    for i in kernel.outputs:
        stores = [
            (s.index, (*s.mask, *stage.bounds), (*kernel.grid, *stage.axes))
            for stage in kernel.stages
            for s in stage.stores
            if s.buffer == i
        ]
        what = uncovered(stores, kernel.buffers[i].type.size)
        if what:
            yield f"b{i}: {what}"


def _tiles_covered(kernel: Kernel) -> Iterator[str]:
    for i, decl in enumerate(kernel.buffers):
        if decl.role != "tile":
            continue
        made = [
            (n, s) for n, stage in enumerate(kernel.stages) for s in stage.stores if s.buffer == i
        ]
        if len({n for n, _ in made}) != 1:
            yield f"tile b{i} is written by {len(made)} stages, not by one"
            continue
        home = made[0][0]
        if kernel.stages[home].limits:
            yield f"tile b{i} is written by stage {home}, whose loops end early"
        stores = [(s.index, s.mask, kernel.stages[home].axes) for _, s in made]
        if any(_uses(s.index, kernel.grid) for _, s in made):
            yield f"tile b{i} is private to a grid point, yet written at an index of the grid"
            continue
        what = uncovered(stores, decl.type.size)
        if what:
            yield f"tile b{i}: {what}"
        for n, stage in enumerate(kernel.stages[: home + 1]):
            if any(instr.attrs["buffer"] == i for instr in stage.loads()):
                yield f"stage {n} reads tile b{i}, which stage {home} writes"


def _uses(index: Expr, grid: tuple[Axis, ...]) -> bool:
    return not index.axes().isdisjoint(grid)


KERNEL_RULES: tuple[KernelRule, ...] = (
    KernelRule("buffers", "every buffer is in, out or tile, and one at least is out", _buffers),
    KernelRule(
        "axes", "grid axes are a0, a1, …; the inner axes of every stage go on from there", _axes
    ),
    KernelRule(
        "bodies", "a body computes on scalars; its inputs are the registers made so far", _bodies
    ),
    KernelRule("sinks", "a sink takes its output's dtype, and writes no in buffer", _sinks),
    KernelRule("accesses", "a load reads an in buffer or a tile as its own dtype", _accesses),
    KernelRule("indices", "an index uses the axes of the loops around it", _indices),
    KernelRule("limits", "an inner axis may end early, after one iteration or more", _limits),
    KernelRule("ranges", "where its mask holds, an access lies inside the buffer", _in_range),
    KernelRule(
        "outputs", "every element of an out buffer is written exactly once", _outputs_covered
    ),
    KernelRule(
        "tiles", "one stage writes every element of a tile, and later ones read it", _tiles_covered
    ),
)

__all__ = ["BODY", "KERNEL_RULES", "KernelRule", "verify_kernel"]
