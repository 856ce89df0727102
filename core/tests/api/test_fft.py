"""`bringup.fft` against numpy: every function, length, axis and norm; gradients; mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

LENGTHS = (1, 2, 3, 4, 6, 7, 16, 30, 31, 64, 67, 100, 121, 134, 128, 210)
NORMS = ("backward", "ortho", "forward")


def drawn(shape: tuple[int, ...], seed: int, complex_: bool = True) -> Any:
    rng = np.random.default_rng(seed)
    found = rng.normal(size=shape)
    return found + 1j * rng.normal(size=shape) if complex_ else found


def close(actual: Any, wanted: Any, eps: float = 2.0**-52) -> None:
    actual = np.asarray(actual)
    assert actual.shape == wanted.shape
    error = np.linalg.norm(actual - wanted)
    assert error <= 8 * eps * (np.log2(wanted.size + 2) + 1) * np.linalg.norm(wanted)


def assert_every_norm(name: str, x: Any) -> None:
    """A transform under each norm, all in one program: they differ by factors."""
    program = bu.jit(lambda x: [getattr(bu.fft, name)(x, norm=norm) for norm in NORMS])
    for norm, found in zip(NORMS, program(bu.asarray(x)), strict=True):
        close(found, getattr(np.fft, name)(x, norm=norm))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", ["fft", "ifft", "hfft", "irfft"])
def test_complex_transforms(name: str, n: int) -> None:
    if n == 1 and name in ("hfft", "irfft"):
        return
    x = drawn((3, n), n)
    assert_every_norm(name, x)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", ["fft", "rfft", "ihfft", "ifft"])
def test_transforms_of_real_numbers(name: str, n: int) -> None:
    x = drawn((2, n), n, complex_=False)
    assert_every_norm(name, x)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("n", [1, 4, 5, 9, 12])
def test_cropping_and_padding_along_any_axis(name: str, n: int) -> None:
    x = drawn((4, 7, 3), n, complex_=name not in ("rfft", "ihfft"))
    for axis in (0, 1, -1):
        wanted = getattr(np.fft, name)(x, n=n, axis=axis)
        close(getattr(bu.fft, name)(bu.asarray(x), n=n, axis=axis), wanted)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("s", [None, (4, 6), (3, 5)])
@pytest.mark.parametrize("axes", [(0, 1), (2, 0), (-1, -2)])
def test_several_axes(name: str, s: Any, axes: Any) -> None:
    x = drawn((4, 6, 5), 1, complex_=name != "rfftn")
    wanted = getattr(np.fft, name)(x, s=s, axes=axes)
    close(getattr(bu.fft, name)(bu.asarray(x), s=s, axes=axes), wanted)


def test_all_axes_by_default() -> None:
    x = drawn((4, 6, 2), 1)
    close(bu.fft.fftn(bu.asarray(x)), np.fft.fftn(x))
    close(bu.fft.irfftn(bu.fft.rfftn(bu.asarray(x.real))), x.real)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float16])
def test_narrow_numbers_give_complex64(dtype: Any) -> None:
    x = drawn((5, 96), 3).astype(dtype) if dtype == np.complex64 else drawn((5, 96), 3, False)
    x = x.astype(dtype)
    found = bu.fft.fft(bu.asarray(x))
    assert found.dtype is bu.complex64
    close(found, np.fft.fft(x.astype(np.complex128)), 2.0**-23)


def test_integers_are_transformed_as_f64() -> None:
    found = bu.fft.fft(bu.asarray([1, 2, 3, 4]))
    assert found.dtype is bu.complex128
    assert found.tolist() == [10, -2 + 2j, -2, -2 - 2j]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    assert np.array_equal(np.asarray(bu.fft.fftfreq(n, d=0.1)), np.fft.fftfreq(n, 0.1))
    assert np.array_equal(np.asarray(bu.fft.rfftfreq(n)), np.fft.rfftfreq(n))
    assert bu.fft.fftfreq(n, dtype=bu.float32).dtype is bu.float32
    x = np.arange(3 * n).reshape(3, n)
    for axes in (None, 1, (0, 1)):
        for name in ("fftshift", "ifftshift"):
            found = getattr(bu.fft, name)(bu.asarray(x), axes=axes)
            assert np.array_equal(np.asarray(found), getattr(np.fft, name)(x, axes))


def test_the_imaginary_parts_of_ends_are_not_read() -> None:
    x = drawn((5,), 1)
    x[0] += 7j
    for n in (8, 7):
        close(bu.fft.irfft(bu.asarray(x), n=n), np.fft.irfft(x, n=n))


def test_a_jitted_transform_with_a_gradient() -> None:
    target = bu.asarray(drawn((12,), 5, complex_=False))

    def loss(x: Any) -> Any:
        spectrum = bu.fft.rfft(x)
        size = spectrum.real**2 + spectrum.imag**2
        return bu.sum(size * bu.arange(7.0)) + bu.sum(bu.fft.irfft(spectrum) * target)

    x = drawn((12,), 6, complex_=False)
    found = np.asarray(bu.jit(bu.grad(loss))(bu.asarray(x)))
    for i in range(12):
        step = np.zeros(12)
        step[i] = 1e-5
        ends = [float(loss(bu.asarray(x + sign * step))) for sign in (1, -1)]
        assert abs(found[i] - (ends[0] - ends[1]) / 2e-5) < 1e-6 * (1 + abs(found[i]))


def test_transforms_map() -> None:
    x = drawn((3, 4, 10), 8)
    mapped = bu.vmap(bu.fft.fft)(bu.asarray(x))
    close(mapped, np.fft.fft(x))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: bu.fft.fft(x, n=0), "fft: 0 elements"),
        (lambda x: bu.fft.fft(x, norm="max"), "norm 'max' is unknown"),
        (lambda x: bu.fft.fft(x, axis=2), "axis 2 is out of range"),
        (lambda x: bu.fft.rfft(x + 1j), "takes real numbers"),
        (lambda x: bu.fft.fftn(x, s=(1, 2), axes=(0,)), "1 axes and 2 lengths"),
        (lambda x: bu.fft.fft(bu.sum(x)), "has no axis"),
        (lambda x: bu.fft.fftfreq(0), "0 is no length"),
    ],
)
def test_mistakes(call: Any, said: str) -> None:
    with pytest.raises(OpTypeError, match=said) as caught:
        call(bu.ones((4,)))
    assert caught.value.fix
    assert caught.value.location is not None
