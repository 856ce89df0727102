"""Every way of reading with every way of using what was read, on sizes that random programs rarely
reach together: a read decides which loop a device runs across its lanes, and the use decides what
becomes of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType, f16, f32, i32
from bringup.graph import Builder, Literal, Value
from bringup.ops.table import lookup
from bringup.types import TensorType
from bringup_conformance.cases import PROGRAMS, Case, Unsupported
from bringup_conformance.execution.support import Support, reason_of
from bringup_conformance.generate.indexed import READS as INDEXED_READS
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.generate.sizes import LARGE

Shape = tuple[int, ...]
#: Makes a value of a shape from new inputs.
Read = Callable[[Builder, DType, Shape], Value]
#: The outputs of a program on what was read.
Use = Callable[[Value], Sequence[Value]]
_DTYPES = (f32, i32, f16)


def _scalar(builder: Builder, dtype: DType, shape: Shape) -> Value:
    found: Value = lookup("broadcast_in_dim")(builder.input(dtype[()]), shape=shape, dims=())
    return found


def _row(builder: Builder, dtype: DType, shape: Shape) -> Value:
    last = len(shape) - 1
    row = builder.input(dtype[shape[last]])
    found: Value = lookup("broadcast_in_dim")(row, shape=shape, dims=(last,))
    return found


def _column(builder: Builder, dtype: DType, shape: Shape) -> Value:
    column = builder.input(dtype[shape[0]])
    found: Value = lookup("broadcast_in_dim")(column, shape=shape, dims=(0,))
    return found


def _counted(_builder: Builder, dtype: DType, shape: Shape) -> Value:
    counts = lookup("iota")(type=i32[shape], dim=len(shape) - 1)
    odd = lookup("and")(counts, lookup("shr")(counts, _like(counts, 3), kind="logical"))
    found: Value = lookup("convert")(lookup("and")(odd, _like(odd, 1)), dtype=dtype)
    return found


def _like(value: Value, number: int) -> Value:
    scalar = lookup("constant")(value=Literal.splat(number, value.dtype[()]))
    found: Value = lookup("broadcast_in_dim")(scalar, shape=value.shape, dims=())
    return found


def _strided(builder: Builder, dtype: DType, shape: Shape) -> Value:
    wide = builder.input(dtype[(*shape[:-1], 2 * shape[-1])])
    zeros = (0,) * len(shape)
    steps = (*(1 for _ in shape[:-1]), 2)
    found: Value = lookup("slice")(wide, start=zeros, limit=wide.shape, stride=steps)
    return found


def _reversed(builder: Builder, dtype: DType, shape: Shape) -> Value:
    x = builder.input(dtype[shape])
    last, before = tuple(n - 1 for n in shape), (-1,) * len(shape)
    found: Value = lookup("slice")(x, start=last, limit=before, stride=before)
    return found


def _turned(builder: Builder, dtype: DType, shape: Shape) -> Value:
    x = builder.input(dtype[shape[::-1]])
    found: Value = lookup("transpose")(x, permutation=tuple(range(len(shape)))[::-1])
    return found


def _folded(builder: Builder, dtype: DType, shape: Shape) -> Value:
    count = 1
    for n in shape:
        count *= n
    found: Value = lookup("reshape")(builder.input(dtype[count]), shape=shape)
    return found


def _padded(builder: Builder, dtype: DType, shape: Shape) -> Value:
    x = builder.input(dtype[(*shape[:-1], shape[-1] - 2)])
    lo, none = (*(0 for _ in shape[:-1]), 1), (0,) * len(shape)
    found: Value = lookup("pad")(x, builder.input(dtype[()]), lo=lo, hi=lo, interior=none)
    return found


def _joined(builder: Builder, dtype: DType, shape: Shape) -> Value:
    cut = shape[0] // 3
    parts = [builder.input(dtype[(n, *shape[1:])]) for n in (cut, shape[0] - cut)]
    found: Value = lookup("concatenate")(*parts, dim=0)
    return found


READS: dict[str, Read] = {
    "scalar": _scalar, "row": _row, "column": _column, "iota": _counted, "strided": _strided,
    "reversed": _reversed, "transposed": _turned, "reshaped": _folded, "padded": _padded,
    "joined": _joined, **INDEXED_READS,
}  # fmt: skip


def _reduced(kind: str, where: Callable[[int], Sequence[int]]) -> Use:
    def use(value: Value) -> Sequence[Value]:
        return (lookup("reduce")(value, kind=kind, dims=tuple(where(len(value.shape)))),)

    return use


def _mapped(value: Value) -> Sequence[Value]:
    return (lookup("max")(lookup("add")(value, value), _like(value, 3)),)


def _centred(value: Value) -> Sequence[Value]:
    last = len(value.shape) - 1
    most = lookup("reduce")(value, kind="max", dims=(last,))
    spread = lookup("broadcast_in_dim")(most, shape=value.shape, dims=tuple(range(last)))
    return (lookup("sub")(value, spread),)


def _kept(value: Value) -> Sequence[Value]:
    """A fold of what is stored as well."""
    twice = lookup("add")(value, value)
    return twice, *_reduced("add", range)(twice)


def _shorter(value: Value) -> Sequence[Value]:
    """Two folds that differ in nothing but how far they go."""
    zeros, ones = (0,) * len(value.shape), (1,) * len(value.shape)
    limit = (value.shape[0] - 1, *value.shape[1:])
    part = lookup("slice")(value, start=zeros, limit=limit, stride=ones)
    whole = _reduced("add", range)
    return *whole(part), *whole(value)


USES: dict[str, Use] = {
    "sum": _reduced("add", range),
    "max": _reduced("max", range),
    "sum_first": _reduced("add", lambda _rank: (0,)),
    "min_last": _reduced("min", lambda rank: (rank - 1,)),
    "map": _mapped,
    "centred": _centred,
    "kept": _kept,
    "shorter": _shorter,
}


def cases(
    support: Support, shapes: Shapes, read: str, seed: int, *, large: bool
) -> Iterator[Case | Unsupported]:
    """A way of reading with each use, on a size of the device's and on one past any block or chunk.

    The seed turns which sizes and dtypes meet.
    """
    w, n = max(shapes.vector, 3), LARGE[-1]
    small: tuple[Shape, ...] = ((w + 1,), (5, w - 1), (shapes.block + 1, 3))
    long: tuple[Shape, ...] = ((n,), (n // 9, 9), (7, n // 7)) if large else ()
    turn = seed + list(READS).index(read)
    for number, use in enumerate(USES):
        dtype = _DTYPES[(turn + number // 3) % 3]
        for sizes in filter(None, (small, long)):
            yield _case(support, read, use, dtype[sizes[(turn + number) % 3]], seed)


def _case(
    support: Support, read: str, use: str, type_: TensorType, seed: int
) -> Case | Unsupported:
    level, shape, dtype = "fusion", type_.shape, type_.dtype
    place = f"{level}/{PROGRAMS}/{dtype.name}/{read}-{use}-{'x'.join(map(str, shape))}"
    with Builder() as builder:
        outputs = USES[use](READS[read](builder, dtype, shape))
    graph = builder.build(outputs, f"{read}_{use}")
    reason = reason_of(graph, support)
    if reason is not None:
        return Unsupported(place, level, PROGRAMS, dtype.name, reason)
    kinds = ("small", "signed") if dtype is f16 else ("signed", "ramp")
    data = tuple(tuple(Recipe(kind, seed + i) for i in range(len(graph.inputs))) for kind in kinds)
    return Case(place, level, PROGRAMS, dtype.name, graph, data, split=True, tags=("pair",))
