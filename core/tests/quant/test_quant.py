"""Codes of 8 and 4 bits: values, products, ranges that are observed, and training with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

f32, bf16, i8 = bu.float32, bu.bfloat16, bu.int8
RNG = np.random.default_rng(0)
W = RNG.normal(size=(64, 24)).astype(np.float32)
X = RNG.normal(size=(10, 64)).astype(np.float32)
#: A quotient of up to 255 steps is rounded before the nearest code is, and so is what comes back.
SLACK = 1 + 4 * 255 * 2.0**-24


def host(x: Any) -> Any:
    return np.asarray(x)


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


# -- codes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_elements_are_off_by_half_a_step(axis: Any, symmetric: bool) -> None:
    x = W + (3 if not symmetric else 0)
    q = bu.quant.quantize(x, axis=axis, symmetric=symmetric)
    assert q.values.dtype is i8
    channels = () if axis is None else (axis,) if isinstance(axis, int) else axis
    assert q.scale.shape == tuple(
        n if d in [c % 2 for c in channels] else 1 for d, n in enumerate(W.shape)
    )
    error = np.abs(wide(q.dequantize()) - wide(x))
    assert (error <= wide(q.scale) / 2 * SLACK).all()
    codes = wide(q.values)
    if symmetric:
        assert q.zero_point is None
        assert np.abs(codes).max() == 127
    elif axis != (0, 1):  # one element and zero: both ends are codes
        assert codes.max() == 127


def test_no_narrower_step_holds_all() -> None:
    q = bu.quant.quantize(W, axis=-1)
    np.testing.assert_allclose(wide(q.scale)[0], np.abs(wide(W)).max(0) / 127, rtol=2.0**-22)
    q = bu.quant.quantize(W, symmetric=False)
    span = wide(W).max() - wide(W).min()
    np.testing.assert_allclose(wide(q.scale), span / 255, rtol=2.0**-22)


@pytest.mark.parametrize("data", [[0.0, 0.0], [1e-38, -1e-38], [3e38, -3e38], [5.0, 6.0], [-2.0]])
@pytest.mark.parametrize("symmetric", [True, False])
def test_zero_is_exact_and_extreme_ranges_are_finite(data: Any, symmetric: bool) -> None:
    x = np.array([0.0, *data], np.float32)
    if not symmetric and max(abs(x)) > 2e38:
        x /= 4  # the width of the range must be a number
    q = bu.quant.quantize(x, symmetric=symmetric)
    back = wide(q.dequantize())
    assert back[0] == 0
    assert (np.abs(back - wide(x)) <= wide(q.scale) / 2 * SLACK).all()


def test_a_given_scale_clips() -> None:
    q = bu.quant.quantize(np.array([-900, -3, 0.5, 1.5, 900]), 1.0)
    assert q.values.tolist() == [-127, -3, 0, 2, 127]
    q = bu.quant.quantize(np.array([-900.0, -3.0, 900.0]), 0.5, 100)
    assert q.values.tolist() == [-128, 94, 127]
    assert q.dequantize(bf16).tolist() == [-114.0, -3.0, 13.5]


def test_channels_that_are_not_finite_show_it() -> None:
    x = np.array([[1.0, np.nan, np.inf], [2.0, 1.0, 1.0]], np.float32)
    back = host(bu.quant.quantize(x, axis=-1).dequantize())
    assert np.isfinite(back[:, 0]).all()
    assert not np.isfinite(back[:, 1:]).any()


def test_all_codes_of_four_bits_are_packed_and_unpacked() -> None:
    pairs = np.array([(a, b) for a in range(-7, 8) for b in range(-7, 8)], np.float32)
    columns = np.concatenate([pairs.T, np.full((2, len(pairs)), 7)])  # the scale of all is 1
    q = bu.quant.quantize_int4(columns, group=4)
    assert q.shape == columns.shape
    assert q.values.nbytes * 2 == columns.size
    np.testing.assert_array_equal(q.scale, np.ones((1, len(pairs))))
    np.testing.assert_array_equal(q.dequantize(), columns)


@pytest.mark.parametrize("group", [2, 16, 64])
@pytest.mark.parametrize("stack", [(), (3,)])
def test_groups_of_four_bits_are_off_by_half_a_step(group: int, stack: tuple[int, ...]) -> None:
    w = RNG.normal(size=(*stack, 64, 24)).astype(np.float32)
    q = bu.quant.quantize_int4(w, group=group)
    assert q.scale.shape == (*stack, 64 // group, 24)
    steps = np.repeat(wide(q.scale), group, axis=-2)
    assert (np.abs(wide(q.dequantize()) - wide(w)) <= steps / 2 * SLACK).all()


# -- products --------------------------------------------------------------------------------------


def exact(x: Any, q: Any) -> Any:
    """The product of integers by numpy, scaled in f32 as the module says."""
    zero = 0 if q.zero_point is None else host(q.zero_point).astype(np.int64)
    weights = host(q.values).astype(np.int64) - zero
    if q.inputs is None:
        step = (np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30) * np.float32(1 / 127)).astype(
            np.float32
        )
        low, high = -127, 127
    else:
        step, point, _ = (host(v) for v in q.inputs)
        low, high = -128 - point, 127 - point
    codes = np.clip(np.round(x / step), low, high).astype(np.int64)
    return (codes @ weights).astype(np.float32) * (step * host(q.scale))


@pytest.mark.parametrize("symmetric", [True, False])
def test_products_of_codes_are_exact(symmetric: bool) -> None:
    q = bu.quant.quantize(W, axis=-1, symmetric=symmetric)
    at_run_time = bu.quant.Int8Array(q.values, q.scale, q.zero_point, None, True)
    np.testing.assert_array_equal(bu.jit(lambda x, w: x @ w)(X, at_run_time), exact(X, at_run_time))
    observed = q.with_inputs(*bu.quant.MinMax().update(X / 2).qparams())  # some are clipped
    np.testing.assert_array_equal(bu.jit(lambda x, w: x @ w)(X, observed), exact(X, observed))


@pytest.mark.parametrize("dtype", [f32, bf16, bu.float16, bu.float64], ids=str)
@pytest.mark.parametrize("how", ["columns", "rows", "zero", "four", "dynamic"])
def test_products_come_in_the_dtype_of_x(how: str, dtype: Any) -> None:
    q: Any = {
        "columns": lambda: bu.quant.quantize(W, axis=-1),
        "rows": lambda: bu.quant.quantize(W, axis=0),
        "zero": lambda: bu.quant.quantize(W, axis=-1, symmetric=False),
        "four": lambda: bu.quant.quantize_int4(W),
        "dynamic": lambda: bu.quant.quantize_params(bu.asarray(W), dynamic=True),
    }[how]()
    x = bu.asarray(X).astype(dtype)
    made = x @ q
    assert made.dtype is dtype
    back = wide(q.dequantize())
    # Weights and results round to the dtype, sums to f32; rows at run time to half a step.
    unit = {16: 2.0**-8 if dtype is bf16 else 2.0**-11}.get(dtype.bits, 2.0**-24)
    bound = (2 * unit + 70 * 2.0**-24) * (np.abs(wide(x.astype(f32))) @ np.abs(back))
    if how == "dynamic":
        steps = np.abs(wide(x.astype(f32))).max(-1, keepdims=True) / 127
        bound += steps / 2 * SLACK * np.abs(back).sum(0)
    assert (np.abs(wide(made.astype(f32)) - wide(x.astype(f32)) @ back) <= bound).all()


def test_vectors_stacks_and_numpy_stand_on_the_left() -> None:
    for q in (bu.quant.quantize(W, axis=-1), bu.quant.quantize_int4(W)):
        whole = host(bu.asarray(X) @ q)
        np.testing.assert_array_equal(X @ q, whole)
        np.testing.assert_allclose(X[0] @ q, whole[0], rtol=1e-5)
        np.testing.assert_allclose(X.reshape(2, 5, 64) @ q, whole.reshape(2, 5, 24), rtol=1e-5)
        each = bu.vmap(lambda x, q=q: x @ q)(bu.asarray(X))
        np.testing.assert_allclose(each, whole, rtol=1e-5)
    stack = np.stack([W, 2 * W])
    q = bu.quant.quantize(stack, axis=(0, -1))
    np.testing.assert_allclose((X @ q)[1], 2 * host(X @ q)[0], rtol=1e-5)


def test_a_policy_casts_what_is_multiplied_and_no_part_of_the_weights() -> None:
    policy = bu.amp.Policy(compute=bf16, output=bf16)
    kept = {"eight": bu.quant.quantize(W, axis=-1), "four": bu.quant.quantize_int4(W),
            "float": bu.amp.quantize(W)}  # fmt: skip
    for q in policy.cast_to_compute(kept).values():
        assert q.scale.dtype is f32
    made = policy.apply(lambda q, x: x @ q)(kept["eight"], bu.asarray(X))
    assert made.dtype is bf16
    np.testing.assert_array_equal(host(made), host(bu.asarray(X).astype(bf16) @ kept["eight"]))


def test_products_that_i32_may_not_hold_are_refused() -> None:
    rows = -(-(2**31) // (127 * 128))
    q = bu.quant.quantize_params(bu.ones((rows, 1), dtype=f32), dynamic=True)
    with pytest.raises(OpTypeError, match="no exact product of integers"):
        bu.ones((1, rows), dtype=f32) @ q
    codes = bu.full((rows - 1, 1), -128, dtype=i8)  # the largest sum there can be
    longest = bu.quant.Int8Array(codes, bu.ones((1, 1), dtype=f32), dynamic=True)
    made = bu.full((1, rows - 1), 127.0, dtype=f32) @ longest
    assert made.item() == np.float32(-127 * 128 * (rows - 1))
    across = bu.quant.quantize(W, axis=0)
    with pytest.raises(OpTypeError, match=r"scales f32\[64,1\]"):
        X @ bu.quant.Int8Array(across.values, across.scale, dynamic=True)
    with pytest.raises(OpTypeError, match="no floats"):
        bu.arange(64) @ across


@pytest.mark.parametrize(
    ("how", "kernels", "arena"),
    [({}, 1, 0), ({"bits": 4}, 1, 0), ({"dynamic": True}, 2, 1.1), ("calibrated", 2, 1)],
)
def test_what_fuses(how: Any, kernels: int, arena: float) -> None:
    """Unpacking, scale, bias and activation are in the kernel of the product; quantising rows is
    one before it, which keeps a byte for each element of x and,
    at run time, a scale for each row.
    """
    rows, inner, columns = 64, 512, 256
    params = {"w": bu.ones((inner, columns), dtype=f32), "b": bu.zeros(columns, dtype=f32)}
    x = bu.ones((rows, inner), dtype=f32)

    def layer(p: Any, x: Any) -> Any:
        return bu.nn.relu(x @ p["w"] + p["b"])

    if how == "calibrated":
        small = bu.quant.calibrate(layer, params, [x])
    else:
        small = bu.quant.quantize_params(params, **how)
    cost = bu.jit(layer, device="cpu").lower(small, x).cost()
    assert cost.kernels == kernels
    assert cost.arena_bytes <= arena * rows * inner


# -- observers -------------------------------------------------------------------------------------


def test_the_ends_of_what_was_seen() -> None:
    seen = bu.quant.MinMax()
    update = bu.jit(lambda seen, x: seen.update(x))
    for part in (X[:3], X[3:] * 2, np.array([np.nan, np.inf, 0.5], np.float32)):
        seen = update(seen, part)
    low, high = min(X[:3].min(), 2 * X[3:].min()), max(X[:3].max(), 2 * X[3:].max())
    assert (seen.low.item(), seen.high.item()) == (low, high)
    q = bu.quant.quantize(X, *seen.qparams())
    assert (np.abs(wide(q.dequantize()) - wide(X)) <= wide(q.scale) / 2 * SLACK).all()


def test_a_histogram_grows_by_joining_bins() -> None:
    parts = [X[:3] / 50, X[3:5], np.zeros(7, np.float32), X[5:] * 30]
    seen = bu.quant.Histogram(256)
    update = bu.jit(lambda seen, x: seen.update(x))
    for part in parts:
        seen = update(seen, part)
    everything = np.concatenate([p.reshape(-1) for p in parts])
    limit = seen.limit.item()
    assert limit / 2 < np.abs(everything).max() <= limit
    expected, _ = np.histogram(everything, 256, (-limit, limit))
    np.testing.assert_array_equal(seen.counts, expected)


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999])
def test_a_range_that_keeps_a_share(keep: float) -> None:
    x = RNG.standard_t(2, 5000).astype(np.float32)
    seen = bu.quant.Histogram(4096, keep=keep).update(x)
    scale, zero = (v.item() for v in seen.qparams())
    low, high = (-128 - zero) * scale, (127 - zero) * scale
    inside = ((x >= low - scale) & (x <= high + scale)).mean()
    width = seen.limit.item() / 2048
    tail = (1 - keep) / 2
    assert inside >= keep
    for found, share in ((low, tail), (high, 1 - tail)):
        nearby = np.quantile(x, [max(share - 0.002, 0), min(share + 0.002, 1)])
        assert nearby[0] - width - scale <= found <= nearby[1] + width + scale


def test_the_least_squared_error_leaves_outliers_out() -> None:
    x = np.concatenate([RNG.normal(size=20000), [40.0]]).astype(np.float32)
    errors = []
    for seen in (bu.quant.MinMax(), bu.quant.Histogram()):
        q = bu.quant.quantize(x, *seen.update(x).qparams())
        errors.append(np.square(wide(q.dequantize()) - wide(x)).mean())
    assert errors[1] < errors[0]
    # No other part of the range is better by more than a bin, or by what bins hide.
    steps = [bu.quant.quantize(x, *bu.quant.MinMax(x.min() * p, x.max() * p).qparams())
             for p in np.linspace(0.02, 1, 50)]  # fmt: skip
    best = min(np.square(wide(q.dequantize()) - wide(x)).mean() for q in steps)
    assert errors[1] < 1.1 * best


# -- training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, -1])
def test_fakes_have_the_values_of_codes(axis: Any) -> None:
    np.testing.assert_array_equal(
        bu.quant.fake_quantize(W, axis=axis), bu.quant.quantize(W, axis=axis).dequantize()
    )
    given = bu.quant.MinMax(-0.7, 1.1).qparams()
    np.testing.assert_array_equal(
        bu.quant.fake_quantize(W, *given), bu.quant.quantize(W, *given).dequantize()
    )
    for bits in (8, 4):
        params = {"w": bu.asarray(W), "b": bu.ones(3)}
        small = bu.quant.quantize_params(params, bits=bits, group=16)
        fakes = bu.quant.fake_params(params, bits=bits, group=16)
        np.testing.assert_array_equal(fakes["w"], small["w"].dequantize())
        assert fakes["b"] is params["b"]


@pytest.mark.parametrize("zero", [None, -20.0])
def test_gradients_go_straight_through(zero: Any) -> None:
    """To elements that have codes, and to the scale as in Learned Step Size Quantization."""
    step, weights = np.float32(0.01), RNG.normal(size=W.shape).astype(np.float32)

    def loss(x: Any, scale: Any) -> Any:
        return bu.sum(bu.quant.fake_quantize(x, scale, zero) * weights)

    by_x, by_scale = bu.grad(loss, argnums=(0, 1))(bu.asarray(W), bu.asarray(step))
    low, high = (-127, 127) if zero is None else (-128 - zero, 127 - zero)
    ratio = W / step
    inside = (np.round(ratio) >= low) & (np.round(ratio) <= high)
    assert 0.1 < inside.mean() < 0.9
    np.testing.assert_allclose(by_x, np.where(inside, weights, 0), rtol=1e-6)
    by_element = np.where(inside, np.round(ratio) - ratio, np.clip(ratio, low, high))
    terms = by_element.astype(np.float64) * weights
    assert abs(by_scale.item() - terms.sum()) < 2.0**-22 * np.abs(W / step * weights).sum()
    own = bu.grad(lambda x: bu.sum(bu.quant.fake_quantize(x, axis=-1) * weights))(bu.asarray(W))
    np.testing.assert_allclose(own, weights, rtol=1e-6)  # the largest elements as well


def test_what_makes_no_sense_is_refused() -> None:
    for call, message in (
        (lambda: bu.quant.quantize(np.arange(2)), "no floats"),
        (lambda: bu.quant.quantize(W, None, 3), "a zero point without a scale"),
        (lambda: bu.quant.quantize_int4(W, group=3), "groups of 3 rows"),
        (lambda: bu.quant.quantize_int4(W, group=48), "groups of 48 rows"),
        (lambda: bu.quant.quantize_int4(W[0]), "groups of 32 rows"),
        (lambda: bu.quant.quantize(W).dequantize(i8), "dtype=i8 is not possible"),
        (lambda: bu.quant.Histogram(3), "give an even number of bins"),
        (lambda: bu.quant.Histogram(keep=1.5), "a share above 0"),
        (lambda: bu.quant.fake_quantize(W, bits=5), "bits=5"),
        (lambda: bu.quant.quantize_params({"w": W}, bits=2), "bits=2"),
        (lambda: bu.quant.quantize_params({"w": W}, bits=4, dynamic=True), "dynamic=True"),
        (lambda: bu.quant.fake_params({"w": W}, takes=3), "takes"),  # type: ignore[arg-type]
        (lambda: bu.quant.calibrate(lambda p, x: x, {"w": W}, X), "batches of ndarray"),
        (lambda: bu.quant.calibrate(lambda p, x: x, {"w": W}, [X]), r"params\['w'\] was not"),
    ):
        with pytest.raises(OpTypeError, match=message):
            call()


# -- a network on digits ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> Any:
    """Pictures for training and for tests, and a network of two hidden layers trained on them."""
    load_digits = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn").load_digits
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.target))
    x, y = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    rng = np.random.default_rng(0)
    params = [
        {"w": bu.asarray(rng.normal(0, (2 / n) ** 0.5, (n, m)).astype(np.float32)),
         "b": bu.zeros(m, dtype=f32)}
        for n, m in ((64, 128), (128, 64), (64, 10))
    ]  # fmt: skip
    params = trained(params, x[:1297], y[:1297], 150, lambda p: p)
    return x[:1297], y[:1297], x[1297:], y[1297:], params


def network(params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = bu.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def trained(params: Any, x: Any, y: Any, steps: int, view: Any) -> Any:
    optimizer = bu.optim.adam(0.003)

    @bu.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return bu.mean(bu.nn.cross_entropy(network(view(p), x), y))

        return optimizer.update(bu.grad(loss)(params), state, params)

    state = optimizer.init(params)
    for n in range(steps):
        at = n * 128 % 1152
        params, state = step(params, state, x[at : at + 128], y[at : at + 128])
    return params


def right(params: Any, x: Any, y: Any) -> int:
    return int((host(bu.jit(network)(params, x)).argmax(1) == y).sum())


def test_a_network_keeps_its_accuracy(digits: Any) -> None:
    """Of 500 pictures, at most 3 fewer are right in 8 bits and 10 fewer in 4."""
    x, _, xs, ys, params = digits
    before = right(params, xs, ys)
    assert before > 450
    for how, lost in (({}, 3), ({"dynamic": True}, 3), ({"bits": 4}, 10)):
        assert right(bu.quant.quantize_params(params, **how), xs, ys) >= before - lost
    batches = [x[n : n + 100] for n in range(0, 400, 100)]
    for observer in (bu.quant.MinMax(), bu.quant.Histogram(), bu.quant.Histogram(keep=0.999)):
        small = bu.quant.calibrate(network, params, batches, observer=observer)
        assert all(layer["w"].inputs is not None for layer in small)
        assert right(small, xs, ys) >= before - 3
        seen = observer
        for batch in batches:
            seen = seen.update(batch)  # type: ignore[assignment]
        for a, b in zip(seen.qparams(), small[0]["w"].inputs[:2], strict=True):
            assert a.item() == b.item()


def test_training_with_fakes_makes_up_for_four_bits(digits: Any) -> None:
    """Groups of 64 rows are coarse; the loss in 4 bits falls when weights are trained for it."""
    x, y, xs, ys, params = digits
    coarse: dict[str, Any] = {"bits": 4, "group": 64}

    def loss(p: Any) -> float:
        small = bu.quant.quantize_params(p, **coarse)
        return float(bu.mean(bu.nn.cross_entropy(network(small, x), y)))

    better = trained(params, x, y, 60, lambda p: bu.quant.fake_params(p, **coarse))
    plain = trained(params, x, y, 60, lambda p: p)
    assert loss(better) < 0.8 * loss(plain)
    assert right(bu.quant.quantize_params(better, **coarse), xs, ys) >= right(params, xs, ys) - 5
