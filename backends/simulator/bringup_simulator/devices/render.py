"""Depth 2's compiler: from bringup's kernel form to the chip's kernel language.

One grid point of the chip runs one grid point of the kernel.  The lanes run along the longest loop
of each stage; in a kernel without loops, along the longest grid axis.
"""

from __future__ import annotations

from typing import Any

from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.graph import Instr
from bringup.kernel import Axis, Bound, Div, Dyn, Expr, Fold, Kernel, Mod, Stage

_WORDS = {"in": "input", "out": "output", "tile": "tile"}
# What the chip calls an op, where that is not bringup's name of it.
_NAMES = {"and": "and_", "or": "or_"}


def render(kernel: Kernel) -> str:
    """The kernel as text; its parameters are the buffers that are no tiles, in order."""
    return _Renderer(kernel).text()


class _Renderer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines = [f"# {kernel.name}"]
        self.depth = 0
        self.values = 0

    def text(self) -> str:
        kernel = self.kernel
        for n, buffer in enumerate(kernel.buffers):
            self.emit(f"b{n} = {_WORDS[buffer.role]}({buffer.type.dtype}, {buffer.type.size})")
        loops = any(stage.axes for stage in kernel.stages)
        spread = None if loops else max(kernel.grid, key=lambda a: a.size, default=None)
        for axis in kernel.grid:
            extent = f"lanes({axis.size})" if axis == spread else axis.size
            self.emit(f"a{axis.id} = grid({extent})")
        registers: list[str] = []  # one for each fold so far; bodies take them as inputs
        for stage in kernel.stages:
            registers += self.stage(stage, registers)
        return "\n".join(self.lines) + "\n"

    def stage(self, stage: Stage, registers: list[str]) -> list[str]:
        starts = [_constant(fold.start(stage.trips), fold.dtype) for fold in stage.folds]
        totals = [self.value(start) for start in starts]
        spread = max(stage.axes, key=lambda a: a.size, default=None)
        for axis in stage.axes:
            extent = f"lanes({axis.size})" if axis == spread else f"range({axis.size})"
            self.emit(f"for a{axis.id} in {extent}:")
            self.depth += 1
        values = dict(zip(stage.body.inputs, registers, strict=True))
        for instr in stage.body.instrs:
            operands = [values[operand] for operand in instr.operands]
            values[instr.result] = self.value(self.instruction(instr, operands))
        remaining = iter(totals)
        for sink, output in zip(stage.sinks, stage.body.outputs, strict=True):
            if isinstance(sink, Fold):
                total = next(remaining)
                self.emit(f"{total} = {_call('accumulate', sink.kind, total, values[output])}")
            else:
                element = [f"b{sink.buffer}", self.index(sink.index)]
                conditions = self.conditions(sink.mask)
                self.emit(_call("store", *element, values[output], *conditions))
        self.depth = 0
        if not stage.axes:
            return totals
        pairs = zip(stage.folds, totals, strict=True)
        return [self.value(_call("reduce_lanes", fold.kind, total)) for fold, total in pairs]

    def instruction(self, instr: Instr, operands: list[str]) -> str:
        """Most ops are called on the chip as in bringup; here are those that are not."""
        attrs, dtype = instr.attrs, instr.result.dtype
        match instr.op.name:
            case "load":
                buffer, conditions = f"b{attrs['buffer']}", self.conditions(attrs["mask"])
                return _call("load", buffer, self.index(attrs["index"]), *conditions)
            case "index":
                return f"truncate(index({self.index(attrs['index'])}), {dtype})"
            case "inside":
                inside = "const(True, bool)"
                for condition in self.conditions(attrs["mask"]):
                    inside = _call("and", inside, condition)
                return inside
            case "constant":
                return _constant(attrs["value"].array(), dtype)
            case "compare":
                return _call(attrs["direction"], *operands)
            case "shr":
                return _call("shr_l" if attrs["kind"] == "logical" else "shr_a", *operands)
            case "convert" if dtype.is_integer and instr.operands[0].dtype.is_integer:
                return _call("truncate", operands[0], str(dtype))  # its convert saturates
            case "convert" | "bitcast" as cast:
                return _call(cast, operands[0], str(dtype))
            case name:
                return _call(name, *operands)

    def index(self, expr: Expr) -> str:
        """The chip divides in indices."""
        terms = []
        for atom, factor in expr.terms:
            match atom:
                case Axis():
                    term = f"a{atom.id}"
                case Div():
                    term = f"(({self.index(atom.of)}) // {atom.by})"
                case Mod():
                    term = f"(({self.index(atom.of)}) % {atom.by})"
                case Dyn():  # no claimed op makes one
                    raise UnsupportedError(f"{self.kernel.name}: an index that is loaded: {atom}")
            terms.append(term if factor == 1 else f"{factor}*{term}")
        return " + ".join([*terms, str(expr.const)] if expr.const or not terms else terms)

    def conditions(self, mask: tuple[Bound, ...]) -> list[str]:
        return [f"inside({self.index(b.expr)}, {b.low}, {b.high})" for b in mask]

    def value(self, expression: str) -> str:
        """The name of a new value."""
        self.values += 1
        self.emit(f"v{self.values} = {expression}")
        return f"v{self.values}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)


def _call(*words: str) -> str:
    function, *operands = (_NAMES.get(word, word) for word in words)
    return f"{function}({', '.join(operands)})"


def _constant(value: Any, dtype: DType) -> str:
    """A numpy scalar; a NaN by its bits, since there are several."""
    if dtype.is_float and value != value:  # noqa: PLR0124
        bits = value.view(f"u{dtype.itemsize}")
        return f"bitcast(const({bits}, u{8 * dtype.itemsize}), {dtype})"
    return f"const({float(value) if dtype.is_float else value.item()}, {dtype})"
