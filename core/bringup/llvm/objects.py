"""Compiled objects on disk: one file per key, safe for several processes, bounded in size."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_MAGIC = b"bringup object 2\n"
_SHARDS = 256


class ObjectCache:
    """A directory of objects by hexadecimal key.

    Files appear by rename, so readers never see half of one, and carry a checksum with their key,
    so what a crash, a full disk or a clumsy copy left behind reads as absent.  A directory that
    cannot be written makes a cache that stays empty.

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
            data = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + 32
        if data[:start] != _MAGIC + _digest(key, data[start:]):
            _remove(path)
            return None
        # Removed meanwhile, or not ours: its age does not matter then.
        with suppress(OSError):
            os.utime(path)
        return data[start:]

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; quietly does nothing where files cannot be written."""
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        except OSError:
            _remove(Path(name))

    def _bound(self, newest: Path) -> None:
        """Remove the oldest files of a shard until it keeps its share of the limit."""
        with os.scandir(newest.parent) as entries:
            stats = [(e.path, e.stat()) for e in entries if e.is_file(follow_symlinks=False)]
        size = sum(s.st_size for _, s in stats)
        for path, stat in sorted(stats, key=lambda item: item[1].st_mtime_ns):
            if size <= self.limit // _SHARDS:
                return
            if path != str(newest):
                _remove(Path(path))
                size -= stat.st_size


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _remove(path: Path) -> None:
    # Another process may have been faster.
    with suppress(OSError):
        path.unlink()
