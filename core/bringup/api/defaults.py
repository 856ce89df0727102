"""The default float dtype: of Python floats, of functions that make floats, of numpy's own default.

A program has one, which `set_default_dtype` or the environment sets; inside `default_dtype` a
thread or task has another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet

from bringup import config
from bringup.dtypes import FLOATS, DType, as_dtype, c64, c128, f64
from bringup.errors import OpTypeError
from bringup.locks import ProcessLock


class _Reads(threading.local):
    count = 0


class Watcher(Protocol):
    """Remembers what was computed under a default."""

    def clear(self) -> None:
        """Forget it."""


_lock = ProcessLock()
_process: DType | None = None
_chosen: ContextVar[DType | None] = ContextVar("bringup_default_float", default=None)
_reads = _Reads()
_blocks = 0
_watchers: WeakSet[Watcher] = WeakSet()


def current_float() -> DType:
    """The default float dtype of this thread or task, for who keys by it."""
    return _chosen.get() or _process or _of_environment()


def default_float() -> DType:
    """The default float dtype, for who decides by it: `reads` counts that."""
    _reads.count += 1
    return current_float()


def default_complex() -> DType:
    """The complex dtype whose parts are the default floats; complex64 for those of 16 bits."""
    return c128 if default_float() is f64 else c64


def reads() -> int:
    """How often this thread has decided something by the default float dtype."""
    return _reads.count


def count_read() -> None:
    """Count something that was decided by the default float dtype and is used again."""
    _reads.count += 1


def set_default_dtype(dtype: object, /) -> None:
    """Choose the default float dtype of the program, for all its threads.

    dtype: float64, which it is at first, float32, bfloat16 or float16.  ``BRINGUP_DEFAULT_DTYPE``
    in the environment does the same.

    It is the dtype of Python floats where nothing else decides, of functions that make floats, as
    `zeros`, `linspace`, `random.normal` and `nn.one_hot` do, and of integers that become floats, as
    in `mean` and in true division.  What comes from numpy in float64, its default, comes in this
    one unless ``dtype=`` is given.  The default complex dtype has parts of it.  Integers stay
    int64.
    Raises OpTypeError for other dtypes.

    >>> bu.set_default_dtype(bu.float32)
    >>> bu.zeros(3).dtype, (bu.arange(3) / 2).dtype, bu.asarray([0.5j]).dtype
    (f32, f32, c64)
    >>> bu.set_default_dtype(bu.float64)
    """
    global _process  # noqa: PLW0603  (the state of the process)
    chosen = _checked("set_default_dtype", dtype)
    with _lock:
        _process = chosen
        _forget()


def default_dtype(dtype: object, /) -> AbstractContextManager[None]:
    """Make a dtype the default float dtype inside a ``with`` block, for this thread or task alone.

    dtype: as in `set_default_dtype`, which says what it means.
    Raises OpTypeError for other dtypes.

    >>> with bu.default_dtype(bu.float32):
    ...     bu.linspace(0, 1, 3).dtype
    f32
    """
    return _within(_checked("default_dtype", dtype))


@contextmanager
def _within(dtype: DType) -> Iterator[None]:
    token = _chosen.set(dtype)
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)  # first: the reset fails in a generator that another context closes
        _chosen.reset(token)


@contextmanager
def uniform(watcher: Watcher) -> Iterator[bool]:
    """Whether all threads have the same default, which does not change inside the block.

    watcher: told to forget what it did in the block when that ends to be so.
    """
    with _lock:
        if not _blocks:
            _watchers.add(watcher)
        yield not _blocks


def _count_blocks(change: int) -> None:
    global _blocks  # noqa: PLW0603
    with _lock:
        _blocks += change
        _forget()


def _forget() -> None:
    for watcher in list(_watchers):
        watcher.clear()
    _watchers.clear()


def _checked(name: str, dtype: object) -> DType:
    result = as_dtype(dtype)
    if result not in FLOATS:
        raise OpTypeError(
            f"{name}: {result} is no float dtype to compute with",
            fix=f"use {', '.join(d.long_name for d in reversed(FLOATS))}",
        )
    return result


def _of_environment() -> DType:
    global _process  # noqa: PLW0603
    dtype = as_dtype(config.word("BRINGUP_DEFAULT_DTYPE"))
    with _lock:
        _process = _process or dtype
    return _process


__all__ = ["default_dtype", "set_default_dtype"]
