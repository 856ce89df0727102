"""Random bits inside programs: made where they are used."""

from __future__ import annotations

from bringup.dtypes import bool_, u32
from bringup.graph import Value
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.growing import Growing

#: The generators, and the words of counter each takes.
_GENERATORS = (("threefry2x32", 2), ("philox4x32", 4))


def sampled(grow: Growing) -> Value | None:
    """A choice by random bits of each element's number, as dropout makes it."""
    x = grow.back(lambda v: v.dtype is not bool_ and bool(v.shape))
    if x is None:
        return None
    name, count = pick(grow.choices, _GENERATORS)
    type_ = x.type.with_dtype(u32)
    numbers = [
        grow.emit("iota", type=type_, dim=grow.choices.integer(0, len(x.shape) - 1)),
        *(grow.constant(type_, grow.choices.integer(0, 9)) for _ in range(count - 1)),
    ]
    key = [grow.constant(type_, grow.choices.integer(0, 1 << 20)) for _ in range(2)]
    word = grow.emit(name, *key, *numbers)
    kept = grow.emit("compare", word, grow.constant(type_, 3 << 30), direction="lt")
    return grow.emit("select", kept, x, grow.constant(x.type, 0))
