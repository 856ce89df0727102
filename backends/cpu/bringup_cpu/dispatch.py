"""The dispatcher: a builtin that recognises repeated calls and runs them without the interpreter.

See `bringup.backend.dispatch` for what it is told and `bringup_cpu.emit_dispatch` for what it does.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bringup.backend.dispatch import ArrayLayout, FastArg, FastEntry, slot_offset
from bringup.llvm.host.engine import engine
from bringup.llvm.host.object_cache import Emitted, deferred
from bringup.llvm.text import Module
from bringup.program.program import Program
from bringup_cpu.emit_dispatch import (
    ANY_ARRAY,
    ANY_HOST,
    EPOCH,
    EXPORTS,
    MAX_BUFFERS,
    MAX_RESULTS,
    RELEASE,
    TUPLE,
    Arg,
    ArrayHeader,
    DispatchEmitter,
    Entry,
    ObjectLayout,
    Table,
)
from bringup_cpu.executable import CpuExecutable
from bringup_cpu.memory import memory
from bringup_cpu.runtime import (
    OBJECT_BYTES,
    RUNTIME_LEVEL,
    builtin,
    has_gil,
    header,
    runtime,
)

#: Entries of one dispatcher; a call compares with each in turn.
MAX_ENTRIES = 64
#: Seconds of native work from which on other Python threads may run meanwhile.
RELEASE_SECONDS = 20e-6


class CpuDispatcher:
    """A table of entries; ``call`` is the builtin over it."""

    __slots__ = ("__weakref__", "_alive", "_entries", "_layout", "_table", "call")

    def __init__(self, code: DispatchCode, layout: ArrayLayout, slow: Callable[..., Any]) -> None:
        self._layout = layout
        self._entries: list[Any] = []
        defaults = _words(*(n for offset, value in layout.defaults for n in (offset, id(value))))
        self._table = _buffer(Table(
            slow=id(slow),
            array_class=id(layout.array_class),
            type_slot=layout.type_slot,
            device_slot=layout.device_slot,
            buffer_slot=layout.buffer_slot,
            epoch=ctypes.addressof(layout.epoch),
            defaults=defaults.address,
            default_count=len(layout.defaults),
        ))  # fmt: skip
        # Native code has addresses only.  Entries stay alive after `clear`, because a call may be
        # running one.
        self._alive: list[Any] = [slow, layout, defaults]
        doc = "call(*args, **kwargs)\n--\n\nRun what the arguments match, else the slow way."
        self.call = builtin("call", code.address, doc, self, fast=True)

    def add(self, entry: FastEntry) -> bool:
        """Serve an entry from now on; False if its calls always go to the ``slow`` callable."""
        if not self._takes(entry):
            return False
        executable = entry.executable
        assert isinstance(executable, CpuExecutable)
        _check(entry, executable.program)
        native = _NativeEntry(entry, executable)
        self._alive.append(native)
        self._entries.append(native)
        self._link()
        return True

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._link()

    def _takes(self, entry: FastEntry) -> bool:
        executable = entry.executable
        # A traced executable needs memory for its records, and publishes them.
        if type(executable) is not CpuExecutable or executable.program.donated:
            return False
        if entry.epoch < 0 and all(arg.kind == "host" for arg in entry.args):
            return False
        buffers = len(executable.template)
        return (
            len(self._entries) < MAX_ENTRIES
            and max(buffers, len(entry.args)) <= MAX_BUFFERS
            and 0 < len(entry.outputs) <= MAX_RESULTS
            and (entry.tuple_out or len(entry.outputs) == 1)
        )

    def _link(self) -> None:
        """Chain the entries, the newest first, and publish the chain's head."""
        following = 0
        for entry in self._entries:
            Entry.from_address(entry.words.address).next = following
            following = entry.words.address
        Table.from_address(self._table.address).entries = following


class _NativeEntry:
    """An entry in the form that native code reads, and everything that its addresses point to."""

    __slots__ = ("_alive", "words")

    def __init__(self, entry: FastEntry, executable: CpuExecutable) -> None:
        template = executable.template
        types = executable.program.inputs
        bound = [FastArg("array", types[n], n) for n, _ in entry.bound]
        args, shapes = _arguments((*entry.args, *bound))
        arrays = _words(*(id(array) for _, array in entry.bound))
        results = _words(*(word for t in entry.outputs for word in (id(t), t.nbytes)))
        pointers = _words(*template)
        self.words = _buffer(Entry(
            arg_count=len(entry.args),
            args=args.address,
            code=executable.address,
            flags=_flags(entry, executable),
            epoch=entry.epoch,
            device=id(entry.device),
            arena=executable.arena_bytes,
            buffers=len(template),
            template=pointers.address,
            inputs=len(executable.program.inputs),
            result_count=len(entry.outputs),
            results=results.address,
            bound_count=len(entry.bound),
            bound=arrays.address,
        ))  # fmt: skip
        self._alive = (entry, args, arrays, shapes, results, pointers)


def _check(entry: FastEntry, program: Program) -> None:
    """Check that every input is given, with the type that the program expects."""
    types = {arg.input: arg.type for arg in entry.args if arg.input >= 0}
    types |= {n: program.inputs[n] for n, _ in entry.bound}
    for n, type_ in enumerate(program.inputs):
        assert types.get(n) is type_, f"input {n} is {type_}, not {types.get(n)}"
    assert entry.outputs == program.outputs, "the entry's outputs are not the program's"


def _arguments(args: Sequence[FastArg]) -> tuple[Any, list[Any]]:
    """The descriptions of the arguments, and the shapes they point to."""
    shapes = [_words(*arg.type.shape) for arg in args]
    described = [
        Arg(
            kind=ANY_ARRAY if arg.kind == "array" else ANY_HOST,
            type=id(arg.type),
            descr=id(arg.type.dtype.numpy),
            rank=arg.type.rank,
            shape=shape.address,
            place=8 * (arg.input if arg.input >= 0 else MAX_BUFFERS),
        )
        for arg, shape in zip(args, shapes, strict=True)
    ]
    return _buffer((Arg * len(described))(*described)), shapes


def _flags(entry: FastEntry, executable: CpuExecutable) -> int:
    has_array = any(arg.kind == "array" for arg in entry.args)
    return (
        (TUPLE if entry.tuple_out else 0)
        | (0 if executable.seconds < RELEASE_SECONDS else RELEASE)
        | (0 if has_array else EPOCH)
    )


def _buffer(data: ctypes.Structure | ctypes.Array[Any]) -> Any:
    """A buffer with a copy of some C data."""
    buffer = memory().alloc(ctypes.sizeof(data))
    ctypes.memmove(buffer.address, ctypes.byref(data), ctypes.sizeof(data))
    return buffer


def _words(*values: int) -> Any:
    """A buffer of 64-bit words."""
    return _buffer((ctypes.c_int64 * len(values))(*values))


class DispatchCode:
    """The native function behind every dispatcher, after its self-test."""

    def __init__(self, numpy: ArrayHeader) -> None:
        runtime()
        layout = ObjectLayout(OBJECT_BYTES, slot_offset(CpuDispatcher, "_table"), numpy)

        def emit() -> Emitted:
            module = Module()
            DispatchEmitter(module, header, layout)
            return Emitted(str(module))

        module = deferred(f"dispatcher {header.python} {layout}", emit, Path(__file__).parent)
        self.code = engine().compile_native(module, EXPORTS, RUNTIME_LEVEL)
        self.address = self.code.addresses["dispatch_call"]
        install = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        address = self.code.addresses["dispatch_install"]
        install(address)(id(np.ndarray), id(memory().buffer_type))


@cache
def dispatch_code() -> DispatchCode | None:
    """The process's dispatcher code, or None where objects are not laid out as it expects."""
    numpy = ArrayHeader()
    if platform.python_implementation() != "CPython" or not has_gil():
        return None  # pragma: no cover - only other interpreters
    if hasattr(sys, "gettotalrefcount") or not _laid_out(numpy):
        return None  # pragma: no cover - only other interpreters
    return DispatchCode(numpy)


def _laid_out(numpy: ArrayHeader) -> bool:
    """Whether real objects keep types and members where native code reads them."""
    probes = [
        np.zeros((), np.bool_),
        np.zeros((3, 5), np.float32),
        np.asfortranarray(np.zeros((4, 6, 2), np.int64)),
        np.zeros(40, np.uint8)[3:35].view(np.float64),
        np.zeros((7, 9), np.float16)[::2, 1:],
    ]
    return all(_array_fits(probe, numpy) for probe in probes)


def _array_fits(array: np.ndarray[Any, Any], numpy: ArrayHeader) -> bool:
    start = id(array)
    flags = ctypes.c_int.from_address(start + numpy.flags).value
    shape = ctypes.c_void_p.from_address(start + numpy.shape).value
    ready = array.flags.c_contiguous and array.flags.aligned
    return (
        np.ndarray.__basicsize__ >= numpy.flags + 4
        and _pointer(start + OBJECT_BYTES - 8) == id(np.ndarray)
        and _pointer(start + numpy.data) == array.ctypes.data
        and ctypes.c_int.from_address(start + numpy.rank).value == array.ndim
        and _pointer(start + numpy.descr) == id(array.dtype)
        and (flags & numpy.wanted == numpy.wanted) == ready
        and (not array.ndim or _sizes(shape, array.ndim) == array.shape)
    )


def _pointer(address: int) -> int | None:
    return ctypes.c_void_p.from_address(address).value


def _sizes(address: int | None, rank: int) -> tuple[int, ...]:
    assert address is not None
    return tuple((ctypes.c_ssize_t * rank).from_address(address))


def dispatcher(layout: ArrayLayout, slow: Callable[..., Any]) -> CpuDispatcher | None:
    """A dispatcher for arrays of a layout, or None where no native dispatcher works."""
    code = dispatch_code()
    return None if code is None else CpuDispatcher(code, layout, slow)
