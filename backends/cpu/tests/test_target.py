"""Code for CPUs other than this one: old ones run on this host too, newer ones are read."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bringup as bu
from bringup.errors import UnsupportedError
from bringup_cpu import host

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="names levels of x86-64"
)

_LEVELS = ("x86-64", "x86-64-v3")

_AS = """
import bringup.llvm.host.engine
bringup.llvm.host.engine.host_cpu = lambda: {level!r}
bringup.llvm.host.engine.host_features = lambda: ""
import bringup_cpu.device
from bringup_cpu.target import target
bringup_cpu.device.host_loops = lambda: target({level!r}).loops
import numpy as np
import bringup as bu
def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], a[wrong][:5], b[wrong][:5])
    assert np.array_equal(np.signbit(a), np.signbit(b))
"""

_HALVES = """
halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
fine = halves.astype(np.float32)
same(bu.jit(lambda x: bu.astype(x, bu.float32))(halves), fine)
def near(x):
    # Every half, the midpoint to the next, and both neighbours of each.
    finite = x[np.isfinite(x)]
    middle = finite + np.spacing(finite.astype(np.float16)).astype(x.dtype) / 2
    points = np.concatenate([finite, middle, -middle])
    return np.concatenate([points, np.nextafter(points, np.inf, dtype=x.dtype),
                           np.nextafter(points, -np.inf, dtype=x.dtype),
                           np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30], x.dtype)])
with np.errstate(all="ignore"):
    for dtype in (np.float32, np.float64):
        x = near(fine.astype(dtype))
        same(bu.jit(lambda x: bu.astype(x, bu.float16))(x), x.astype(np.float16))
    same(bu.jit(lambda x: x * x + x)(halves), (halves * halves) + halves)
"""

_REST = """
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64, np.int8, np.int32, np.int64, np.uint16):
    for n in (1, 3, 17, 1000):
        x = (rng.integers(-9, 9, n)).astype(dtype)
        y = (rng.integers(1, 9, n)).astype(dtype)
        same(bu.jit(lambda x, y: x * y - x)(x, y), x * y - x)
        same(bu.jit(lambda x: bu.max(x))(x), x.max())
        total = bu.jit(lambda x: bu.sum(x))(x)
        assert float(total) == float(x.sum(dtype=np.asarray(total).dtype))
        same(bu.jit(lambda x, y: bu.where(x < y, x, y))(x, y), np.minimum(x, y))
x = rng.standard_normal(5000)
for dtype, tolerance in ((np.float32, 3e-7), (np.float64, 6e-16)):
    v = x.astype(dtype)
    for name in ("exp", "sin", "cos", "tanh", "floor", "expm1"):
        found = np.asarray(bu.jit(getattr(bu, name))(v), np.float64)
        exact = getattr(np, name)(v.astype(np.longdouble))
        assert np.allclose(found, exact.astype(np.float64), rtol=tolerance, atol=tolerance), name
a, b = rng.integers(-4, 5, (33, 70)), rng.integers(-4, 5, (70, 19))
same(bu.jit(lambda a, b: a @ b)(a.astype(np.float32), b.astype(np.float32)),
     (a @ b).astype(np.float32))
"""


@pytest.mark.parametrize("level", _LEVELS)
def test_halves_are_right_without_instructions_for_them(
    python: Callable[..., Any], level: str
) -> None:
    python(_AS.format(level=level) + _HALVES)


@pytest.mark.parametrize("level", _LEVELS)
def test_code_of_older_cpus_is_right(python: Callable[..., Any], level: str) -> None:
    python(_AS.format(level=level) + _REST)


def assembly(level: str, build: Callable[..., Any], *types: Any) -> str:
    return str(bu.jit(build).lower(*types, target=f"cpu:{level}").asm)


@pytest.mark.parametrize(
    ("level", "has", "lacks"),
    [("x86-64", "xmm", "ymm"), ("x86-64-v2", "xmm", "ymm"), ("x86-64-v3", "ymm", "zmm"),
     ("x86-64-v4", "zmm", "nothing")],
)  # fmt: skip
def test_vectors_are_as_wide_as_the_target_has_them(level: str, has: str, lacks: str) -> None:
    text = assembly(level, lambda x: bu.sum(bu.exp(x) * 2), bu.float32[1000])
    assert f"%{has}" in text
    assert f"%{lacks}" not in text


def test_an_unknown_target_is_our_error() -> None:
    with pytest.raises(UnsupportedError, match="no CPU to compile for") as caught:
        assembly("z80", lambda x: x + 1, bu.float32[4])
    assert "x86-64-v3" in (caught.value.fix or "")


def test_the_cache_of_a_core_is_read_where_the_system_tells(tmp_path: Path) -> None:
    assert host.core_cache(tmp_path, default=7) == 7
    for number, (level, size) in enumerate((("1", "48K"), ("2", "2048K"), ("3", "480M"))):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert host.core_cache(tmp_path) == 2 << 20
