"""What a device may be told about the front layer's arrays, to answer repeated calls natively.

A compiled function that is called again with arguments of the same types costs as much as its
checks.  A device that runs in this process can do them without the interpreter: see
`Device.dispatcher`.  Everything here is optional.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal, Protocol

from bringup.backend.device import Executable
from bringup.records import record
from bringup.types import TensorType


@record
class ArrayLayout:
    """Where instances of a class with ``__slots__`` keep what identifies an array.

    array_class: exactly this class, not its subclasses.
    type_slot, device_slot, buffer_slot: byte offsets, from the object's start, of the slots that
    hold the interned `TensorType`, the object that stands for the opened device, and the handle
    (anything else, such as None, while there is no value yet).
    defaults: offsets of further slots of a new array, and what they hold.
    epoch: changes whenever a call without device arrays might go to another device than before, for
    any thread; negative while that differs between threads.
    """

    array_class: type
    type_slot: int
    device_slot: int
    buffer_slot: int
    defaults: tuple[tuple[int, Any], ...] = ()
    epoch: ctypes.c_int64 = field(default_factory=ctypes.c_int64)


def array_layout(
    array_class: type,
    *,
    type_slot: str,
    device_slot: str,
    buffer_slot: str,
    defaults: Mapping[str, Any],
    epoch: ctypes.c_int64,
) -> ArrayLayout | None:
    """Find the offsets of the named slots, or None where objects are laid out in some other way."""
    try:
        return ArrayLayout(
            array_class,
            type_slot=slot_offset(array_class, type_slot),
            device_slot=slot_offset(array_class, device_slot),
            buffer_slot=slot_offset(array_class, buffer_slot),
            defaults=tuple((slot_offset(array_class, s), v) for s, v in defaults.items()),
            epoch=epoch,
        )
    except LookupError:
        return None


def slot_offset(owner: type, name: str) -> int:
    """The byte offset of a slot in instances of a class.

    Found by looking at an instance, so it holds for this very interpreter.
    Raises LookupError if the slot's content is not found in exactly one place.
    """
    probe: Any = object.__new__(owner)
    content = object()
    setattr(probe, name, content)
    memory = ctypes.string_at(id(probe), owner.__basicsize__)
    pattern = id(content).to_bytes(ctypes.sizeof(ctypes.c_void_p), "little")
    found = memory.find(pattern)
    if found < 0 or memory.find(pattern, found + 1) >= 0:
        raise LookupError(f"slot {name!r} of {owner.__name__} has no place of its own")
    return found


@record
class FastArg:
    """What one positional argument must be.

    kind: ``array``, an array of the layout's class on the entry's device whose value is there; or
    ``host``, exactly a `numpy.ndarray`, C-contiguous, aligned and in native byte order.
    type: its shape and dtype.
    input: the program's input it becomes, or -1 for none.
    """

    kind: Literal["array", "host"]
    type: TensorType
    input: int


@record(kw_only=True)
class FastEntry:
    """One signature and what to run for it.

    args: one per positional argument; calls with keywords never match.
    outputs: types of the program's outputs; each becomes a new array on ``device``.
    device: the object in the device slot of arguments and results.
    epoch: what `ArrayLayout.epoch` must hold if no argument is an array.
    bound: (input, array) pairs for inputs that are no arguments; a call matches while their values
    are there.
    tuple_out: results come as a tuple even if there is one.
    """

    args: tuple[FastArg, ...]
    executable: Executable
    outputs: tuple[TensorType, ...]
    device: object
    epoch: int
    bound: tuple[tuple[int, object], ...] = ()
    tuple_out: bool = False


class Dispatcher(Protocol):
    """A table of entries behind one callable.

    call: runs the entry that the arguments match; passes every other call on, as it came, to the
    ``slow`` callable the dispatcher was made with.
    """

    call: Callable[..., Any]

    def add(self, entry: FastEntry) -> bool:
        """Serve an entry from now on; False if this dispatcher cannot."""
        ...

    def clear(self) -> None:
        """Forget all entries."""
        ...
