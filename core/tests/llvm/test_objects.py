from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.llvm.host.object_cache import (
    Deferred,
    Emitted,
    ObjectCache,
    StoredObject,
    object_key,
)

KEY = "ab" + "0" * 62
CODE = StoredObject(b"code", b"facts")


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


def the_file(cache: ObjectCache) -> Path:
    (path,) = (p for p in cache.directory.rglob("*") if p.is_file())
    return path


def test_returns_what_was_put(cache: ObjectCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE
    cache.put(KEY, StoredObject(b"other"))
    assert cache.get(KEY) == StoredObject(b"other", b"")


def test_keys_tell_all_apart_that_an_object_depends_on() -> None:
    modules: list[Emitted | Deferred] = [
        Emitted("a"),
        Emitted("b"),
        Emitted("a", b"1"),
        Emitted("a", b"2"),
    ]
    modules += [Emitted("a1"), Deferred("a", lambda: Emitted("a"))]
    keys = {object_key(module, *parts) for module in modules for parts in ((), ("x",), ("y",))}
    assert len(keys) == 3 * len(modules)
    assert object_key(Emitted("a"), "x") in keys


@pytest.mark.parametrize("damage", [b"", b"bringup object 3\n", b"\x7fELF and more"])
def test_a_damaged_file_reads_as_absent_and_goes(cache: ObjectCache, damage: bytes) -> None:
    cache.put(KEY, CODE)
    the_file(cache).write_bytes(damage)
    assert cache.get(KEY) is None
    assert not list(cache.directory.rglob("*.o"))


def test_every_changed_or_missing_byte_is_seen(cache: ObjectCache) -> None:
    cache.put(KEY, CODE)
    good = the_file(cache).read_bytes()
    for k in range(len(good)):
        for bad in (good[:k], good[:k] + bytes([good[k] ^ 1]) + good[k + 1 :]):
            cache.put(KEY, CODE)
            the_file(cache).write_bytes(bad)
            assert cache.get(KEY) is None, k


def test_a_shard_keeps_its_share_of_the_limit(cache: ObjectCache) -> None:
    cache.limit = 256 * 1000
    for k in range(10):
        cache.put(f"cd{k:062}", StoredObject(bytes(300)))
        path = cache.directory / "cd" / f"{k:062}.o"
        os.utime(path, (k, k))
    left = sorted(int(p.stem) for p in cache.directory.rglob("*.o"))
    assert left == [8, 9]


def test_use_makes_a_file_young(cache: ObjectCache) -> None:
    cache.put(KEY, CODE)
    os.utime(the_file(cache), (0, 0))
    cache.get(KEY)
    assert the_file(cache).stat().st_mtime > 1e9


def test_an_object_beyond_the_limit_is_kept_until_the_next(cache: ObjectCache) -> None:
    cache.limit = 256
    cache.put(KEY, StoredObject(bytes(5000)))
    assert cache.get(KEY) == StoredObject(bytes(5000))


def test_a_folder_that_cannot_be_made_makes_an_empty_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file" / "objects")
    cache.put(KEY, CODE)
    assert cache.get(KEY) is None


def test_a_failed_write_leaves_nothing_behind(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    cache.put(KEY, CODE)
    assert not [p for p in cache.directory.rglob("*") if p.is_file()]


@pytest.fixture
def planted(cache: ObjectCache) -> Path:
    """The file of an object that was kept."""
    cache.put(KEY, CODE)
    return the_file(cache)


def test_every_level_is_made_for_its_user_alone(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "home" / "cache" / "objects")
    before = os.umask(0)
    try:
        cache.put(KEY, CODE)
    finally:
        os.umask(before)
    path = the_file(cache)
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in path.relative_to(tmp_path).parents[:-1]:
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700, folder


@pytest.mark.parametrize("level", ["file", "shard", "directory"])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_what_others_can_write_is_not_read(
    cache: ObjectCache, planted: Path, level: str, mode: int
) -> None:
    place = {"file": planted, "shard": planted.parent, "directory": cache.directory}[level]
    place.chmod(mode)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("level", ["file", "shard", "directory"])
def test_what_is_of_another_user_is_not_read(
    cache: ObjectCache, planted: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"file": planted, "shard": planted.parent, "directory": cache.directory}[level]
    theirs = place.stat().st_ino
    fstat = os.fstat

    def of_another(handle: int) -> os.stat_result:
        found = fstat(handle)
        if found.st_ino != theirs:
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    assert cache.get(KEY) == CODE
    monkeypatch.setattr(os, "fstat", of_another)
    assert cache.get(KEY) is None


def test_a_folder_that_others_could_write_is_closed_before_it_is_used(
    cache: ObjectCache, planted: Path
) -> None:
    cache.directory.chmod(0o777)
    planted.parent.chmod(0o775)
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE
    assert cache.directory.stat().st_mode & 0o777 == 0o700
    assert planted.parent.stat().st_mode & 0o777 == 0o700


def test_links_are_not_followed(cache: ObjectCache, planted: Path, tmp_path: Path) -> None:
    elsewhere = planted.rename(tmp_path / "elsewhere.o")
    planted.symlink_to(elsewhere)
    assert cache.get(KEY) is None


def test_a_fifo_in_the_place_of_a_file_is_no_object(planted: Path, cache: ObjectCache) -> None:
    planted.unlink()
    os.mkfifo(planted)
    assert cache.get(KEY) is None
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_processes_share_it(cache: ObjectCache, python: Callable[..., object]) -> None:
    code = f"""
import os
from pathlib import Path
from bringup.llvm.host.object_cache import ObjectCache, StoredObject
cache = ObjectCache(Path({str(cache.directory)!r}))
child = os.fork()
for k in range(300):
    key = f"{{k % 7:064x}}"
    stored, data = cache.get(key), key.encode() * 500
    assert stored is None or stored == StoredObject(data, key.encode()), stored.data[:80]
    cache.put(key, StoredObject(data, key.encode()))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    python(code)
    assert len(list(cache.directory.rglob("*.o"))) == 7
    assert not list(cache.directory.rglob(".new-*"))
