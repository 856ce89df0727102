"""Shared by the tests of rows: applying a row, lowering it to tier 0, operands, errors in ULP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import BY_NAME, DType, bool_, f32, i8, i16, i32, i64, u8, u64
from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, OpDef, all_ops, lookup
from bringup.passes.base import as_results, deep
from bringup.types import TensorType

sys.path.append(str(Path(__file__).parents[1]))
import samples

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class Kit:
    """The helpers; tests get them through the fixture."""

    @staticmethod
    def graph(row: OpDef, types: Sequence[TensorType], attrs: Attrs) -> Graph:
        """One instruction over graph inputs, all its results being outputs."""
        with Builder() as b:
            return b.build(as_results(row(*[b.input(t) for t in types], **attrs)))

    @staticmethod
    def run(row: OpDef, arrays: Sequence[Array], **attrs: Any) -> Array:
        """The reference on arrays, through the builder and the interpreter."""
        types = [TensorType(a.shape, DTYPE_OF[a.dtype]) for a in arrays]
        return evaluate(Kit.graph(row, types, attrs), arrays)[0]

    @staticmethod
    def is_tier0(instr: Instr) -> bool:
        driven = instr.op.kind is Kind.CONTROL  # core runs loops and branches
        return driven or instr.op.claim(instr.attrs) in instr.op.tier0_claims

    @staticmethod
    def lowered(graph: Graph) -> Graph:
        """The graph with every instruction decomposed until tier 0 alone is left."""

        def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
            if Kit.is_tier0(instr):
                return None
            return as_results(instr.op.decompose(*operands, **instr.attrs))

        def run(graph: Graph) -> Graph:
            while not all(map(Kit.is_tier0, graph.instrs)):
                builder = Builder(dedupe=True)
                graph = deep(run)(builder.build(replay(graph, rewrite, builder=builder)))
            return graph

        return deep(run)(graph)

    values = staticmethod(samples.values)
    same = staticmethod(samples.same)
    ulps = staticmethod(samples.ulps)
    wider = staticmethod(samples.wider)

    @staticmethod
    def cases(row: OpDef, dtype: DType) -> Iterator[tuple[tuple[TensorType, ...], dict[str, Any]]]:
        """Operand types and attributes worth trying."""
        yield from CASES.get(row.name, _elementwise)(row, dtype)


DTYPE_OF = {d.numpy: d for d in BY_NAME.values()}
Cases = Iterator[tuple[tuple[TensorType, ...], dict[str, Any]]]
SHAPES = ((96,), (), (0,), (2, 0, 3), (3, 5))


def _elementwise(row: OpDef, dtype: DType) -> Cases:
    forms: list[dict[str, Any]] = [{}]
    for attr in row.attrs:
        forms = [{**form, attr.name: choice} for form in forms for choice in attr.choices]
    for shape in SHAPES:
        for form in forms:
            yield (dtype[shape],) * row.arity, form


def _select(_row: OpDef, dtype: DType) -> Cases:
    for shape in SHAPES:
        yield (bool_[shape], dtype[shape], dtype[shape]), {}


def _convert(row: OpDef, dtype: DType) -> Cases:
    for target in BY_NAME.values():
        if row.name == "convert" or (target.bits == dtype.bits and bool_ not in (target, dtype)):
            for shape in SHAPES:
                yield (dtype[shape],), {"dtype": target}


def _concatenate(_row: OpDef, dtype: DType) -> Cases:
    yield (dtype[4],), {"dim": 0}
    yield (dtype[4], dtype[0], dtype[3]), {"dim": 0}
    yield (dtype[2, 3], dtype[2, 1], dtype[2, 4]), {"dim": 1}
    yield (dtype[2, 0], dtype[2, 0]), {"dim": 1}
    yield (dtype[0, 3], dtype[2, 3], dtype[1, 3]), {"dim": 0}


def _reduce(_row: OpDef, dtype: DType) -> Cases:
    kinds = ("and", "or") if dtype is bool_ else ("add", "mul", "max", "min")
    kinds += ("and", "or") if dtype.is_integer else ()
    for kind in kinds:
        for shape in ((), (7,), (0,), (2, 0, 3), (3, 5, 2)):
            ranks = len(shape)
            for dims in {
                (),
                tuple(range(ranks)),
                (ranks - 1,) if ranks else (),
                (0,) * (ranks > 0),
            }:
                yield (dtype[shape],), {"kind": kind, "dims": dims}


def _dims(_row: OpDef, dtype: DType) -> Cases:
    for shape, dims in (((7,), (0,)), ((3, 5), (1,)), ((3, 2, 5), (0, 2)), ((3,), ()), ((), ())):
        yield (dtype[shape],), {"dims": dims}
    yield (dtype[2, 0],), {"dims": (1,)}
    yield (dtype[0, 2],), {"dims": (1,)}


def _cumulative(_row: OpDef, dtype: DType) -> Cases:
    for kind in ("add", "mul", "max", "min"):
        for shape, dim in (((9,), 0), ((1,), 0), ((0, 2), 0), ((3, 5), 1), ((5, 2, 3), 0)):
            for reverse in (False, True):
                yield (dtype[shape],), {"kind": kind, "dim": dim, "reverse": reverse}
        if kind in ("add", "mul"):
            yield (dtype[3, 5],), {"kind": kind, "dim": 1, "exclusive": True}
            yield (dtype[5],), {"kind": kind, "dim": 0, "exclusive": True, "reverse": True}


def _sort(_row: OpDef, dtype: DType) -> Cases:
    for shape, dim in (((9,), 0), ((1,), 0), ((0, 2), 0), ((2, 0), 0), ((3, 4), 0), ((2, 5, 3), 1)):
        for descending in (False, True):
            attrs = {"dim": dim, "descending": descending}
            yield (dtype[shape],), attrs
            yield (dtype[shape], i32[shape]), attrs
            yield (dtype[shape], f32[shape], dtype[shape]), {**attrs, "num_keys": 2}


def _layer_norm(_row: OpDef, dtype: DType) -> Cases:
    yield (dtype[3, 5], dtype[5], dtype[5]), {"dims": (1,)}
    yield (dtype[3, 2, 5], dtype[3, 5], dtype[3, 5]), {"dims": (0, 2), "epsilon": 1e-3}
    yield (dtype[0, 5], dtype[5], dtype[5]), {"dims": (1,)}
    yield (dtype[2, 0], dtype[0], dtype[0]), {"dims": (1,)}


def _arg(_row: OpDef, dtype: DType) -> Cases:
    for shape, dim in (((9,), 0), ((3, 4), 0), ((3, 4), 1), ((0, 2), 1), ((1,), 0)):
        for index in (i32, i8):
            yield (dtype[shape],), {"dim": dim, "dtype": index}


def _one_hot(_row: OpDef, dtype: DType) -> Cases:
    for shape in ((5,), (), (2, 0), (2, 3)):
        for size in (0, 4, 300):
            yield (dtype[shape],), {"size": size, "dtype": f32 if size == 4 else bool_}


def _reshape(_row: OpDef, dtype: DType) -> Cases:
    for shape, target in (((6,), (2, 3)), ((), (1, 1)), ((2, 0), (0, 7)), ((1,), ())):
        yield (dtype[shape],), {"shape": target}


def _transpose(_row: OpDef, dtype: DType) -> Cases:
    for shape, order in (((), ()), ((4,), (0,)), ((2, 3, 4), (1, 2, 0)), ((2, 0, 3), (2, 0, 1))):
        yield (dtype[shape],), {"permutation": order}


def _broadcast(_row: OpDef, dtype: DType) -> Cases:
    yield (dtype[()],), {"shape": (2, 3), "dims": ()}
    yield (dtype[3],), {"shape": (2, 3), "dims": (1,)}
    yield (dtype[3],), {"shape": (3, 2), "dims": (0,)}
    yield (dtype[1, 3],), {"shape": (4, 2, 3), "dims": (0, 2)}
    yield (dtype[1],), {"shape": (0, 2), "dims": (0,)}


def _slice(_row: OpDef, dtype: DType) -> Cases:
    for start, limit, stride in ((0, 7, 1), (1, 7, 3), (6, -1, -1), (5, 0, -2), (3, 3, 2)):
        yield (dtype[7],), {"start": (start,), "limit": (limit,), "stride": (stride,)}
    yield (dtype[5, 4],), {"start": (4, 1), "limit": (-1, 4), "stride": (-2, 2)}
    yield (dtype[0],), {"start": (-1,), "limit": (-1,), "stride": (-1,)}
    yield (dtype[()],), {"start": (), "limit": ()}


def _pad(_row: OpDef, dtype: DType) -> Cases:
    for lo, hi, gap in ((1, 2, 0), (0, 0, 3), (-1, -2, 2), (-9, 12, 1), (2, -4, 0)):
        yield (dtype[5], dtype[()]), {"lo": (lo,), "hi": (hi,), "interior": (gap,)}
    yield (dtype[0, 2], dtype[()]), {"lo": (2, 0), "hi": (1, -1), "interior": (5, 1)}
    yield (dtype[()], dtype[()]), {"lo": (), "hi": ()}


def _dot(_row: OpDef, dtype: DType) -> Cases:
    forms = [
        ((3, 4), (4, 5), ((), ()), ((1,), (0,))),
        ((4, 3), (5, 4), ((), ()), ((0,), (1,))),
        ((2, 3, 4), (4, 2, 5), ((0,), (1,)), ((2,), (0,))),
        ((2, 3, 4, 5), (5, 6, 2, 4), ((0,), (2,)), ((2, 3), (3, 0))),
        ((3,), (2,), ((), ()), ((), ())),
        ((4,), (4,), ((), ()), ((0,), (0,))),
        ((3, 0), (0, 2), ((), ()), ((1,), (0,))),
        ((), (2,), ((), ()), ((), ())),
        ((0, 3), (3, 2), ((), ()), ((1,), (0,))),
    ]
    for lhs, rhs, batch, contract in forms:
        yield (dtype[lhs], dtype[rhs]), {"batch": batch, "contract": contract}
    wide = {1: i32, 2: f32}.get(dtype.itemsize) if dtype.kind != "uint" else None
    if wide is not None and wide.is_float == dtype.is_float:
        *_, batch, contract = forms[0]
        attrs = {"batch": batch, "contract": contract, "result": wide}
        yield (dtype[3, 4], dtype[4, 5]), attrs


_ROWS = {"offset": (1,), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
_PLACES = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,)}
#: Shapes of x and indices, sizes of windows, dimension numbers.
WINDOWS: list[tuple[Any, Any, Any, Any, Any]] = [
    ((5,), (7,), i32, (1,), _PLACES),
    ((5, 3), (4,), i64, (1, 3), _ROWS),
    ((5, 3), (4,), u8, (1, 2), _ROWS),
    ((300,), (6,), i8, (1,), _PLACES),
    ((5,), (0,), u64, (1,), _PLACES),
    ((5, 0), (3,), i32, (1, 0), _ROWS),
    ((4, 5), (6, 2), i32, (1, 1), {**_PLACES, "index_map": (1, 0), "collapsed": (0, 1)}),
    ((4, 5), (2, 3), i16, (2, 3), {"offset": (0, 2), "index_map": (0, 1), "index_dim": 0}),
    (
        (2, 5, 3),
        (4, 2),
        u64,
        (1, 1, 3),
        {"offset": (2,), "index_map": (1,), "index_dim": 2, "collapsed": (1,)}
        | {"batch": ((0,), (1,))},
    ),
    (
        (4, 5),
        (4,),
        i32,
        (1, 1),
        {"offset": (), "index_map": (1,), "index_dim": 1, "collapsed": (1,)}
        | {"batch": ((0,), (0,))},
    ),
    ((5, 3), (), i8, (1, 3), {**_ROWS, "offset": (0,), "index_dim": 0}),
    ((3, 4), (), i32, (3, 2), {"offset": (0, 1), "index_map": (1,), "index_dim": 0}),
    ((3,), (2, 0), i32, (2,), {"offset": (1,), "index_map": (), "index_dim": 1}),
]


def _gather(_row: OpDef, dtype: DType) -> Cases:
    for shape, indices, index, sizes, numbers in WINDOWS:
        for mode in ("clip", "fill"):
            yield (dtype[shape], index[indices]), {**numbers, "sizes": sizes, "mode": mode}


def _scatter(_row: OpDef, dtype: DType) -> Cases:
    for shape, indices, index, sizes, numbers in WINDOWS:
        types = (dtype[shape], index[indices])
        updates = lookup("gather").result_types(
            types, lookup("gather").bind({**numbers, "sizes": sizes})
        )
        for kind in ("set",) if dtype is bool_ else ("set", "add", "mul", "min", "max"):
            yield (*types, *updates), {**numbers, "kind": kind}


def _dynamic(row: OpDef, dtype: DType) -> Cases:
    forms = (((7,), (3,), i32), ((4, 5), (4, 2), u8), ((4, 5), (2, 2), i64), ((), (), i32))
    for shape, sizes, index in (*forms, ((300, 2), (3, 1), i8), ((3, 0), (2, 0), u64)):
        starts = (index[()],) * len(shape)
        if row.name == "dynamic_slice":
            yield (dtype[shape], *starts), {"sizes": sizes}
        else:
            yield (dtype[shape], dtype[sizes], *starts), {}


def _convolution(_row: OpDef, dtype: DType) -> Cases:
    yield (dtype[2, 3, 7], dtype[4, 3, 3]), {}
    yield (dtype[1, 4, 6, 5], dtype[6, 2, 3, 2]), {"groups": 2, "strides": (2, 1), "lo": (1, -1)}
    yield (
        (dtype[2, 5, 6, 3], dtype[2, 3, 3, 4]),
        {
            "lhs_dims": (0, 3, 1, 2),
            "rhs_dims": (3, 2, 0, 1),
            "out_dims": (0, 3, 1, 2),
            "rhs_dilation": (2, 1),
            "hi": (0, 2),
        },
    )
    yield (dtype[1, 2, 4], dtype[2, 2, 3]), {"lhs_dilation": (3,), "lo": (2,), "hi": (-2,)}
    yield (dtype[1, 1, 3, 4, 2], dtype[1, 1, 2, 2, 2]), {}
    yield (dtype[2, 3], dtype[4, 3]), {}
    yield (dtype[1, 2, 0], dtype[1, 2, 2]), {"lo": (1,), "hi": (2,)}
    yield (dtype[1, 2, 3], dtype[1, 2, 5]), {}
    yield (dtype[0, 2, 3], dtype[1, 2, 2]), {}
    yield (dtype[1, 0, 3], dtype[2, 0, 2]), {}
    wide = {1: i32, 2: f32}.get(dtype.itemsize) if dtype.kind != "uint" else None
    if wide is not None and wide.is_float == dtype.is_float:
        yield (dtype[1, 2, 4], dtype[1, 2, 2]), {"result": wide}


def _reduce_window(_row: OpDef, dtype: DType) -> Cases:
    for kind in ("add", "max", "min"):
        yield (dtype[7],), {"kind": kind, "window": (3,), "strides": (2,), "lo": (1,), "hi": (1,)}
        yield (dtype[2, 6, 5],), {"kind": kind, "window": (1, 2, 3), "dilation": (1, 2, 1)}
        yield (dtype[2, 6],), {"kind": kind, "window": (2, 2), "lo": (1, -1), "hi": (0, -2)}
        yield (dtype[5],), {"kind": kind, "window": (1,), "strides": (3,)}
        yield (dtype[0],), {"kind": kind, "window": (2,), "lo": (1,), "hi": (2,)}
        yield (dtype[3],), {"kind": kind, "window": (4,)}
        yield (dtype[()],), {"kind": kind, "window": ()}


def _resize(_row: OpDef, dtype: DType) -> Cases:
    for method in ("nearest", "linear", "cubic") if dtype.is_float else ("nearest",):
        yield (dtype[5, 4],), {"shape": (7, 2), "method": method}
        yield (dtype[6, 3],), {"shape": (3, 6), "method": method, "antialias": True}
        yield (dtype[7],), {"shape": (1,), "method": method}
        yield (dtype[1, 2],), {"shape": (3, 2), "method": method}
        yield (dtype[0, 3],), {"shape": (0, 2), "method": method}
        yield (dtype[()],), {"shape": (), "method": method}


def _rms_norm(_row: OpDef, dtype: DType) -> Cases:
    for types, attrs in _layer_norm(_row, dtype):
        yield types[:2], attrs


def _by_feature(row: OpDef, dtype: DType) -> Cases:
    for shape, dim in (((3, 4, 5), 1), ((2, 3, 4), 2), ((2, 0), 1), ((0, 2, 3), 1), ((2, 4, 0), 1)):
        row_of = dtype[shape[dim]]
        extra = {"groups": 2 if shape[dim] % 2 == 0 else 1} if row.name == "group_norm" else {}
        yield (dtype[shape], row_of, row_of), {"dim": dim, "epsilon": 1e-3, **extra}


def _attention(_row: OpDef, dtype: DType) -> Cases:
    yield (dtype[2, 3, 4], dtype[2, 5, 4], dtype[2, 5, 3]), {"scale": 0.5}
    yield (dtype[3, 4], dtype[3, 4], dtype[3, 2]), {"scale": 0.5, "causal": True}
    several = (dtype[2, 2, 3, 4], dtype[2, 2, 4, 4], dtype[2, 2, 4, 4])
    yield (*several, dtype[2, 1, 3, 4]), {"scale": 1.0}
    yield (*several, dtype[1, 1, 1, 4]), {"scale": 0.25, "causal": True}
    yield (dtype[0, 4], dtype[3, 4], dtype[3, 2]), {"scale": 0.5}
    yield (dtype[2, 4], dtype[0, 4], dtype[0, 2]), {"scale": 0.5}
    yield (dtype[2, 0], dtype[3, 0], dtype[3, 2]), {"scale": 0.5}


def _block_sparse_dot(_row: OpDef, dtype: DType) -> Cases:
    for lead, down, across, block in (
        ((3,), 2, 3, (4, 3, 2)),
        ((2, 2), 3, 2, (5, 2, 1)),
        ((), 2, 2, (3, 1, 4)),
        ((2,), 2, 2, (0, 2, 2)),
        ((0,), 1, 2, (2, 2, 2)),
        ((2,), 0, 2, (1, 2, 2)),
    ):
        count, height, width = block
        operands = dtype[*lead, down * height], dtype[block], i32[count], i32[count]
        yield operands, {"features": across * width}


def _source(row: OpDef, dtype: DType) -> Cases:
    if row.name == "iota":
        for shape, dim in (((5,), 0), ((3, 4), 0), ((3, 4), 1), ((0, 2), 1), ((300,), 0)):
            yield (), {"type": dtype[shape], "dim": dim}


def _scan(_row: OpDef, dtype: DType) -> Cases:
    with Builder() as b:
        carry, x = b.input(dtype[3]), b.input(dtype[3])
        body = b.build([x, carry])
    for length in (0, 1, 4):
        for reverse in (False, True):
            attrs = {"body": body, "length": length, "reverse": reverse, "carries": 1}
            yield (dtype[3], dtype[length, 3]), attrs


def _call(_row: OpDef, dtype: DType) -> Cases:
    with Builder() as b:
        x, y = b.input(dtype[3]), b.input(dtype[3])
        body = b.build([y, x])
    yield (dtype[3], dtype[3]), {"body": body}


CASES: dict[str, Callable[[OpDef, DType], Cases]] = {
    "select": _select,
    "convert": _convert,
    "bitcast": _convert,
    "concatenate": _concatenate,
    "scan": _scan,
    "call": _call,
    "reduce": _reduce,
    "cumulative": _cumulative,
    "sort": _sort,
    "mean": _dims,
    "var": _dims,
    "softmax": _dims,
    "log_softmax": _dims,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _by_feature,
    "batch_norm": _by_feature,
    "attention": _attention,
    "block_sparse_dot": _block_sparse_dot,
    "convolution": _convolution,
    "reduce_window": _reduce_window,
    "resize": _resize,
    "argmax": _arg,
    "argmin": _arg,
    "one_hot": _one_hot,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "dot_general": _dot,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic,
    "dynamic_update_slice": _dynamic,
    "constant": _source,
    "iota": _source,
}


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


def _names(keep: Callable[[OpDef], bool]) -> list[str]:
    return [row.name for row in all_ops() if keep(row)]


PARAMETERS: dict[str, Callable[[OpDef], bool]] = {
    "any_row": lambda row: True,
    "composite": lambda row: row.kind is Kind.COMPOSITE,
    "decomposable": lambda row: row.decompose is not None,
    # Moves keep every bit; their cells hold NaNs as samples only.
    "float_function": lambda row: (
        f32 in row.dtypes
        and row.kind not in (Kind.SOURCE, Kind.MOVEMENT, Kind.INDEXED)
        and not row.holds_graphs
        and row.accuracy.residual is None
    ),
    # Judged as a whole: test_residuals.py.
    "residual_row": lambda row: row.accuracy.residual is not None,
    "integer_function": lambda row: row.kind is Kind.ELEMENTWISE and i8 in row.dtypes,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``decomposable`` runs for every row that has a decomposition, and so on."""
    for name, keep in PARAMETERS.items():
        if name in metafunc.fixturenames:
            rows = _names(keep)
            metafunc.parametrize(name, [lookup(n) for n in rows], ids=rows)
