"""Operand types and attributes of the rows of networks: windows at every boundary, norms by
feature, attention, products with blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bringup.dtypes import f32, i32
from bringup.graph import Value
from bringup.ops.table import OpDef
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.drawing import NORMS, Drawing, Maker, instance

if TYPE_CHECKING:
    from bringup_conformance.generate.program_builder import ProgramBuilder

PRODUCTS = ("small", "signed", "ramp", "special")
FOLDS = {"add": ("small", "signed", "large", "ramp", "special")}
EXTREMES = ("negative", "near", "signed", "ties", "special", "nans", "extremes")


def convolution(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Fixed forms that everybody uses, then drawn ones."""
    dtype, w = draw.dtype, draw.vector
    last = {"lhs_dims": (0, 3, 1, 2), "rhs_dims": (3, 2, 0, 1), "out_dims": (0, 3, 1, 2)}
    around = {"lo": (1, 1), "hi": (1, 1)}
    yield instance([dtype[1, 2, 6, w + 2], dtype[3, 2, 3, 3]], around, PRODUCTS)
    yield instance([dtype[2, 5, 4, 3], dtype[3, 3, 3, w + 1]], {**last, **around}, PRODUCTS)
    yield instance([dtype[1, 3, 2 * w + 1], dtype[2, 3, 1]], {}, PRODUCTS)
    yield instance([dtype[1, w, 5], dtype[w, 1, 3]], {"groups": w}, PRODUCTS)
    yield instance([dtype[1, 1, 3, 4, 5], dtype[2, 1, 2, 2, 2]], {}, PRODUCTS)
    yield instance([dtype[1, 2, 0], dtype[3, 2, 2]], {"lo": (2,), "hi": (1,)}, PRODUCTS)
    yield instance([dtype[1, 2, 2], dtype[3, 2, 3]], {}, PRODUCTS)  # no window fits
    wide = {"i8": i32, "f16": f32, "bf16": f32}.get(dtype.name)
    if wide is not None:
        yield instance([dtype[1, 9, w], dtype[2, 9, 3]], {"result": wide}, PRODUCTS[:3])
    if dtype is f32:
        less = {**around, "precision": "tf32"}
        yield instance([f32[2, 3, 6, w + 2], f32[5, 3, 3, 3]], less, PRODUCTS)
    for _ in range(3 if draw.few else 10):
        yield _drawn_convolution(draw)
    if draw.far:
        steps: dict[str, Any] = {"strides": (2, 1), "rhs_dilation": (1, 2)}
        image, kernel = (2, 17, 23, 29), (33, 17, 3, 3)
        yield instance([dtype[image], dtype[kernel]], around, PRODUCTS[:2], far=True)
        image, kernel = (2, 23, 29, 17), (33, 3, 3, 17)
        steps |= {**last, "rhs_dims": (0, 3, 1, 2)}
        yield instance([dtype[image], dtype[kernel]], steps, PRODUCTS[:2], far=True)


def _drawn_convolution(draw: Drawing) -> Instance:
    choices, rank = draw.choices, draw.choices.integer(1, 3)

    def each(*values: int) -> tuple[int, ...]:
        return tuple(pick(choices, values) for _ in range(rank))

    def order() -> tuple[int, ...]:
        left = list(range(rank + 2))
        return tuple(left.pop(choices.integer(0, len(left) - 1)) for _ in range(rank + 2))

    groups, in_features, out_features = (choices.integer(1, 3) for _ in range(3))
    sizes = each(0, 1, 3, 5, draw.vector + 1 if rank == 1 else 6)
    dims = order(), order()
    attrs: dict[str, Any] = {
        "strides": each(1, 1, 2, 3),
        "lo": each(-1, 0, 1, 3),
        "hi": each(-1, 0, 1, 3),
        "lhs_dilation": each(1, 1, 2, 3),
        "rhs_dilation": each(1, 1, 2, 3),
        "lhs_dims": dims[0],
        "rhs_dims": dims[1],
        "out_dims": order(),
        "groups": groups,
    }
    lhs = dict(zip(dims[0], (2, groups * in_features, *sizes), strict=True))
    window = each(1, 2, 3)
    rhs = dict(zip(dims[1], (groups * out_features, in_features, *window), strict=True))
    shapes = [tuple(table[d] for d in range(rank + 2)) for table in (lhs, rhs)]
    # Whether infinities meet the zeros between elements of lhs is not specified.
    kinds = PRODUCTS if set(attrs["lhs_dilation"]) == {1} else PRODUCTS[:3]
    return instance([draw.dtype[shape] for shape in shapes], attrs, kinds)


def reduce_window(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Pooling as everybody does it, then drawn windows."""
    dtype, w = draw.dtype, draw.vector
    for kind in ("add", "max", "min"):
        data = FOLDS.get(kind, EXTREMES)
        plain = {"kind": kind, "window": (1, 1, 2, 2), "strides": (1, 1, 2, 2)}
        yield instance([dtype[1, 2, 4, 2 * w]], plain, data)
        last = {"kind": kind, "window": (1, 3, 3, 1), "lo": (0, 1, 1, 0), "hi": (0, 1, 1, 0)}
        yield instance([dtype[2, 4, 3, w + 1]], last, data)
        yield instance([dtype[0]], {"kind": kind, "window": (2,), "lo": (1,), "hi": (2,)}, data)
        for _ in range(1 if draw.few else 3):
            rank = draw.choices.integer(1, 4)

            def each(*values: int, rank: int = rank) -> tuple[int, ...]:
                return tuple(pick(draw.choices, values) for _ in range(rank))

            attrs = {
                "kind": kind,
                "window": each(1, 2, 3),
                "strides": each(1, 2, 3),
                "lo": each(-1, 0, 1, 2),
                "hi": each(-1, 0, 1, 2),
                "dilation": each(1, 1, 2),
            }
            yield instance([dtype[each(1, 3, 5, w + 1 if rank < 3 else 4)]], attrs, data)


def by_feature(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Features second and last."""
    w = draw.vector
    for shape, dim in (((2, 6, w + 1), 1), ((3, 2, 5, 6), 3), ((4, 6, 3, 5), 1), ((5, w), 1)):
        features = draw.dtype[shape[dim]]
        attrs = {"dim": dim}
        if any(attr.name == "groups" for attr in row.attrs):
            attrs["groups"] = pick(draw.choices, (1, 2, 3)) if shape[dim] == 6 else 1
        yield instance([draw.dtype[shape], features, features], attrs, NORMS)


def attention(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """One query and many, the past alone, biases that stretch."""
    dtype, w = draw.dtype, draw.vector
    for lead, queries, keys, depth, values, bias, causal in (
        ((2, 2), 5, w + 1, 4, 3, None, False),
        ((2, 2), w + 1, w + 1, w, 4 * w, None, True),
        ((3,), 1, 2 * w + 3, 8, w + 1, None, True),
        ((2, 3), 4, 7, 3, 5, (1, 3, 4, 7), False),
        ((1, 2), 3, w, 4, 4, (1, 1, 1, w), True),
        ((), 4, 0, 2, 3, None, False),
        ((), 0, 4, 2, 3, None, False),
        ((), 5, w + 1, 130, 12, None, False),
        ((), 33, 70, 16, 16, None, False),
    ):
        types = [
            dtype[*lead, queries, depth],
            dtype[*lead, keys, depth],
            dtype[*lead, keys, values],
        ]
        if bias is not None:
            types.append(dtype[bias])
        attrs: dict[str, Any] = {"scale": depth**-0.5, "causal": causal}
        yield instance(types, attrs, ("signed", "small"))
        if draw.dtype is f32 and queries > 1 and keys > 1:
            yield instance(types, {**attrs, "precision": "tf32"}, ("signed", "small"))
    if draw.far:
        # Past a few blocks of keys and of queries, none of them whole.
        far = (dtype[2, 97, 37], dtype[2, 149, 37], dtype[2, 149, 45])
        attrs = {"scale": 0.125, "causal": bool(draw.offset % 2)}
        yield instance(far, attrs, ("signed", "small"), far=True)


def block_sparse_dot(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Rows of x, block rows and columns, blocks: whole vectors and parts, one row, no block."""
    dtype, w = draw.dtype, draw.vector
    for lead, down, across, (count, height, width) in (
        ((5,), 3, 4, (7, 4, w)),
        ((2, 3), 4, 3, (5, 2, 3)),
        ((w + 1,), 4, 5, (9, 1, 1)),
        ((), 3, 2, (4, 2, 2 * w)),
        ((13,), 4, 3, (9, 5, w + 1)),
        ((2,), 5, 2, (6, 3, 5 * w)),
        ((3,), 2, 2, (0, 2, 2)),
        ((0,), 2, 2, (3, 2, 2)),
        ((3,), 0, 2, (3, 2, 2)),
    ):
        positions = i32[count]
        types = [dtype[*lead, down * height], dtype[count, height, width], positions, positions]
        yield instance(types, {"features": across * width}, PRODUCTS[:3])
        if dtype is f32 and count and lead == (5,):
            less = {"features": across * width, "precision": "tf32"}
            yield instance(types, less, PRODUCTS[:3])
    if draw.far:
        # Many tiles of rows; sums that are too long to be added up one by one.
        for rows, down, across, (count, height, width) in (
            (97, 5, 5, (19, 37, 45)),
            (2, 2, 3, (5, 4200, w)),
        ):
            positions = i32[count]
            types = [dtype[rows, down * height], dtype[count, height, width], positions, positions]
            yield instance(types, {"features": across * width}, PRODUCTS[:2], far=True)


def resize(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Sizes that grow, shrink, and do both, dividing each other or not."""
    dtype, w = draw.dtype, draw.vector
    for method in ("nearest", "linear", "cubic"):
        for shape, target in (
            ((1, 2, 4, w), (1, 2, 8, 2 * w)),
            ((2, 2 * w, 6), (2, w, 3)),
            ((w + 1, 7), (5, 2 * w + 1)),
            ((3, 0), (5, 0)),
        ):
            for antialias in (False, True):
                attrs = {"shape": target, "method": method, "antialias": antialias}
                yield instance([dtype[shape]], attrs, ("signed", "ramp", "special"))


def pooled(program: ProgramBuilder, x: Value) -> Value | None:
    """Windows along the last dimension, folded."""
    choices, ahead = program.choices, len(x.shape) - 1
    kinds = ("max", "add", "min")
    return program.emit(
        "reduce_window",
        x,
        kind=pick(choices, kinds),
        window=(*(1,) * ahead, choices.integer(2, 3)),
        strides=(*(1,) * ahead, choices.integer(1, 2)),
        lo=(*(0,) * ahead, choices.integer(0, 1)),
        hi=(*(0,) * ahead, choices.integer(-1, 1)),
    )


def convolved(program: ProgramBuilder, x: Value) -> Value | None:
    """A matrix as features of a line, convolved with a new input, perhaps back at its size."""
    features, out_features, size = x.shape[0], pick(program.choices, (1, 2, x.shape[0])), 3
    line = program.emit("reshape", x, shape=(1, *x.shape))
    w = program.input(x.type.with_shape((out_features, features, size)))
    around = program.choices.integer(0, 1)
    y = program.emit("convolution", line, w, lo=(around,), hi=(around,))
    return y and program.emit("reshape", y, shape=y.shape[1:])


MAKERS = {
    "attention": Maker(attention, longest=0),
    "batch_norm": Maker(by_feature),
    "block_sparse_dot": Maker(block_sparse_dot, longest=0),
    "convolution": Maker(convolution, longest=0),
    "group_norm": Maker(by_feature),
    "reduce_window": Maker(reduce_window, longest=14),
    "resize": Maker(resize, longest=0),
}
