"""What fused bodies get wrong: operands, constants, attributes and offsets of another part.

Each function makes the rewrite of one stage's body.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import bf16, f16, f32, f64
from bringup.graph import Instr, Value
from bringup.graph.builder import Rewrite, current_builder
from bringup.graph.index import Axis, Expr
from bringup.kernel.form import Stage
from bringup_selftest.corpus import Faults
from bringup_selftest.editing import call, in_bodies, is_made_by, is_number, number

FAULTS = Faults("Fusion", "fus", depth=3)

Values = tuple[Value, ...]


@FAULTS.by(in_bodies, "FU10", "two shifted reads use one offset (tinygrad#9987)")
def one_offset(_stage: Stage) -> Rewrite:
    seen: dict[object, Value] = {}

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or operands:
            return None
        key = (instr.attrs["buffer"], instr.attrs["index"].terms)
        if key in seen:
            return (seen[key],)
        made = current_builder().emit(instr.op, operands, instr.attrs)
        seen[key] = made[0]
        return made

    return rewrite


@FAULTS.by(in_bodies, "FU11", "a joined chain has the other's constants")
def first_constants(_stage: Stage) -> Rewrite:
    """Where two chains are joined, the second computes with the first one's constant."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "select" or not is_made_by(operands[0], "inside"):
            return None
        first, second = (v.producer for v in operands[1:])
        if first is None or second is None:
            return None
        own = next((v for v in first.operands if is_number(v)), None)
        if own is None or not any(is_number(v) and v.type is own.type for v in second.operands):
            return None
        changed = [own if is_number(v) and v.type is own.type else v for v in second.operands]
        (wrong,) = current_builder().emit(second.op, changed, second.attrs)
        return current_builder().emit(instr.op, (*operands[:2], wrong), instr.attrs)

    return rewrite


@FAULTS.by(in_bodies, "FU12", "min next to max becomes max (hidet#90)")
def max_for_min(_stage: Stage) -> Rewrite:
    seen: list[Instr] = []

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("max", "min"):
            return None
        seen.append(instr)
        if instr.op.name == seen[0].op.name:
            return None
        return (call(seen[0].op.name, *operands),)

    return rewrite


@FAULTS.by(in_bodies, "FU12b", "comparisons take the first one's direction")
def one_direction(_stage: Stage) -> Rewrite:
    seen: list[str] = []

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "compare":
            return None
        seen.append(instr.attrs["direction"])
        return (call("compare", *operands, direction=seen[0]),)

    return rewrite


@FAULTS.by(in_bodies, "FU12c", "the upper bound of a clip is lost (hidet#97)")
def bounds_lost(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name == "clamp":
            return (call("max", operands[0], operands[1]),)
        if instr.op.name != "min" or not any(map(is_number, operands)):
            return None
        rest = [v for v in operands if not is_number(v)]
        return tuple(rest) if len(rest) == 1 and is_made_by(rest[0], "max") else None

    return rewrite


@FAULTS.by(in_bodies, "FU12d", "a counter runs along another axis")
def other_axis(stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "index":
            return None
        used = instr.attrs["index"].axes()
        same = [a for a in _axes_of(stage) if a not in used and {a.size} == {u.size for u in used}]
        if not same:
            return None
        table = dict.fromkeys(used, Expr.of(same[0]))
        attrs = {**instr.attrs, "index": instr.attrs["index"].substitute(table)}
        return current_builder().emit(instr.op, operands, attrs)

    return rewrite


def _axes_of(stage: Stage) -> list[Axis]:
    """Every axis that the stage's accesses name, in order."""
    exprs = [i.attrs["index"] for i in stage.body.instrs if i.op.name in ("load", "index")]
    exprs += [store.index for store in stage.stores]
    return sorted({a for e in exprs for a in e.axes()}, key=lambda a: a.id)


@FAULTS.by(in_bodies, "FU14", "x - c becomes c - x")
def swapped_with_constant(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("sub", "div", "rem", "pow") or not is_number(operands[1]):
            return None
        return current_builder().emit(instr.op, operands[::-1], instr.attrs)

    return rewrite


@FAULTS.by(in_bodies, "FU14b", "c - x becomes x - c")
def constant_first(_stage: Stage) -> Rewrite:
    """``c - x`` becomes ``x - c``: constants are put last whatever the op."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("sub", "div", "rem", "pow") or not is_number(operands[0]):
            return None
        return current_builder().emit(instr.op, operands[::-1], instr.attrs)

    return rewrite


@FAULTS.by(in_bodies, "FU13", "a vector is read at its first element (pypto#1723)")
def first_row(stage: Stage) -> Rewrite:
    """A vector that is read along one of several dimensions is read at its first element alone."""
    several = len(_axes_of(stage)) > 1

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or not several or instr.attrs["index"].axis is None:
            return None
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": Expr()})

    return rewrite


@FAULTS.by(in_bodies, "FU16", "a square neighbour is read in the transposed layout")
def one_layout(stage: Stage) -> Rewrite:
    plain: list[Expr] = [i.attrs["index"] for i in stage.loads() if not i.operands]

    def turned(expr: Expr) -> Expr | None:
        strides = sorted(c for _, c in expr.terms)
        square = len({a.size for a in expr.axes()}) == 1
        for other in plain if square else ():
            turned = other != expr and other.axes() == expr.axes()
            if turned and sorted(c for _, c in other.terms) == strides:
                return other
        return None

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or operands:
            return None
        other = turned(instr.attrs["index"])
        rising = [c for _, c in instr.attrs["index"].terms]
        if other is None or rising == sorted(rising):
            return None
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": other})

    return rewrite


@FAULTS.by(in_bodies, "FU18", "a product and a sum are rounded once")
def contracted(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("add", "sub") or operands[0].dtype is not f32:
            return None
        if not any(is_made_by(v, "mul") for v in operands):
            return None
        parts = [_exact(v) for v in operands]
        return (call("convert", call(instr.op.name, *parts), dtype=f32),)

    return rewrite


def _exact(value: Value) -> Value:
    """A product of f32 as f64, where it is exact."""
    if is_made_by(value, "mul") and value.producer is not None:
        return call("mul", *(call("convert", v, dtype=f64) for v in value.producer.operands))
    return call("convert", value, dtype=f64)


@FAULTS.by(in_bodies, "FU29a", "f16 and bf16 intermediates are not rounded")
def kept_wide(_stage: Stage) -> Rewrite:
    wide: dict[Value, Value] = {}

    def widened(value: Value) -> Value:
        return wide.get(value) or call("convert", value, dtype=f32)

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        names = ("add", "sub", "mul", "div", "neg", "exp", "sqrt", "sin", "tanh", "logistic")
        if instr.op.name not in names or instr.result.dtype not in (f16, bf16):
            return None
        exact = call(instr.op.name, *map(widened, operands))
        rounded = call("convert", exact, dtype=instr.result.dtype)
        wide[rounded] = exact
        return (rounded,)

    return rewrite


@FAULTS.by(in_bodies, "FU30a", "0.0 and -0.0 are one constant")
def zeros_merged(_stage: Stage) -> Rewrite:
    seen: list[Value] = []

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.literal is None:
            return None
        for value in seen:
            assert value.literal is not None
            equal = value.literal.scalar == instr.literal.scalar
            if equal and value.type is instr.result.type:
                return (value,)
        made = current_builder().emit(instr.op, operands, instr.attrs)
        seen.append(made[0])
        return made

    return rewrite


@FAULTS.by(in_bodies, "FU27a", "a start wraps round instead of being clamped")
def not_clamped(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or not operands:
            return None
        starts = [_wrapped(v) for v in operands]
        return current_builder().emit(instr.op, starts, instr.attrs)

    return rewrite


def _wrapped(value: Value) -> Value:
    made = value.producer
    if made is None or made.op.name != "min" or not is_number(made.operands[1]):
        return value
    last = made.operands[1]
    assert last.literal is not None
    if last.literal.scalar == 0:
        return value
    return call("rem", made.operands[0], call("add", last, number(1, last)))


@FAULTS.by(in_bodies, "FU28a", "a gather uses another gather's indices")
def other_indices(_stage: Stage) -> Rewrite:
    seen: list[Values] = []

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or not operands:
            return None
        seen.append(operands)
        first = seen[0]
        if len(first) < len(operands):
            return None
        kept = []
        for mine, other in zip(operands, first, strict=False):
            made = mine.producer
            last = made.operands[-1] if made is not None and made.op.name == "min" else mine
            fits = is_number(last) and other.type is mine.type
            kept.append(call("min", other, last) if fits else mine)
        return current_builder().emit(instr.op, kept, instr.attrs)

    return rewrite


@FAULTS.by(in_bodies, "FU34a", "padding is zero whatever its value")
def lost_edge(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "select" or not is_made_by(operands[0], "inside"):
            return None
        if not is_made_by(operands[2], "constant", "load") or operands[2] is operands[1]:
            return None
        edge = operands[2].producer
        if edge is None or edge.attrs.get("index", Expr()) != Expr():
            return None
        return (call("select", operands[0], operands[1], number(0, operands[2])),)

    return rewrite


@FAULTS.by(in_bodies, "FU35a", "a reversed read goes forwards")
def forward_only(_stage: Stage) -> Rewrite:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name != "load" or operands:
            return None
        expr: Expr = instr.attrs["index"]
        if not any(c < 0 for _, c in expr.terms):
            return None
        const = expr.const + sum(c * a.last for a, c in expr.terms if c < 0)
        forward = Expr(const)
        for atom, c in expr.terms:
            forward = forward + Expr.of(atom) * abs(c)
        return current_builder().emit(instr.op, operands, {**instr.attrs, "index": forward})

    return rewrite


@FAULTS.by(in_bodies, "FU36a", "relu of NaN is its constant")
def numbers_over_nan(_stage: Stage) -> Rewrite:
    """A maximum with a constant is a comparison and a choice, which loses NaN."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("max", "relu") or not operands[0].dtype.is_float:
            return None
        x, *rest = operands
        least = rest[0] if rest else number(0, x)
        if not is_number(least):
            return None
        return (call("select", call("compare", x, least, direction="gt"), x, least),)

    return rewrite
