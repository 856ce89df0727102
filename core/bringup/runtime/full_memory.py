"""What gives way when a device's memory is full: the programs that nothing but a cache holds.

A compiled program keeps its constants on the device, and caches hold thousands of programs.  They
are worth the time of compiling again, no more, so an allocation that fails drops them and is tried
once more.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")
_caches: list[Callable[[], None]] = []


def register_cache(clear: Callable[[], None]) -> None:
    """Call ``clear`` when memory is full; it drops programs that nothing but a cache holds."""
    _caches.append(clear)


def with_room(action: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
    """What an action that allocates on a device returns; it may be called twice.

    Raises what the action raises the second time, if it runs out of memory both times.
    """
    try:
        return action(*args)
    except MemoryError:  # also OutOfMemoryError
        pass  # the error of the second time shall not hang on this one
    for clear in _caches:
        clear()
    gc.collect()  # programs may be parts of cycles
    return action(*args)


__all__ = ["register_cache", "with_room"]
