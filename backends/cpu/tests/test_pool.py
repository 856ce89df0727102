"""The worker pool: its size, its results, its sleep, and processes that fork and end."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from bringup.errors import BringupError
from bringup_cpu import host
from bringup_cpu.emit_pool import MAX_THREADS
from bringup_cpu.pool import pool

Python = Callable[..., "subprocess.CompletedProcess[str]"]
Forks = Callable[[str, Sequence[Mapping[str, str]]], list[str]]

#: Long kernels that every thread takes part in, and what they must give.
_USE = """
import os, sys, threading, time
import numpy as np
import bringup as bu
host = np.arange(1 << 20, dtype=np.float32)
fn = bu.jit(lambda x: (bu.sum(x * 0.5), bu.max(x), x + 1))
def use():
    total, most, more = fn(host)
    assert float(most) == (1 << 20) - 1
    assert np.array_equal(np.asarray(more), host + 1)
    assert np.isclose(float(total), 0.25 * (1 << 20) * ((1 << 20) - 1), rtol=1e-6)
"""


_SIZE = """
import os
if "ALONE" in os.environ:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from bringup_cpu.pool import pool
print(pool().threads)
"""


def test_the_variable_gives_the_size(forks: Forks) -> None:
    given = ("1", "3", "7", "100000")
    sizes = forks(_SIZE, [{"BRINGUP_THREADS": text} for text in given])
    assert list(map(int, sizes)) == [1, 3, 7, MAX_THREADS]


def test_the_cpu_set_gives_the_size(forks: Forks) -> None:
    alone = {"ALONE": "1"}
    sizes = forks(_SIZE, [alone, {}, {**alone, "BRINGUP_THREADS": "2"}])
    one, all_, two = map(int, sizes)
    assert (one, two) == (1, 2)
    assert all_ <= len(os.sched_getaffinity(0))


def test_the_cpu_set_and_the_quota_bound_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_THREADS", raising=False)
    for cpus, quota, wanted in ((8, 2.5, 3), (2, 16.0, 2), (4, float("inf"), 4), (3, 0.1, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cpus: set(range(n)))
        monkeypatch.setattr(host, "cpu_quota", lambda q=quota: q)
        assert host.threads(MAX_THREADS) == wanted
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000)))
    monkeypatch.setattr(host, "cpu_quota", lambda: float("inf"))
    assert host.threads(MAX_THREADS) == MAX_THREADS


def groups(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(membership)
    return root / "groups", root / "self"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
        ("0::/gone\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, float("inf")),
        ("0::/a\n", {}, float("inf")),
        (
            "5:memory:/m\n4:cpu,cpuacct:/c\n",
            {"cpu,cpuacct/c/cpu.max": "", "cpu/c/cpu.cfs_quota_us": "250000\n",
             "cpu/c/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        (
            "4:cpu:/c\n",
            {"cpu/c/cpu.cfs_quota_us": "-1\n", "cpu/c/cpu.cfs_period_us": "100000\n"},
            float("inf"),
        ),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float
) -> None:
    assert host.cpu_quota(*groups(tmp_path, membership, files)) == quota


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert host.cpu_quota(tmp_path, tmp_path / "none") == float("inf")


@pytest.mark.parametrize("text", ["zero", "0", "-1", "1.5", " 2", "0x2", "²"])
def test_a_wrong_size_is_our_error_with_a_fix(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_THREADS", text)
    with pytest.raises(BringupError) as caught:
        host.threads(MAX_THREADS)
    assert caught.value.what == f"BRINGUP_THREADS={text!r} is not a positive integer"
    assert caught.value.fix == "set BRINGUP_THREADS to the number of threads, or unset it"


def test_the_user_sees_the_error_of_a_wrong_size(python: Python) -> None:
    code = """
import bringup as bu
for use in (lambda: bu.zeros(3).tolist(), lambda: bu.zeros(3, device="cpu").tolist()):
    try:
        use()
    except bu.BringupError as error:
        print(error)
"""
    text = python(code, BRINGUP_THREADS="many").stdout
    assert text.count("BRINGUP_THREADS='many' is not a positive integer") == 2
    assert text.count("fix: set BRINGUP_THREADS to the number of threads, or unset it") == 2


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_THREADS", "")
    assert host.threads(1) == 1


def test_results_do_not_depend_on_the_size(forks: Forks) -> None:
    code = """
import hashlib
import numpy as np
import bringup as bu
rng = np.random.default_rng(5)
x = rng.standard_normal((257, 4099)).astype(np.float32)
w = rng.standard_normal((4099, 33)).astype(np.float32)
h = rng.standard_normal(1 << 19).astype(np.float16)
n = rng.integers(-99, 99, (1031, 513)).astype(np.int16)
def softmax(x):
    e = bu.exp(x - bu.max(x, axis=1, keepdims=True))
    return e / bu.sum(e, axis=1, keepdims=True)
cases = [
    (lambda x: bu.sum(x), (x,)), (lambda x: bu.sum(x, axis=0), (x,)),
    (lambda x: bu.sum(x, axis=1), (x,)), (softmax, (x,)), (lambda x, w: x @ w, (x, w)),
    (lambda h: bu.sum(h), (h,)), (lambda n: bu.sum(n, axis=0), (n,)),
    (lambda x: bu.permute_dims(x, (1, 0)) * 2, (x,)),
    (lambda x: (bu.mean(x), bu.var(x, axis=0), bu.max(x)), (x,)),
]
from bringup_cpu.pool import pool
for fn, args in cases:
    out = bu.jit(fn)(*args)
    for y in out if isinstance(out, tuple) else (out,):
        print(hashlib.sha256(np.asarray(y).tobytes()).hexdigest())
"""
    texts = forks(code, [{"BRINGUP_THREADS": str(n)} for n in (1, 2, 3, 5)])
    assert len(texts[0].split()) == 11
    assert texts[1:] == texts[:1] * 3


def test_every_unit_is_run_once_whatever_the_grain() -> None:
    calls: list[tuple[int, int, int]] = []

    def note(_: int, begin: int, end: int, worker: int) -> None:
        calls.append((begin, end, worker))

    word = ctypes.c_int64
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, word, word, word)(note)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, word, word)
    parallel = signature(pool().parallel_address)
    for n in (0, 1, 2, 7, 64, 1000, 1001):
        for grain in (1, 2, 3, 16, 999, 1000, 5000):
            calls.clear()
            parallel(ctypes.cast(body, ctypes.c_void_p).value, None, n, grain)
            ranges = sorted(calls)
            assert [b for b, _, _ in ranges] == [0, *(e for _, e, _ in ranges)][: len(ranges)]
            assert (ranges[-1][1] if ranges else 0) == n
            assert all(b % grain == 0 for b, _, _ in ranges)
            assert all(0 <= w < pool().threads for _, _, w in ranges)


def test_a_loop_inside_another_runs_where_it_stands(python: Python) -> None:
    code = """
import ctypes
from bringup_cpu.pool import pool
body_type = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
parallel = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)(pool().parallel_address)
address = lambda f: ctypes.cast(f, ctypes.c_void_p).value
seen = []
@body_type
def outer(_, begin, end, worker):
    @body_type
    def inner(_, b, e, w):
        seen.append((begin, end, worker, b, e, w))
    parallel(address(inner), None, 100, 1)
parallel(address(outer), None, 200, 1)
assert sorted((b, e) for b, e, *_ in seen)[0][0] == 0
assert sum(e - b for b, e, *_ in seen) == 200
assert all((b, e) == (0, 100) and w == worker for _, _, worker, b, e, w in seen), seen
"""
    python(code, BRINGUP_THREADS="3")


def test_parked_workers_use_no_cpu(python: Python) -> None:
    code = """
for _ in range(5):
    use()
time.sleep(0.05)
before = time.process_time()
time.sleep(0.3)
used = time.process_time() - before
assert used < 0.02, used
workers = [t for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
assert len(workers) >= 3, workers
"""
    python(_USE + code, BRINGUP_THREADS="4", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def test_workers_start_with_the_first_loop(python: Python) -> None:
    code = """
tasks = lambda: len(os.listdir("/proc/self/task"))
assert bu.jit(lambda x: x + 1)(np.float32(1)).tolist() == 2
while tasks() > 1:  # the thread that set LLVM up is on its way out
    time.sleep(0.001)
use()
assert tasks() == 4, tasks()
use()
assert tasks() == 4
"""
    python(_USE + code, BRINGUP_THREADS="4", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def test_signals_go_to_threads_that_run_python(python: Python) -> None:
    code = """
import signal
use()
class Bell(Exception): pass
rung = heard = 0
def ring(*_):
    global rung
    rung += 1
    raise Bell
signal.signal(signal.SIGALRM, ring)
for many in range(1, 11):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        while rung < many:
            use()
    except Bell:
        heard += 1
    use()
assert rung == 10
assert heard >= 5  # Python itself loses what is raised in a __del__
"""
    python(_USE + code, BRINGUP_THREADS="2")


def test_the_pool_works_after_an_error_in_a_call(python: Python) -> None:
    code = """
from bringup.errors import OutOfMemoryError
from bringup_cpu.memory import memory
use()
state = memory().state
for _ in range(3):
    old, state.budget = state.budget, 1 << 20
    memory().trim()
    try:
        use()
    except OutOfMemoryError as error:
        assert "no memory for a buffer" in error.what
    else:
        raise AssertionError("no error")
    state.budget = old
    use()
"""
    python(_USE + code, BRINGUP_THREADS="2")


def test_python_threads_may_call_at_once(python: Python) -> None:
    code = """
failures = []
def work():
    try:
        for _ in range(15):
            use()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures
"""
    python(_USE + code, BRINGUP_THREADS="3")


@pytest.mark.parametrize("used", ["use()", "", "bu.zeros(3).tolist()"])
def test_a_child_of_fork_has_a_pool_of_its_own(python: Python, used: str) -> None:
    code = f"""
{used}
for _ in range(3):
    child = os.fork()
    if not child:
        use()
        grandchild = os.fork()
        use()
        if grandchild:
            assert os.waitpid(grandchild, 0)[1] == 0
        sys.exit(0)
    use()
    assert os.waitpid(child, 0)[1] == 0
"""
    python(_USE + code, BRINGUP_THREADS="3")


def test_a_fork_while_another_thread_computes(python: Python) -> None:
    code = """
def compute(k):
    use()
    x = bu.asarray(host)
    assert np.array_equal(np.asarray(x * 2 + (x + k)), host * 3 + k)
    if k % 4 == 0:
        assert np.array_equal(np.asarray(bu.jit(lambda x: x - k)(host)), host - k)
# Python itself does not fork well while another thread imports.
compute(0)
stop = False
def work():
    k = 0
    while not stop:
        compute(k := k + 1)
thread = threading.Thread(target=work)
thread.start()
for k in range(12):
    time.sleep(k * 3e-3)
    child = os.fork()
    if not child:
        import faulthandler
        faulthandler.dump_traceback_later(10, exit=True)
        compute(-4 * k)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
"""
    python(_USE + code, BRINGUP_THREADS="3")


def test_children_of_multiprocessing(python: Python) -> None:
    code = """
import multiprocessing
use()
def job(k):
    use()
    return float(fn(host)[1]) + k
with multiprocessing.get_context("fork").Pool(2) as workers:
    assert workers.map(job, range(4)) == [(1 << 20) - 1 + k for k in range(4)]
"""
    python(_USE + code, BRINGUP_THREADS="2")


_ENDS = {
    "without use": "",
    "after use": "use()",
    "by sys.exit": "use()\nsys.exit()",
    "from a thread": "t = threading.Thread(target=use)\nt.start()\nt.join()",
    "while a thread works": (
        "t = threading.Thread(target=lambda: [use() for _ in range(5)])\nt.start()"
    ),
    "while a daemon works": (
        "def work():\n    while True: use()\n"
        "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.2)"
    ),
    "in an exit handler": "import atexit\natexit.register(use)\nuse()",
    "in an exit handler for the first time": "import atexit\natexit.register(use)",
    "with arrays in globals": "kept = fn(host)\nuse()",
    "in a finaliser of the last moment": (
        "class Late:\n    def __del__(self, call=fn, x=host):\n"
        "        assert float(call(x)[1]) == (1 << 20) - 1\n"
        "        os.write(1, b'late')\n"
        "use()\nsys.modules['late'] = Late()"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", _ENDS)
def test_the_process_ends_cleanly(python: Python, how: str) -> None:
    done = python(_USE + _ENDS[how], "-X", "dev", BRINGUP_THREADS="2", timeout=30)
    assert not done.stderr, done.stderr
    assert done.stdout == ("late" if "finaliser" in how else "")
