"""Rules that follow from the traits of the op table: one for every op that has the trait."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

from bringup.dtypes import DType, f32, i32
from bringup.graph import Value
from bringup.ops.table import OpDef, Trait
from bringup.passes.rewrite import Family, Rule, in_order, made_by


def _family(
    trait: Trait,
    arity: int,
    suffix: str,
    doc: str,
    body: Callable[[OpDef], Callable[..., Any]],
    dtypes: tuple[DType, ...] = (f32, i32),
) -> Family:
    """A rule per op of that trait and number of operands, with an example in each of the dtypes
    that the op takes.
    """

    def make(op: OpDef) -> Rule | None:
        if trait not in op.traits or op.arity != arity:
            return None
        name = op.name + "_" if keyword.iskeyword(op.name) else op.name
        example = doc.replace("f(", f"{name}(")
        lines = [f"{example} where x: {d}[4], y: {d}[4]" for d in dtypes if d in op.dtypes]
        return Rule(f"{op.name}_{suffix}", "\n".join(lines), (op.name,), body(op))

    return Family(make)


def _commute(op: OpDef) -> Callable[..., Any]:
    def body(x: Value, y: Value, **attrs: Any) -> Value | None:
        swapped: Value | None = None if in_order(x, y) else op(y, x, **attrs)
        return swapped

    return body


def _involution(op: OpDef) -> Callable[..., Any]:
    def body(x: Value, **_: Any) -> Value | None:
        made = made_by(x, op.name)
        return made.operands[0] if made is not None else None

    return body


def _idempotent_unary(op: OpDef) -> Callable[..., Any]:
    return lambda x, **_: x if made_by(x, op.name) is not None else None


def _idempotent_binary(_op: OpDef) -> Callable[..., Any]:
    return lambda x, y, **_: x if x is y else None


def _absorb(op: OpDef) -> Callable[..., Any]:
    def body(x: Value, y: Value, **_: Any) -> Value | None:
        for outer, inner in ((x, y), (y, x)):
            made = made_by(inner, op.name)
            if made is not None and outer in made.operands:
                return inner
        return None

    return body


def _even(op: OpDef) -> Callable[..., Any]:
    def body(x: Value, **attrs: Any) -> Value | None:
        made = made_by(x, "neg", "abs")
        if made is None or made.op.name == op.name:
            return None
        if x.dtype.kind == "uint":
            return None  # -1 is the largest number, and its own absolute value
        even: Value = op(made.operands[0], **attrs)
        return even

    return body


def _reassociate(op: OpDef) -> Callable[..., Any]:
    exact_on_floats = Trait.IDEMPOTENT in op.traits  # picks one of its operands

    def body(x: Value, y: Value, **attrs: Any) -> Value | None:
        made = made_by(x, op.name)
        if made is None or y.literal is None or made.operands[1].literal is None:
            return None
        if x.dtype.is_float and not exact_on_floats:
            return None
        result: Value = op(made.operands[0], op(made.operands[1], y, **attrs), **attrs)
        return result

    return body


COMMUTE = _family(Trait.COMMUTATIVE, 2, "commuted", "f(y, x) -> f(x, y)", _commute)

RULES = (
    _family(Trait.INVOLUTION, 1, "twice", "f(f(x)) -> x", _involution),
    _family(Trait.IDEMPOTENT, 1, "again", "f(f(x)) -> f(x)", _idempotent_unary),
    _family(Trait.IDEMPOTENT, 2, "of_same", "f(x, x) -> x", _idempotent_binary),
    _family(Trait.IDEMPOTENT, 2, "absorbed", "f(x, f(x, y)) -> f(x, y)", _absorb),
    _family(Trait.EVEN, 1, "of_negated", "f(neg(x)) -> f(x)", _even),
    _family(
        Trait.ASSOCIATIVE,
        2,
        "of_constants",
        "f(f(x, 2), 5) -> f(x, f(2, 5))",
        _reassociate,
        (i32,),
    ),
)
