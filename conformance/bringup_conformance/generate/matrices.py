"""Operand types and attributes of the rows of linear algebra and of Fourier transforms: sizes
around the lengths at which loops, blocks and factors change, stacks of matrices, empty matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bringup.ops.table import OpDef
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import chance, pick
from bringup_conformance.generate.drawing import Drawing, Make, Maker, instance

#: Singular matrices, graded ones and all of one value are among them.
ENTRIES = ("signed", "small", "ramp", "ties", "onehot", "constant", "positive")
SPECTRA = ("orthogonal", "signed", "small", "onehot", "constant", "ramp")


def _instance(shapes: list[tuple[int, ...]], attrs: dict[str, Any], draw: Drawing) -> Instance:
    return instance([draw.dtype[s] for s in shapes], attrs, ENTRIES)


def _sizes(draw: Drawing) -> list[int]:
    """Short and long loops, a block and one more: all on the main dtype, on the others every
    second, in turn.
    """
    w = draw.vector
    sizes = [1, 2, 5, 9] if draw.few else [1, 2, 5, 8, 9, w + 1, 2 * w + 3, 70]
    return sizes if draw.main else sizes[draw.offset % 2 :: 2]


def square(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Square matrices, alone and in stacks, with each flag of the row."""
    for n in _sizes(draw):
        yield _instance([(n, n)], {}, draw)
        for flag in row.attrs:
            yield _instance([(n, n)], {flag.name: not flag.default}, draw)
    for shape in ((3, 4, 4), (0, 0), (0, 3, 3)):
        yield _instance([shape], {}, draw)
    if not draw.few:
        yield _instance([(2, 3, 9, 9)], {}, draw)
        yield _instance([(2, 0, 0)], {}, draw)
        yield _instance([(draw.vector + 1, 3, 3)], {}, draw)
        yield _instance([(150, 150)], {}, draw)


def triangular(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Every way to place and read the triangle."""
    names = ("left", "lower", "transpose", "unit")
    sizes = _sizes(draw)
    for number in range(0, 16, 3) if draw.few else range(16):
        attrs = {name: bool(number >> i & 1) for i, name in enumerate(names)}
        n, m = sizes[number % len(sizes)], pick(draw.choices, (1, 2, 3, draw.vector + 1))
        stack = pick(draw.choices, ((), (), (3,), (2, 2)))
        b = (n, m) if attrs["left"] else (m, n)
        yield _instance([(*stack, n, n), (*stack, *b)], attrs, draw)
    empty: list[list[tuple[int, ...]]]
    empty = [[(0, 0), (0, 2)], [(3, 3), (3, 0)], [(0, 2, 2), (0, 2, 2)]]
    for pair in empty:
        yield _instance(pair, {}, draw)
    if not draw.few:
        yield _instance([(150, 150), (150, 37)], {}, draw)
        yield _instance([(150, 150), (37, 150)], {"left": False, "lower": False}, draw)
    assert row.arity == 2


def oblong(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Tall, square and wide matrices, with each flag of the row."""
    flags = [a.name for a in row.attrs]
    w = draw.vector
    shapes: list[tuple[int, ...]] = [(n, n) for n in _sizes(draw)]
    shapes += [(4, 3), (3, 7), (2, 5, 4), (3, 0), (0, 2)]
    if not draw.few:
        shapes += [(7, 3), (6, 1), (1, 6), (2, 2, 3, 9), (0, 2, 2)]
        shapes += [(2 * w + 5, 3), (4, w + 3), (40, 12), (150, 90), (90, 150)]
    for number, shape in enumerate(shapes):
        chosen = {flag: bool(number >> i & 1) for i, flag in enumerate(flags)}
        yield _instance([shape], chosen, draw)


def _moderate(make: Make) -> Make:
    """Rows that take many sweeps over a matrix: none of the larger ones."""

    def maker(row: OpDef, draw: Drawing) -> Iterator[Instance]:
        limit = 5 if draw.few else 9
        for each in make(row, draw):
            if max(each.operands[0].shape[-2:]) <= limit:
                yield replace(each, kinds=SPECTRA)
        # Whether steps on equal values come to an end is a matter of luck for each matrix.
        stack = (16, 3, 3) if draw.few else (64, 5, 5)
        yield instance([draw.dtype[stack]], {}, ("orthogonal",))

    return maker


def transforms(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Lengths that are powers, products, primes, and primes past what a matrix transforms."""
    choices = draw.choices
    lengths = [0, 1, 2, 3, 16, 17, 60, 61, 64, 67, pick(choices, (96, 100, 210)), 2 * 67]
    if not draw.few:
        lengths += [pick(choices, (251, 289, 509)), 1024, pick(choices, (1000, 1155, 2048))]
    for n in lengths:
        stack = (2,) if chance(choices, 1, 3) else ()
        yield instance([draw.dtype[(*stack, n)]] * 2, {}, _LINES)
    yield instance([draw.dtype[3, 2, 12]] * 2, {}, _LINES)
    yield instance([draw.dtype[0, 4]] * 2, {}, _LINES)


_LINES = ("signed", "small", "positive", "onehot", "ties", "constant")

MAKERS = {
    "cholesky": Maker(square, longest=8),
    "triangular_solve": Maker(triangular, longest=8),
    "lu": Maker(oblong, longest=8),
    "qr": Maker(oblong, longest=8),
    "eigh": Maker(_moderate(square), longest=6),
    "svd": Maker(_moderate(oblong), longest=6),
    "fft": Maker(transforms, longest=13),
}
