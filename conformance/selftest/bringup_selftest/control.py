"""The same-seed clean control: what every case of a run meets on a right device, and that it
passes.

A case that meets nothing of what a fault changes runs under the fault, bit for bit, as it ran here;
so it need not be run again to know that it passes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bringup.backend import Backend, Device
from bringup.backend.device import Executable, Handle
from bringup.graph import Graph
from bringup.kernel.form import Kernel
from bringup.passes.base import Pass
from bringup.program.program import Program
from bringup.records import record
from bringup.runtime.devices import OpenDevice
from bringup_conformance.cases import Case, Check, NotOffered
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.running import run_item
from bringup_conformance.execution.schedule import Schedule
from bringup_conformance.execution.targets import DeviceTarget
from bringup_selftest.corpus import FaultyBackend
from bringup_selftest.device import Reference


@record
class ControlConfig:
    """A right device and a run: everything that a control depends on.

    only: which cases, see `Selection`.
    """

    depth: int = 1
    asynchronous: bool = False
    at_once: int = 0
    level: str = "runtime"
    seed: int = 0
    simulated: bool = False
    only: str = ""

    def backend(self) -> Reference:
        """The right backend."""
        return Reference(self.depth, self.asynchronous, self.at_once, self.simulated)


@dataclass(slots=True)
class Met:
    """What one item met on the device: functions called, programs run, and what was compiled, by
    identity.
    """

    ops: set[str] = field(default_factory=set)
    programs: dict[int, Program] = field(default_factory=dict)
    kernels: dict[int, Kernel] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)


@dataclass(slots=True)
class Control:
    """A clean run.

    items: cases and checks in the order of the run.  met: what each met.  failed: what each that
    did not pass had wrong, by number.
    """

    items: list[Case | Check]
    met: list[Met]
    failed: dict[int, str]

    def meets(self, backend: Backend) -> Sequence[int]:
        """Numbers of the items that meet something of what is injected, in order."""
        layers = list(_layers(backend))
        if any(layer.host for layer in layers):
            items = enumerate(self.items)
            return [n for n, item in items if isinstance(item, Check) and item.host]
        if any(layer.ops is None for layer in layers):
            return range(len(self.items))
        ops = frozenset[str]().union(*(layer.ops or () for layer in layers))
        programs = [_changed(x.programs, self._all("programs")) for x in layers if x.programs]
        kernels = [_changed(p, self._all("kernels")) for x in layers for p in x.own_kernel_passes]
        graphs = [_changed(p.run, self._all("graphs")) for x in layers for p in x.own_passes]
        found = []
        for number, met in enumerate(self.met):
            compiled = _compiles(self.items[number]) and bool(programs or kernels or graphs)
            if (
                compiled
                or not ops.isdisjoint(met.ops)
                or any(not each.isdisjoint(met.programs) for each in programs)
                or any(not each.isdisjoint(met.kernels) for each in kernels)
                or any(not each.isdisjoint(met.graphs) for each in graphs)
            ):
                found.append(number)
        return found

    def _all(self, name: str) -> dict[int, Any]:
        return {key: x for met in self.met for key, x in getattr(met, name).items()}


def _layers(backend: Backend) -> Iterator[FaultyBackend]:
    while isinstance(backend, FaultyBackend):
        yield backend
        backend = backend.inner
    if not isinstance(backend, Reference):
        raise TypeError(f"not a FaultyBackend round the reference: {type(backend).__name__}")


def _changed(edit: Callable[[Any], Any], seen: Mapping[int, Any]) -> set[int]:
    """Those that an edit makes something else of, or fails at."""
    found = set()
    for name, each in seen.items():
        try:
            made = edit(each)
        except Exception:  # noqa: BLE001  (what it raises is raised again where it counts)
            found.add(name)
            continue
        if made is not each and (getattr(made, "key", made) != getattr(each, "key", each)):
            found.add(name)
    return found


class _Recorder:
    """Notes what the item under way meets."""

    def __init__(self) -> None:
        self.now = Met()
        self.keeps = True

    def backend(self, inner: Backend) -> Backend:
        """A backend that is noted."""
        note = Pass("note", "anything -> the same", self._graph)
        return FaultyBackend(inner, device=self._device, before=(note,), after=(self._kernel,))

    def _graph(self, graph: Graph) -> Graph:
        if self.keeps:
            self.now.graphs[id(graph)] = graph
        return graph

    def _kernel(self, kernel: Kernel) -> Kernel:
        if self.keeps:
            self.now.kernels[id(kernel)] = kernel
        return kernel

    def _device(self, device: Any) -> Device:
        device.ops = {name: partial(self._op, name, f) for name, f in device.ops.items()}
        device.compile = partial(self._compile, device.compile)
        opened: Device = device
        return opened

    def _op(self, name: str, inner: Callable[..., object], *views: Any, **attrs: Any) -> None:
        self.now.ops.add(name)
        inner(*views, **attrs)

    def _compile(self, inner: Callable[[Program], Executable], program: Program) -> Executable:
        return _Noted(self, program, inner(program)) if self.keeps else inner(program)


@dataclass(slots=True)
class _Noted:
    recorder: _Recorder
    program: Program
    inner: Executable

    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        self.recorder.now.programs[id(self.program)] = self.program
        return self.inner(inputs)


def target_of(backend: Backend) -> DeviceTarget:
    """A device of its own, opened from a backend at hand."""
    info = backend.devices()[0]
    return DeviceTarget(OpenDevice(backend.name, 0, backend, backend.open(0), info))


def items_of(target: DeviceTarget, config: ControlConfig) -> list[Case | Check]:
    """All that a run holds, in order."""
    schedule = Schedule(target, Job(config.level, config.seed, config.only))
    made = (item for number in range(len(schedule.units)) for item in schedule.items(number))
    return [item for item in made if isinstance(item, Case | Check)]


def clean_run(config: ControlConfig) -> Control:
    """Run everything on a right device."""
    recorder = _Recorder()
    target = target_of(recorder.backend(config.backend()))
    made = Control(items_of(target, config), [], {})
    compiled: dict[object, Met] = {}
    for number, item in enumerate(made.items):
        recorder.now = Met()
        # Checks count what stays alive, without what is kept here; and what compiles may show in
        # any of them.
        if recorder.keeps and _compiles(item):
            recorder.keeps = False
            gc.collect()
            gc.freeze()
        made.met.append(recorder.now)
        try:
            problem = run_item(target, item).problem
        except NotOffered:
            problem = None
        if problem is not None:
            made.failed[number] = f"{problem.kind}: {problem.what}"
        if isinstance(item, Case):
            # Equal graphs are compiled once: what the first met on the way, the others meet too.
            first = compiled.setdefault(item.graph.key, recorder.now)
            recorder.now.kernels |= first.kernels
            recorder.now.graphs |= first.graphs
    target.device.device.close()
    return made


def _compiles(item: Case | Check) -> bool:
    """Whether it is a check that may compile anything."""
    return isinstance(item, Check) and not item.host


_CONTROLS: dict[ControlConfig, Control] = {}


def control_of(config: ControlConfig) -> Control:
    """The control of a config, run once in a process and its children."""
    if config not in _CONTROLS:
        _CONTROLS[config] = clean_run(config)
    return _CONTROLS[config]


def held(config: ControlConfig) -> Control | None:
    """The control of a config, if it was run."""
    return _CONTROLS.get(config)
