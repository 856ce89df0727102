"""Compiled objects on disk: one file per key, safe for several processes, bounded in size."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

_MAGIC = b"bringup object 2\n"
_SHARDS = 256
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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

    def get(self, key: str) -> bytes | None:
        """The object of a key, or None; a damaged file is removed."""
        path = self._path(key)
        try:
            data = self._read(path)
        except OSError:
            return None
        start = len(_MAGIC) + 32
        if data[:start] != _MAGIC + _digest(key, data[start:]):
            _remove(path)
            return None
        # Removed meanwhile: its age does not matter then.
        with suppress(OSError):
            os.utime(path)
        return data[start:]

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

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; quietly does nothing where files cannot be written."""
        path = self._path(key)
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
    found = folder.lstat()
    if found.st_uid == os.geteuid() and found.st_mode & _BY_OTHERS:
        folder.chmod(0o700)
    _require_private(folder.lstat(), stat.S_ISDIR)


def _require_private(found: os.stat_result, kind: Callable[[int], bool]) -> None:
    """Raise PermissionError for what is not of a kind, another user's, or writable by others."""
    private = found.st_uid == os.geteuid() and not found.st_mode & _BY_OTHERS
    if not (kind(found.st_mode) and private):
        raise PermissionError(errno.EPERM, "not this user's alone")


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _remove(path: Path) -> None:
    # Another process may have been faster.
    with suppress(OSError):
        path.unlink()
