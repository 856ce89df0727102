"""Calls that repeat, answered in Python: for a device that has no native dispatcher of its own.

A call by way of `jit` looks up its signature, and on a device that works late it keeps a run, to
say later whose results failed.  A device after whose late errors nothing on it can be read any more
needs no such runs: it may answer calls on its own arrays through `CallCache`, at a quarter of
the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from bringup.backend.device import Device
from bringup.backend.dispatch import ArrayLayout, FastEntry, slot_offset
from bringup.errors import DeviceError
from bringup.graph import user_location
from bringup.records import record
from bringup.runtime import timeline
from bringup.runtime.full_memory import with_room
from bringup.runtime.transfer import Buffer

#: Entries of one dispatcher; a call compares with each in turn.
MAX_ENTRIES = 16

_MISS = object()
_Served = Callable[[tuple[Any, ...]], Any]


class CallCache:
    """A table of entries for arrays of one device; see `bringup.backend.dispatch.Dispatcher`.

    device: loses all its memory with any late error; its handles are freed, not counted.
    """

    __slots__ = ("_device", "_entries", "_parts", "_slow", "call")

    def __init__(self, device: Device, layout: ArrayLayout, slow: Callable[..., Any]) -> None:
        self._device = device
        self._parts = _parts(layout)
        self._entries: tuple[_Served, ...] = ()
        self._slow = slow
        self.call: Callable[..., Any] = self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the entry that the arguments match, else the slow way."""
        if not kwargs:
            for served in self._entries:
                found = served(args)
                if found is not _MISS:
                    return found
        return self._slow(*args, **kwargs)

    def add(self, entry: FastEntry) -> bool:
        """Serve calls on arrays of the device; False for others."""
        inputs = [arg.input for arg in entry.args] + [place for place, _ in entry.bound]
        if (
            any(arg.kind != "array" for arg in entry.args)
            or inputs != list(range(len(inputs)))
            or len(self._entries) >= MAX_ENTRIES
            or timeline.enabled()
            or not (entry.tuple_out or len(entry.outputs) == 1)
        ):
            return False
        self._entries = (self._served(entry), *self._entries)
        return True

    def clear(self) -> None:
        """Forget all entries."""
        self._entries = ()

    def _served(self, entry: FastEntry) -> _Served:
        parts, device, place, executable = self._parts, self._device, entry.device, entry.executable
        types = [arg.type for arg in entry.args]
        count, bound = len(types), [array for _, array in entry.bound]
        kind, type_of, place_of = parts.kind, parts.type_of, parts.device_of
        make, outputs = parts.make, entry.outputs

        def served(args: tuple[Any, ...]) -> Any:
            if len(args) != count:
                return _MISS
            for x, t in zip(args, types, strict=True):
                if type(x) is not kind or type_of(x) is not t or place_of(x) is not place:
                    return _MISS
            handles = _handles(args, bound, parts.buffer_of)
            if handles is None:
                return _MISS
            try:
                results = with_room(executable, handles)
            except DeviceError as error:
                error.location = error.location or user_location()
                raise
            if not entry.tuple_out:
                return make(outputs[0], place, Buffer(device, results[0]))
            pairs = zip(outputs, results, strict=True)
            return tuple([make(t, place, Buffer(device, handle)) for t, handle in pairs])

        return served


def _handles(
    args: Sequence[Any], bound: Sequence[Any], buffer_of: Callable[[Any], Any]
) -> list[Any] | None:
    """The handles of arrays, None if one has no value yet.  Raises the error of a lost value."""
    handles = []
    for x in (*args, *bound) if bound else args:
        buffer = buffer_of(x)
        if type(buffer) is not Buffer:
            return None
        if buffer.run is not None:
            buffer.run.check()
        handles.append(buffer.handle)
    return handles


@record(eq=False)
class _Parts:
    """Access to the parts of an array.

    kind: the class of arrays.  type_of, device_of, buffer_of: read a part.  make: a new array.
    """

    kind: type
    type_of: Callable[[Any], Any]
    device_of: Callable[[Any], Any]
    buffer_of: Callable[[Any], Any]
    make: Callable[[Any, Any, Any], Any]


def _parts(layout: ArrayLayout) -> _Parts:
    kind: Any = layout.array_class
    names = [name for name in getattr(kind, "__slots__", ()) if not name.startswith("__")]
    by_offset = {slot_offset(kind, name): name for name in names}
    type_, device, buffer = (
        by_offset[slot] for slot in (layout.type_slot, layout.device_slot, layout.buffer_slot)
    )
    set_type, set_device, set_buffer = (
        getattr(kind, name).__set__ for name in (type_, device, buffer)
    )
    defaults = [(getattr(kind, by_offset[s]).__set__, v) for s, v in layout.defaults]
    new = object.__new__

    def make(type_: Any, device: Any, buffer: Any) -> Any:
        made: Any = new(kind)
        set_type(made, type_)
        set_device(made, device)
        set_buffer(made, buffer)
        for set_default, value in defaults:
            set_default(made, value)
        return made

    return _Parts(kind, attrgetter(type_), attrgetter(device), attrgetter(buffer), make)


__all__ = ["CallCache"]
