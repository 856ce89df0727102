"""Names of JAX: windows, scans, segments, trees, updates; and what no table against numpy holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import (
    BringupError,
    ConversionError,
    MissingAttributeError,
    OpTypeError,
    TraceError,
)

X = np.arange(24.0).reshape(4, 6)
EPS = np.finfo("f8").eps


def same(found: Any, expected: Any) -> None:
    host = np.asarray(found)
    assert host.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(host, expected)


def both(function: Callable[..., Any], *args: Any) -> list[Any]:
    return [function(*args), bu.jit(function)(*args)]


# ---- windows


@pytest.mark.parametrize("start", [0, 2, 9, -3])
def test_windows_along_one_axis(start: int) -> None:
    x, at = bu.asarray(X), bu.asarray(start)
    first = min(max(start, 0), 4)
    row = min(max(start, 0), 3)
    for found in both(lambda x, i: bu.dynamic_slice_in_dim(x, i, 2, 1), x, at):
        same(found, X[:, first : first + 2])
    for found in both(lambda x, i: bu.dynamic_index_in_dim(x, i, keepdims=False), x, at):
        same(found, X[row])
    same(bu.dynamic_index_in_dim(x, at), X[row : row + 1])
    expected = X.copy()
    expected[:, first : first + 2] = -1
    update = bu.full((4, 2), -1.0)
    for found in both(lambda x, i: bu.dynamic_update_slice_in_dim(x, update, i, 1), x, at):
        same(found, expected)
    expected = X.copy()
    expected[row] = 7
    for new in (bu.full(6, 7.0), bu.full((1, 6), 7.0)):
        same(bu.dynamic_update_index_in_dim(x, new, at, 0), expected)


def test_bits() -> None:
    x = np.array([1.5, -0.0, np.inf], "f4")
    for found in both(lambda x: bu.bitcast_convert_type(x, bu.uint32), bu.asarray(x)):
        same(found, x.view("u4"))
    same(bu.bitcast_convert_type(bu.asarray(x.view("i4")), "float32"), x)
    for dtype in (bu.float64, bool, bu.complex64):
        with pytest.raises(OpTypeError, match="has no bits of"):
            bu.bitcast_convert_type(bu.asarray(x), dtype)


# ---- scans


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(size: int, reverse: bool) -> None:
    """Products of matrices tell the order of what is combined."""
    rng = np.random.default_rng(size)
    host = rng.integers(-2, 3, (2, size, 2, 2))
    expected = host.copy()
    for n in range(1, size):
        at, before = (size - 1 - n, size - n) if reverse else (n, n - 1)
        expected[:, at] = expected[:, before] @ host[:, at]
    for found in both(
        lambda x: bu.associative_scan(bu.matmul, x, reverse, axis=1), bu.asarray(host)
    ):
        same(found, expected)


def test_associative_scan_of_containers() -> None:
    """A linear recurrence, as in state space models: y = a * y + b."""
    a, b = np.array([2, 3, -1, 2]), np.array([1, 1, 2, 0])

    def combine(first: dict[str, bu.Array], second: dict[str, bu.Array]) -> dict[str, bu.Array]:
        return {"a": first["a"] * second["a"], "b": second["a"] * first["b"] + second["b"]}

    found = bu.associative_scan(combine, {"a": bu.asarray(a), "b": bu.asarray(b)})
    y, expected = 0, []
    for factor, term in zip(a, b, strict=True):
        y = factor * y + term
        expected.append(y)
    assert found["b"].tolist() == expected
    gradient = bu.grad(lambda x: bu.sum(bu.associative_scan(bu.multiply, x)))(
        bu.asarray([2.0, 3.0])
    )
    assert gradient.tolist() == [4.0, 2.0]
    with pytest.raises(OpTypeError, match="associative_scan: axis 0"):
        bu.associative_scan(bu.add, (bu.ones(2), bu.ones(3)))


def test_cumlogsumexp() -> None:
    x = np.array([[1000.0, -np.inf, 999.0], [-np.inf, -np.inf, 3.0]])
    for found in both(lambda x: bu.cumlogsumexp(x, 1), bu.asarray(x)):
        host = np.asarray(found)
        with np.errstate(invalid="ignore"):
            expected = np.logaddexp.accumulate(x, 1)
            away = np.abs(host - expected)
        near = (host == expected) | (away <= 4 * EPS * np.abs(expected))
        assert near.all()
    found = np.asarray(bu.cumlogsumexp(bu.zeros(3), reverse=True))
    assert np.abs(found - np.log([3.0, 2.0, 1.0])).max() <= 8 * EPS


def test_map_and_unroll() -> None:
    rows = {"a": bu.asarray(X), "b": bu.arange(4)}
    for found in both(lambda rows: bu.map(lambda r: bu.sum(r["a"]) * r["b"], rows), rows):
        same(found, X.sum(1) * np.arange(4))
    last, sums = bu.scan(lambda s, x: (s + x, s), 0.0, bu.asarray(X[0]), unroll=4)
    assert (float(last), sums.tolist()) == (15.0, [0.0, 0.0, 1.0, 3.0, 6.0, 10.0])


# ---- segments and counts


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1"])
def test_segments(dtype: str) -> None:
    x = (X % 7).astype(dtype)
    ids = np.array([2, 0, 2, 5])
    folds = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    low, high = (-np.inf, np.inf) if dtype[0] == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    first = {"sum": 0, "prod": 1, "max": low, "min": high}
    for kind, fold in folds.items():
        function = getattr(bu, f"segment_{kind}")
        for count in (6, 3):
            expected = np.full((count, 6), first[kind], dtype)
            inside = ids < count
            fold.at(expected, ids[inside], x[inside])
            for found in both(lambda x, i: function(x, i, count), bu.asarray(x), bu.asarray(ids)):  # noqa: B023
                same(found, expected)
        assert function(bu.asarray(x), bu.asarray(ids)).shape == (6, 6)


def test_segments_out_of_range_and_without_a_number() -> None:
    ids = bu.asarray([-1, 0, 9])
    assert bu.segment_sum(bu.ones(3), ids, 2).tolist() == [1.0, 0.0]
    assert bu.segment_sum(bu.zeros((0, 2)), bu.zeros(0, dtype=bu.int32)).shape == (0, 2)
    assert bu.segment_max(bu.asarray([True, False]), bu.asarray([0, 1]), 3).tolist() == [
        True, False, False,
    ]  # fmt: skip
    with pytest.raises(TraceError, match="segment_sum"):
        bu.jit(lambda x, i: bu.segment_sum(x, i))(bu.ones(3), ids)
    with pytest.raises(OpTypeError, match="segment_sum: segments"):
        bu.segment_sum(bu.ones(3), bu.asarray([0, 1]), 2)
    gradient = bu.grad(lambda x: bu.sum(bu.segment_sum(x, ids, 2) ** 2))(
        bu.asarray([1.0, 2.0, 3.0])
    )
    assert gradient.tolist() == [0.0, 4.0, 0.0]


def test_counts_that_need_a_length() -> None:
    x = bu.asarray([1, 1, 3])
    assert bu.jit(lambda x: bu.bincount(x, length=3))(x).tolist() == [0, 2, 0]
    assert bu.bincount(x, weights=bu.asarray([0.5, 1.0, 2.0])).tolist() == [0.0, 1.5, 0.0, 2.0]
    assert bu.bincount(x[:0]).tolist() == []
    with pytest.raises(TraceError, match="bincount"):
        bu.jit(lambda x: bu.bincount(x))(x)
    for call in (lambda: bu.bincount(bu.ones(2)), lambda: bu.bincount(x, bu.ones(2))):
        with pytest.raises(OpTypeError, match="bincount"):
            call()
    found = bu.jit(lambda x: bu.flatnonzero(x, size=4, fill=-1))(x - 1)
    assert found.tolist() == [2, -1, -1, -1]
    assert bu.argwhere(x - 1, size=2, fill=7).tolist() == [[2], [7]]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8"])
def test_histogram(dtype: str) -> None:
    x = (np.random.default_rng(0).normal(size=100) * 8).astype(dtype)
    edges = np.array([-20, -3, 0, 0, 5, 9]).astype(dtype)
    options: list[dict[str, Any]] = [
        {}, {"bins": 7}, {"bins": 3, "range": (-2.0, 4.0)}, {"bins": edges}, {"density": True},
        {"bins": 4, "weights": np.arange(100.0)}, {"bins": 5, "range": (1, 1)},
    ]  # fmt: skip
    for option in options:
        mine = {k: bu.asarray(v) if isinstance(v, np.ndarray) else v for k, v in option.items()}
        counts, ends = np.histogram(x, **option)
        for found in both(lambda x: bu.histogram(x, **mine), bu.asarray(x)):  # noqa: B023
            host = np.asarray(found[0])
            eps = np.finfo(host.dtype).eps if host.dtype.kind == "f" else 0
            assert np.all(np.abs(host - counts) <= 16 * eps * np.abs(counts)), option
            assert np.all(np.abs(np.asarray(found[1]) - ends) <= np.finfo("f4").eps * 20), option
    assert bu.histogram(bu.zeros(0), 2)[0].tolist() == [0, 0]
    counts = bu.histogram(bu.asarray([0.0, bu.nan, 2.0]), bu.asarray([0.0, 1.0, 2.0]))[0]
    assert counts.tolist() == [1, 1]
    with pytest.raises(OpTypeError, match="no range"):
        bu.histogram(bu.ones(3), 2, (3, 1))


# ---- matrices


@pytest.mark.parametrize(
    ("shape", "dtype"), [((5, 3), "f8"), ((3, 5), "f8"), ((4, 4), "f8"), ((5, 3), "f4")]
)
def test_least_squares(shape: tuple[int, int], dtype: str) -> None:
    """Errors are some units of the epsilon, times the condition, which is below 20 here."""
    rng = np.random.default_rng(sum(shape))
    a, b = rng.normal(size=shape).astype(dtype), rng.normal(size=(shape[0], 2)).astype(dtype)
    x, residuals, rank, values = np.linalg.lstsq(a.astype("f8"), b.astype("f8"))
    bound = 64 * 20 * np.finfo(dtype).eps
    for found in both(bu.linalg.lstsq, bu.asarray(a), bu.asarray(b)):
        assert np.abs(np.asarray(found.solution) - x).max() <= bound * np.abs(x).max()
        assert np.abs(np.asarray(found.singular_values) - values).max() <= bound * values[0]
        assert int(found.rank) == rank
        if residuals.size:
            assert np.abs(np.asarray(found.residuals) - residuals).max() <= bound * (b**2).sum()
    one = bu.linalg.lstsq(bu.asarray(a), bu.asarray(b[:, 0])).solution
    assert np.abs(np.asarray(one) - x[:, 0]).max() <= bound * np.abs(x).max()
    with pytest.raises(OpTypeError, match="lstsq"):
        bu.linalg.lstsq(bu.ones((2, 3)), bu.ones(3))


def test_condition_numbers() -> None:
    a = np.array([[4.0, 1.0], [2.0, -3.0]])
    for p in (None, 2, -2, 1, -1, math.inf, -math.inf, "fro"):
        expected = np.linalg.cond(a, p)
        for found in both(lambda a: bu.linalg.cond(a, p), bu.asarray(a)):  # noqa: B023
            assert abs(float(found) - expected) <= 64 * EPS * expected, p


def test_polyfit_and_corrcoef() -> None:
    x = np.linspace(-1, 2, 9)
    y = np.stack([x**3 - 2 * x, np.cos(x)], 1)
    expected = np.polyfit(x, y, 3)
    for found in both(lambda x, y: bu.polyfit(x, y, 3), bu.asarray(x), bu.asarray(y)):
        assert np.abs(np.asarray(found) - expected).max() <= 256 * EPS * np.abs(expected).max()
    assert bu.polyfit(bu.asarray(x), bu.asarray(y[:, 0]), 2).shape == (3,)
    rows = np.random.default_rng(1).normal(size=(3, 50))
    for found in both(bu.corrcoef, bu.asarray(rows)):
        assert np.abs(np.asarray(found) - np.corrcoef(rows)).max() <= 50 * EPS
    z = rows[0] + 1j * rows[1]
    found = np.asarray(bu.cov(bu.asarray(z), bu.asarray(z * 2j)))
    assert np.abs(found - np.cov(z, z * 2j)).max() <= 500 * EPS


def test_functions_of_complex_numbers() -> None:
    z, w = np.array([1 + 2j, -3j, 2.0]), np.array([0.5j, 1.0])
    a, b = bu.asarray(z), bu.asarray(w)
    same(bu.conjugate(a), z.conj())
    same(bu.vdot(a, a), np.vdot(z, z))
    same(bu.convolve(a, b), np.convolve(z, w))
    same(bu.correlate(a, b, "full"), np.correlate(z, w, "full"))
    same(bu.convolve(b, a, "same"), np.convolve(w, z, "same"))
    same(bu.pad(a, 1), np.pad(z, 1))
    same(bu.isclose(a, a), np.ones(3, bool))
    same(bu.nan_to_num(bu.asarray([complex(math.nan, 1)])), np.array([1j]))
    same(bu.nansum(bu.asarray([complex(math.nan, 1), 2])), np.array(2 + 0j))


# ---- functions, devices, trees


def test_linearize_and_shapes() -> None:
    y, push = bu.linearize(lambda x: {"s": bu.sin(x)}, bu.asarray(0.0))
    assert (y["s"].item(), push(bu.asarray(2.0))["s"].item()) == (0.0, 2.0)
    shapes = bu.eval_shape(lambda x, n: (x @ x.T, n), bu.float32[3, 2], 1.5)
    assert shapes[0] is bu.float32[3, 3]


def test_vectorize_and_apply() -> None:
    f = bu.vectorize(lambda x, y: {"m": bu.maximum(x, y), "y": y * 1})
    x = bu.asarray(X.astype("f4"))
    found = f(x, 5.0)
    same(found["m"], np.maximum(X, 5).astype("f4"))
    same(f(x[:, :1], x[0])["m"], np.maximum(X[:, :1], X[0]).astype("f4"))
    assert bu.vectorize(lambda x: x + 1)(2) == 3


def test_devices_and_waiting() -> None:
    tree = {"x": bu.ones(2) * 3, "n": 4}
    assert bu.block_until_ready(tree) is tree
    put = bu.device_put(tree, bu.devices()[0])
    assert put["n"].device is bu.devices()[0] or str(put["n"].device) == str(bu.devices()[0])
    host = bu.device_get(put)
    assert isinstance(host["x"], np.ndarray)
    assert host["x"].tolist() == [3.0, 3.0]


def test_ravel_pytree() -> None:
    tree = {"w": bu.asarray([[1, 2]], dtype=bu.int32), "b": (bu.asarray(0.5), None)}
    flat, unravel = bu.ravel_pytree(tree)
    assert flat.dtype is bu.float64
    back = unravel(flat * 2)
    assert (back["w"].tolist(), back["w"].dtype, back["b"][0].item()) == ([[2, 4]], bu.int32, 1.0)
    assert bu.ravel_pytree({})[0].shape == (0,)
    with pytest.raises(OpTypeError, match="vector of 3 elements"):
        unravel(flat[:2])


def test_trees() -> None:
    tree = {"b": [3, None], "a": (1, 2)}
    assert bu.tree.leaves(tree) == [1, 2, 3]
    assert bu.tree.structure(tree) == bu.tree.flatten(tree)[1]
    assert bu.tree.map(lambda x, y: x + y, tree, tree) == {"b": [6, None], "a": (2, 4)}
    assert bu.tree.map is bu.tree.tree_map
    assert bu.tree.leaves_with_path(tree)[2] == ("['b'][0]", 3)
    paths = bu.tree.map_with_path(lambda path, x, y: (path, x * y), tree, tree)
    assert paths["a"][1] == ("['a'][1]", 4)
    assert bu.tree.reduce(lambda x, y: x * y, tree) == 6
    assert bu.tree.reduce(lambda x, y: x * y, tree, 10) == 60
    assert bu.tree.all({"x": True})
    assert not bu.tree.all({"x": [True, 0]})
    with pytest.raises(ConversionError):
        bu.tree.map_with_path(lambda path, x, y: x, tree, {"b": 1})


# ---- updates


@pytest.mark.parametrize(
    "key",
    [1, slice(1, 3), slice(None, None, -2), (slice(None), 2), np.array([2, 0]), X[:, 0] > 5, ...],
    ids=str,
)
def test_updates_of_every_kind_of_region(key: Any) -> None:
    x = X + 1
    at = bu.asarray(key) if isinstance(key, np.ndarray) else key

    def updated(change: Callable[[Any], Any]) -> Any:
        result = x.copy()
        result[key] = change(result[key])
        return result

    array = bu.asarray(x)
    same(array.at[at].get(), x[key])
    same(array.at[at].subtract(2), updated(lambda part: part - 2))
    same(array.at[at].divide(4), updated(lambda part: part / 4))
    same(array.at[at].power(2), updated(lambda part: part**2))
    same(array.at[at].apply(lambda part: part * 3 + 1), updated(lambda part: part * 3 + 1))
    if not isinstance(at, bu.Array) or at.dtype is not bu.bool:
        same(bu.jit(lambda x: x.at[at].divide(4))(array), updated(lambda part: part / 4))


def test_updates_of_one_element_several_times() -> None:
    i = bu.asarray([1, 1, 0])
    x = bu.asarray([8.0, 16.0])
    assert x.at[i].divide(2).tolist() == [4.0, 4.0]
    assert x.at[i].subtract(bu.asarray([1.0, 2.0, 3.0])).tolist() == [5.0, 13.0]
    assert bu.asarray([5, 6], dtype=bu.uint8).at[0].subtract(7).tolist() == [254, 6]
    assert bu.asarray([1j, 2]).at[0].divide(2).tolist() == [0.5j, 2]
    gradient = bu.grad(lambda v: bu.sum(x.at[0].divide(v)))(bu.asarray(2.0))
    assert gradient.item() == -2.0


# ---- positions


def test_options_by_position_as_numpy_and_jax_have_them() -> None:
    x = bu.asarray(X)
    same(bu.diff(x, 2, 0), np.diff(X, 2, 0))
    same(bu.tensordot(x, x.T, 1), np.tensordot(X, X.T, 1))
    same(bu.searchsorted(x[0], x[0], "right"), np.searchsorted(X[0], X[0], "right"))
    assert bu.linspace(0, 1).shape == (50,)
    assert bu.linalg.svd(x, False).U.shape == (4, 4)
    same(bu.nn.gelu(x, True), np.asarray(bu.nn.gelu(x, approximate=True)))


# ---- errors


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bu.split(bu.ones(5), 2), "split: axis 0 of f64\\[5\\] in 2 parts"),
        (lambda: bu.array_split(bu.ones(5), 0), "in 0 parts"),
        (lambda: bu.pad(bu.ones(3), -1), "pad: pad_width -1"),
        (lambda: bu.pad(bu.ones((2, 3)), ((1, 2), (3, 4), (5, 6))), "pad_width"),
        (lambda: bu.pad(bu.ones((0,)), 1, "edge"), "no entries to repeat"),
        (lambda: bu.pad(bu.ones(3), 1, "mean"), "'mean' is unknown"),
        (lambda: bu.pad(bu.ones(3), 1, constant_values=bu.ones(2)), "the value is f64"),
        (lambda: bu.diag(bu.ones((2, 2, 2))), "neither a vector nor a matrix"),
        (lambda: bu.rot90(bu.ones((2, 2)), axes=(0, 0)), "are not two"),
        (lambda: bu.unravel_index(6, (2, 3)), "out of range for 6 elements"),
        (lambda: bu.unravel_index(1.5, (2, 3)), "must be integers"),
        (lambda: bu.ravel_multi_index((1,), (2, 3)), "1 indices for shape"),
        (lambda: bu.hstack([]), "no arrays"),
        (lambda: bu.average(bu.ones((2, 3)), weights=bu.ones(3)), "average: weights"),
        (lambda: bu.nanmax(bu.zeros((0, 2)), axis=0), "no elements"),
        (lambda: bu.nanquantile(bu.ones(3), 1.5), "nanquantile: q 1.5 is no share"),
        (lambda: bu.percentile(bu.ones(3), 101), "no share"),
        (lambda: bu.convolve(bu.ones((2, 2)), bu.ones(2)), "give two vectors|convolve: f64"),
        (lambda: bu.correlate(bu.ones(0), bu.ones(2)), "correlate: f64\\[0\\]"),
        (lambda: bu.interp(bu.ones(2), bu.ones(3), bu.ones(2)), "interp: values"),
        (lambda: bu.gradient(bu.ones(1)), "gradient: 0 distances"),
        (lambda: bu.gradient(bu.ones((3, 3)), 1.0, 2.0, 3.0), "gradient: 3 distances"),
        (lambda: bu.gradient(bu.ones(3), bu.ones(2)), "places f64\\[2\\] of 3 entries"),
        (lambda: bu.geomspace(0, 1), "no such values"),
        (lambda: bu.geomspace(-1, 1), "no such values"),
        (lambda: bu.vander(bu.ones((2, 2))), "is no vector"),
        (lambda: bu.polyval(bu.ones((2, 2)), 1.0), "the coefficients are"),
        (lambda: bu.polyfit(bu.ones(3), bu.ones(2), 1), "polyfit: degree 1"),
        (lambda: bu.cov(bu.ones((2, 2, 2))), "more than two dimensions"),
        (lambda: bu.lexsort((bu.ones(2), bu.ones(3))), "lexsort: keys"),
        (lambda: bu.select(bu.ones(2) > 0, bu.ones(2), bu.zeros(2)), "are an array"),
        (lambda: bu.select([bu.ones(2) > 0], []), "0 choices for 1 conditions"),
        (lambda: bu.piecewise(bu.ones(2), [bu.ones(2) > 0], [1, 2, 3]), "3 functions for 1"),
        (lambda: bu.linalg.norm(bu.ones((2, 2, 2)), 2), "along axes"),
        (lambda: bu.linalg.multi_dot([bu.ones((2, 2))]), "multi_dot: f64"),
        (lambda: bu.map(3, bu.ones(2)), "map"),
        (lambda: bu.vectorize(3), "vectorize"),
    ],
)
def test_errors(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(BringupError, match=said) as caught:
        call()
    assert caught.value.fix


#: What users of numpy and JAX looked for and did not find once, the most wanted first; ``at`` are
#: the updates of ``x.at[i]``.
WANTED = """
    stop_gradient checkpoint remat custom_vjp custom_jvp debug.print callback associative_scan
    bitcast_convert_type linalg.expm special.gammainc special.i0 special.i1 special.ndtri
    special.zeta eval_shape disable_jit split pad allclose isclose array_equal concatenate hstack
    vstack dot inner diag diagonal cumsum cumprod transpose swapaxes ravel histogram bincount
    interp nan_to_num nansum nanmean nanmax percentile average cov corrcoef digitize trapezoid
    gradient kron mod fmod divmod heaviside exp2 ptp rot90 unravel_index tril_indices triu_indices
    atleast_1d atleast_2d vander polyfit polyval lexsort piecewise select convolve unique argwhere
    linalg.norm linalg.lstsq linalg.eig linalg.multi_dot linalg.cond fft.fft2 fft.ifft2 fft.rfft2
    nn.leaky_relu nn.elu nn.selu nn.celu nn.relu6 nn.hard_tanh nn.hard_sigmoid nn.hard_swish
    nn.hard_silu nn.swish nn.mish nn.glu nn.standardize special.expit special.logit special.xlogy
    special.entr special.betaln special.ndtr special.log_ndtr special.gammaln special.logsumexp
    random.multivariate_normal random.rademacher random.cauchy random.logistic random.t
    random.chisquare random.geometric random.binomial map clamp rem dynamic_slice_in_dim
    dynamic_index_in_dim cumlogsumexp reduce_window tree.map tree.leaves tree.structure
    tree.map_with_path block_until_ready device_put device_get segment_sum segment_prod
    segment_max segment_min ravel_pytree vectorize linearize make_jaxpr at.get at.divide at.power
    at.apply optim.rmsprop optim.lion optim.adagrad optim.chain gather image cross shape fmax sinc
    amin linear_transpose special.polygamma apply_along_axis random.PRNGKey dot_product_attention
    initializers population_count clz tree_map conv_general_dilated ndim size sigmoid softmax save
    nn.identity power absolute
"""


def test_names_that_were_missed_are_here_or_answered() -> None:
    names = WANTED.split()
    here, answered, nothing = [], [], []
    for name in names:
        space, _, last = name.rpartition(".")
        holder: Any = bu.ones(2).at[0] if space == "at" else bu
        for part in space.split(".") if space and space != "at" else ():
            holder = getattr(holder, part)
        if last in dir(holder):
            here.append(name)
            assert callable(getattr(holder, last))
            continue
        with pytest.raises(MissingAttributeError) as caught:
            getattr(holder, last)
        listed = "names are those of" in (caught.value.fix or "names are those of")
        (nothing if listed else answered).append(name)
    assert len(nothing) <= 0.05 * len(names), nothing
    # Most are functions and no advice; new advice shall not take their place.
    assert len(here) >= 0.8 * len(names), answered


# ---- namespaces, and what programs in JAX's style call


def test_namespaces_are_modules(python: Callable[..., Any]) -> None:
    lines = (
        "from bringup.nn import relu; from bringup.random import key; import bringup.linalg as la",
        "from bringup.lax import scan; from bringup import tree_util; import bringup as bu",
        "print(relu is bu.nn.relu, la is bu.linalg, tree_util is bu.tree, scan is bu.scan)",
    )
    assert python("\n".join(lines)).stdout.split() == ["True"] * 4


def test_names_of_lax_are_those_of_bringup() -> None:
    renamed = {"max": "maximum", "min": "minimum", "mul": "multiply", "select": "where"}
    for name in (*renamed, "scan", "rsqrt", "stop_gradient", "top_k"):
        assert getattr(bu.lax, name) is getattr(bu, renamed.get(name, name))


@pytest.mark.parametrize("traced", [False, True])
def test_arrays_of_arrays_and_numbers(traced: bool) -> None:
    """Traced items are stacked; all meet in one dtype, traced or not."""
    x = bu.asarray([1.0, 2.0], dtype=bu.float32)

    def made(x: bu.Array) -> list[bu.Array]:
        return [
            bu.array([x[1], 2 * x[0] * x[1], 3]),
            bu.asarray([[x[0], 0.5], [np.float32(2), x[1]]]),
            bu.array((x, [5, 6], np.ones(2, "f4"))),
            bu.asarray([x > 1, [True, False]]),
            bu.asarray([x[0]], dtype=bu.int8),
            bu.array([bu.conj(x[0] + 1j), 2]),
        ]

    found = (bu.jit(made) if traced else made)(x)
    same(found[0], np.array([2, 4, 3], "f4"))
    same(found[1], np.array([[1, 0.5], [2, 2]], "f4"))
    same(found[2], np.array([[1, 2], [5, 6], [1, 1]], "f4"))
    same(found[3], np.array([[False, True], [True, False]]))
    same(found[4], np.array([1], "i1"))
    same(found[5], np.array([1 - 1j, 2], "c8"))


def test_arrays_of_traced_items_are_differentiated() -> None:
    def rotated(x: bu.Array, angle: bu.Array) -> bu.Array:
        c, s = bu.cos(angle), bu.sin(angle)
        return bu.array([[c, -s], [s, c]]) @ x

    x = bu.asarray([2.0, 3.0])
    found = bu.jacfwd(lambda angle: rotated(x, angle))(bu.asarray(0.0))
    assert found.tolist() == [-3.0, 2.0]
    with pytest.raises(OpTypeError, match="differ in shape"):
        bu.jit(lambda x: bu.array([x, x[0]]))(x)


def test_dtypes_make_arrays() -> None:
    same(bu.float32(1.5), np.array(1.5, "f4"))
    same(bu.int8([1, 2]), np.array([1, 2], "i1"))
    same(bu.jit(bu.float32)(bu.asarray([1, 2])), np.array([1, 2], "f4"))


X4 = np.random.default_rng(0).integers(-4, 5, (2, 3, 5, 6)).astype("f8")
W4 = np.random.default_rng(1).integers(-4, 5, (4, 3, 2, 3)).astype("f8")


@pytest.mark.parametrize(
    ("texts", "axes", "kernel", "back"),
    [
        (None, (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
        (("NHWC", "HWIO", "NCHW"), (0, 2, 3, 1), (2, 3, 1, 0), (0, 1, 2, 3)),
        (("CWNH", "IHWO", "HWCN"), (1, 3, 0, 2), (1, 2, 3, 0), (3, 2, 0, 1)),
    ],
)
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 0), (2, -1))])
def test_convolutions_with_dimensions_in_any_order(
    texts: Any, axes: Any, kernel: Any, back: Any, padding: Any
) -> None:
    small = padding.lower() if isinstance(padding, str) else padding
    expected = bu.nn.conv(bu.asarray(X4), bu.asarray(W4), stride=(2, 1), padding=small)
    x, w = bu.asarray(X4.transpose(axes)), bu.asarray(W4.transpose(kernel))
    found = bu.lax.conv_general_dilated(x, w, (2, 1), padding, dimension_numbers=texts)
    same(bu.transpose(found, back), np.asarray(expected))


def test_convolutions_of_spread_operands() -> None:
    x, w = bu.asarray([[[1.0, 2.0]]]), bu.asarray([[[1.0, 10.0]]])
    found = bu.lax.conv_general_dilated(x, w, (1,), [(1, 1)], (2,), (1,))
    assert found.tolist() == [[[10.0, 1.0, 20.0, 2.0]]]
    wide = bu.lax.conv_general_dilated(
        bu.ones((1, 1, 2), dtype=bu.int8), bu.full((1, 1, 2), 100, dtype=bu.int8), (1,), "VALID",
        preferred_element_type=bu.int32,
    )  # fmt: skip
    assert (wide.tolist(), wide.dtype) == ([[[200]]], bu.int32)
    for call, said in (
        (lambda: bu.lax.conv_general_dilated(x, w, (1,), "SAME", (2,)), "padding 'SAME' of"),
        (lambda: bu.lax.conv(x, w, (1,), "LEFT"), "padding 'left'"),
        (lambda: bu.lax.conv(x, w[0], (1,), "SAME"), "dimensions None of shapes"),
        (
            lambda: bu.lax.conv_general_dilated(x, w, (1,), "SAME", None, None, ("NWC", "WIO")),
            "dimensions",
        ),
        (
            lambda: bu.lax.conv_general_dilated(
                x, w, (1,), "SAME", dimension_numbers=("NWC", "OIH", "NWC")
            ),
            "dimensions",
        ),
    ):
        with pytest.raises(OpTypeError, match=said):
            call()


def test_products_over_any_dimensions() -> None:
    x, y = X4[:, 0], X4[:, 1]
    found = bu.lax.dot_general(bu.asarray(x), bu.asarray(y), (([1], [1]), ([0], [0])))
    same(found, np.einsum("bij,bik->bjk", x, y))
    small = bu.full((2, 3), 100, dtype=bu.int8)
    wide = bu.lax.dot_general(small, small, (((1,), (1,)), ((), ())), preferred_element_type="i4")
    same(wide, np.full((2, 2), 30000, "i4"))
    with pytest.raises(OpTypeError, match="sizes"):
        bu.lax.dot_general(bu.ones((2, 3)), bu.ones((2, 3)), (((1,), (0,)), ((), ())))


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_windows_that_are_folded(kind: str) -> None:
    fold = getattr(np, {"add": "add", "max": "maximum", "min": "minimum"}[kind])
    first = {"add": 0, "max": -math.inf, "min": math.inf}[kind]
    x = X[:3, :5]
    views = np.lib.stride_tricks.sliding_window_view(x, (2, 3))[:, ::2]
    expected = fold.reduce(views.reshape(*views.shape[:2], -1), axis=-1)
    for init in (first, 7.0):
        found = bu.lax.reduce_window(
            bu.asarray(x), init, getattr(bu.lax, kind), (2, 3), (1, 2), "VALID"
        )
        same(found, fold(expected, init))
    with pytest.raises(OpTypeError, match="folds no windows"):
        bu.lax.reduce_window(bu.asarray(x), 1.0, bu.lax.mul, (2, 3), (1, 2), "VALID")


def test_parameters_by_name() -> None:
    x = bu.asarray([3.0, 1.0, 2.0])
    assert bu.split(x, indices_or_sections=3)[1].tolist() == [1.0]
    assert bu.repeat(x, repeats=2).size == 6
    assert bu.take(x, indices=bu.asarray([0])).tolist() == [3.0]
    assert bu.quantile(x, q=0.5).item() == 2.0
    assert bu.pad(x, pad_width=1).size == 5
    assert bu.nn.one_hot(bu.asarray([1]), num_classes=2).tolist() == [[0.0, 1.0]]
    assert bu.lax.top_k(x, k=1)[0].tolist() == [3.0]
    assert bu.var(x, ddof=1).item() == bu.var(x, correction=1).item() == 1.0
    assert bu.std(x, ddof=1).item() == 1.0
    assert bu.fft.rfftfreq(4, 0.5).tolist() == [0.0, 0.5, 1.0]
    assert bu.fori_loop(0, 3, body_fun=lambda i, s: s + i, init_val=1, unroll=True).item() == 4
    assert (
        bu.while_loop(cond_fun=lambda s: s < 9, body_fun=lambda s: s * 2, init_val=3).item() == 12
    )
    assert bu.cond(bu.asarray(True), true_fun=lambda: 1, false_fun=lambda: 2).item() == 1
    assert bu.nn.resize(bu.asarray([[1, 2]]), (1, 4), "nearest").tolist() == [[1, 1, 2, 2]]


@pytest.mark.parametrize("lower", [False, True])
def test_solutions_by_a_factor(lower: bool) -> None:
    """Errors are some units of the epsilon, times the condition, which is below 4."""
    a, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([[1.0, 2.0], [5.0, 0.5]])
    for given in (b, b[:, 0]):
        factor = bu.linalg.cho_factor(bu.asarray(a), lower)
        assert factor[1] is lower
        found = np.asarray(bu.linalg.cho_solve(factor, bu.asarray(given)))
        assert np.abs(found - np.linalg.solve(a, given)).max() <= 16 * 4 * EPS


def test_a_trace_is_of_a_function() -> None:
    with pytest.raises(OpTypeError, match=r"(?s)is an array, no function.*bringup\.linalg\.trace"):
        bu.trace(bu.ones((2, 2)))  # type: ignore[arg-type]
