"""Operand types and attributes of the rows whose indices are data, steps of programs with them, and
ways of reading through them.

Indices are drawn as all integers are: in range, at the ends, beyond them, several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bringup.dtypes import DType, bool_, i8, i16, i32, i64, u8, u16, u32, u64
from bringup.graph import Builder, Literal, Value
from bringup.ops.build import reshape, slice_dim
from bringup.ops.table import OpDef, lookup
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import chance, pick
from bringup_conformance.generate.drawing import Drawing, Maker, instance
from bringup_conformance.generate.sizes import LARGE

if TYPE_CHECKING:
    from bringup_conformance.generate.program_builder import ProgramBuilder

Shape = tuple[int, ...]
#: Shapes of x and of indices, sizes of windows, dimension numbers.
Site = tuple[Shape, Shape, Shape, dict[str, Any]]

#: Past what 16 bits count; numbers of every magnitude are indices into it.
_FAR = ((1 << 17) + 3,)
_INDICES = (i32, i64, u8, i8, u32, i16, u64, u16)
_READ = ("ramp", "small", "ties", "nans", "special", "signed")
_SUMS = ("small", "signed", "ties", "special", "ramp", "wide")
_PICKED = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
_ROWS = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}


def _sites(draw: Drawing) -> Iterator[Site]:
    w = draw.vector
    yield (w + 3,), (2 * w + 1,), (1,), _PICKED
    yield (300,), (w,), (1,), _PICKED
    yield (1,), (3,), (1,), _PICKED
    yield (5, w + 1), (4,), (1, w + 1), _ROWS
    yield (5, 2 * w), (7,), (1, w - 1), _ROWS
    yield (4, 5), (3, w + 1), (4, 1), {**_ROWS, "offset": (0,), "index_map": (1,),
                                       "index_dim": 2, "collapsed": (1,)}  # fmt: skip
    yield (w, w), (3,), (w, 1), {**_ROWS, "offset": (0,), "index_map": (1,), "collapsed": (1,)}
    yield (4, 5), (w + 1, 2), (1, 1), {**_PICKED, "index_map": (1, 0), "collapsed": (0, 1)}
    yield (6, 7), (2, 3), (2, w % 7 + 1), {"offset": (0, 2), "index_map": (0, 1), "index_dim": 0}
    yield (3, w, 2), (3, 4), (1, 1, 2), {**_PICKED, "offset": (2,), "index_map": (1,),
                                         "index_dim": 2, "collapsed": (1,),
                                         "batch": ((0,), (0,))}  # fmt: skip
    yield (5,), (0,), (1,), _PICKED
    yield (5, 0), (3,), (1, 0), _ROWS
    yield (4,), (3, 0), (2,), {"offset": (1,), "index_map": (), "index_dim": 1}
    if draw.dtype.is_integer:  # many for each place: floats have no quick bound of such sums
        yield (7,), (4 * LARGE[0],), (1,), _PICKED
    if draw.far:
        yield _FAR, (257,), (1,), _PICKED


def _instance(types: Sequence[Any], attrs: dict[str, Any], kinds: tuple[str, ...]) -> Instance:
    far = types[0].shape == _FAR
    return instance(types, attrs, ("wide",) if far else kinds, far)


def _index(shape: Shape, number: int) -> DType:
    """One of the dtypes of indices; into far arrays the one that holds the most useful ones."""
    return i32 if shape == _FAR else _INDICES[number % len(_INDICES)]


def gather(_row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Elements, rows, windows, batches; both modes."""
    for number, (shape, where, sizes, numbers) in enumerate(_sites(draw)):
        index = draw.choices.integer(0, len(_INDICES) - 1)
        for mode in ("clip", "fill"):
            types = [draw.dtype[shape], _index(shape, number + index)[where]]
            yield _instance(types, {**numbers, "sizes": sizes, "mode": mode}, _READ)


def scatter(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """The same windows, written in every way."""
    reading = lookup("gather")
    kinds = next(a.choices for a in row.attrs if a.name == "kind")
    for number, (shape, where, sizes, numbers) in enumerate(_sites(draw)):
        index = _index(shape, number + draw.choices.integer(0, 7))
        types = (draw.dtype[shape], index[where])
        (updates,) = reading.result_types(types, reading.bind({**numbers, "sizes": sizes}))
        kind = kinds[(number + draw.choices.integer(0, len(kinds) - 1)) % len(kinds)]
        # What is added to one of so many places has no quick bound.
        for wanted in ("set",) if shape is _FAR else dict.fromkeys(("set", kind)):
            data = _SUMS if wanted in ("add", "mul") else _READ
            yield _instance([*types, updates], {**numbers, "kind": wanted}, data)


def dynamic(row: OpDef, draw: Drawing) -> Iterator[Instance]:
    """Windows at and beyond both ends, of nothing, of everything."""
    w, reads = draw.vector, row.domain.indices == 1
    forms: tuple[tuple[Shape, Shape], ...] = (
        ((2 * w + 3,), (w,)),
        ((300,), (3,)),
        ((4, w + 1), (2, w)),
        ((5, 6, 3), (5, 2, 1)),
        ((3, w), (3, w)),
        ((4, 0), (2, 0)),
        ((4, 3), (0, 3)),
        ((), ()),
        *(((_FAR, (w,)),) if draw.far else ()),
    )
    for number, (shape, sizes) in enumerate(forms):
        for attempt in range(1 if draw.few else 3):
            index = _index(shape, number + 3 * attempt + draw.choices.integer(0, 7))
            starts = [index[()]] * len(shape)
            if reads:
                yield _instance([draw.dtype[shape], *starts], {"sizes": sizes}, _READ)
            else:
                yield _instance([draw.dtype[shape], draw.dtype[sizes], *starts], {}, _READ)


# -- steps of programs -----------------------------------------------------------------------------


#: Elements that a decomposition may look at: each place for each index.
_MOST = 1 << 20


def _indices(program: ProgramBuilder, shape: Shape) -> Value | None:
    return program.input(pick(program.choices, (i32, i32, i64, u8))[shape])


def gathered(program: ProgramBuilder, x: Value) -> Value | None:
    """Entries of one dimension, at new indices."""
    dim = program.choices.integer(0, len(x.shape) - 1)
    count = pick(program.choices, (1, 3, x.shape[dim], program.config.shapes.vector + 1))
    indices = _indices(program, (count,)) if x.type.size * count <= _MOST else None
    return indices and program.emit(
        "gather",
        x,
        indices,
        offset=tuple(d for d in range(len(x.shape)) if d != dim),
        index_map=(dim,),
        index_dim=1,
        collapsed=(dim,),
        sizes=tuple(1 if d == dim else n for d, n in enumerate(x.shape)),
        mode=pick(program.choices, ("clip", "fill")),
    )


def windowed(program: ProgramBuilder, x: Value) -> Value | None:
    """A window that begins at new indices, alone or with something written over it."""
    sizes = tuple(max(1, n - program.choices.integer(0, 2)) for n in x.shape)
    if x.type.size * max(sizes) > _MOST:
        return None
    start = _indices(program, ())
    if start is None:
        return None
    starts = [start] * len(x.shape)
    if chance(program.choices, 1, 2):
        return program.emit("dynamic_slice", x, *starts, sizes=sizes)
    return program.emit("dynamic_update_slice", x, program.input(x.type.with_shape(sizes)), *starts)


def scattered(program: ProgramBuilder, x: Value) -> Value | None:
    """Entries of the first dimension combined with new ones."""
    count = pick(program.choices, (1, 3, x.shape[0]))
    if x.type.size * count > _MOST:
        return None
    indices, new = (
        _indices(program, (count,)),
        program.input(x.type.with_shape((count, *x.shape[1:]))),
    )
    kinds = ("set", "max", "min") if program.config.exact else ("set", "add", "max", "min")
    kind = "set" if x.dtype is bool_ else pick(program.choices, kinds)
    inner = tuple(range(1, len(x.shape)))
    numbers = {"offset": inner, "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
    return program.emit("scatter", x, indices, new, kind=kind, **numbers)


# -- ways of reading -------------------------------------------------------------------------------


def _near(builder: Builder, most: int, shape: Shape) -> Value:
    """Indices from 0 to a power of two above ``most``: some lie outside."""
    bits = lookup("constant")(value=Literal.splat((1 << most.bit_length()) - 1, i32[()]))
    mask = lookup("broadcast_in_dim")(bits, shape=shape, dims=())
    result: Value = lookup("and")(builder.input(i32[shape]), mask)
    return result


def read_gathered(builder: Builder, dtype: DType, shape: Shape) -> Value:
    """Rows of a short table."""
    table = builder.input(dtype[(5, *shape[1:])])
    result: Value = lookup("gather")(
        table,
        _near(builder, 5, shape[:1]),
        offset=tuple(range(1, len(shape))),
        index_map=(0,),
        index_dim=1,
        collapsed=(0,),
        sizes=(1, *shape[1:]),
        mode="fill",
    )
    return result


def read_window(builder: Builder, dtype: DType, shape: Shape) -> Value:
    """One of four arrays."""
    four = builder.input(dtype[(4, *shape)])
    starts = [_near(builder, 4, ()), *(_near(builder, 1, ()) for _ in shape)]
    return reshape(lookup("dynamic_slice")(four, *starts, sizes=(1, *shape)), shape)


def read_updated(builder: Builder, dtype: DType, shape: Shape) -> Value:
    """One of two arrays, of which one was written over."""
    two, one = builder.input(dtype[(2, *shape)]), builder.input(dtype[(1, *shape)])
    starts = [_near(builder, 1, ()), *(_near(builder, 1, ()) for _ in shape)]
    both = lookup("dynamic_update_slice")(two, one, *starts)
    return reshape(slice_dim(both, 0, 1, 2), shape)


MAKERS = {
    "dynamic_slice": Maker(dynamic, longest=0),
    "dynamic_update_slice": Maker(dynamic, longest=0),
    "gather": Maker(gather, longest=0),
    "scatter": Maker(scatter, longest=0),
}
READS = {"gathered": read_gathered, "window": read_window, "updated": read_updated}

__all__ = ["MAKERS", "READS", "gathered", "scattered", "windowed"]
