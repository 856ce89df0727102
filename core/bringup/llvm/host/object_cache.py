"""Compiled objects on disk: one file per key, safe for several processes, bounded in size.

An object is found by what its module is made of, before the module is emitted: see `deferred`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from bringup.records import record
from bringup.version import VERSION

_CORE = Path(__file__).parents[2]
_MAGIC = b"bringup object 4\n"
#: Bytes of the number of bytes of facts, which stand before the data.
_COUNT = 4
_SHARDS = 256
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@record
class Emitted:
    """The text of a module.  facts: what else its emitter found out; kept with the object."""

    text: str
    facts: bytes = b""

    @property
    def source(self) -> str:
        """What the object is found by: all of it, since facts may differ where texts do not."""
        return f"{self.text}\0{self.facts.hex()}"


@record
class Deferred:
    """A module whose text is emitted only if its object is not on disk.

    source: everything that the text and the facts depend on, and what the object is found by.
    """

    source: str
    make: Callable[[], Emitted]


def deferred(source: str, make: Callable[[], Emitted], *packages: Path) -> Emitted | Deferred:
    """A module that depends on ``source`` and on the code of core and of some packages; made at
    once where that code stands in no files.
    """
    try:
        digest = digest_of_sources(_CORE, *packages)
    except OSError:  # pragma: no cover - only where a package is no folder
        return make()
    return Deferred(f"{source}\n{digest}", make)


@cache
def digest_of_sources(*packages: Path) -> str:
    """A digest of the Python files of some packages by name, size and time, by which Python itself
    tells whether bytecode is out of date.

    Raises OSError where a package is no folder.
    """
    lines: list[str] = []
    folders = [(str(package), package.name) for package in packages]
    while folders:
        folder, name = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    lines.append(f"{name}/{entry.name} {status.st_size} {status.st_mtime_ns}")
                elif entry.is_dir() and entry.name != "__pycache__":
                    folders.append((entry.path, f"{name}/{entry.name}"))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def object_key(module: Emitted | Deferred, *parts: str) -> str:
    """What an object depends on, hashed.  parts: the target and the versions of compilers."""
    return hashlib.sha256("\0".join((module.source, *parts, VERSION)).encode()).hexdigest()


@record
class StoredObject:
    """A compiled module.  facts: as in `Emitted`."""

    data: bytes
    facts: bytes = b""


class ObjectCache:
    """A directory of objects by hexadecimal key.

    Files appear by rename, so readers never see half of one, and carry a checksum with their key,
    so what a crash, a full disk or a clumsy copy left behind reads as absent.  A directory that
    cannot be written makes a cache that stays empty.

    Objects are machine code that this process will run, so nobody else may be able to plant one:
    every level is made for its user alone, and a directory or file that is another user's or that
    others can write reads as absent.

    directory: made on first use.  limit: bytes of all files, about; the least recently used go
    first.
    """

    def __init__(self, directory: Path, limit: int = 512 << 20) -> None:
        self.directory = directory
        self.limit = limit

    def _path(self, key: str) -> Path:
        # A shard per leading byte keeps the scan that bounds the size short.
        return self.directory / key[:2] / f"{key[2:]}.o"

    def get(self, key: str) -> StoredObject | None:
        """The object of a key, or None; a damaged file is removed."""
        path = self._path(key)
        try:
            data = self._read(path)
        except OSError:
            return None
        head, data = data[: len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
        if head != _MAGIC + _digest(key, data):
            _remove(path)
            return None
        # Removed meanwhile: its age does not matter then.
        with suppress(OSError):
            os.utime(path)
        start = _COUNT + int.from_bytes(data[:_COUNT], "little")
        return StoredObject(data[start:], data[_COUNT:start])

    def _read(self, path: Path) -> bytes:
        """The bytes of a file; OSError if it, its shard or the directory is not this user's alone.

        Each name is looked up in the directory that was checked before it, so that no other can be
        put in its place between the check and the reading.
        """
        folder = None
        with ExitStack() as opened:
            for name in (self.directory, path.parent.name):
                folder = os.open(name, _FOLDER, dir_fd=folder)
                opened.callback(os.close, folder)
                _require_private(os.fstat(folder), stat.S_ISDIR)
            # Opening a FIFO would wait for a writer.
            with open(os.open(path.name, _FILE, dir_fd=folder), "rb") as file:
                _require_private(os.fstat(file.fileno()), stat.S_ISREG)
                return file.read()

    def put(self, key: str, stored: StoredObject) -> None:
        """Keep an object; quietly does nothing where files cannot be written."""
        path = self._path(key)
        data = len(stored.facts).to_bytes(_COUNT, "little") + stored.facts + stored.data
        try:
            for folder in (self.directory, path.parent):
                _make_private(folder)
            handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(key, data) + data)
            os.replace(name, path)
            # Looking through a full shard takes longer than writing; keys are evenly spread.
            if int(key[2], 16) == 0:
                self._bound(path)
        except OSError:  # pragma: no cover - only full disks
            _remove(Path(name))

    def _bound(self, newest: Path) -> None:
        """Remove the oldest files of a shard until it keeps its share of the limit."""
        with os.scandir(newest.parent) as entries:
            stats = [(e.path, e.stat()) for e in entries if e.is_file(follow_symlinks=False)]
        size = sum(s.st_size for _, s in stats)
        for path, status in sorted(stats, key=lambda item: item[1].st_mtime_ns):
            if size <= self.limit // _SHARDS:
                return
            if path != str(newest):  # pragma: no cover - only full caches
                _remove(Path(path))
                size -= status.st_size


def _make_private(folder: Path) -> None:
    """Make a folder and what is missing above it for this user alone.

    One that is there already loses the rights of others to write; what they wrote into it before
    belongs to them, so it is not read.  Raises OSError if the folder is another user's.
    """
    # ``parents=True`` would leave the rights of all but the last level to the process's umask.
    for level in (*reversed(folder.parents), folder):
        if not level.is_dir():
            level.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid == os.geteuid() and status.st_mode & _BY_OTHERS:
        folder.chmod(0o700)
    _require_private(folder.lstat(), stat.S_ISDIR)


def _require_private(status: os.stat_result, kind: Callable[[int], bool]) -> None:
    """Raise PermissionError for what is not of a kind, another user's, or writable by others."""
    private = status.st_uid == os.geteuid() and not status.st_mode & _BY_OTHERS
    if not (kind(status.st_mode) and private):
        raise PermissionError(errno.EPERM, "not this user's alone")


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _remove(path: Path) -> None:
    # Another process may have been faster.
    with suppress(OSError):
        path.unlink()
