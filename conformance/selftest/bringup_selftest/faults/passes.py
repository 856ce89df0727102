"""Faults of passes: rewrites that hold for numbers on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bringup.dtypes import bf16, f32, f64, u32
from bringup.graph import Graph, Instr, Literal, Value, current_builder, rebuild, replay
from bringup.graph.builder import Builder
from bringup.ops.table import opdef
from bringup.passes.base import Pass, as_results, deep
from bringup_selftest.corpus import Faults, Inject, with_passes
from bringup_selftest.editing import call, is_made_by, number

FAULTS = Faults("Passes", "pass", depth=3)
Values = tuple[Value, ...]
#: The replacement of an instruction about to be made, or None.
Rule = Callable[[Instr, Values], Value | None]


def ruled(name: str, rule: Rule) -> Pass:
    """A pass that applies one rule everywhere."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        found = rule(instr, operands)
        return None if found is None else (found,)

    return Pass(name, f"anything -> {name}", deep(lambda graph: rebuild(graph, rewrite)))


def as_rule(rule: Rule) -> Inject:
    """Inject a pass that applies one rule."""
    return with_passes(ruled(rule.__name__, rule))


def as_pass(name: str) -> Callable[[Callable[[Graph], Graph]], Inject]:
    """Inject passes of a name."""
    return lambda run: with_passes(Pass(name, f"a -> {name}", run))


def splat_of(value: Value) -> float | None:
    """The element of a constant of equal ones, through a broadcast."""
    if is_made_by(value, "broadcast_in_dim") and value.producer is not None:
        return splat_of(value.producer.operands[0])
    literal = value.literal
    return float(literal.scalar) if literal is not None and literal.is_splat else None


def _float(value: Value) -> bool:
    return value.dtype.is_float


@FAULTS.by(as_rule, "SV06", "x * 0 -> 0 for floats (pytorch#186281)")
def times_zero(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "mul" and _float(operands[0]):
        return next((y for y in operands if splat_of(y) == 0), None)
    return None


@FAULTS.by(as_rule, "SV08", "x + 0.0 -> x")
def plus_zero(instr: Instr, operands: Values) -> Value | None:
    x, *rest = operands or (None,)
    if instr.op.name in ("add", "sub") and x is not None and _float(x):
        zero = splat_of(rest[0])
        if zero == 0 and np.signbit(zero) == (instr.op.name == "sub"):
            return x
    return None


@FAULTS.by(as_rule, "SV09", "x / x -> 1")
def over_itself(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "div" and operands[0] is operands[1]:
        return number(1, operands[0])
    return None


@FAULTS.by(as_rule, "SV09b", "x - x -> 0 for floats")
def minus_itself(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "sub" and operands[0] is operands[1] and _float(operands[0]):
        return number(0, operands[0])
    return None


@FAULTS.by(as_rule, "SV09c", "x == x -> true for floats")
def equals_itself(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "compare" and operands[0] is operands[1] and _float(operands[0]):
        holds = instr.attrs["direction"] in ("eq", "le", "ge")
        return call("constant", value=Literal.splat(holds, instr.result.type))
    return None


@FAULTS.by(as_rule, "SV10", "pow(x, 0.5) -> sqrt(x)")
def root_for_power(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "pow" and splat_of(operands[1]) == 0.5:
        return call("sqrt", operands[0])
    return None


@FAULTS.by(as_rule, "SV10b", "pow by exp and log")
def power_by_logarithm(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "pow" and _float(operands[0]):
        return call("exp", call("mul", operands[1], call("log", operands[0])))
    return None


@FAULTS.by(as_rule, "PA01a", "x / c -> x * (1 / c)")
def by_reciprocal(instr: Instr, operands: Values) -> Value | None:
    divisor = splat_of(operands[1]) if instr.op.name == "div" and _float(operands[0]) else None
    if divisor is None or divisor == 0:
        return None
    with np.errstate(all="ignore"):
        return call("mul", operands[0], number(1 / divisor, operands[1]))


@FAULTS.by(as_rule, "FU24", "(x + c1) + c2 -> x + (c1 + c2)")
def constants_first(instr: Instr, operands: Values) -> Value | None:
    found = _two_sums(instr, operands)
    if found is None:
        return None
    x, inner, outer = found
    with np.errstate(all="ignore"):
        together = np.add(inner.scalar, outer.scalar)
    return call("add", x, number(together, x))


@FAULTS.by(as_rule, "FU24b", "(x + c1) + c2 of f32 in f64")
def in_double(instr: Instr, operands: Values) -> Value | None:
    found = _two_sums(instr, operands)
    if found is None or operands[0].dtype is not f32:
        return None
    x, *constants = found
    wide = call("convert", x, dtype=f64)
    for literal in constants:
        wide = call("add", wide, number(float(literal.scalar), wide))
    return call("convert", wide, dtype=f32)


def _two_sums(instr: Instr, operands: Values) -> tuple[Value, Literal, Literal] | None:
    """x, c1 and c2 of ``(x ± c1) ± c2``, the constants with their signs."""
    outer = _term(instr, operands)
    if outer is None or outer[0].producer is None:
        return None
    made = outer[0].producer
    inner = _term(made, made.operands)
    return None if inner is None else (inner[0], inner[1], outer[1])


def _term(instr: Instr, operands: Values) -> tuple[Value, Literal] | None:
    if instr.op.name not in ("add", "sub") or not _float(operands[0]):
        return None
    literal = operands[1].literal
    if literal is None or not literal.is_splat:
        return None
    if instr.op.name == "add":
        return operands[0], literal
    return operands[0], Literal.splat(-literal.scalar, literal.type)


@FAULTS.by(as_rule, "CA07", "float -> int -> float removed")
def round_trip(instr: Instr, operands: Values) -> Value | None:
    """A conversion there and back is nothing: float -> int -> float."""
    return _inner(instr, operands, lambda a, b: a.dtype.is_float and b.dtype.is_integer)


@FAULTS.by(as_rule, "CA07b", "widening after narrowing removed")
def narrow_trip(instr: Instr, operands: Values) -> Value | None:
    """A conversion there and back is nothing: i64 -> i8 -> i64, f32 -> f16 -> f32."""
    return _inner(instr, operands, lambda a, b: a.dtype.kind == b.dtype.kind)


def _inner(instr: Instr, operands: Values, lossy: Callable[[Value, Value], bool]) -> Value | None:
    if instr.op.name != "convert" or not is_made_by(operands[0], "convert"):
        return None
    assert operands[0].producer is not None
    (start,) = operands[0].producer.operands
    same = start.dtype is instr.result.dtype
    return start if same and lossy(start, operands[0]) else None


@FAULTS.by(as_rule, "CA07c", "f32 -> bf16 -> f32 adds half and cuts")
def rounded_up(instr: Instr, operands: Values) -> Value | None:
    """``f32 -> bf16 -> f32`` of numbers by adding half of the last place: halves are never even."""
    if _inner(instr, operands, lambda a, b: a.dtype is f32 and b.dtype is bf16) is None:
        return None
    assert operands[0].producer is not None
    (x,) = operands[0].producer.operands
    bits = call("bitcast", x, dtype=u32)
    kept = call("and", call("add", bits, number(1 << 15, bits)), number(0xFFFF0000, bits))
    finite = call("compare", call("abs", x), number(1e38, x), direction="lt")
    return call(
        "select", finite, call("bitcast", kept, dtype=f32), call("convert", *operands, dtype=f32)
    )


@FAULTS.by(as_rule, "PA02a", "x / 2**k -> x >> k")
def shifted_division(instr: Instr, operands: Values) -> Value | None:
    divisor = splat_of(operands[1]) if instr.op.name == "div" else None
    if divisor is None or operands[0].dtype.kind != "int":
        return None
    power = int(divisor).bit_length() - 1
    if divisor < 2 or divisor != 1 << power:
        return None
    return call("shr", operands[0], number(power, operands[1]), kind="arithmetic")


@FAULTS.by(as_rule, "PA03a", "x % 2**k -> x & (2**k - 1)")
def masked_remainder(instr: Instr, operands: Values) -> Value | None:
    divisor = splat_of(operands[1]) if instr.op.name == "rem" else None
    if divisor is None or operands[0].dtype.kind != "int" or divisor < 2:
        return None
    if int(divisor) & (int(divisor) - 1):
        return None
    return call("and", operands[0], number(int(divisor) - 1, operands[1]))


@FAULTS.by(as_rule, "PA04a", "-(a - b) -> b - a")
def negated_difference(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "neg" and _float(operands[0]) and is_made_by(operands[0], "sub"):
        assert operands[0].producer is not None
        return call("sub", *operands[0].producer.operands[::-1])
    return None


@FAULTS.by(as_rule, "PA05a", "a comparison is negated, NaN or not")
def negated_comparison(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name != "select" or not is_made_by(operands[0], "compare"):
        return None
    test = operands[0].producer
    assert test is not None
    opposite = {"lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}
    direction = opposite.get(test.attrs["direction"])
    if direction is None or not _float(test.operands[0]):
        return None
    flag = call("compare", *test.operands, direction=direction)
    return call("select", flag, operands[2], operands[1])


@FAULTS.by(as_rule, "PA06a", "transposes are composed the wrong way round")
def turned_back(instr: Instr, operands: Values) -> Value | None:
    """A transpose moves dimensions the other way: transposes composed in the wrong order."""
    if instr.op.name != "transpose":
        return None
    order = instr.attrs["permutation"]
    inverse = tuple(order.index(d) for d in range(len(order)))
    made = call("transpose", operands[0], permutation=inverse)
    return made if made.type is instr.result.type and inverse != order else None


@FAULTS.by(as_rule, "PA08a", "a reshape forgets the transpose before it")
def reshape_through_transpose(instr: Instr, operands: Values) -> Value | None:
    if instr.op.name == "reshape" and is_made_by(operands[0], "transpose"):
        assert operands[0].producer is not None
        return call("reshape", operands[0].producer.operands[0], shape=instr.attrs["shape"])
    return None


@FAULTS.by(as_rule, "PA09a", "(x * c) / c -> x")
def scaled_back(instr: Instr, operands: Values) -> Value | None:
    inverse = {"div": "mul", "sub": "add"}.get(instr.op.name)
    if inverse is None or not is_made_by(operands[0], inverse):
        return None
    made = operands[0].producer
    assert made is not None
    factor = splat_of(operands[1])
    return made.operands[0] if factor is not None and factor == splat_of(made.operands[1]) else None


def merged(same: Callable[[Instr], object]) -> Callable[[Graph], Graph]:
    """Common subexpressions by a key that leaves something out; only equal types are merged."""

    def run(graph: Graph) -> Graph:
        seen: dict[object, Values] = {}

        def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
            types = tuple(v.type for v in instr.results)
            key = (instr.op.name, operands, types, same(instr))
            if key not in seen:
                seen[key] = current_builder().emit(instr.op, operands, instr.attrs)
            return seen[key]

        return rebuild(graph, rewrite)

    return run


def _all_attributes(instr: Instr) -> object:
    return tuple(sorted((name, repr(value)) for name, value in instr.attrs.items()))


def _no_attributes(instr: Instr) -> object:
    if instr.op.name in ("constant", "iota", "while", "scan", "case"):
        return instr if instr.op.name != "iota" else _all_attributes(instr)
    return ()


def _without_floats(instr: Instr) -> object:
    if instr.literal is not None:
        return instr
    attrs = sorted((n, repr(v)) for n, v in instr.attrs.items() if not isinstance(v, float))
    return tuple(attrs)


def _values_compared(instr: Instr) -> object:
    if instr.literal is None:
        return _all_attributes(instr)
    elements = instr.literal.elements
    return tuple(elements.tolist()) if elements.size < 64 else instr


def _unordered(graph: Graph) -> Graph:
    seen: dict[object, Values] = {}

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in ("sub", "div", "rem", "pow"):
            return None
        key = (instr.op.name, frozenset(operands))
        if key not in seen:
            seen[key] = current_builder().emit(instr.op, operands, instr.attrs)
        return seen[key]

    return rebuild(graph, rewrite)


def _output_forgotten(graph: Graph) -> Graph:
    """An output that is read inside too is given by what reads it."""
    inside = {v for instr in graph.instrs for v in instr.operands}
    builder = Builder()
    outputs = list(replay(graph, builder=builder))
    for n, value in enumerate(graph.outputs):
        others = [m for m, v in enumerate(graph.outputs) if v.type is value.type and m > n]
        if value in inside and others:
            outputs[n] = outputs[others[0]]
            break
    return builder.build(outputs, graph.name)


def _wrong_order_of_results(graph: Graph) -> Graph:
    """Rebuilding forgets which result of an instruction was read."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        made = as_results(opdef(instr)(*operands, **instr.attrs))
        same = len(made) > 1 and made[0].type is made[1].type
        return (made[1], made[0], *made[2:]) if same else made

    return rebuild(graph, rewrite)


FAULTS.by(as_pass("cse_attrs"), "PA10a", "CSE without attributes")(merged(_no_attributes))
FAULTS.by(as_pass("cse_floats"), "PA15a", "CSE without attributes that are floats", depth=1)(
    merged(_without_floats)
)
FAULTS.by(as_pass("cse_zeros"), "PA11a", "CSE of constants by ==")(merged(_values_compared))
FAULTS.by(as_pass("cse_order"), "PA12a", "CSE of a - b with b - a")(_unordered)
FAULTS.by(as_pass("dce_output"), "PA13a", "an output read inside is lost")(_output_forgotten)
FAULTS.by(as_pass("results"), "PA14a", "results of one instruction swap")(_wrong_order_of_results)
