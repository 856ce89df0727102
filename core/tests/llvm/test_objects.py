from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.llvm.objects import ObjectCache

KEY = "ab" + "0" * 62


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


def the_file(cache: ObjectCache) -> Path:
    (path,) = (p for p in cache.directory.rglob("*") if p.is_file())
    return path


def test_returns_what_was_put(cache: ObjectCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    cache.put(KEY, b"other")
    assert cache.get(KEY) == b"other"


@pytest.mark.parametrize("damage", [b"", b"bringup object 2\n", b"\x7fELF and more"])
def test_a_damaged_file_reads_as_absent_and_goes(cache: ObjectCache, damage: bytes) -> None:
    cache.put(KEY, b"code")
    the_file(cache).write_bytes(damage)
    assert cache.get(KEY) is None
    assert not list(cache.directory.rglob("*.o"))


def test_every_changed_or_missing_byte_is_seen(cache: ObjectCache) -> None:
    cache.put(KEY, b"code")
    good = the_file(cache).read_bytes()
    for k in range(len(good)):
        for bad in (good[:k], good[:k] + bytes([good[k] ^ 1]) + good[k + 1 :]):
            cache.put(KEY, b"code")
            the_file(cache).write_bytes(bad)
            assert cache.get(KEY) is None, k


def test_a_shard_keeps_its_share_of_the_limit(cache: ObjectCache) -> None:
    cache.limit = 256 * 1000
    for k in range(10):
        cache.put(f"cd{k:062}", bytes(300))
        path = cache.directory / "cd" / f"{k:062}.o"
        os.utime(path, (k, k))
    left = sorted(int(p.stem) for p in cache.directory.rglob("*.o"))
    assert left == [8, 9]


def test_use_makes_a_file_young(cache: ObjectCache) -> None:
    cache.put(KEY, b"code")
    os.utime(the_file(cache), (0, 0))
    cache.get(KEY)
    assert the_file(cache).stat().st_mtime > 1e9


def test_an_object_beyond_the_limit_is_kept_until_the_next(cache: ObjectCache) -> None:
    cache.limit = 256
    cache.put(KEY, bytes(5000))
    assert cache.get(KEY) == bytes(5000)


def test_a_folder_that_cannot_be_made_makes_an_empty_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file" / "objects")
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None


def test_a_failed_write_leaves_nothing_behind(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    cache.put(KEY, b"code")
    assert not [p for p in cache.directory.rglob("*") if p.is_file()]


def test_processes_share_it(cache: ObjectCache, python: Callable[..., object]) -> None:
    code = f"""
import os
from pathlib import Path
from bringup.llvm.objects import ObjectCache
cache = ObjectCache(Path({str(cache.directory)!r}))
child = os.fork()
for k in range(300):
    key = f"{{k % 7:064x}}"
    found = cache.get(key)
    assert found is None or found == key.encode() * 500, found[:80]
    cache.put(key, key.encode() * 500)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    python(code)
    assert len(list(cache.directory.rglob("*.o"))) == 7
    assert not list(cache.directory.rglob(".new-*"))
