"""The driver: a traced graph goes through passes, fusion and planning to a device's executable,
cached by structure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bringup.backend.adapters_run import StepsExecutable
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Executable, KernelPass, Lowered
from bringup.backend.partition import Partition, partition
from bringup.backend.placement import check_placement, placement, runs_on_host
from bringup.backend.vendor_errors import REPORT, vendor_call
from bringup.bounded import BoundedDict
from bringup.errors import BackendError, CompileError, UnsupportedError
from bringup.graph import Graph, Instr
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch, fuse
from bringup.kernel.split import ChunkLength, describe_split, split_launch
from bringup.locks import ProcessLock
from bringup.passes.base import Pass
from bringup.passes.check import terminates
from bringup.passes.pipeline import passes_for
from bringup.passes.run import PassContext, dump_folder, run_pipeline
from bringup.program.evaluate import check_program
from bringup.program.in_place import find_inplace_updates
from bringup.program.plan import plan
from bringup.program.program import KernelStep, OpStep, Program
from bringup.program.verify import verify_program
from bringup.records import record
from bringup.runtime import debug, timeline
from bringup.runtime.collection import PAUSED
from bringup.runtime.compiled import Compiled, ScheduledStep
from bringup.runtime.devices import OpenDevice
from bringup.runtime.full_memory import with_room
from bringup.runtime.tuned import with_schedules
from bringup.tracing.context import nested


@record
class Options:
    """How to compile.

    fuse: False makes one launch of every instruction, the reference that fused results are compared
    with.
    skip: names of passes to leave out, to find the one that changes a result.
    optimize: False asks the device for code in little time that may be slow.
    """

    fuse: bool = True
    skip: frozenset[str] = frozenset()
    optimize: bool = True


DEFAULT = Options()


_cache: BoundedDict[tuple[Any, ...], Compiled] = BoundedDict(4096)
_lock = ProcessLock()


def compile_graph(
    graph: Graph,
    device: OpenDevice,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
    fallback: OpenDevice | None = None,
) -> Compiled:
    """Compile for an opened device, or return what an earlier call compiled for an equal graph.

    fallback: the device that runs the instructions that the first one lacks; inputs and outputs
    stay on the first, and nothing is donated where both take part.
    Raises UnsupportedError when the device lacks something and nothing may take its place,
    CompileError.
    """
    if fallback is device:
        fallback = None
    key = (graph.key, device, donated, options, fallback)
    with _lock:
        compiled = _cache.pop(key, None)
        if compiled is not None:
            _cache[key] = compiled  # at the end: the least recently used goes first
            return compiled
    try:
        # Spans inside belong to this program.
        with (
            timeline.span(f"compile {graph.name}", "compile", device=device.name),
            debug.progress(graph.name) as count,
            PAUSED,
        ):
            compiled = _compile(graph, device, donated, options, fallback, count)
    except RecursionError:
        raise nested(graph.name) from None
    with _lock:
        _cache.add(key, compiled)
    return compiled


def forget() -> None:
    """Drop every program that nothing else holds; later calls compile again."""
    with _lock:
        _cache.clear()


def lower_graph(
    graph: Graph,
    backend: Backend,
    target: str = "",
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> Compiled:
    """Compile for a target without hardware; the result has texts and costs but nothing to call."""
    offline = OfflineTarget(backend, target, backend.capabilities(target))
    return _compile(graph, offline, donated, options)


@record
class OfflineTarget:
    """A target of code without an opened device.  architecture: as `Backend.lower` takes it."""

    backend: Backend
    architecture: str
    capabilities: Capabilities

    @property
    def name(self) -> str:
        """As errors and reports call it."""
        return self.backend.name


def _compile(
    graph: Graph,
    target: OpenDevice | OfflineTarget,
    donated: frozenset[int],
    options: Options,
    fallback: OpenDevice | None = None,
    count: Callable[[int], None] = lambda _kernels: None,
) -> Compiled:
    """Compile a traced graph to one program, or to segments of one program each.

    count: called with the number of steps of the program.
    """
    start = time.perf_counter()
    debug.listen()
    optimized, context = _optimize(graph, target, fallback, options)
    on_host = any(runs_on_host(instr, target.capabilities) for instr in optimized.instrs)
    if fallback is not None or on_host:
        cut = partition(optimized, target, fallback)
        if any(s.loop is not None or s.device != target.name for s in cut.segments):
            return _compile_segments(graph, optimized, cut, target, fallback, options)
        # The passes assumed either device; now the limits of the first one count as well.
        return _compile(graph, target, donated, options, None, count)
    program = _program(graph, optimized, context, target, options, donated)
    if isinstance(target, OfflineTarget):
        lowered = partial(_lower, target.backend, program, target.architecture)
        scheduled = partial(_scheduled, target.backend, program, target.architecture)
        return Compiled(graph, optimized, (program,), None, lowered, scheduled)
    count(len(program.steps))
    with timeline.span("backend compile", "compile", program=program.name):
        executable = executable_of(target, program)
    architectures = [name for name in [target.capabilities.target] if name]
    lowered = partial(_lowered, executable, target.backend, program, *architectures)
    debug.compiled(program, (time.perf_counter() - start) * 1e3, lowered)
    scheduled = partial(_scheduled, target.backend, program, *architectures)
    report = partial(placement, optimized, target)
    return Compiled(graph, optimized, (program,), executable, lowered, scheduled, report)


def _compile_segments(
    graph: Graph,
    optimized: Graph,
    cut: Partition,
    target: OpenDevice | OfflineTarget,
    fallback: OpenDevice | None,
    options: Options,
) -> Compiled:
    """Compile a graph that no one program holds: for two devices, or with loops that core runs."""
    from bringup.runtime.segments import SegmentedExecutable, compiled_segments, parts_of

    if isinstance(target, OfflineTarget):
        parts = [
            [_compile(part, target, frozenset(), options) for part in parts_of(segment)]
            for segment in cut.segments
        ]
        return compiled_segments(graph, optimized, cut, parts, None)
    devices = [target] if fallback is None else [target, fallback]
    parts = []
    for segment in cut.segments:
        device = next(candidate for candidate in devices if candidate.name == segment.device)
        # A loop of the first device may hold what only the other one can run.
        second = fallback if segment.loop is not None else None
        parts.append(
            [
                compile_graph(part, device, options=options, fallback=second)
                for part in parts_of(segment)
            ]
        )
    executable = SegmentedExecutable(optimized, cut, devices, parts)
    return compiled_segments(graph, optimized, cut, parts, executable)


def graph_passes(
    capabilities: Capabilities, backend: Backend, *, skip: Iterable[str] = ()
) -> tuple[Pass, ...]:
    """Every pass over the graphs for a device, in order, without those to skip."""
    return passes_for(
        capabilities.available,
        _backend_passes(backend),
        fuses=capabilities.fuses,
        operands=capabilities.limits.buffers - 1,
        without=skip,
    )


def _optimize(
    graph: Graph,
    target: OpenDevice | OfflineTarget,
    fallback: OpenDevice | None,
    options: Options,
) -> tuple[Graph, PassContext]:
    """The graph after all passes, and the context in which they ran."""
    capabilities, backend = target.capabilities, target.backend
    if fallback is None:
        passes = graph_passes(capabilities, backend, skip=options.skip)
    else:
        other = fallback.capabilities

        def either(instr: Instr) -> bool:
            return capabilities.available(instr) or other.available(instr)

        def in_no_kernel(_instr: Instr) -> bool:
            """Limits of kernels are those of the device that a segment is compiled for."""
            return False

        backend_passes = _backend_passes(backend)
        passes = passes_for(either, backend_passes, fuses=in_no_kernel, without=options.skip)
    context = PassContext.from_environment(_record_pass if timeline.enabled() else None)
    try:
        return run_pipeline(graph, passes, context=context), context
    except UnsupportedError as error:
        error.notes = (*error.notes, f"the device is of backend {backend.name!r}")
        raise


def _program(
    graph: Graph,
    optimized: Graph,
    context: PassContext,
    target: OpenDevice | OfflineTarget,
    options: Options,
    donated: frozenset[int],
) -> Program:
    """Fuse and plan an optimised graph.  graph: the traced one, to whose dumps these are added."""
    capabilities, backend = target.capabilities, target.backend
    check_placement(optimized, capabilities, backend.name)
    report: list[str] | None = None if context.dump is None else []
    launches, program = fused_program(
        optimized,
        capabilities,
        backend.passes_after_fusion(),
        chunk_length=chunk_length_of(backend, capabilities),
        fused=options.fuse,
        donated=donated,
        report=report,
    )
    if not options.optimize:
        program = replace(program, optimize=False)
    machine = target.machine if isinstance(target, OpenDevice) else ""
    program = with_schedules(program, backend, capabilities.target, machine)
    if context.dump is not None and report is not None:
        targets = [name for name in [capabilities.target] if name]
        scheduled = _scheduled(backend, program, *targets)
        _dump(context.dump, graph, program, scheduled, report)
    if context.check >= 1:
        verify_program(program)
    if context.check >= 2 and terminates(optimized):
        check_program(optimized, launches, program)
    return program


def fused_program(
    graph: Graph,
    capabilities: Capabilities,
    passes: Sequence[KernelPass],
    *,
    chunk_length: ChunkLength = lambda _kernel: 0,
    fused: bool = True,
    donated: frozenset[int] = frozenset(),
    donors: Mapping[int, int] | None = None,
    report: list[str] | None = None,
) -> tuple[list[Launch], Program]:
    """The launches of a graph after all passes, and its program, which has a step for each launch
    but those of constants.

    passes: of the backend's own, over every kernel.  chunk_length: as in `split_launch`; folds stay
    whole by default.  fused: False makes one launch of every instruction.  donors: as in `plan`.
    report: as in `fuse`, for sub-graphs as well; folds that are cut are added.
    """

    def inner(graph: Graph, donors: Mapping[int, int]) -> Program:
        taken = frozenset(donors.values())
        return fused_program(
            graph, capabilities, passes, chunk_length=chunk_length, fused=fused, donated=taken,
            donors=donors, report=report,
        )[1]  # fmt: skip

    owned = donated if capabilities.donation else frozenset[int]()
    in_place = find_inplace_updates(graph, owned, capabilities.runs_op)

    def fuses(instr: Instr) -> bool:
        return instr not in in_place and capabilities.fuses(instr)

    with timeline.span("fuse", "compile"):
        launches = fuse(
            graph, capabilities.limits, fuses=fuses, depth=fused, donated=owned, report=report
        )
    with timeline.span("plan", "compile"):
        buffers, whole_launches = capabilities.limits.buffers, launches
        launches = []
        for launch in whole_launches:
            parts = split_launch(_after_fusion(launch, passes), chunk_length, buffers)
            if report is not None and len(parts) > 1:
                report.append(describe_split(parts))
            launches += parts
        program = plan(
            graph,
            launches,
            alignment=capabilities.alignment,
            donated=owned,
            inner=inner,
            donors=donors,
        )
    return launches, program


def chunk_length_of(backend: Backend, capabilities: Capabilities) -> ChunkLength:
    """The backend's lengths of the chunks of folds, for a device of these capabilities."""

    def chunk_length(kernel: Kernel) -> int:
        with vendor_call(backend, "chunk_length"):
            length: Any = backend.chunk_length(kernel, capabilities.target)
        if not isinstance(length, int) or length < 0:
            fault = f"{type(backend).__name__}.chunk_length gave {length!r}, no length of chunks"
            raise BackendError(fault, fix=REPORT)
        return length

    return chunk_length


def _after_fusion(launch: Launch, passes: Sequence[KernelPass]) -> Launch:
    for change in passes if launch.kernel is not None else ():
        assert launch.kernel is not None
        launch = replace(launch, kernel=change(launch.kernel))
    return launch


_told: list[Callable[[Program], object]] = []


@contextmanager
def observing_programs(told: Callable[[Program], object]) -> Iterator[None]:
    """Tell of each program before any device is given it, in whatever thread, inside the block."""
    _told.append(told)
    try:
        yield
    finally:
        _told.remove(told)


def executable_of(device: OpenDevice, program: Program) -> Executable:
    """The device's executable of a program; errors of its compiler become a CompileError."""
    for told in tuple(_told):
        told(program)
    with vendor_call(device.device, "compile", CompileError):
        compiled: Any = with_room(device.device.compile, program)
    if not callable(compiled):
        name = f"{type(device.device).__name__}.compile"
        raise CompileError(
            f"{name} gave {type(compiled).__name__}, which nobody can call", fix=REPORT
        )
    executable: Executable = compiled
    return executable


def _backend_passes(backend: Backend) -> Sequence[Pass]:
    with vendor_call(backend, "passes_before_fusion"):
        passes: Any = backend.passes_before_fusion()
    if not isinstance(passes, Sequence) or not all(isinstance(p, Pass) for p in passes):
        fault = (
            f"{type(backend).__name__}.passes_before_fusion gave {passes!r}, no sequence of Pass"
        )
        raise BackendError(fault, fix=REPORT)
    return passes


def _lower(backend: Backend, program: Program, *target: str) -> Lowered:
    with vendor_call(backend, "lower"):
        lowered: Any = backend.lower(program, *target)
    if not isinstance(lowered, Lowered):
        fault = f"{type(backend).__name__}.lower gave {type(lowered).__name__}, no Lowered"
        raise BackendError(fault, fix=REPORT)
    return lowered


def _lowered(executable: Executable, backend: Backend, program: Program, *target: str) -> Lowered:
    """The texts of a program that a device has: those of what it launches."""
    lowered = _lower(backend, program, *target)
    launched = executable.launched() if isinstance(executable, StepsExecutable) else ""
    return replace(lowered, source=launched) if launched else lowered


def _scheduled(backend: Backend, program: Program, *target: str) -> list[ScheduledStep]:
    """Every step at the loop level, those of loops and branches among them."""
    from bringup.loops import lower_kernel
    from bringup.program.loops import is_in_place, numbered_loops

    result: list[ScheduledStep] = []
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            with vendor_call(backend, "scheduled"):
                scheduled = backend.scheduled(step, *target)
            schedules = [] if scheduled is None else [scheduled]
            loops = [each.before for each in schedules] or [lower_kernel(step.kernel)]
            result.append(ScheduledStep(step, loops, schedules))
        elif isinstance(step, OpStep):
            place = is_in_place(program, step)
            with vendor_call(backend, "scheduled_step"):
                schedules = list(
                    backend.scheduled_step(step, *target, prefix=f"o{number}_", in_place=place)
                )
            general = None if schedules else numbered_loops(program, number)
            funcs = [each.before for each in schedules] if general is None else general.funcs
            result.append(ScheduledStep(step, funcs, schedules))
        else:
            for inner in step.programs:
                result += _scheduled(backend, inner, *target)
    return result


def _record_pass(name: str, seconds: float) -> None:
    duration = round(seconds * 1e9)
    timeline.record(
        name, "compile", time.perf_counter_ns() - duration, duration, threading.get_native_id()
    )


def _dump(
    folder: Path,
    graph: Graph,
    program: Program,
    scheduled: Sequence[ScheduledStep],
    report: Sequence[str],
) -> None:
    target = dump_folder(folder, graph, graph.name)

    def write(name: str, *lines: object) -> None:
        text = "".join(f"{line}\n" for line in lines)
        (target / f"{name}.txt").write_text(text, encoding="utf-8")

    write("89-fusion", *report)
    write("90-program", program)
    numbers = count()
    for each in scheduled:
        if isinstance(each.step, KernelStep):
            names = [f"{next(numbers):02}"]
            write(f"91-kernel-{names[0]}", each.step.kernel)
        else:
            names = [func.name for func in each.loops]
        for name, func in zip(names, each.loops, strict=True):
            write(f"92-loops-{name}", func)
        for name, steps in zip(names, each.schedules, strict=False):  # of all, or of none
            write(f"93-schedule-{name}", steps)


__all__ = [
    "Compiled",
    "Options",
    "chunk_length_of",
    "compile_graph",
    "fused_program",
    "graph_passes",
    "lower_graph",
]
