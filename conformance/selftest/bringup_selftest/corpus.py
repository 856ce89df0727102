"""Faults: each a thin wrapper round a right backend that corrupts one behaviour.

Wrappers go through the seam alone: functions of ops, ``render``, ``load`` and ``launch``, the six
byte methods, ``compile``, and the passes of a backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar

import numpy as np

from bringup.backend import Backend, BufferView, Capabilities, Device, DeviceInfo, Lowered
from bringup.kernel.form import Kernel
from bringup.ops.table import lookup
from bringup.passes.base import Pass
from bringup.program.program import Program
from bringup.records import record

Array = np.ndarray[Any, Any]
Kind = Literal["op", "fus", "plan", "mem", "str", "key", "pass", "rt"]
Inject = Callable[[Backend], Backend]
Edit = TypeVar("Edit")

#: Modules of `bringup_selftest.faults`, in the order of the matrix.
MODULES = (
    "indexing", "masks", "dtypes", "special", "payloads", "neighbours", "integers", "reductions",
    "broadcasting", "gathers", "sorting", "convolution", "dots", "denormals", "casts",
    "fusion", "fusion_bodies", "fusion_lanes", "fusion_masks", "plans", "passes", "control",
    "randoms", "transfers", "donation", "caching", "errors", "derivatives", "far", "composites",
)  # fmt: skip


@record
class Fault:
    """One fault.

    id: as ``IX02``; those that end in a letter are more than the lists of others hold.
    group: the part of the corpus.  title: what is wrong, in a sentence.
    inject: the backend with the fault, made of a right one.
    depth: of the reference device it is injected into.  asynchronous, at_once: as in `Reference`.
    """

    id: str
    group: str
    kind: Kind
    title: str
    inject: Inject
    depth: int = 1
    asynchronous: bool = False
    at_once: int = 0


class Faults(list[Fault]):
    """The faults of a module.

    group, kind, depth: of each, unless its row says otherwise.
    """

    def __init__(self, group: str, kind: Kind = "op", *, depth: int = 1) -> None:
        super().__init__()
        self.group, self.kind, self.depth = group, kind, depth

    def add(self, id: str, title: str, inject: Inject, **how: Any) -> None:
        """A row.  how: other fields of `Fault`."""
        fields = {"group": self.group, "kind": self.kind, "depth": self.depth, **how}
        self.append(Fault(id, title=title, inject=inject, **fields))

    def by(
        self, make: Callable[[Edit], Inject], id: str, title: str, **how: Any
    ) -> Callable[[Edit], Edit]:
        """A row for the edit that it decorates, or is called with; ``make`` injects edits."""

        def add(edit: Edit) -> Edit:
            self.add(id, title, make(edit), **how)
            return edit

        return add

    def op(
        self, id: str, title: str, names: str | Iterable[str], *, when: When | None = None
    ) -> Callable[[OpEdit], OpEdit]:
        """A row for an edit of the functions of some ops.

        names: in a text, by spaces.  when: of which calls; of all unless given.
        """
        each = names.split() if isinstance(names, str) else names

        def make(edit: OpEdit) -> Inject:
            def some(call: OpCall) -> Array | None:
                return edit(call) if when is None or when(call) else None

            return with_ops(dict.fromkeys(each, some))

        return self.by(make, id, title, kind="op", depth=1)


@cache
def faults() -> tuple[Fault, ...]:
    """The whole corpus, group by group.  Raises ValueError if two faults have one id."""
    package = f"{__package__}.faults"
    found = [f for name in MODULES for f in importlib.import_module(f"{package}.{name}").FAULTS]
    ids = [fault.id for fault in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"two faults are called {', '.join(twice)}")
    return tuple(found)


class FaultyBackend(Backend):
    """A backend round another one; what is not overridden is the other's.

    device: makes the device to hand out of the one that was opened.
    ops: functions that this changes, None if it may change anything.  programs: how it rewrites
    what is compiled.  host: whether it changes what core does on the host alone.  These say what an
    item must meet to be run at all, see `Control.meets`.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        device: Callable[[Device], Device] | None = None,
        declared: Callable[[Capabilities], Capabilities] | None = None,
        before: Sequence[Pass] = (),
        after: Sequence[Callable[[Kernel], Kernel]] = (),
        ops: frozenset[str] | None = frozenset(),
        programs: Callable[[Program], Program] | None = None,
        host: bool = False,
    ) -> None:
        self.inner = inner
        self.ops = ops
        self.host = host
        self.programs = programs
        self.name = inner.name
        self._device = device
        self._declared = declared
        self.own_passes = tuple(before)
        self.own_kernel_passes = tuple(after)

    def devices(self) -> Sequence[DeviceInfo]:
        """The other's."""
        return self.inner.devices()

    def targets(self) -> Sequence[str]:
        """The other's."""
        return self.inner.targets()

    def capabilities(self, target: str = "") -> Capabilities:
        """The other's, edited if that is the fault."""
        given = self.inner.capabilities(target)
        return given if self._declared is None else self._declared(given)

    def open(self, index: int) -> Device:
        """A device of the other's with the fault."""
        opened = self.inner.open(index)
        if self._declared is not None:
            opened.capabilities = self._declared(opened.capabilities)
        return opened if self._device is None else self._device(opened)

    def passes_before_fusion(self) -> Sequence[Pass]:
        """The other's, then the fault's."""
        return (*self.inner.passes_before_fusion(), *self.own_passes)

    def passes_after_fusion(self) -> Sequence[Callable[[Kernel], Kernel]]:
        """The other's, then the fault's."""
        return (*self.inner.passes_after_fusion(), *self.own_kernel_passes)

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """The other's."""
        return self.inner.chunk_length(kernel, target)

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The other's."""
        return self.inner.lower(program, target)


def with_method(name: str, wrapper: Callable[..., Any]) -> Inject:
    """Replace a method of devices: by ``wrapper(device, inner, *args, **kwargs)``."""
    return with_device(partial(_method, name, wrapper))


def _method(name: str, wrapper: Callable[..., Any], device: Device) -> Device:
    setattr(device, name, partial(wrapper, device, getattr(device, name)))
    return device


def method(name: str) -> Callable[[Callable[..., Any]], Inject]:
    """`with_method` of a method, for `Faults.by`."""
    return partial(with_method, name)


def with_device(edit: Callable[[Device], Device]) -> Inject:
    """Edit or replaces opened devices."""
    return lambda backend: FaultyBackend(backend, device=edit, ops=None)


def with_programs(rewrite: Callable[[Program], Program]) -> Inject:
    """Compile other programs than core asks for; ``rewrite`` is a pure function."""

    def compiled(_device: Device, inner: Callable[[Program], Any], program: Program) -> Any:
        return inner(rewrite(program))

    edit = partial(_method, "compile", compiled)
    return lambda backend: FaultyBackend(backend, device=edit, programs=rewrite)


def with_kernels(rewrite: Callable[[Kernel], Kernel]) -> Inject:
    """Rewrite kernels where a backend's own passes do."""
    return lambda backend: FaultyBackend(backend, after=(rewrite,))


def with_passes(*passes: Pass) -> Inject:
    """Add passes over graphs."""
    return lambda backend: FaultyBackend(backend, before=passes)


def with_declared(edit: Callable[[Capabilities], Capabilities]) -> Inject:
    """Declare something else."""
    return lambda backend: FaultyBackend(backend, declared=edit, ops=None)


@dataclass(slots=True)
class OpCall:
    """A call of an op's function, after the right function has run.

    operands: copies of what they were.  results: the memory of the results, right so far.
    before: what was in that memory before the call.
    device: to read or write elsewhere.  out: the views of the results.
    """

    name: str
    operands: list[Array]
    results: list[Array]
    before: list[Array]
    attrs: Mapping[str, Any]
    device: Any
    views: Sequence[BufferView]
    out: Sequence[BufferView]

    @property
    def x(self) -> Array:
        """The first operand."""
        return self.operands[0]

    @property
    def y(self) -> Array:
        """The second operand."""
        return self.operands[1]

    @property
    def right(self) -> Array:
        """The first result, as a copy."""
        return self.results[0].copy()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the first result."""
        found: np.dtype[Any] = self.results[0].dtype
        return found

    def reference(self, *operands: Array, **attrs: Any) -> Array:
        """The op's own reference on other operands or attributes."""
        with np.errstate(all="ignore"):
            made = lookup(self.name).reference(*operands, **{**self.attrs, **attrs})
        return np.asarray(made)


#: Gives the wrong result, or None to leave it; may also write into ``call.results``.
OpEdit = Callable[[OpCall], Array | None]
#: Whether an edit is for a call.
When = Callable[[OpCall], bool]


def of(*dtypes: Any) -> When:
    """Calls whose first result is of one of some dtypes of numpy."""
    return lambda call: call.dtype in dtypes


def kind(name: str) -> When:
    """Calls whose attribute ``kind`` is that."""
    return lambda call: bool(call.attrs["kind"] == name)


def floats(call: OpCall) -> bool:
    """Calls whose first result is of floats."""
    return call.dtype.kind not in "biu"


def integers(call: OpCall) -> bool:
    """Calls whose first result is of integers."""
    return call.dtype.kind in "iu"


single = of(np.float32)


def signed(call: OpCall) -> bool:
    """Calls whose first result is of signed integers."""
    return call.dtype.kind == "i"


def unsigned(call: OpCall) -> bool:
    """Calls whose first result is of unsigned integers."""
    return call.dtype.kind == "u"


def with_ops(edits: Mapping[str, OpEdit]) -> Inject:
    """Corrupt functions of ops, by name."""

    def edit(device: Any) -> Device:
        functions = dict(device.ops)
        for name, change in edits.items():
            functions[name] = _edited(device, name, functions[name], change)
        device.ops = functions
        opened: Device = device
        return opened

    return lambda backend: FaultyBackend(backend, device=edit, ops=frozenset(edits))


def _edited(device: Any, name: str, inner: Callable[..., object], change: OpEdit) -> Any:
    def call(*views: BufferView, out: Any, **attrs: Any) -> None:
        results = out if isinstance(out, tuple) else (out,)

        def run() -> None:
            operands = [device.dense(view).copy() for view in views]
            memory = [device.dense(view) for view in results]
            before = [array.copy() for array in memory]
            inner(*views, out=out, **attrs)
            call = OpCall(name, operands, memory, before, attrs, device, views, results)
            with np.errstate(all="ignore"):
                wrong = change(call)
            if wrong is not None:
                memory[0][...] = wrong

        device.submit(run)

    return call
