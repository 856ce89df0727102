"""The fast path of `jit`: calls a device answers natively, without the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.defaults import current_float, uniform
from bringup.api.trace import TracedFunction
from bringup.backend.dispatch import ArrayLayout, Dispatcher, FastArg, FastEntry, array_layout
from bringup.backend.foreign import REPORT, guarded
from bringup.dtypes import DType
from bringup.errors import DeviceError
from bringup.graph import has_effects
from bringup.runtime import devices
from bringup.runtime.compiler import Compiled
from bringup.runtime.devices import OpenDevice
from bringup.tracing.pytree import LEAF
from bringup.types import TensorType

_layouts: list[ArrayLayout | None] = []


def layout() -> ArrayLayout | None:
    """Where arrays keep their parts; None where this interpreter lays objects out differently."""
    if not _layouts:
        found = array_layout(
            Array,
            type_slot="_type",
            device_slot="_device",
            buffer_slot="_buffer",
            defaults={"_node": None},
            epoch=devices.epoch,
        )
        _layouts.append(found)
    return _layouts[0]


@dataclass(slots=True, eq=False)
class Entry:
    """One signature: what was traced, and what runs it.

    types: of the graph's inputs.
    donated: positions among the leaves.
    defaulted: whether the default float dtype decided something in it.
    """

    function: TracedFunction
    types: tuple[TensorType, ...]
    donated: frozenset[int]
    defaulted: bool
    compiled: Compiled | None = None


class FastPath:
    """The native table of one jitted function, made at its second call: that takes as long as many
    calls, and much of a program is called once.

    owner: the function's own class; its ``__call__`` becomes the device's builtin once there is an
    entry.
    slow: what the builtin calls when no entry matches.
    """

    __slots__ = ("__weakref__", "_called", "_device", "_dispatcher", "_owner", "_served", "_slow")

    def __init__(self, owner: type, slow: Callable[..., Any]) -> None:
        self._owner = owner
        self._slow = slow
        self._called = False
        self._dispatcher: Dispatcher | None = None
        self._device: OpenDevice | None = None
        # The epoch under which an entry was handed over, 0 if it holds under any.
        self._served: dict[Any, int] = {}

    def serve(
        self, entry: Entry, args: tuple[Any, ...], device: OpenDevice, under: DType | None
    ) -> None:
        """Let the device answer further calls like this one, if it can; from the second one on.

        under: the default float dtype that they hold for; None for any.
        """
        if not self._called or sys.is_finalizing():  # at the end nothing can be imported any more
            self._called = True
            return
        kinds = tuple([type(x) for x in args])
        hosted = Array not in kinds
        epoch = devices.epoch.value
        if hosted and epoch < 0:
            return
        stamp = epoch if hosted else 0
        key = (id(entry), kinds)
        if self._served.get(key) == stamp or (
            self._device is not None and self._device is not device
        ):
            return
        if under is None:
            self._add(key, stamp, entry, args, device)
            return
        with uniform(self) as same:
            if same and current_float() is under:
                self._add(key, stamp, entry, args, device)

    def _add(
        self, key: Any, stamp: int, entry: Entry, args: tuple[Any, ...], device: OpenDevice
    ) -> None:
        before = self._served.get(key)
        dispatcher = self._made(device)
        described = _describe(entry, args, device, stamp) if dispatcher is not None else None
        if dispatcher is not None and before is not None:
            dispatcher.clear()
            self._served.clear()
        self._served[key] = stamp
        if dispatcher is not None and described is not None and dispatcher.add(described):
            type.__setattr__(self._owner, "__call__", dispatcher.call)

    def clear(self) -> None:
        """Give up all entries; further calls bring back those that still hold."""
        self._served = {}
        if self._dispatcher is not None:
            self._dispatcher.clear()

    def forget(self, entry: Entry) -> None:
        """An entry that is given up: another may come to lie where it lay."""
        self._served = {k: v for k, v in self._served.items() if k[0] != id(entry)}

    def _made(self, device: OpenDevice) -> Dispatcher | None:
        if self._device is None:
            self._device = device
            where = layout()
            if where is not None:
                self._dispatcher = _dispatcher(device, where, self._slow)
        return self._dispatcher


def _dispatcher(
    device: OpenDevice, where: ArrayLayout, slow: Callable[..., Any]
) -> Dispatcher | None:
    with guarded(device.device, "dispatcher"):
        made: Any = device.device.dispatcher(where, slow)
    if made is not None and not all(hasattr(made, n) for n in ("call", "add", "clear")):
        what = f"{type(device.device).__name__}.dispatcher gave {type(made).__name__}"
        raise DeviceError(what, fix=REPORT)
    dispatcher: Dispatcher | None = made
    return dispatcher


def _describe(
    entry: Entry, args: tuple[Any, ...], device: OpenDevice, epoch: int
) -> FastEntry | None:
    """The entry in the device's terms; None for arguments or results that are not plain arrays."""
    result = entry.function.result
    leaf = result == LEAF
    if not leaf and (result.kind is not tuple or any(c != LEAF for c in result.children)):
        return None
    arguments = []
    for i, (x, type_) in enumerate(zip(args, entry.types, strict=False)):
        if type(x) is not Array and type(x) is not np.ndarray:
            return None
        arguments.append(FastArg("array" if type(x) is Array else "host", type_, i))
    compiled = entry.compiled
    if compiled is None or compiled.executable is None or len(compiled.programs) != 1:
        return None
    if any(has_effects(instr.op, instr.attrs) for instr in compiled.graph.instrs):
        return None
    if len(args) + len(entry.function.captured) != len(entry.types):  # one is a container
        return None
    # The arrays, not their handles: a captured array may be donated later.
    bound = tuple((len(args) + i, array) for i, array in enumerate(entry.function.captured))
    return FastEntry(
        args=tuple(arguments),
        executable=compiled.executable,
        outputs=tuple(v.type for v in entry.function.graph.outputs),
        device=device,
        epoch=epoch,
        bound=bound,
        tuple_out=not leaf,
    )
