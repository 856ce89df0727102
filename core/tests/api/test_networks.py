"""Functions of neural networks against loops over numpy arrays, and their arguments' errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import ArrayIndexError, OpTypeError

Array = np.ndarray[Any, Any]
nn = bu.nn


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-10, atol=1e-12)


def sliding(
    x: Array, window: tuple[int, ...], stride: int, pad: int, edge: float
) -> Iterator[tuple[Any, Array]]:
    """Every place of a window over the dimensions after the second, and what it holds."""
    width = [(0, 0), (0, 0)] + [(pad, pad)] * len(window)
    x = np.pad(x, width, constant_values=edge)
    counts = [(n - k) // stride + 1 for n, k in zip(x.shape[2:], window, strict=True)]
    for place in itertools.product(*map(range, counts)):
        spans = [slice(p * stride, p * stride + k) for p, k in zip(place, window, strict=True)]
        yield place, x[(slice(None), slice(None), *spans)]


def naive_conv(x: Array, w: Array, stride: int = 1, pad: int = 0) -> Array:
    found = dict(sliding(x, w.shape[2:], stride, pad, 0.0))
    shape = [max(place[d] for place in found) + 1 for d in range(x.ndim - 2)]
    out = np.zeros((x.shape[0], w.shape[0], *shape))
    for place, part in found.items():
        axes = list(range(1, x.ndim))
        out[(slice(None), slice(None), *place)] = np.tensordot(part, w, (axes, axes))
    return out


def naive_pool(
    x: Array, window: int, stride: int, pad: int, fold: Callable[..., Any], edge: float
) -> Array:
    sizes = (window,) * (x.ndim - 2)
    found = dict(sliding(x, sizes, stride, pad, edge))
    shape = [max(place[d] for place in found) + 1 for d in range(x.ndim - 2)]
    out = np.zeros((*x.shape[:2], *shape))
    for place, part in found.items():
        out[(slice(None), slice(None), *place)] = fold(part, axis=tuple(range(2, x.ndim)))
    return out


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "pad"), [(1, 0), (2, 1), (3, 2)])
def test_convolutions(rank: int, stride: int, pad: int) -> None:
    x, w = numbers(2, 3, *(6, 5, 4)[:rank]), numbers(4, 3, *(3, 2, 2)[:rank], seed=1)
    found = nn.conv(bu.asarray(x), bu.asarray(w), stride=stride, padding=pad)
    close(found, naive_conv(x, w, stride, pad))


def test_features_may_come_last() -> None:
    x, w = numbers(2, 3, 6, 5), numbers(4, 3, 3, 2, seed=1)
    last = np.moveaxis(x, 1, -1), np.transpose(w, (2, 3, 1, 0))
    found = nn.conv(*map(bu.asarray, last), layout="NHWC")
    close(np.moveaxis(np.asarray(found), -1, 1), naive_conv(x, w))


def test_groups_see_their_own_features() -> None:
    x, w = numbers(2, 4, 6), numbers(6, 2, 3, seed=1)
    found = nn.conv(bu.asarray(x), bu.asarray(w), groups=2)
    parts = [naive_conv(x[:, :2], w[:3]), naive_conv(x[:, 2:], w[3:])]
    close(found, np.concatenate(parts, axis=1))


def test_dilation_spreads_the_window() -> None:
    x, w = numbers(1, 2, 9), numbers(3, 2, 3, seed=1)
    spread = np.zeros((3, 2, 5))
    spread[..., ::2] = w
    close(nn.conv(bu.asarray(x), bu.asarray(w), dilation=2), naive_conv(x, spread))


@pytest.mark.parametrize("size", [1, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_same_padding_leaves_a_window_per_stride(size: int, stride: int) -> None:
    x, w = bu.ones((1, 1, size)), bu.ones((1, 1, 3))
    assert nn.conv(x, w, stride=stride, padding="same").shape == (1, 1, -(-size // stride))
    back = nn.conv_transpose(x, w, stride=stride, padding="same")
    assert back.shape == (1, 1, size * stride)


def test_padding_of_each_side_and_negative() -> None:
    x, w = numbers(1, 1, 6), numbers(1, 1, 2, seed=1)
    padded = np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 2)))
    close(nn.conv(bu.asarray(x), bu.asarray(w), padding=[(-1, 2)]), naive_conv(padded, w))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "padding"), [(1, "valid"), (2, 1), (3, [(1, 0), (0, 1)])])
def test_a_transposed_convolution_is_the_gradient(groups: int, stride: int, padding: Any) -> None:
    x, w = numbers(2, 4, 7, 8), numbers(6, 4 // groups, 3, 2, seed=1)
    kernel = bu.asarray(w)

    def forward(x: bu.Array) -> bu.Array:
        return nn.conv(x, kernel, stride=stride, padding=padding, groups=groups)

    ct = numbers(*forward(bu.asarray(x)).shape, seed=2)
    wanted = bu.grad(lambda x: bu.sum(forward(x) * bu.asarray(ct)))(bu.asarray(x))
    found = nn.conv_transpose(bu.asarray(ct), kernel, stride=stride, padding=padding, groups=groups)
    # A stride may step over the last elements, which the way back then does not know of.
    shape = found.shape
    close(found, np.asarray(wanted)[:, :, : shape[2], : shape[3]])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "pad"), [(2, 0), (1, 1)])
def test_pooling(rank: int, stride: int, pad: int) -> None:
    x = numbers(2, 3, *(6, 5, 4)[:rank])
    largest = nn.max_pool(bu.asarray(x), 2, stride=stride, padding=pad)
    close(largest, naive_pool(x, 2, stride, pad, np.max, -np.inf))
    whole = nn.avg_pool(bu.asarray(x), 2, stride=stride, padding=pad, count_include_pad=True)
    close(whole, naive_pool(x, 2, stride, pad, np.mean, 0.0))
    inner = nn.avg_pool(bu.asarray(x), 2, stride=stride, padding=pad)
    close(inner, naive_pool(x, 2, stride, pad, np.nanmean, np.nan))


def test_pooling_with_features_last() -> None:
    x = numbers(2, 6, 4, 3)
    found = nn.max_pool(bu.asarray(x), (3, 2), layout="NHWC")
    close(found, x.reshape(2, 2, 3, 2, 2, 3).max(axis=(2, 4)))


def test_the_gradient_goes_to_the_first_maximum() -> None:
    x = bu.asarray([[[1.0, 5.0, 5.0, 2.0, 2.0]]])
    found = bu.grad(lambda x: bu.sum(nn.max_pool(x, 2, stride=1, padding="same")))(x)
    assert found.tolist() == [[[0.0, 2.0, 1.0, 1.0, 1.0]]]
    low = bu.asarray([[[-np.inf, -np.inf]]])
    found = bu.grad(lambda x: bu.sum(nn.max_pool(x, 2, stride=1, padding=1)))(low)
    assert found.tolist() == [[[2.0, 1.0]]], "padding is no maximum"


def normal(x: Array, axes: tuple[int, ...], epsilon: float = 1e-5) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt(x.var(axis=axes, keepdims=True) + epsilon)


def test_norms_by_feature() -> None:
    x, gain, bias = numbers(3, 4, 5, 2), numbers(4, seed=1), numbers(4, seed=2)
    a, g, b = map(bu.asarray, (x, gain, bias))
    column = (4, 1, 1)

    def affine(y: Array) -> Array:
        return y * gain.reshape(column) + bias.reshape(column)

    grouped = normal(x.reshape(3, 2, 2, 5, 2), (2, 3, 4)).reshape(x.shape)
    close(nn.group_norm(a, 2, g, b), affine(grouped))
    close(nn.instance_norm(a, g, b), affine(normal(x, (2, 3))))
    last = nn.group_norm(bu.moveaxis(a, 1, -1), 2, g, b, axis=-1)
    close(bu.moveaxis(last, -1, 1), affine(grouped))
    close(nn.rms_norm(a, axis=(1, 3)), x / np.sqrt((x**2).mean((1, 3), keepdims=True) + 1e-5))
    mean, var = numbers(4, seed=3), np.abs(numbers(4, seed=4))
    y, moved, spread = nn.batch_norm_train(a, g, b, mean=bu.asarray(mean), var=bu.asarray(var))
    close(y, affine(normal(x, (0, 2, 3))))
    close(moved, 0.9 * mean + 0.1 * x.mean((0, 2, 3)))
    close(spread, 0.9 * var + 0.1 * x.var((0, 2, 3), ddof=1))
    found = nn.batch_norm(a, g, b, mean=bu.asarray(mean), var=bu.asarray(var))
    scaled = (x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-5)
    close(found, affine(scaled))


def naive_attention(q: Array, k: Array, v: Array, added: Any = 0.0, scale: float = 1.0) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) * scale + added
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True) @ v


def test_attention() -> None:
    q, k, v = numbers(2, 3, 4, 8), numbers(2, 3, 6, 8, seed=1), numbers(2, 3, 6, 5, seed=2)
    a = list(map(bu.asarray, (q, k, v)))
    close(nn.attention(*a), naive_attention(q, k, v, scale=8**-0.5))
    bias = numbers(3, 1, 6, seed=3)
    close(nn.attention(*a, bias=bu.asarray(bias), scale=0.5), naive_attention(q, k, v, bias, 0.5))
    later = np.where(np.arange(6) <= np.arange(4)[:, None] + 2, 0.0, -np.inf)
    close(nn.attention(*a, causal=True, scale=1), naive_attention(q, k, v, later))
    seen = np.array([True, True, False, True, False, True])
    hidden = np.where(seen, bias, -np.inf)
    found = nn.attention(*a, mask=bu.asarray(seen), bias=bu.asarray(bias), scale=1)
    close(found, naive_attention(q, k, v, hidden))
    half = [bu.astype(x, bu.float16) for x in a]
    assert nn.attention(*half).dtype is bu.float16
    rough = naive_attention(q, k, v, scale=8**-0.5)
    np.testing.assert_allclose(np.asarray(nn.attention(*half), np.float64), rough, atol=4e-3)


def test_cross_entropy() -> None:
    x, labels = numbers(5, 3), np.array([0, 2, 1, 2, 7])
    logs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    wanted = [-logs[i, n] if n < 3 else np.nan for i, n in enumerate(labels)]
    close(nn.cross_entropy(bu.asarray(x), bu.asarray(labels)), wanted)
    close(nn.cross_entropy(bu.asarray(x.T), bu.asarray(labels), axis=0), wanted)
    sure = nn.cross_entropy(bu.asarray([[np.inf * -1, 0.0]]), bu.asarray([1]))
    assert sure.tolist() == [0.0], "a class ruled out costs nothing where it is not asked for"


def test_resampling() -> None:
    x = numbers(2, 5)
    a = bu.asarray(x)
    close(nn.resize(a, (4, 10), method="nearest"), x.repeat(2, 0).repeat(2, 1))
    close(nn.resize(a, (10,), axis=(-1,))[:, 1:-1:2], x[:, :-1] * 0.75 + x[:, 1:] * 0.25)
    line = bu.asarray(np.arange(8.0))
    close(nn.resize(line, (16,), method="cubic")[8:10], [3.75, 4.25])
    close(nn.resize(line, (4,)), [0.5, 2.5, 4.5, 6.5])
    smooth = np.asarray(nn.resize(line, (4,), antialias=True))
    close(smooth[1:3], [2.5, 4.5])
    assert nn.resize(bu.arange(3), (5,), method="nearest").tolist() == [0, 0, 1, 2, 2]


ONE = bu.ones((1, 1, 4))
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "layout": (lambda: nn.conv(ONE, ONE, layout="NHWC"), "use NCW or NWC"),
    "vector": (lambda: nn.max_pool(bu.ones(3), 2), "give it batch, features"),
    "stride": (lambda: nn.conv(ONE, ONE, stride=0), "give an int of at least 1"),
    "strides": (lambda: nn.conv(ONE, ONE, stride=(1, 2)), "or 1 of them"),
    "window": (lambda: nn.max_pool(ONE, "2"), "use an int"),  # type: ignore[arg-type]
    "padding": (lambda: nn.conv(ONE, ONE, padding="full"), "valid"),
    "sides": (lambda: nn.conv(ONE, ONE, padding=[(1, 2, 3)]), "pairs"),  # type: ignore[list-item]
    "ranks": (lambda: nn.conv(ONE, bu.ones((1, 1))), "as many dimensions"),
    "groups": (lambda: nn.conv_transpose(ONE, ONE, groups=2), "divides 1"),
    "labels": (lambda: nn.cross_entropy(ONE, ONE), "without axis 2"),
    "mask": (lambda: nn.attention(ONE, ONE, ONE, mask=ONE), "floats as bias"),
    "heads": (lambda: nn.attention(ONE, ONE, bu.ones((1, 4))), "depth"),
    "sizes": (lambda: nn.resize(ONE, (2,)), "one size for each axis"),
    "method": (lambda: nn.resize(ONE, (1, 1, 2), method="best"), "nearest, linear, cubic"),
    "gain": (lambda: nn.group_norm(ONE, 1, bu.ones(3)), "give it shape (1,)"),
    "features": (lambda: nn.batch_norm(ONE, mean=bu.ones(4), var=bu.ones(1)), "give it shape (1,)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_explained(name: str) -> None:
    call, fix = WRONG[name]
    with pytest.raises(OpTypeError) as caught:
        call()
    assert fix in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_labels_out_of_range_are_never_a_loss_of_zero() -> None:
    scores = numbers(2, 300)
    for labels in (np.array([0, 300]), np.array([-1, 0])):
        with pytest.raises(ArrayIndexError, match="out of range for 300 classes") as caught:
            nn.cross_entropy(bu.asarray(scores), labels)
        assert caught.value.location is not None
        with pytest.raises(ArrayIndexError, match="out of range for 300 classes"):
            nn.one_hot(labels, 300)
        given = bu.asarray(labels)
        for f in (nn.cross_entropy, bu.jit(nn.cross_entropy)):
            found = np.isnan(np.asarray(f(bu.asarray(scores), given)))
            assert found.tolist() == [not 0 <= n < 300 for n in labels]
        hot = np.asarray(nn.one_hot(given, 300))
        assert hot.sum(axis=1).tolist() == [0 <= n < 300 for n in labels]
    # The number of classes need not fit the dtype of the labels.
    narrow = nn.cross_entropy(bu.asarray(scores), bu.asarray(np.array([3, 127], np.int8)))
    powers = np.exp(scores - scores.max(1, keepdims=True))
    wanted = -np.log(powers / powers.sum(1, keepdims=True))[[0, 1], [3, 127]]
    close(narrow, wanted)


def test_normalisation_in_training_takes_its_averages_by_name() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'mean'"):
        nn.batch_norm_train(ONE, bu.ones(1), bu.ones(1))
    with pytest.raises(TypeError, match="positional"):
        nn.batch_norm(ONE, *(bu.ones(1),) * 4)
