"""Sorts and running folds: operand types and attributes, and steps of programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.dtypes import f32, i8, i32, i64
from bringup.graph import Value
from bringup.ops.table import OpDef
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import chance, pick
from bringup_conformance.generate.drawing import FOLDS, Drawing, Maker, instance
from bringup_conformance.generate.sizes import LARGE

if TYPE_CHECKING:
    from bringup_conformance.generate.program_builder import ProgramBuilder

EXTREMES = (
    "negative", "near", "signed", "ties", "special", "onehot", "falling", "nans", "extremes",
)  # fmt: skip
KEYS = (
    "near", "special", "nans", "ties", "ramp", "falling", "constant", "signed", "wide", "extremes",
)  # fmt: skip
#: Elements times the length of the dimension of a running fold in a random program.
_MOST_FOLDED = 1 << 22


# -- instances -------------------------------------------------------------------------------------


def sort(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Lines long and short, apart and together; payloads; several keys."""
    dtype, w, block = draw.dtype, draw.vector, draw.shapes.block
    if draw.few:
        # Without sorts of its own a device runs a network, of ten instructions a step.
        sites = [((7,), 0), ((3, 9), 1), ((9, 2), 0), ((0, 3), 0), ((4, 4), 0)]
        sites += [((2, 17), 1)] if dtype is f32 else []
    else:
        sites = [((w + 1,), 0), ((5, 2 * w + 3), 1), ((2 * w + 1, 3), 0), ((0, 3), 0)]
        sites += [
            ((2, 7, w + 1), 1),
            ((w * w + 1,), 0),
            ((1, 1), 1),
            ((w, w), draw.offset // 2 % 2),
        ]
        # Whole vectors, but no power of two of them.
        sites += [((2 * w, 3 * w), 1)]
        sites += [((block + 1,), 0), ((3, 2 * block - 1), 1), ((block, 3), 0)]
        # What one block sorts has to be merged with what others do.
        sites += [((LARGE[0],), 0), ((2, 2 * LARGE[0] - 1), 1)] if dtype in (f32, i32) else []
    for number, (shape, dim) in enumerate(sites):
        # Other dtypes are sorted at every site too, but either alone or with what moves along.
        ways = (0, 1) if draw.main else ((number + draw.offset) % 2,)
        for way in ways:
            down = (number // 2 + way + draw.offset // 2) % 2
            attrs = {"dim": dim, "descending": bool(down)}
            if way:
                yield instance([dtype[shape], i32[shape]], attrs, ("ties", *KEYS))
            else:
                yield instance([dtype[shape]], attrs, KEYS)
    # Blocks of a cache, whose records may keep no NaN and no sign of zero; and lines of floats
    # that are sorted digit by digit, where none comes behind all others in each digit.
    falling = {True} if dtype.is_float and not draw.few else set()
    if draw.far:
        falling |= {False, True} if draw.main else {bool(draw.offset % 2)}
    for down in sorted(falling):
        attrs = {"dim": 0, "descending": down}
        yield replace(instance([dtype[LARGE[2]]], attrs, ("nans", "special")), far=True)
    shape = (3, 5) if draw.few else draw.shape(2)
    attrs_drawn = {"dim": draw.choices.integer(0, 1), "descending": chance(draw.choices, 1, 2)}
    yield instance([dtype[shape], f32[shape], dtype[shape]], attrs_drawn, KEYS)
    yield instance([i8[shape], dtype[shape], i64[shape]], {**attrs_drawn, "num_keys": 2}, ("ties",))
    yield instance(
        [dtype[shape], i32[shape]], {**attrs_drawn, "num_keys": 2}, ("ties", "nans", "special")
    )


def cumulative(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Every fold both ways, along dimensions of each kind."""
    w, block = draw.vector, draw.shapes.block
    sites = [
        ((w + 1,), 0),
        ((3, 2 * w + 1), 1),
        ((2 * w + 1, 5), 0),
        ((2, 5, w - 1), 1),
        ((4 * w + 3, w + 1), 0),
        ((0, 3), 0),
        ((block + 1,), 0),
    ]
    (kinds,) = (attr.choices for attr in row.attrs if attr.name == "kind")
    for kind in kinds:
        data = FOLDS.get(kind, EXTREMES)
        for number in range(1 if draw.few else 4):
            shape, dim = sites[(2 * number + draw.choices.integer(0, 1)) % len(sites)]
            attrs = {"kind": kind, "dim": dim, "reverse": chance(draw.choices, 1, 2)}
            yield instance([draw.dtype[shape]], {**attrs, "exclusive": bool(number % 2)}, data)
        rank = draw.choices.integer(2, 4)
        attrs_drawn = {"kind": kind, "dim": draw.choices.integer(0, rank - 1)}
        yield instance([draw.dtype[draw.shape(rank)]], attrs_drawn, data)
        if kind in ("add", "max") and draw.dtype in (f32, i32):
            # Blocks of several hundred elements pass their results to the next ones.
            yield instance([draw.dtype[LARGE[0]]], {"kind": kind, "dim": 0}, data)


# -- steps -----------------------------------------------------------------------------------------


def ordered(program: ProgramBuilder, x: Value) -> Value | None:
    """A sort, alone or with what moves along."""
    attrs = {
        "dim": program.choices.integer(0, len(x.shape) - 1),
        "descending": chance(program.choices, 1, 2),
    }
    if chance(program.choices, 1, 2):
        return program.emit("sort", x, **attrs)
    other = program.find(lambda v: v.shape == x.shape and v is not x)
    return program.emit("sort", x, program.partner(x) if other is None else other, **attrs)


def running(program: ProgramBuilder, x: Value) -> Value | None:
    """A running fold."""
    # What is allowed is quadratic in the dimension.
    dims = [d for d, n in enumerate(x.shape) if n * x.type.size <= _MOST_FOLDED]
    if not dims:
        return None
    return program.emit(
        "cumulative",
        x,
        kind=pick(program.choices, ("add", "max", "min", "add", "mul")),
        dim=pick(program.choices, dims),
        reverse=chance(program.choices, 1, 3),
        exclusive=chance(program.choices, 1, 4),
    )


MAKERS = {"sort": Maker(sort), "cumulative": Maker(cumulative)}
