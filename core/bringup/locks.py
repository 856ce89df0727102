"""Locks of this process alone."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ProcessLock:
    """A re-entrant lock for ``with`` that a child of fork finds free.

    Whoever held it in the parent does not exist in the child.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
