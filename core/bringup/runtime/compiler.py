"""The driver: a traced graph goes through passes, fusion and planning to a device's executable,
cached by structure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Executable, KernelPass, Lowered
from bringup.graph import Builder, Graph, Value, replay
from bringup.graph.ir import Operation
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch, fuse
from bringup.ops.table import lookup
from bringup.passes.check import terminates
from bringup.passes.pipeline import passes_for
from bringup.passes.run import PassContext, dump_folder, run_pipeline
from bringup.program.check import check_program
from bringup.program.cost import program_cost
from bringup.program.plan import plan
from bringup.program.program import Cost, Program
from bringup.program.verify import verify_program
from bringup.runtime import timeline
from bringup.runtime.devices import OpenDevice

_CACHE_SIZE = 4096
_log = logging.getLogger("bringup.compiler")


@dataclass(frozen=True, slots=True)
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

    graph: as traced.  optimized: after all passes.  program: kernels, slots, arena.  executable:
    call it with handles.
    """

    __slots__ = ("_lower", "_lowered", "executable", "graph", "optimized", "program")

    def __init__(
        self,
        graph: Graph,
        optimized: Graph,
        program: Program,
        executable: Executable | None,
        lower: Callable[[], Lowered],
    ) -> None:
        self.graph = graph
        self.optimized = optimized
        self.program = program
        self.executable = executable
        self._lower = lower
        self._lowered: Lowered | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The fused kernels, in order of launch."""
        return self.program.kernels

    def cost(self) -> Cost:
        """Exact counts of one run; see `Cost`."""
        return program_cost(self.program)

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
_lock = threading.Lock()


def compile_graph(
    graph: Graph,
    device: OpenDevice,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> Compiled:
    """Compile for an opened device, or return what was compiled before for an equal graph.

    Raises UnsupportedError when the device lacks something and nothing may take its place,
    CompileError.
    """
    key = (graph.key, device, donated, options)
    with _lock:
        found = _cache.get(key)
        if found is not None:
            _cache.move_to_end(key)
            return found
    made = _compile(graph, device, donated, options)
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
    optimized, program = make_program(
        graph, backend.capabilities(target), backend, donated=donated, options=options
    )
    return Compiled(graph, optimized, program, None, lambda: backend.lower(program, target))


def make_program(
    graph: Graph,
    capabilities: Capabilities,
    backend: Backend,
    *,
    donated: frozenset[int] = frozenset(),
    options: Options = DEFAULT,
) -> tuple[Graph, Program]:
    """The half that needs no device: the optimised graph and its program."""
    context = PassContext.from_environment(_record_pass if timeline.enabled() else None)
    extra = backend.passes_before_fusion()
    passes = passes_for(capabilities.available, extra, without=options.skip)
    optimized = run_pipeline(graph, passes, context=context)
    ready = materialize_outputs(optimized)
    with timeline.span("fuse", "compile"):
        launches = fuse(ready, capabilities.limits, fuses=capabilities.fuses, depth=options.fuse)
    with timeline.span("plan", "compile"):
        launches = [
            _after_fusion(x, backend.passes_after_fusion()) for x in _constants_first(launches)
        ]
        program = plan(
            ready,
            launches,
            alignment=capabilities.alignment,
            donated=donated if capabilities.donation else frozenset(),
        )
    if context.dump is not None:
        _dump(context.dump, graph, program)
    _check(context.check, ready, launches, program)
    return optimized, program


def _check(check: int, graph: Graph, launches: Sequence[Launch], program: Program) -> None:
    if check >= 1:
        verify_program(program)
    if check >= 2 and terminates(graph):
        check_program(graph, launches, program)


def _compile(
    graph: Graph, device: OpenDevice, donated: frozenset[int], options: Options
) -> Compiled:
    start = time.perf_counter()
    optimized, program = make_program(
        graph, device.capabilities, device.backend, donated=donated, options=options
    )
    with timeline.span("backend compile", "compile", program=program.name):
        executable = device.device.compile(program)
    _log.info(
        "%s: %d launches, compiled in %.1f ms",
        program.name,
        len(program.steps),
        (time.perf_counter() - start) * 1e3,
    )
    return Compiled(graph, optimized, program, executable, lambda: device.backend.lower(program))


def _record_pass(name: str, seconds: float) -> None:
    duration = round(seconds * 1e9)
    timeline.record(
        name, "compile", time.perf_counter_ns() - duration, duration, threading.get_native_id()
    )


def materialize_outputs(graph: Graph) -> Graph:
    """Outputs that are inputs, constants or repeated -> copies made by the graph, so that each is
    written once.
    """
    reshape = lookup("reshape")
    seen: set[Value] = set()
    clean = True
    for value in graph.outputs:
        made = value.producer
        clean = clean and value not in seen and made is not None and not _is_constant(made.op)
        seen.add(value)
    if clean:
        return graph
    builder = Builder()
    outputs = list(replay(graph, builder=builder))
    written: set[Value] = set()
    with builder:
        for i, value in enumerate(outputs):
            made = value.producer
            if made is None or _is_constant(made.op) or value in written:
                outputs[i] = reshape(value, shape=value.shape)
            written.add(outputs[i])
    return builder.build(outputs, graph.name)


def _is_constant(op: Operation) -> bool:
    return op.name == "constant"


def _after_fusion(launch: Launch, passes: Sequence[KernelPass]) -> Launch:
    for change in passes if launch.kernel is not None else ():
        assert launch.kernel is not None
        launch = replace(launch, kernel=change(launch.kernel))
    return launch


def _constants_first(launches: list[Launch]) -> list[Launch]:
    """Constants take no part in any lifetime."""
    constants = [x for x in launches if x.instr is not None and _is_constant(x.instr.op)]
    return constants + [x for x in launches if x.instr is None or not _is_constant(x.instr.op)]


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
