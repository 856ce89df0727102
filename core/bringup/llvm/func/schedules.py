"""How the loops of a kernel are run by a CPU: `Func -> Func`.

The choices are those of `bringup.llvm.loops.schedule`; here they become loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.graph.index import Axis, Bound, Expr
from bringup.integers import ceil_div
from bringup.llvm.loops.schedule import Schedule
from bringup.loops import lower_kernel
from bringup.loops.form import For, Func, If, Let, Load, Scalar, Stmt, Store, named_axis


def map_loops(plan: Schedule) -> Func:
    """A kernel without folds: units of a block of the lane axis, each in whole register tiles, then
    whole vectors, then a masked vector.
    """
    func = lower_kernel(plan.kernel)
    if plan.lane is None or plan.lanes == 1 or any(d.role == "tile" for d in plan.kernel.buffers):
        return func
    loops: dict[str, For] = {}
    body = func.body
    while len(body) == 1 and isinstance(body[0], For):
        loops[body[0].name] = body[0]
        body = body[0].body
    lane = loops.pop(f"g{plan.lane.id}").axis
    uniform, varying = _parted(body, lane)
    blocks = ceil_div(lane.size, plan.block)
    inner = _lane_loops(varying, lane, plan)
    outer = named_axis(f"{lane.name}.o", blocks)
    last = loops.pop(f"g{plan.last.id}", None) if plan.last is not None else None
    nest = [*(loop.axis for loop in loops.values()), outer]
    nest += [] if last is None else [last.axis]
    body = (*uniform, *inner)
    for axis in reversed(nest):
        body = (For(axis, body, "parallel"),)
    return Func(func.name, func.params, body)


def _parted(body: Sequence[Stmt], lane: Axis) -> tuple[list[Stmt], list[Stmt]]:
    """The scalars of a body that do not depend on an axis, and everything else."""
    uniform: list[Stmt] = []
    varying: list[Stmt] = []
    names: set[Scalar] = set()
    for stmt in body:
        if not isinstance(stmt, Let | Load):
            varying.append(stmt)
        elif lane in _axes(stmt) or not names.isdisjoint(stmt.operands):
            names.add(stmt.result)
            varying.append(stmt)
        else:
            uniform.append(stmt)
    return uniform, varying


def _axes(stmt: Let | Load) -> frozenset[Axis]:
    if isinstance(stmt, Load):
        exprs, mask = [stmt.index], stmt.mask
    else:
        exprs = [stmt.attrs["index"]] if stmt.op.name == "index" else []
        mask = stmt.attrs["mask"] if stmt.op.name == "inside" else ()
    return frozenset[Axis]().union(*(e.axes() for e in (*exprs, *(b.expr for b in mask))))


def _lane_loops(body: Sequence[Stmt], lane: Axis, plan: Schedule) -> tuple[Stmt, ...]:
    lanes, size, block = plan.lanes, lane.size, plan.block
    blocks = ceil_div(size, block)
    width = lanes * plan.columns
    first = Expr.of(named_axis(f"{lane.name}.o", blocks)) * block
    vector, column = named_axis(f"{lane.name}.v", lanes), named_axis(f"{lane.name}.c", plan.columns)
    tile = named_axis(f"{lane.name}.i", min(block, size) // width)
    at = first + Expr.of(tile) * width + Expr.of(column) * lanes + Expr.of(vector)
    end = (first * -1 + size) // width if blocks > 1 and size % block else None
    main: Stmt = For(vector, moved(body, {lane: at}), "vector")
    if plan.columns > 1:
        main = For(column, (main,), "unroll")
    result: list[Stmt] = [For(tile, (main,), end=end)] if tile.size else []
    rest: list[Stmt] = []
    start = size - size % width
    count, left = divmod(size % width, lanes)
    if count:
        each = named_axis(f"{lane.name}.r", count)
        at = Expr.of(each) * lanes + Expr.of(vector) + start
        rest.append(For(each, (For(vector, moved(body, {lane: at}), "vector"),)))
    if left:
        some = named_axis(f"{lane.name}.t", left)
        at = Expr.of(some) + (size - left)
        rest.append(For(some, moved(body, {lane: at}), "vector"))
    if rest and blocks > 1:
        last = Bound(Expr.of(named_axis(f"{lane.name}.o", blocks)), blocks - 1, blocks)
        rest = [If((last,), tuple(rest))]
    return (*result, *rest)


def moved(body: Sequence[Stmt], table: Mapping[Axis, Expr]) -> tuple[Stmt, ...]:
    """A copy of straight statements in which axes are expressions of others."""
    result: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Load():
                index, mask = stmt.index.substitute(table), _mask(stmt.mask, table)
                result.append(Load(stmt.result, stmt.buffer, index, mask, stmt.operands))
            case Store():
                index, mask = stmt.index.substitute(table), _mask(stmt.mask, table)
                result.append(
                    Store(
                        stmt.buffer, index, stmt.value, mask, stmt.fold, stmt.factor,
                        stmt.precision, stmt.operands,
                    )
                )  # fmt: skip
            case Let():
                attrs = dict(stmt.attrs)
                if stmt.op.name == "index":
                    attrs["index"] = attrs["index"].substitute(table)
                if stmt.op.name == "inside":
                    attrs["mask"] = _mask(attrs["mask"], table)
                result.append(Let(stmt.result, stmt.op, stmt.operands, attrs))
            case _:
                raise AssertionError(f"{stmt} is no straight statement")
    return tuple(result)


def _mask(mask: Sequence[Bound], table: Mapping[Axis, Expr]) -> tuple[Bound, ...]:
    moved_ = (Bound(b.expr.substitute(table), b.low, b.high) for b in mask)
    return tuple(b for b in moved_ if not b.always)
