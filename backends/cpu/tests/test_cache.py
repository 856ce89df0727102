"""What processes leave each other on disk: compiled programs and the runtime's own code."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bringup.llvm.host.engine import engine

Python = Callable[..., "subprocess.CompletedProcess[str]"]

#: Prints how many objects were compiled: programs, the dispatcher, allocator and pool.
_USE = """
import numpy as np
import bringup as bu
x = np.arange(1000, dtype=np.float32)
fn = bu.jit(lambda x: (bu.sum(x * 2), bu.exp(-x)))
for _ in range(3):
    total, small = fn(x)
    assert float(total) == 999_000
    assert np.allclose(np.asarray(small), np.exp(-x), rtol=1e-6)
assert np.array_equal(np.asarray(bu.asarray(x) + 1), x + 1)
from bringup.llvm.host.engine import engine
"""
_COUNT = _USE + "print(engine().compiled)\n"


@pytest.fixture
def shared_cache(tmp_path: Path) -> Path:
    """Each test has a cache of its own, empty at first."""
    return tmp_path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that the others start from as copies."""
    return tmp_path_factory.mktemp("first")


@pytest.fixture
def count(python: Python, first: Path, tmp_path: Path) -> int:
    """How many objects another process has left in the cache."""
    if not objects(first):
        python(_COUNT, XDG_CACHE_HOME=str(first))
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    return len(objects(tmp_path))


def objects(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bringup" / "objects").rglob("*.o"))


def content(tmp_path: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in objects(tmp_path)}


def test_a_second_process_compiles_nothing(python: Python, tmp_path: Path) -> None:
    first = int(python(_COUNT).stdout)
    assert first >= 4
    left = content(tmp_path)
    assert len(left) == first
    assert int(python(_COUNT).stdout) == 0
    assert content(tmp_path) == left


_LOOP = (
    _USE
    + """
import sys
table = bu.asarray(np.arange(5000, dtype=np.float32))
step = lambda i, x: (i + 1, bu.cumulative_sum(x, axis=0) * 0.5 + table[i] + np.arange(40.0))
loop = bu.jit(lambda x: bu.while_loop(lambda s: s[0] < 3, lambda s: step(*s), (0, x))[1])
print(np.asarray(loop(bu.ones(40))).tobytes().hex())
emitters = ("bringup_cpu.codegen", "bringup_cpu.control")
print([name for name in emitters if name in sys.modules])
print(engine().compiled)
"""
)


def test_a_second_process_emits_no_program(python: Python) -> None:
    """And knows what its calls need: scratch, and the arrays of constants."""
    first, second = (python(_LOOP).stdout.splitlines() for _ in range(2))
    assert first[1] == "['bringup_cpu.codegen', 'bringup_cpu.control']"
    assert int(first[2]) > 0
    assert second == [first[0], "[]", "0"]
    assert python(_LOOP, BRINGUP_EMIT="1").stdout.splitlines()[:2] == first[:2]


def test_constants_are_no_part_of_code(python: Python) -> None:
    code = (
        _USE
        + """
table = np.arange(5000.0) * FACTOR
assert np.array_equal(np.asarray(bu.jit(lambda x: x + bu.asarray(table))(table)), table * 2)
print(engine().compiled)
"""
    )
    assert int(python(code.replace("FACTOR", "1.5")).stdout) > 0
    assert int(python(code.replace("FACTOR", "-3.0")).stdout) == 0


@pytest.mark.usefixtures("count")
def test_other_code_is_compiled(python: Python) -> None:
    assert int(python(_COUNT.replace("* 2", "* 3").replace("999_000", "1_498_500")).stdout) == 1


def test_other_settings_are_other_objects(python: Python) -> None:
    fill = "y = bu.asarray(np.ones((300, 3000), np.float32)); float(bu.sum(y @ y.T))\n"
    code = _USE + fill + "print(engine().compiled)\n"
    python(code, BRINGUP_THREADS="1")
    python(code, BRINGUP_THREADS="3")
    assert int(python(code, BRINGUP_THREADS="1").stdout) == 0
    assert int(python(code, BRINGUP_THREADS="3").stdout) == 0


def test_damaged_objects_are_ignored_and_written_again(
    python: Python, tmp_path: Path, count: int
) -> None:
    good = content(tmp_path)
    for path in good:
        path.write_bytes(b"")
    assert int(python(_COUNT).stdout) == count
    assert content(tmp_path) == good
    for path, data in good.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert int(python(_COUNT).stdout) == count
    assert content(tmp_path) == good
    for path, data in good.items():
        path.write_bytes(b"\x7fELF" + data)
    assert int(python(_COUNT).stdout) == count
    assert content(tmp_path) == good
    assert int(python(_COUNT).stdout) == 0


def test_each_damaged_object_costs_one_compilation(
    python: Python, tmp_path: Path, count: int
) -> None:
    for part in (objects(tmp_path)[::2], objects(tmp_path)[1::2]):
        for path in part:
            path.write_bytes(b"no object")
        assert 0 < int(python(_COUNT).stdout) == len(part) < count


def test_an_object_under_the_name_of_another_is_ignored(
    python: Python, tmp_path: Path, count: int
) -> None:
    good = content(tmp_path)
    names = list(good)
    for path, other in zip(names, names[1:] + names[:1], strict=True):
        path.write_bytes(good[other])
    assert int(python(_COUNT).stdout) == count
    assert content(tmp_path) == good


def test_a_folder_in_the_place_of_an_object(python: Python, tmp_path: Path, count: int) -> None:
    for path in objects(tmp_path):
        path.unlink()
        path.mkdir()
    done = python(_COUNT)
    assert int(done.stdout) == count
    assert not done.stderr
    assert not list((tmp_path / "bringup").rglob(".new-*"))


@pytest.mark.parametrize("what", ["a file", "a forbidden folder", "nowhere", "/dev/null/x"])
def test_a_cache_that_cannot_be_written(python: Python, tmp_path: Path, what: str) -> None:
    place = tmp_path / "cache"
    if what == "a file":
        place.write_text("in the way")
    elif what == "a forbidden folder":
        place.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    home = {"nowhere": "/proc/none", "/dev/null/x": "/dev/null/x"}.get(what, str(place))
    done = python(_COUNT, XDG_CACHE_HOME=home)
    assert int(done.stdout) >= 4
    assert not done.stderr


@pytest.mark.usefixtures("count")
def test_a_cache_that_can_only_be_read_is_read(python: Python, tmp_path: Path) -> None:
    folders = [p for p in (tmp_path / "bringup").rglob("*") if p.is_dir()]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert int(python(_COUNT).stdout) == 0
        changed = _COUNT.replace("* 2", "* 5").replace("999_000", "2_497_500")
        done = python(changed)
        assert int(done.stdout) == 1
        assert not done.stderr
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_full_disk(python: Python, tmp_path: Path) -> None:
    code = """
import resource
# Writes beyond so many bytes of a file fail, as on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
"""
    done = python(code + _COUNT)
    assert int(done.stdout) >= 4
    assert not done.stderr
    assert not [p for p in (tmp_path / "bringup").rglob("*") if p.is_file()]


def test_processes_at_once(python: Python, tmp_path: Path) -> None:
    code = f"""
import os
child = os.fork()
{_USE}
os.write(1, f"{{engine().compiled}}\\n".encode())
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: python(code), range(3)))
    assert [len(run.stdout.split()) for run in runs] == [2, 2, 2], [run.stdout for run in runs]
    left = objects(tmp_path)
    assert not list((tmp_path / "bringup").rglob(".new-*"))
    assert int(python(_COUNT).stdout) == 0
    assert objects(tmp_path) == left


def test_only_the_user_may_change_the_cache(tmp_path: Path, count: int) -> None:
    assert count
    for path in objects(tmp_path):
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o022 == 0


def test_the_size_is_bounded(python: Python, tmp_path: Path) -> None:
    python(_USE)
    before = set(objects(tmp_path))
    code = """
engine().objects.limit = 256
for k in range(150):
    assert bu.jit(lambda x: x + k)(x)[0] == k
"""
    python(_USE + code)
    made = [path for path in objects(tmp_path) if path not in before]
    assert len(made) > 30
    # One in sixteen makes room: it stays whatever its size, and nothing that was there before it.
    makers = [path for path in made if path.name.startswith("0")]
    assert makers
    for path in makers:
        written = path.stat().st_mtime_ns
        assert all(other.stat().st_mtime_ns >= written for other in path.parent.iterdir())


def test_this_process_has_a_cache_on_disk() -> None:
    cache = engine().objects
    assert cache is not None
    assert cache.limit == 512 << 20
