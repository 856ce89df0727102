"""Operand types and attributes of products: small ones at every boundary, and products as users run
them, past each tile, block and cache, in every layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bringup.backend.capabilities import Shapes
from bringup.dtypes import f32, i32, u32
from bringup.integers import ceil_div
from bringup.ops.table import OpDef
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.drawing import Drawing, Maker, instance
from bringup_conformance.generate.sizes import LARGE

Shape = tuple[int, ...]
Pairs = tuple[Shape, Shape]
#: Two operands, dimensions of batches, and contracted dimensions.
Site = tuple[Shape, Shape, Pairs, Pairs]
#: Rows, columns and contracted indices.
Sizes = tuple[int, int, int]

#: Larger than what a core keeps near: all sides long, and one side very long.
_LARGEST: tuple[Sizes, ...] = ((337, 353, 389), (3001, 35, 389))
#: Of `laid_out`.
LAYOUTS = 7
_NONE: Pairs = ((), ())
_PLAIN: Pairs = ((1,), (0,))
DATA = ("small", "signed", "ramp", "special")
#: Whole numbers, whose sums are exact in any order, meet numbers of full significands.
_FAR_DATA = ("small", "small", "signed")


def far(shapes: Shapes) -> Sizes:
    """Ragged sizes past a few tiles, contracted past usual blocks and the longest declared one."""
    return 97, 131, 4 + max((257, *shapes.contraction))


def boundaries(shapes: Shapes, offset: int) -> list[Sizes]:
    """Below, at and above each declared length, as rows, columns and contracted indices in turn;
    then as many multiplications as are declared, some fewer and some more.

    >>> boundaries(Shapes(contraction=(8,)), 0)
    [(7, 8, 9), (8, 9, 7), (9, 7, 8)]
    """
    values = [n + d for n in shapes.contraction for d in (-1, 0, 1)]
    count = len(values)
    step = 1 + offset % (count - 1) if values else 0
    sizes = [(values[i], values[(i + step) % count], values[i - step]) for i in range(count)]
    if shapes.products:
        side = round(shapes.products ** (1 / 3))
        depth = ceil_div(shapes.products, side**2)
        sizes += [(side, side, depth + d) for d in (-1, 0, 1)]
    return sizes


def beyond(shapes: Shapes) -> Sizes:
    """A flat product of as many multiplications as are declared, or a few more.

    >>> beyond(Shapes(products=576))
    (12, 12, 4)
    """
    side = round((3 * shapes.products) ** (1 / 3))
    return side, side, ceil_div(shapes.products, side**2)


def laid_out(sizes: Sizes, layout: int) -> Site:
    """A product of these sizes: both operands either way round, batched, over two dimensions, and
    with no dimension of the product next to each other in memory.
    """
    m, n, k = sizes
    pieces = (3, ceil_div(k, 3))
    return (
        ((m, k), (k, n), _NONE, _PLAIN),
        ((m, k), (n, k), _NONE, ((1,), (1,))),
        ((k, m), (k, n), _NONE, ((0,), (0,))),
        ((k, m), (n, k), _NONE, ((0,), (1,))),
        ((m, 2, k), (2, n, k), ((1,), (0,)), ((2,), (2,))),
        ((m, *pieces), (pieces[0], n, pieces[1]), _NONE, ((1, 2), (0, 2))),
        ((ceil_div(m, 5), k, 5, 2), (k, n, 2), ((3,), (2,)), ((1,), (0,))),
    )[layout % LAYOUTS]


def _small(w: int) -> Iterator[Site]:
    yield (5, 7), (7, 3), _NONE, _PLAIN
    yield (w + 1, 33), (33, w - 1), _NONE, _PLAIN
    yield (w, w), (w, w), _NONE, _PLAIN
    yield (2, 3, 65), (2, 65, 4), ((0,), (0,)), ((2,), (1,))
    yield (67, 4), (67, 5), _NONE, ((0,), (0,))
    yield (LARGE[0],), (LARGE[0],), _NONE, ((0,), (0,))
    yield (3, 0), (0, 2), _NONE, _PLAIN
    yield (4, 9), (6, 9), _NONE, ((1,), (1,))
    yield (2, 3), (5,), _NONE, _NONE
    yield (2, 3, 5, 7), (2, 7, 5, 11), ((0,), (0,)), ((2, 3), (2, 1))
    yield (5, 5, 5), (5, 5, 5), _NONE, ((1, 2), (2, 1))
    yield (5, 5, 5), (5, 5, 5), ((1,), (2,)), ((2,), (0,))


def _far(draw: Drawing) -> Iterator[Site]:
    """All boundaries and layouts for f32; a boundary or a layout, alternately, for other dtypes."""
    offset, limits = draw.offset, boundaries(draw.shapes, draw.offset)
    whole = draw.dtype is f32 and not draw.few
    if not whole:
        limits = [pick(draw.choices, limits)] if limits and offset % 2 else []
    for number, sizes in enumerate(limits):
        yield laid_out(sizes, offset + number)
    if whole or not (limits or draw.few):
        for layout in range(LAYOUTS) if whole else (offset,):
            yield laid_out(far(draw.shapes), layout)
    if draw.few and draw.shapes.products and draw.dtype.is_float and draw.dtype.bits == 16:
        yield laid_out(beyond(draw.shapes), offset % 4)
    if draw.far:
        for number, sizes in enumerate(_LARGEST if whole else (_LARGEST[offset % 2],)):
            yield laid_out(sizes, offset % 4 + number)


def dot(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Small products, those with wider results or less precision, then far ones."""
    dtype = draw.dtype
    sites = list(_small(draw.vector))
    for site in sites:
        yield _instance(draw, site, DATA)
    wide: Site
    result = {"i8": i32, "u8": u32, "f16": f32, "bf16": f32}.get(dtype.name)
    if result is not None:
        wide = ((5, 70), (70, 3), _NONE, _PLAIN)
        yield _instance(draw, wide, DATA[:3], result=result)
        # Sums of products of one sign go past 16 bits.
        yield _instance(draw, wide, ("negative", "positive"), result=result)
    if dtype is f32:
        for site in sites[1:5]:
            yield _instance(draw, site, DATA, precision="tf32")
    for site in _far(draw):
        yield replace(_instance(draw, site, _FAR_DATA), far=True)
    if result is not None and draw.far:
        wide = laid_out(far(draw.shapes), draw.offset + 1)
        yield replace(_instance(draw, wide, _FAR_DATA, result=result), far=True)


def _instance(draw: Drawing, site: Site, kinds: tuple[str, ...], **attrs: Any) -> Instance:
    lhs, rhs, batch, contract = site
    attrs = {"batch": batch, "contract": contract, **attrs}
    return instance([draw.dtype[lhs], draw.dtype[rhs]], attrs, kinds)


MAKERS = {"dot_general": Maker(dot, longest=0)}
