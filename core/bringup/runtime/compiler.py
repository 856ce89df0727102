"""The driver: a traced graph goes through passes, fusion and planning to a device's executable,
cached by structure.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Executable, Lowered
from bringup.backend.foreign import REPORT, described, guarded
from bringup.backend.partition import partition
from bringup.backend.placement import Placement, check_placement, is_driven, placement
from bringup.errors import BackendError, BringupError, CompileError, UnsupportedError
from bringup.graph import Graph, Instr
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.locks import ProcessLock
from bringup.passes.base import Pass
from bringup.passes.check import terminates
from bringup.passes.pipeline import passes_for
from bringup.passes.run import PassContext, dump_folder, run_pipeline
from bringup.program.check import check_program
from bringup.program.cost import program_cost, sum_costs
from bringup.program.program import Cost, Program
from bringup.program.verify import verify_program
from bringup.records import record
from bringup.runtime import debug, timeline
from bringup.runtime.devices import OpenDevice
from bringup.runtime.driven import DrivenExecutable, PaperTarget, driven_pieces, lone
from bringup.runtime.mixed import MixedExecutable
from bringup.runtime.programs import fused_program, materialize_outputs, materialized, prepared

_CACHE_SIZE = 4096


@record
class Options:
    """How to compile.

    fuse: False makes one launch of every instruction, the reference that fused results are compared
    with.
    skip: names of passes to leave out, to find the one that changes a result.
    """

    fuse: bool = True
    skip: frozenset[str] = frozenset()


DEFAULT = Options()


class Compiled:
    """A compiled graph and everything that was made on the way.

    graph: as traced.
    optimized: after all passes.
    programs: kernels, slots, arena; one, or one for each segment of a graph that two devices share,
    and for each condition, body and branch that core runs for a device.
    executable: call it with handles; None when lowered without hardware.
    """

    __slots__ = (
        "_lower",
        "_lowered",
        "_placement",
        "executable",
        "graph",
        "optimized",
        "programs",
    )

    def __init__(
        self,
        graph: Graph,
        optimized: Graph,
        programs: tuple[Program, ...],
        executable: Executable | None,
        lower: Callable[[], Lowered],
        placement: Callable[[], Sequence[Placement]] = tuple,
    ) -> None:
        self.graph = graph
        self.optimized = optimized
        self.programs = programs
        self.executable = executable
        self._lower = lower
        self._lowered: Lowered | None = None
        self._placement = placement

    @property
    def program(self) -> Program:
        """The one program.  Raises UnsupportedError where two devices share the graph, or core runs
        its loops.
        """
        if len(self.programs) != 1:
            raise UnsupportedError(
                f"{self.graph.name} is {len(self.programs)} programs",
                fix="look at .programs, in order",
            )
        return self.programs[0]

    @property
    def donated(self) -> frozenset[int]:
        """Positions of the inputs that a run takes for itself."""
        return self.programs[0].donated if len(self.programs) == 1 else frozenset()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The fused kernels, in order of launch."""
        return tuple(kernel for program in self.programs for kernel in program.kernels)

    def cost(self) -> Cost:
        """Exact counts of one run; see `Cost`.  What moves between devices is in `placement`."""
        return sum_costs(program_cost(program) for program in self.programs)

    def placement(self) -> tuple[Placement, ...]:
        """Each instruction of the optimised graph: its device, the reason, the bytes moved for it.

        Empty when lowered without hardware.
        """
        return tuple(self._placement())

    @property
    def source(self) -> str:
        """What the backend's renderer wrote.  Raises UnsupportedError if it shows none."""
        return self._texts().source

    @property
    def asm(self) -> str:
        """What the backend's compiler made of it.  Raises UnsupportedError if it shows none."""
        return self._texts().asm

    def _texts(self) -> Lowered:
        if self._lowered is None:
            self._lowered = self._lower()
        return self._lowered


_cache: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
_lock = ProcessLock()


def compile_graph(
    graph: Graph,
    device: OpenDevice,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
    fallback: OpenDevice | None = None,
) -> Compiled:
    """Compile for an opened device, or return what was compiled before for an equal graph.

    fallback: the device that runs what the first one cannot; inputs and outputs stay on the first,
    and nothing is donated where both take part.
    Raises UnsupportedError when the device lacks something and nothing may take its place,
    CompileError.
    """
    if fallback is device:
        fallback = None
    key = (graph.key, device, donated, options, fallback)
    with _lock:
        found = _cache.get(key)
        if found is not None:
            _cache.move_to_end(key)
            return found
    if fallback is None:
        made = _compile(graph, device, donated, options)
    else:
        made = _compile_mixed(graph, device, fallback, donated, options)
    with _lock:
        _cache[key] = made
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return made


def lower_graph(
    graph: Graph,
    backend: Backend,
    target: str = "",
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> Compiled:
    """Compile for a target without hardware; the result has texts and costs but nothing to call."""
    capabilities = backend.capabilities(target)
    optimized, context = _optimized(graph, capabilities.available, backend, options)
    if not _drives(optimized, capabilities):
        program = _program_of(graph, optimized, context, capabilities, backend, options, donated)
        return Compiled(
            graph, optimized, (program,), None, lambda: _lowered(backend, program, target)
        )
    pieces = driven_pieces(optimized, PaperTarget(backend.name, capabilities))
    parts = [lower_graph(piece, backend, target, options=options) for piece in pieces]
    programs = tuple(program for part in parts for program in part.programs)
    return Compiled(graph, optimized, programs, None, partial(_joined, parts))


def make_program(
    graph: Graph,
    capabilities: Capabilities,
    backend: Backend,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> tuple[Graph, Program]:
    """The half that needs no device: the optimised graph and its program."""
    optimized, context = _optimized(graph, capabilities.available, backend, options)
    return optimized, _program_of(
        graph, optimized, context, capabilities, backend, options, donated
    )


def _program_of(
    graph: Graph,
    optimized: Graph,
    context: PassContext,
    capabilities: Capabilities,
    backend: Backend,
    options: Options,
    donated: frozenset[int],
) -> Program:
    ready = prepared(optimized, capabilities)
    check_placement(ready, capabilities, backend.name)
    kernel_passes = backend.passes_after_fusion()
    launches, program = fused_program(
        ready, capabilities, kernel_passes, fused=options.fuse, donated=donated
    )
    if context.dump is not None:
        _dump(context.dump, graph, program)
    _check(context.check, ready, launches, program)
    return program


def _optimized(
    graph: Graph, available: Callable[[Instr], bool], backend: Backend, options: Options
) -> tuple[Graph, PassContext]:
    context = PassContext.from_environment(_record_pass if timeline.enabled() else None)
    passes = passes_for(available, _own_passes(backend), without=options.skip)
    try:
        return run_pipeline(graph, passes, context=context), context
    except UnsupportedError as error:
        error.notes = (*error.notes, f"the device is of backend {backend.name!r}")
        raise


def _check(check: int, graph: Graph, launches: Sequence[Launch], program: Program) -> None:
    if check >= 1:
        verify_program(program)
    if check >= 2 and terminates(graph):
        check_program(graph, launches, program)


def _compile(
    graph: Graph, device: OpenDevice, donated: frozenset[int], options: Options
) -> Compiled:
    debug.listen()
    start = time.perf_counter()
    capabilities, backend = device.capabilities, device.backend
    optimized, context = _optimized(graph, capabilities.available, backend, options)
    if _drives(optimized, capabilities):
        return _compile_parts(graph, optimized, device, None, options)
    program = _program_of(graph, optimized, context, capabilities, backend, options, donated)
    with timeline.span("backend compile", "compile", program=program.name):
        executable = _executable(device, program)
    milliseconds = (time.perf_counter() - start) * 1e3
    debug.compiled(program, milliseconds, lambda: _lowered(device.backend, program))
    return Compiled(
        graph,
        optimized,
        (program,),
        executable,
        lambda: _lowered(device.backend, program),
        lambda: placement(optimized, device),
    )


def _executable(device: OpenDevice, program: Program) -> Executable:
    """What the device makes of a program; whatever else its compiler raises is a CompileError."""
    name = f"{type(device.device).__name__}.compile"
    try:
        made: Any = device.device.compile(program)
    except BringupError:
        raise
    except Exception as error:
        raise CompileError(f"{name}: {described(error)}", fix=REPORT) from error
    if not callable(made):
        raise CompileError(f"{name} gave {type(made).__name__}, which nobody can call", fix=REPORT)
    executable: Executable = made
    return executable


def _compile_mixed(
    graph: Graph,
    device: OpenDevice,
    fallback: OpenDevice,
    donated: frozenset[int],
    options: Options,
) -> Compiled:
    """Compile for one device what it can run, for another the rest."""

    def either(instr: Instr) -> bool:
        return device.capabilities.available(instr) or fallback.capabilities.available(instr)

    optimized, _ = _optimized(graph, either, device.backend, options)
    cut = partition(materialized(optimized), device, fallback)
    if all(s.device == device.name and not s.driven for s in cut.segments):
        return _compile(graph, device, donated, options)
    return _compile_parts(graph, optimized, device, fallback, options)


def _compile_parts(
    graph: Graph,
    optimized: Graph,
    device: OpenDevice,
    fallback: OpenDevice | None,
    options: Options,
) -> Compiled:
    """Compile a graph that no one program holds: for two devices, or with loops that core runs."""
    parts: list[Compiled] = []

    def compile_part(part: Graph, where: OpenDevice) -> Executable:
        # A loop of the first device may hold what only the other one can run.
        other = fallback if where is device else None
        parts.append(compile_graph(part, where, options=options, fallback=other))
        executable = parts[-1].executable
        assert executable is not None
        return executable

    ready = materialized(optimized)
    cut = partition(ready, device, fallback)
    executable: Executable
    if lone(ready) is not None and cut.segments[0].driven:
        executable = DrivenExecutable(ready, device, partial(compile_part, where=device))
    else:
        devices = (device,) if fallback is None else (device, fallback)
        executable = MixedExecutable(ready, cut, devices, compile_part)
    programs = tuple(program for part in parts for program in part.programs)
    return Compiled(
        graph, optimized, programs, executable, partial(_joined, parts), lambda: cut.report
    )


def _drives(graph: Graph, capabilities: Capabilities) -> bool:
    """Whether core has to run some instruction of an optimised graph."""
    return any(is_driven(instr, capabilities) for instr in graph.instrs)


def _own_passes(backend: Backend) -> Sequence[Pass]:
    with guarded(backend, "passes_before_fusion"):
        found: Any = backend.passes_before_fusion()
    if not isinstance(found, Sequence) or not all(isinstance(p, Pass) for p in found):
        what = f"{type(backend).__name__}.passes_before_fusion gave {found!r}, no sequence of Pass"
        raise BackendError(what, fix=REPORT)
    return found


def _lowered(backend: Backend, program: Program, *target: str) -> Lowered:
    with guarded(backend, "lower"):
        found: Any = backend.lower(program, *target)
    if not isinstance(found, Lowered):
        what = f"{type(backend).__name__}.lower gave {type(found).__name__}, no Lowered"
        raise BackendError(what, fix=REPORT)
    return found


def _joined(parts: Sequence[Compiled]) -> Lowered:
    sources, asms = "\n".join(p.source for p in parts), "\n".join(p.asm for p in parts)
    return Lowered(sources, asms)


def _record_pass(name: str, seconds: float) -> None:
    duration = round(seconds * 1e9)
    timeline.record(
        name, "compile", time.perf_counter_ns() - duration, duration, threading.get_native_id()
    )


def _dump(folder: Path, graph: Graph, program: Program) -> None:
    place = dump_folder(folder, graph, graph.name)
    (place / "90-program.txt").write_text(f"{program}\n", encoding="utf-8")
    for number, kernel in enumerate(program.kernels):
        (place / f"91-kernel-{number:02}.txt").write_text(f"{kernel}\n", encoding="utf-8")


__all__ = [
    "Compiled",
    "Options",
    "compile_graph",
    "lower_graph",
    "make_program",
    "materialize_outputs",
]
