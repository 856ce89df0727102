"""Mixed precision: policies, loss scales, arrays in floats of 8 bits, and a network trained so."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError
from bringup.runtime.compiler import Compiled

f16, bf16, f32, f64 = bu.float16, bu.bfloat16, bu.float32, bu.float64
RNG = np.random.default_rng(0)


# -- policies --------------------------------------------------------------------------------------


def test_only_floats_are_cast() -> None:
    policy = bu.amp.Policy(compute=bf16, param="float64", output=f16)
    tree = {
        "w": bu.ones(2, dtype=f32),
        "host": np.ones(2),
        "scalar": np.float32(1),
        "ids": bu.arange(2),
        "mask": bu.asarray([True]),
        "z": bu.asarray([1j]),
        "rate": 0.5,
        "none": None,
        "small": bu.ones(1).astype(bu.float8_e5m2),
    }
    for cast, dtype in (
        (policy.cast_to_compute, bf16),
        (policy.cast_to_param, f64),
        (policy.cast_to_output, f16),
    ):
        made: dict[str, Any] = cast(tree)
        assert made["w"].dtype is made["host"].dtype is made["scalar"].dtype is dtype
        for name in ("ids", "mask", "rate", "none", "small"):
            assert made[name] is tree[name]
        assert made["z"].dtype is bu.complex128


def test_a_function_is_computed_in_the_dtype_of_the_policy() -> None:
    seen: list[Any] = []

    def model(params: Any, x: Any, *, scale: Any) -> Any:
        y = x @ params["w"] * scale
        seen.append(y.dtype)
        return y, bu.argmax(y)

    wrapped = bu.amp.Policy(compute=f16).apply(model)
    params = {"w": bu.ones((3, 2), dtype=f32)}
    y, place = bu.jit(wrapped)(params, np.ones((4, 3), np.float32), scale=bu.asarray(2.0))
    assert seen == [f16]
    assert (y.dtype, place.dtype) == (f32, bu.int64)
    assert wrapped.__name__ == "model"
    slopes = bu.grad(lambda p: bu.sum(wrapped(p, bu.ones((4, 3)), scale=1.0)[0]))(params)
    assert slopes["w"].dtype is f32
    assert slopes["w"].tolist() == [[4.0, 4.0]] * 3


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_products_accumulate_in_f32(dtype: Any) -> None:
    """A sum of ones in the narrow dtype would stop at 2048, or at 256."""
    policy = bu.amp.Policy(compute=dtype)
    ones = bu.ones((1, 4096), dtype=f32)
    assert policy.apply(lambda a, b: a @ b)(ones, ones.mT).item() == 4096
    exact = policy.apply(lambda a, b: bu.matmul(a, b, dtype=f32))
    longer = bu.ones((1, 4099), dtype=f32)
    assert exact(longer, longer.mT).item() == 4099
    line = bu.ones((1, 1, 4099), dtype=f32)
    found = policy.apply(bu.nn.conv)(line, line).item()
    assert found == np.float64(4099).astype(dtype.numpy)  # rounded once


@pytest.mark.parametrize("name", ["compute", "param", "output"])
@pytest.mark.parametrize("dtype", [bu.int32, bu.float8_e5m2, bu.complex64], ids=str)
def test_policies_of_other_dtypes_are_refused(name: str, dtype: Any) -> None:
    with pytest.raises(OpTypeError, match=f"Policy: {name}={dtype} is not possible"):
        bu.amp.Policy(**{name: dtype})


# -- loss scales -----------------------------------------------------------------------------------


def test_a_scale_grows_and_shrinks() -> None:
    adjust = bu.jit(lambda scale, ok: scale.adjust(ok))
    scale = bu.amp.LossScale(4.0, period=3, largest=16.0, least=2.0)
    history = []
    for good in [True] * 8 + [False, True, True, False, False, False, True, True, True]:
        scale = adjust(scale, bu.asarray(good))
        history.append((scale.scale.item(), scale.good.item()))
    assert history == [
        (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (16, 0), (16, 1), (16, 2),
        (8, 0), (8, 1), (8, 2), (4, 0), (2, 0), (2, 0), (2, 1), (2, 2), (4, 0),
    ]  # fmt: skip
    assert repr(adjust) == "<jit lambda: 1 signatures>"


def test_scaling_by_powers_of_two_rounds_nothing() -> None:
    scale = bu.amp.LossScale(2.0**15)
    tiny = RNG.normal(size=100).astype(np.float32) * 2.0**-20
    lost = bu.asarray(tiny).astype(f16)  # most of the bits are below the least f16
    kept = scale.unscale({"g": bu.asarray(tiny * 2.0**15).astype(f16)})["g"]
    assert kept.dtype is f32
    # f16 has 11 bits in its normal range.
    np.testing.assert_array_less(np.abs(np.asarray(kept) - tiny), np.abs(tiny) * 2.0**-11 + 1e-30)
    assert np.max(np.abs(np.asarray(lost).astype(np.float32) - tiny) / np.abs(tiny)) > 2.0**-9
    for dtype, wide in ((f16, f32), (bf16, f32), (f32, f32), (f64, f64)):
        loss = scale.scale_loss(bu.asarray(0.75, dtype=dtype))
        assert (loss.dtype, loss.item()) == (wide, 0.75 * 2**15)
        assert scale.unscale(loss).item() == 0.75


@pytest.mark.parametrize(
    "wrong", [{"period": 0}, {"factor": 1.0}, {"least": 0.0}, {"least": 8.0, "largest": 4.0}]
)
def test_scales_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OpTypeError, match="give a period of at least 1"):
        bu.amp.LossScale(**wrong)


def test_finite_and_select() -> None:
    good = {"w": bu.ones(3), "n": bu.arange(3)}
    for bad in (bu.inf, -bu.inf, bu.nan):
        assert not bu.amp.all_finite({**good, "b": [bu.asarray([0.0, bad])]})
    assert bu.amp.all_finite(good)
    assert bu.amp.all_finite(())
    other = {"w": bu.zeros(3), "n": bu.arange(3) + 5}
    chosen = bu.jit(bu.amp.select)(bu.asarray(False), good, other)
    assert (chosen["w"].tolist(), chosen["n"].tolist()) == ([0, 0, 0], [5, 6, 7])
    with pytest.raises(OpTypeError, match="the containers differ"):
        bu.amp.select(bu.asarray(True), good, (1, 2))
    with pytest.raises(OpTypeError, match=r"the condition is bool\[2\]"):
        bu.amp.select(bu.asarray([True, False]), good, other)


# -- a network -------------------------------------------------------------------------------------

SIZES = (32, 128, 128, 2)
X = RNG.normal(size=(256, SIZES[0])).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int32)
OPTIMIZER = bu.optim.sgd(0.1)
PERIOD = 20


def network(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = bu.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def start() -> tuple[Any, Any]:
    keys = bu.random.split(bu.random.key(0), len(SIZES) - 1)
    params = [
        (
            bu.random.normal(k, (m, n), dtype=f32) * float(np.sqrt(2 / m)),
            bu.zeros(n, dtype=f32),
        )
        for k, m, n in zip(keys, SIZES, SIZES[1:], strict=False)
    ]
    return params, OPTIMIZER.init(params)


def training_step(compute: Any) -> Any:
    predict = bu.amp.Policy(compute=compute).apply(network)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return bu.mean(bu.nn.cross_entropy(predict(params, x), y))

    @bu.jit
    def step(params: Any, state: Any, scale: bu.amp.LossScale, x: Any, y: Any) -> Any:
        scaled = bu.grad(lambda p: scale.scale_loss(loss(p, x, y)))(params)
        slopes = scale.unscale(scaled)
        good = bu.amp.all_finite(slopes)
        new = OPTIMIZER.update(slopes, state, params)
        params, state = bu.amp.select(good, new, (params, state))
        return params, state, scale.adjust(good), good

    return step


def trained(compute: Any, first: float, steps: int = 200) -> tuple[Any, list[tuple[bool, float]]]:
    step, (params, state) = training_step(compute), start()
    scale = bu.amp.LossScale(first, period=PERIOD)
    history = []
    for _ in range(steps):
        before = params
        params, state, scale, good = step(params, state, scale, X, Y)
        history.append((bool(good), float(scale.scale)))
        same = [
            np.array_equal(np.asarray(a), np.asarray(b))
            for a, b in zip(bu.tree.flatten(before)[0], bu.tree.flatten(params)[0], strict=True)
        ]
        assert all(same) if not good else not any(same)
        assert int(state.step) == sum(good for good, _ in history)
    assert repr(step) == "<jit step: 1 signatures>"
    return params, history


def right(params: Any) -> int:
    return int(bu.count_nonzero(bu.argmax(network(params, X), axis=1) == Y))


def test_a_network_is_trained_in_f16_from_a_scale_that_overflows() -> None:
    params, history = trained(f16, 2.0**24)
    bad = [good for good, _ in history].index(True)
    # A mean over 256 examples: at 2**24 the cotangents of the scores are 2**16 and above.
    assert bad >= 1
    assert [scale for _, scale in history[:bad]] == [2.0 ** (23 - i) for i in range(bad)]
    first = history[bad][1]
    assert history[bad : bad + PERIOD - 1] == [(True, first)] * (PERIOD - 1)
    assert history[bad + PERIOD - 1] == (True, 2 * first)
    assert max(scale for _, scale in history[bad:]) > 4 * first
    # What counts is what the network says: of 256 examples at most one of a hundred is another.
    wide, steady = trained(f32, 1.0)
    assert all(good for good, _ in steady)
    assert abs(right(params) - right(wide)) <= 2
    assert right(wide) >= 250


def lowered(compute: Any) -> Compiled:
    params, state = start()
    made: Compiled = training_step(compute).lower(params, state, bu.amp.LossScale(), X, Y)
    return made


def test_narrow_activations_take_half_the_memory() -> None:
    wide, narrow = lowered(f32).cost(), lowered(bf16).cost()
    assert narrow.kernels == wide.kernels
    # Of what is kept between kernels everything but a few scalars is computed in bf16.
    assert 2 * narrow.arena_bytes - wide.arena_bytes <= 256
    assert narrow.bytes_read < 0.65 * wide.bytes_read
    assert narrow.bytes_written < 0.65 * wide.bytes_written


def test_casts_of_parameters_keep_no_activation_alive() -> None:
    """Their gradients end the graph; what these cast is computed where it belongs."""

    def arena(compute: Any) -> int:
        predict = bu.amp.Policy(compute=compute).apply(network)

        def loss(params: Any) -> Any:
            return bu.mean(bu.nn.cross_entropy(predict(params, X), Y))

        return bu.jit(bu.grad(loss)).lower(start()[0]).cost().arena_bytes

    # Two hidden layers, whose cotangents take their places, and the scores.
    layers, scores = len(X) * (SIZES[1] + SIZES[2]), len(X) * SIZES[3]
    assert arena(f32) == 4 * (layers + scores)
    assert arena(bf16) == 2 * (layers + scores) + 4 * scores  # softmax is computed in f32


# -- floats of 8 bits ------------------------------------------------------------------------------

#: Bits of mantissa, the least normal number, and the distance of those below.
FORMATS = {
    bu.float8_e4m3fn: (3, 2.0**-6, 2.0**-9),
    bu.float8_e5m2: (2, 2.0**-14, 2.0**-16),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 3e20])
def test_quantised_arrays_are_off_by_half_an_ulp_of_their_format(dtype: Any, scale: float) -> None:
    bits, normal, step = FORMATS[dtype]
    x = (RNG.normal(size=1000) * scale * np.exp(RNG.normal(size=1000) * 3)).astype(np.float32)
    q = bu.jit(lambda x: bu.amp.quantize(x, dtype))(x)
    assert (q.values.dtype, q.scale.type) == (dtype, f32[()])
    found = np.asarray(q.dequantize()).astype(np.float64)
    s = float(q.scale)
    # A division, a rounding to the format and a product; f32 rounds the first and the last.
    half = np.maximum(np.abs(x.astype(np.float64)), normal * s) * 2.0 ** -(bits + 1)
    assert np.all(np.abs(found - x) <= half * (1 + 2.0**-20) + 2.0**-22 * np.abs(x))
    assert step * s <= normal * s * 2.0**-bits  # below the normal range, too
    most = float(bu.finfo(dtype).max)
    assert np.max(np.abs(np.asarray(q.values).astype(np.float64))) == most


def test_quantising_clips_and_keeps_nan() -> None:
    x = bu.asarray([1e9, -1e9, bu.inf, bu.nan, 0.0], dtype=f32)
    for dtype in FORMATS:
        q = bu.amp.quantize(x, dtype, scale=2.0)
        most = bu.finfo(dtype).max * 2
        assert np.array_equal(np.asarray(q.dequantize()), [most, -most, most, np.nan, 0], True)
        own = bu.amp.quantize(x, dtype)  # what is infinite has no say in the scale
        assert own.scale.item() == np.float32(1e9) / np.float32(bu.finfo(dtype).max)
    nothing = bu.amp.quantize(bu.zeros((0, 3)))
    assert (nothing.scale.item(), nothing.values.shape) == (1.0, (0, 3))
    assert bu.amp.quantize(bu.zeros(3)).dequantize(bf16).tolist() == [0.0, 0.0, 0.0]


def test_a_history_gives_the_scale_of_the_last_steps() -> None:
    update = bu.jit(lambda history, x: history.update(x))
    history = bu.amp.AmaxHistory(3)
    assert history.scale().item() == 1.0
    scales = []
    for amax in (448.0, 896.0, 448.0, 448.0, 448.0, bu.inf):
        history = update(history, bu.asarray([0.5, -amax], dtype=f32))
        scales.append(history.scale().item())
    assert scales == [1, 2, 2, 2, 1, 1]
    assert history.amax.tolist() == [0.5, 448, 448]
    assert history.scale(bu.float8_e5m2).item() == 448 / 57344
    assert repr(update) == "<jit lambda: 1 signatures>"
    with pytest.raises(OpTypeError, match="0 steps are no history"):
        bu.amp.AmaxHistory(0)


def test_quantised_matrices_multiply() -> None:
    a, b = (RNG.normal(size=s).astype(np.float32) for s in ((16, 64), (64, 8)))

    @bu.jit
    def product(a: Any, b: Any) -> Any:
        p, q = bu.amp.quantize(a), bu.amp.quantize(b)
        return bu.matmul(p.values, q.values, dtype=f32) * (p.scale * q.scale)

    # Each factor is off by one part in 16, or by half a step of those below the normal range.
    def bound(x: Any) -> Any:
        s = np.max(np.abs(x)) / 448
        return np.maximum(np.abs(x), 2.0**-6 * s) * 2.0**-4

    error = bound(a) @ np.abs(b) + (np.abs(a) + bound(a)) @ bound(b)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    rounding = 66 * 2.0**-24 * ((np.abs(a) + bound(a)) @ (np.abs(b) + bound(b)))
    assert np.all(np.abs(np.asarray(product(a, b)) - wide) <= error * (1 + 2.0**-20) + rounding)


@pytest.mark.parametrize("x", [bu.arange(3), bu.asarray([1j])], ids=["i64", "c128"])
def test_only_floats_are_quantised(x: Any) -> None:
    with pytest.raises(OpTypeError, match="has no floats to compute with"):
        bu.amp.quantize(x)
    with pytest.raises(OpTypeError, match="dtype=f32 is not possible"):
        bu.amp.quantize(bu.ones(2), f32)


def test_all_of_it_goes_through_transformations() -> None:
    scale = bu.amp.LossScale(4.0)
    assert dataclasses.replace(scale, period=5).period == 5
    assert len(bu.tree.flatten(scale)[0]) == 2
    q = bu.vmap(bu.amp.quantize)(bu.asarray([[1.0, 2.0], [3.0, 448.0]]))
    assert q.scale.tolist() == [np.float32(2.0) / np.float32(448.0), 1.0]
    assert bu.vmap(lambda q: q.dequantize())(q)[1].tolist() == [3.0, 448.0]
    state = bu.fori_loop(0, 3, lambda _i, s: s.adjust(bu.asarray(False)), scale)
    assert state.scale.item() == 1.0
