"""The driver: a traced graph goes through passes, fusion and planning to a device's executable,
cached by structure.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Executable, Lowered
from bringup.backend.foreign import REPORT, described, foreign, guarded
from bringup.backend.partition import partition
from bringup.backend.placement import check_placement, is_driven, placement
from bringup.errors import BackendError, CompileError, UnsupportedError
from bringup.graph import Graph, Instr
from bringup.kernel.fuse import Launch
from bringup.locks import ProcessLock
from bringup.passes.base import Pass
from bringup.passes.check import terminates
from bringup.passes.pipeline import passes_for
from bringup.passes.run import PassContext, dump_folder, run_pipeline
from bringup.program.evaluate import check_program
from bringup.program.program import Program
from bringup.program.verify import verify_program
from bringup.records import record
from bringup.runtime import debug, timeline
from bringup.runtime.collection import PAUSED
from bringup.runtime.compiled import Compiled, CompiledParts, Part
from bringup.runtime.devices import OpenDevice
from bringup.runtime.programs import fused_program
from bringup.tracing.context import nested

_CACHE_SIZE = 4096


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
    try:
        return _cached(graph, device, donated, options, None if fallback is device else fallback)
    except RecursionError:
        raise nested(graph.name) from None


def _cached(
    graph: Graph,
    device: OpenDevice,
    donated: frozenset[int],
    options: Options,
    fallback: OpenDevice | None,
) -> Compiled:
    key = (graph.key, device, donated, options, fallback)
    with _lock:
        found = _cache.get(key)
        if found is not None:
            _cache.move_to_end(key)
            return found
    # What is timed inside belongs to this program.
    with (
        timeline.span(f"compile {graph.name}", "compile", device=device.name),
        debug.progress(graph.name) as count,
        PAUSED,
    ):
        if fallback is None:
            made = _compile(graph, device, donated, options, count)
        else:
            made = _compile_mixed(graph, device, fallback, donated, options)
    with _lock:
        _cache[key] = made
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return made


def forget() -> None:
    """Drop every program that nothing else holds; what is called again compiles again."""
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
    capabilities = backend.capabilities(target)
    passes = graph_passes(capabilities, backend, skip=options.skip)
    optimized, context = _optimized(graph, passes, backend)
    if not _drives(optimized, capabilities):
        program = _program_of(graph, optimized, context, capabilities, backend, options, donated)
        return Compiled(
            graph, optimized, (program,), None, lambda: _lowered(backend, program, target)
        )
    # Few programs need it.
    from bringup.runtime.segments import OfflineTarget, driven_pieces, only_instruction

    pieces = driven_pieces(optimized, OfflineTarget(backend.name, capabilities))
    parts = [
        Part(lower_graph(piece, backend, target, options=options), loop) for piece, loop in pieces
    ]
    return CompiledParts(graph, optimized, parts, None, only_instruction(optimized))


def make_program(
    graph: Graph,
    capabilities: Capabilities,
    backend: Backend,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> tuple[Graph, Program]:
    """The half that needs no device: the optimised graph and its program."""
    passes = graph_passes(capabilities, backend, skip=options.skip)
    optimized, context = _optimized(graph, passes, backend)
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
    check_placement(optimized, capabilities, backend.name)
    kernel_passes = backend.passes_after_fusion()
    report: list[str] | None = None if context.dump is None else []
    launches, program = fused_program(
        optimized, capabilities, kernel_passes, fused=options.fuse, donated=donated, report=report
    )
    if not options.optimize:
        program = replace(program, optimize=False)
    if context.dump is not None and report is not None:
        _dump(context.dump, graph, program, report)
    _check(context.check, optimized, launches, program)
    return program


def graph_passes(
    capabilities: Capabilities, backend: Backend, *, skip: Iterable[str] = ()
) -> tuple[Pass, ...]:
    """Every pass over the graphs for a device, in order, without those to skip."""
    return passes_for(
        capabilities.available,
        _own_passes(backend),
        fuses=capabilities.fuses,
        operands=capabilities.limits.buffers - 1,
        without=skip,
    )


def _optimized(graph: Graph, passes: Sequence[Pass], backend: Backend) -> tuple[Graph, PassContext]:
    context = PassContext.from_environment(_record_pass if timeline.enabled() else None)
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
    graph: Graph,
    device: OpenDevice,
    donated: frozenset[int],
    options: Options,
    count: Callable[[int], None] = lambda _kernels: None,
) -> Compiled:
    debug.listen()
    start = time.perf_counter()
    capabilities, backend = device.capabilities, device.backend
    passes = graph_passes(capabilities, backend, skip=options.skip)
    optimized, context = _optimized(graph, passes, backend)
    if _drives(optimized, capabilities):
        return _compile_parts(graph, optimized, device, None, options)
    program = _program_of(graph, optimized, context, capabilities, backend, options, donated)
    count(len(program.steps))
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
    except Exception as error:
        if not foreign(error):
            raise
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

    def in_no_kernel(_instr: Instr) -> bool:
        """Limits of kernels are those of the device that a segment is compiled for."""
        return False

    own = _own_passes(device.backend)
    passes = passes_for(either, own, fuses=in_no_kernel, without=options.skip)
    optimized, _ = _optimized(graph, passes, device.backend)
    cut = partition(optimized, device, fallback)
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
    # Few programs need it.
    from bringup.runtime.segments import DrivenExecutable, MixedExecutable, only_instruction

    compiled: list[Compiled] = []

    def compile_part(part: Graph, where: OpenDevice) -> Executable:
        # A loop of the first device may hold what only the other one can run.
        loops = instr is not None or _drives(part, device.capabilities)
        other = fallback if loops and where is device else None
        compiled.append(compile_graph(part, where, options=options, fallback=other))
        executable = compiled[-1].executable
        assert executable is not None
        return executable

    cut = partition(optimized, device, fallback)
    instr = only_instruction(optimized) if cut.segments[0].driven else None
    executable: Executable
    if instr is not None:
        executable = DrivenExecutable(optimized, device, partial(compile_part, where=device))
    else:
        devices = (device,) if fallback is None else (device, fallback)
        executable = MixedExecutable(optimized, cut, devices, compile_part)
    loops = [None] * len(compiled) if instr is not None else [s.loop for s in cut.segments]
    parts = [Part(each, loop) for each, loop in zip(compiled, loops, strict=True)]
    return CompiledParts(graph, optimized, parts, executable, instr, cut.report)


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


def _record_pass(name: str, seconds: float) -> None:
    duration = round(seconds * 1e9)
    timeline.record(
        name, "compile", time.perf_counter_ns() - duration, duration, threading.get_native_id()
    )


def _dump(folder: Path, graph: Graph, program: Program, report: Sequence[str]) -> None:
    place = dump_folder(folder, graph, graph.name)
    (place / "89-fusion.txt").write_text("".join(f"{line}\n" for line in report), encoding="utf-8")
    (place / "90-program.txt").write_text(f"{program}\n", encoding="utf-8")
    for number, kernel in enumerate(program.kernels):
        (place / f"91-kernel-{number:02}.txt").write_text(f"{kernel}\n", encoding="utf-8")


__all__ = [
    "Compiled",
    "Options",
    "compile_graph",
    "graph_passes",
    "lower_graph",
    "make_program",
]
