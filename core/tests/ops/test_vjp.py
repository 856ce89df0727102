"""Gradients: every vjp against central differences of the reference in the host's widest float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup.dtypes import bf16, bool_, f16, f32, f64, i32
from bringup.graph import Builder, Value
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, OpDef, all_ops, lookup
from bringup.types import TensorType

Array = np.ndarray[Any, Any]


def pull(row: OpDef, ct: Value, result: Value, operands: tuple[Value, ...], attrs: Any):
    """The cotangents of the operands: by the row's vjp, or through its decomposition."""
    if row.vjp is not None:
        return row.vjp(ct, result, *operands, **attrs)
    if row.kind is not Kind.COMPOSITE:
        return (None,) * len(operands)
    out = row.decompose(*operands, **attrs)
    cotangents: dict[Value, Value] = {out: ct}
    for instr in reversed(between(operands, out)):
        if instr.result not in cotangents:
            continue
        parts = pull(instr.op, cotangents[instr.result], instr.result, instr.operands, instr.attrs)
        for value, part in zip(instr.operands, parts, strict=True):
            if part is not None:
                known = cotangents.get(value)
                cotangents[value] = part if known is None else rows.add(known, part)
    return tuple(cotangents.get(v) for v in operands)


def between(operands: tuple[Value, ...], out: Value):
    """The instructions from operands to a value, in order."""
    order, seen = [], set(operands)

    def visit(value: Value) -> None:
        if value in seen or value.producer is None:
            return
        seen.add(value)
        for operand in value.producer.operands:
            visit(operand)
        order.append(value.producer)

    visit(out)
    return order


def gradient(row: OpDef, types: tuple[TensorType, ...], attrs: Any) -> Callable[..., list[Array]]:
    """A function of operands and cotangent that gives the cotangents, zeros where there is none."""
    with Builder() as b:
        operands = tuple(b.input(t) for t in types)
        result = row(*operands, **attrs)
        bound = result.producer.attrs
        ct = b.input(result.type)
        parts = pull(row, ct, result, operands, bound)
        outputs = [
            build.zeros_like(v) if p is None else p for v, p in zip(operands, parts, strict=True)
        ]
    for value, operand in zip(outputs, operands, strict=True):
        assert value.type is operand.type
    graph = b.build(outputs)
    return lambda *arrays: evaluate(graph, arrays)


EPS = float(np.finfo(np.longdouble).eps)
STEP = EPS ** (1 / 3)


def slope(row: OpDef, arrays: list[Array], which: int, direction: Array, ct: Array, attrs: Any):
    """The derivative of ct · f along a direction of one operand."""
    wide = [a.astype(np.longdouble) if a.dtype == np.float64 else a for a in arrays]
    ends = []
    for sign in (1, -1):
        moved = list(wide)
        moved[which] = wide[which] + sign * np.longdouble(STEP) * direction
        ends.append(np.asarray(row.reference(*moved, **attrs)))
    return ((ends[0] - ends[1]) * ct).sum() / (2 * np.longdouble(STEP))


def bound_attrs(row: OpDef, types: Any, attrs: Any) -> dict[str, Any]:
    with Builder() as b:
        return row(*[b.input(t) for t in types], **attrs).producer.attrs


def smooth(shape: tuple[int, ...], which: int, rng: np.random.Generator) -> Array:
    """Distinct numbers, none near a kink, nor near those of another operand."""
    count = int(np.prod(shape, dtype=int))
    values = (rng.permutation(count) - count // 2) * (0.25 + 0.0137 * which) + 0.1 + 0.0371 * which
    return values.reshape(shape)


def drawn(types: Any, rng: np.random.Generator) -> list[Array]:
    return [drawn_one(t, i, rng) for i, t in enumerate(types)]


def drawn_one(type_: TensorType, which: int, rng: np.random.Generator) -> Array:
    if type_.dtype is bool_:
        return rng.integers(0, 2, type_.shape).astype(bool)
    if type_.dtype.is_integer:  # indices, some of them twice, some outside
        return rng.integers(0, 6, type_.shape).astype(type_.dtype.numpy)
    return smooth(type_.shape, which, rng)


#: Where functions that are no functions everywhere are differentiated.
RANGES = dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (-0.9, 0.9)) | {"acosh": (1.1, 9.0)}


def in_range(row: OpDef, array: Array) -> Array:
    """Floats moved to where the row is smooth, in their order."""
    if row.name not in RANGES or array.dtype.kind != "f":
        return array
    low, high = RANGES[row.name]
    return low + (high - low) * (0.5 + np.arctan(array) / np.pi)


POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "pow", "log1p"}
NO_GRADIENT = {"floor", "compare", "sign", "round", "argmax", "argmin", "one_hot", "bitcast"} | {
    "threefry2x32",
    "philox4x32",
    "popcount",
    "clz",
}


def differentiable() -> list[OpDef]:
    return [
        row
        for row in all_ops()
        if (row.kind is Kind.COMPOSITE or row.vjp is not None)
        and row.name not in NO_GRADIENT
        and not row.holds_graphs  # test_control.py
        and row.accuracy.residual is None  # test_residuals.py
        and row.name != "sort"  # several results: test_sorting.py
    ]


def keeps_gradients(types: Any, attrs: Any) -> bool:
    floats = any(t.dtype is f64 for t in types)
    return floats and attrs.get("dtype", f64).is_float and attrs.get("kind") not in ("and", "or")


@pytest.mark.parametrize("row", differentiable(), ids=lambda row: row.name)
def test_the_gradient_is_the_slope(kit, row: OpDef) -> None:
    rng = np.random.default_rng(1)
    checked = 0
    dtype = bool_ if row.name == "select" else f64
    for types, attrs in kit.cases(row, f64 if dtype is bool_ else dtype):
        if not keeps_gradients(types, attrs) or attrs.get("dtype", f64) is not f64:
            continue
        arrays = drawn(types, rng)
        if row.name in POSITIVE:
            arrays = [np.abs(a) + 0.3 for a in arrays]
        arrays = [in_range(row, a) for a in arrays]
        bound = bound_attrs(row, types, attrs)
        result = np.asarray(row.reference(*arrays, **bound))
        if not np.isfinite(result).all():
            assert 0 in types[0].shape, "only nothing has no finite mean or extreme"
            continue
        ct = rng.normal(size=result.shape)
        cotangents = gradient(row, types, attrs)(*arrays, ct)
        for which, array in enumerate(arrays):
            if array.dtype != np.float64 or result.size == 0:
                assert not cotangents[which].any()
                continue
            direction = rng.normal(size=array.shape)
            wanted = slope(row, arrays, which, direction, ct, bound)
            actual = (cotangents[which] * direction).sum()
            scale = np.abs(cotangents[which] * direction).sum() + 1e-3
            assert abs(actual - wanted) <= 1e-6 * scale, (attrs, which, actual, wanted)
            checked += 1
    assert checked


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("row", differentiable(), ids=lambda row: row.name)
def test_cotangents_have_the_operands_types(kit, row: OpDef, dtype) -> None:
    """And are near those of f64."""
    for types, attrs in kit.cases(row, dtype):
        if not any(t.dtype is dtype for t in types) or attrs.get("dtype", dtype) is not dtype:
            continue
        if attrs.get("kind") in ("and", "or") or attrs.get("result", dtype) is not dtype:
            continue
        rng = np.random.default_rng(2)
        arrays = [
            (in_range(row, np.abs(a) % 2 + 0.5) if t.dtype.is_float else a).astype(t.dtype.numpy)
            for a, t in zip(drawn(types, rng), types, strict=True)
        ]
        narrow = gradient(row, types, attrs)
        wide_types = tuple(t.with_dtype(f64) if t.dtype is dtype else t for t in types)
        wide_attrs = {**attrs, "dtype": f64} if "dtype" in attrs else attrs
        wide = gradient(row, wide_types, wide_attrs)
        shape = bound_result(row, types, attrs)
        ct = np.ones(shape)
        got = narrow(*arrays, ct.astype(dtype.numpy))
        wanted = wide(
            *[a.astype(w.dtype.numpy) for a, w in zip(arrays, wide_types, strict=True)], ct
        )
        for g, w in zip(got, wanted, strict=True):
            loose = {"f16": 0.02, "bf16": 0.1, "f32": 1e-4}[dtype.name]
            scale = np.abs(w).max(initial=0) + 1
            assert (
                np.abs(g.astype(np.float64) - w.astype(np.float64)).max(initial=0) <= loose * scale
            )


def bound_result(row: OpDef, types: Any, attrs: Any) -> tuple[int, ...]:
    with Builder() as b:
        return row(*[b.input(t) for t in types], **attrs).shape


@pytest.mark.parametrize("name", sorted(NO_GRADIENT))
def test_steps_have_no_gradient(kit, name: str) -> None:
    row = lookup(name)
    if row.vjp is None:
        assert row.kind is not Kind.COMPOSITE, "a composite would be differentiated by its parts"
        return
    parts = row.vjp(None, None, *[None] * row.arity)
    assert parts == (None,) * row.arity


def at(row_name: str, operands: list[Any], ct: Any, **attrs: Any) -> list[list[float]]:
    arrays = [np.asarray(v, np.float64) for v in operands]
    types = tuple(f64[a.shape] for a in arrays)
    return [c.tolist() for c in gradient(lookup(row_name), types, attrs)(*arrays, np.asarray(ct))]


def test_equal_operands_of_max_and_min_share_the_cotangent() -> None:
    for name in ("max", "min"):
        assert at(name, [[3.0], [3.0]], [2.0]) == [[1.0], [1.0]]
    assert at("max", [[1.0, 5.0], [4.0, 2.0]], [1.0, 1.0]) == [[0.0, 1.0], [1.0, 0.0]]
    assert at("min", [[0.0], [-0.0]], [1.0]) == [[0.5], [0.5]]


def test_equal_extremes_of_a_reduction_share_the_cotangent() -> None:
    attrs = {"kind": "max", "dims": (0,)}
    assert at("reduce", [[1.0, 4.0, 4.0, 4.0, 4.0]], 2.0, **attrs) == [[0, 0.5, 0.5, 0.5, 0.5]]


def test_abs_and_relu_are_flat_at_zero() -> None:
    assert at("abs", [[0.0, -0.0, -2.0]], [1.0, 1.0, 1.0]) == [[0.0, 0.0, -1.0]]
    assert at("relu", [[0.0, -1.0, 2.0]], [1.0, 1.0, 1.0]) == [[0.0, 0.0, 1.0]]


def test_a_product_with_zeros_has_a_gradient() -> None:
    attrs = {"kind": "mul", "dims": (1,)}
    x = [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 0.0, 4.0]]
    assert at("reduce", [x], [1.0, 1.0, 1.0], **attrs) == [[[12, 8, 6], [0, 8, 0], [0, 0, 0]]]


def test_pow_has_no_nan_where_the_slope_exists() -> None:
    by_x, by_y = at("pow", [[0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, 0.0]], [1.0] * 4)
    assert by_x == [0.0, 1.0, 0.0, 0.0]
    assert by_y == [0.0, 0.0, 0.0, np.log(2.0)]


def test_select_passes_no_nan_from_the_branch_not_taken() -> None:
    types = (bool_[2], f64[2], f64[2])
    given = [np.array([True, False]), np.array([1.0, np.nan]), np.array([np.nan, 1.0])]
    _, by_x, by_y = gradient(lookup("select"), types, {})(*given, np.ones(2))
    assert by_x.tolist() == [1.0, 0.0]
    assert by_y.tolist() == [0.0, 1.0]


def test_convert_carries_cotangents_between_floats_only() -> None:
    with Builder() as b:
        x, n, ct = b.input(f32[3]), b.input(i32[3]), b.input(f16[3])
        vjp = lookup("convert").vjp
        assert vjp(ct, ct, n, dtype=f16) == (None,)
        (back,) = vjp(ct, ct, x, dtype=f16)
    assert back.type is f32[3]


def test_softmax_gradients_do_not_overflow() -> None:
    x = [1000.0, 0.0, -1000.0]
    assert at("softmax", [x], [1.0, 2.0, 3.0], dims=(0,)) == [[0.0, 0.0, 0.0]]
    assert at("log_softmax", [x], [0.0, 1.0, 0.0], dims=(0,)) == [[-1.0, 1.0, 0.0]]


def test_a_wrong_gradient_is_seen(kit) -> None:
    wrong = replace(lookup("sin"), vjp=lambda ct, result, x: (rows.mul(ct, rows.sin(x)),))
    with pytest.raises(AssertionError):
        test_the_gradient_is_the_slope(kit, wrong)
