"""Code for CPUs other than this one: old ones run on this host too, newer ones are read."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import bringup as bu
from bringup.errors import UnsupportedError
from bringup.runtime import tuned
from bringup_cpu import host
from bringup_cpu.backend import CpuBackend

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="names levels of x86-64"
)

Forks = Callable[[str, Sequence[Mapping[str, str]]], list[str]]
_LEVELS = ("x86-64", "x86-64-v3")

_AS = """
import numpy as np
import bringup as bu
from bringup.ops.table import lookup
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
        product, most, total, least = bu.jit(
            lambda x, y: (x * y - x, bu.max(x), bu.sum(x), bu.where(x < y, x, y)))(x, y)
        same(product, x * y - x)
        same(most, x.max())
        assert float(total) == float(x.sum(dtype=np.asarray(total).dtype))
        same(least, np.minimum(x, y))
x = rng.standard_normal(5000)
for dtype, tolerance in ((np.float32, 3e-7), (np.float64, 6e-16)):
    v = x.astype(dtype)
    names = ("exp", "sin", "cos", "tanh", "floor", "expm1")
    for name, y in zip(names, bu.jit(lambda v: [getattr(bu, name)(v) for name in names])(v)):
        exact = lookup(name).reference(v.astype(np.float64))
        found = np.asarray(y, np.float64)
        assert np.allclose(found, exact, rtol=tolerance, atol=tolerance), name
a, b = rng.integers(-4, 5, (33, 70)), rng.integers(-4, 5, (70, 19))
same(bu.jit(lambda a, b: a @ b)(a.astype(np.float32), b.astype(np.float32)),
     (a @ b).astype(np.float32))
"""


def test_halves_are_right_without_instructions_for_them(forks: Forks) -> None:
    assert len(forks(_AS + _HALVES, _levels())) == len(_LEVELS)


def test_code_of_older_cpus_is_right(forks: Forks) -> None:
    assert len(forks(_AS + _REST, _levels())) == len(_LEVELS)


_LITTLE = """
import numpy as np
import bringup as bu
from bringup.llvm.host.engine import engine
from bringup.runtime.compiler import Options, compile_graph
from bringup.runtime.devices import get
from bringup.runtime.transfer import download, upload

device = get("cpu")
x = np.random.default_rng(0).normal(size=(33, 70)).astype(np.float32)
graph = bu.trace(lambda x: (bu.nn.softmax(x, axis=1), bu.sum(bu.exp(x)), x @ x.T), x)
found, compiled = [], [engine().compiled]
for optimize in (True, False, True):
    program = compile_graph(graph, device, options=Options(optimize=optimize))
    handles = program.executable([upload(device.device, x)])
    types = [v.type for v in graph.outputs]
    found.append([download(device.device, h, t).tobytes() for h, t in zip(handles, types)])
    compiled.append(engine().compiled)
assert compiled[1] - compiled[0] == compiled[2] - compiled[1] > 0 == compiled[3] - compiled[2]
assert found[0] == found[1]
"""


def test_code_in_little_time_is_compiled_apart_and_has_the_same_bits(
    python: Callable[..., object],
) -> None:
    python(_LITTLE, BRINGUP_OPT="2")


def _levels() -> list[dict[str, str]]:
    return [{"BRINGUP_CPU": level} for level in _LEVELS]


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


_SHOWN = """
import numpy as np
import bringup as bu
from bringup_cpu.target import target
loops = target()
asm = str(bu.jit(lambda x: bu.exp(x) * 2).lower(bu.float32[1000], target="cpu").asm)
print(loops.vector_bits, loops.registers, *(r for r in ("ymm", "zmm") if "%" + r in asm))
try:
    bu.jit(lambda x: bu.exp(x) * 2)(np.ones(1000, np.float32))
    print("ran")
except bu.BringupError as error:
    print(error)
"""


def test_registers_and_code_follow_the_variable(forks: Forks) -> None:
    wanted = {
        "x86-64-v2": "128 16", "x86-64-v3": "256 16 ymm", "x86-64-v4": "512 32 zmm",
        "nehalem": "128 16", "skylake-avx512": "512 32 zmm",
    }  # fmt: skip
    texts = forks(_SHOWN, [{"BRINGUP_CPU": name} for name in wanted])
    for (name, shown), text in zip(wanted.items(), texts, strict=True):
        lines = text.splitlines()
        assert set(shown.split()) <= set(lines[0].split()), name
        assert ("zmm" in lines[0]) == ("zmm" in shown), name
        lacks = f"BRINGUP_CPU={name!r} has instructions that this machine lacks: avx512bw"
        assert lines[1] == "ran" or lacks in "\n".join(lines)


def test_a_level_without_a_feature_runs_where_the_machine_lacks_it(
    python: Callable[..., Any],
) -> None:
    code = """
from bringup.llvm.host import machine
found = machine.extensions("skylake-avx512", ["avx512f", "avx2", "avx512fp16", "gfni"])
print(found, machine.extensions("x86-64-v2", ["sse4.2", "avx"]))
machine.llvm.get_host_cpu_features = lambda: {"avx2": False, "avx": True, "rtm": False}
try:
    machine.require_runnable()
except machine.UnsupportedError as error:
    print(error)
"""
    features = "['avx512f', 'avx2'] ['sse4.2']"
    assert python(code, BRINGUP_CPU="x86-64-v2").stdout.splitlines() == [features]
    lines = python(code, BRINGUP_CPU="x86-64-v3").stdout.splitlines()
    lacks = "BRINGUP_CPU='x86-64-v3' has instructions that this machine lacks: avx2"
    assert lines[:2] == [features, lacks]


def test_an_unknown_cpu_is_our_error(forks: Forks) -> None:
    code = """
import bringup as bu
for use in (lambda: bu.ones(3) + 1, lambda: bu.jit(bu.exp).lower(bu.float32[3], target="cpu")):
    try:
        use()
    except bu.BringupError as error:
        print(error)
"""
    names = ("z80", "x86-64-v9", "i386")
    for name, text in zip(names, forks(code, [{"BRINGUP_CPU": n} for n in names]), strict=True):
        assert text.count(f"BRINGUP_CPU={name!r} is no CPU of ") == 2
        assert text.count("set BRINGUP_CPU to native, x86-64, ") == 2


def test_code_for_another_cpu_has_a_place_of_its_own(
    python: Callable[..., Any], tmp_path: Path
) -> None:
    code = """
import numpy as np
import bringup as bu
bu.jit(lambda x: x * 5 + 1)(np.ones(7, np.float32))
from bringup.llvm.host.engine import engine
print(engine().compiled)
"""
    home = str(tmp_path)
    counts = [
        int(python(code, BRINGUP_CPU=name, XDG_CACHE_HOME=home).stdout)
        for name in ("x86-64", "x86-64-v2", "x86-64-v2", "x86-64")
    ]
    assert counts[0] > 0 < counts[1]
    assert counts[2:] == [0, 0]


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


def test_levels_that_are_named_can_be_asked_for() -> None:
    backend = CpuBackend()
    widths = [backend.capabilities(name).shapes.vector for name in backend.targets()]
    assert widths == [4, 4, 8, 16]


def test_what_is_shown_is_chosen_for_the_threads_that_run_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = CpuBackend()
    types = bu.float32[512, 512], bu.float32[512, 512]
    (step,) = bu.jit(lambda x, w: x @ w).lower(*types, target="cpu:x86-64-v3").program.steps
    shown = []
    for threads in (1, 16):
        monkeypatch.setattr(host, "threads", lambda most, count=threads: count)
        assert backend.target("x86-64-v3").threads == threads
        shown.append(str(backend.scheduled(step, "x86-64-v3")))
    assert shown[0] != shown[1], "units are smaller for more threads"


def norm(x: Any) -> Any:
    return x / bu.sqrt(bu.sum(x * x, axis=0, keepdims=True))


def softmax(x: Any) -> Any:
    return bu.nn.softmax(x, axis=0)


def standard(x: Any) -> Any:
    centred = x - bu.mean(x, axis=0, keepdims=True)
    return centred / bu.sqrt(bu.mean(centred * centred, axis=0, keepdims=True) + 1e-5)


#: What the table of AVX-512 was made from: rows that are a multiple of 4 KiB apart.
_SHIPPED = [
    (norm, 1024, 1024), (norm, 2048, 2048), (softmax, 4096, 1024),
    (standard, 1024, 1024), (standard, 2048, 2048), (standard, 4096, 1024),
]  # fmt: skip


def test_every_entry_of_the_shipped_table_is_used_on_its_class_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry that is not used any more was made for other kernels or loops: tune it again."""
    folder = CpuBackend().schedule_tables()
    assert folder is not None
    table = tuned.read(folder / "x86-64-v4.txt")
    used = set()
    for function, rows, columns in _SHIPPED:
        types = bu.float32[rows, columns]
        lowered = bu.jit(function).lower(types, target="cpu:x86-64-v4")
        (kernel,), (scheduled,) = lowered.kernels, lowered.schedules
        entry = table[tuned.key_of(kernel)]
        assert scheduled is not None
        assert str(scheduled.steps) == entry.steps
        used.add(tuned.key_of(kernel))
        (other,) = bu.jit(function).lower(types, target="cpu:x86-64-v3").schedules
        assert str(other and other.steps) != entry.steps
    assert used == set(table)
    monkeypatch.setattr(CpuBackend, "schedule_tables", lambda self: None)
    (own,) = bu.jit(norm).lower(bu.float32[1024, 1024], target="cpu:x86-64-v4").schedules
    assert str(own and own.steps) not in {entry.steps for entry in table.values()}
