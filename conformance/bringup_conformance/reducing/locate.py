"""The search for what is guilty of a failure, along the way that a program takes.

The failing data runs through every stage by core's own evaluators: the graph after each pass, every
kernel by itself, the planned program.  The first stage that gives a result outside the bounds of
the graph as it was traced is wrong.  If all of them are right, the device is asked: each step of
the program alone, on right inputs; then the first steps together, with a look into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bringup.backend.adapters import KernelsDevice
from bringup.backend.device import KernelPass
from bringup.backend.placement import is_driven
from bringup.errors import BringupError, GraphError, UnsupportedError
from bringup.graph import Graph, Value
from bringup.graph.printer import Numbering, print_graph
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.program.evaluate import evaluate_program
from bringup.program.program import CONTROL_STEPS, KernelStep, Program, Step
from bringup.program.verify import verify_program
from bringup.runtime.compiler import graph_passes
from bringup.runtime.devices import OpenDevice
from bringup.runtime.programs import fused_program
from bringup_conformance.cases import Case, Problem
from bringup_conformance.execution.running import error_text
from bringup_conformance.execution.targets import DeviceTarget, Runnable, Target, runnable_of
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.verdict import Mismatch, Verdict
from bringup_conformance.reducing import loops, together
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reducing.steps import Place, alone, inputs_of, places
from bringup_conformance.reducing.trials import (
    Values,
    about,
    by_kernel,
    evaluating,
    examine,
    finished,
    part,
    sets_of,
    unread,
    values_of,
    verdict,
)

#: Told what would be guilty if the device died now.
Suspect = Callable[[Cause], None]
_MOST_POINTS = 1 << 22


def locate(
    target: Target,
    case: Case,
    *,
    fuse: bool = True,
    skip: frozenset[str] = frozenset(),
    suspect: Suspect | None = None,
) -> Cause:
    """What is guilty of a case's failure.

    fuse, skip: how the program is compiled where it fails.  suspect: told before everything that
    may end this process.
    """
    sets = sets_of(case)
    with np.errstate(all="ignore"):
        return located(target, case, sets, fuse=fuse, skip=skip, suspect=suspect)


def located(
    target: Target,
    case: Case,
    sets: Sequence[list[Array]],
    *,
    fuse: bool,
    skip: frozenset[str],
    suspect: Suspect | None,
) -> Cause:
    """The same for arrays at hand."""
    if not isinstance(target, DeviceTarget):
        return loops.by_instruction(target, case, sets, fuse, skip, located)
    search = _Search(target, case, sets, fuse, skip, suspect)
    return search.run()


class _Search:
    """One search on an opened device."""

    def __init__(
        self,
        target: DeviceTarget,
        case: Case,
        sets: Sequence[list[Array]],
        fuse: bool,
        skip: frozenset[str],
        suspect: Suspect | None,
    ) -> None:
        self.target, self.case, self.sets = target, case, sets
        self.device: OpenDevice = target.device
        self.capabilities = target.capabilities
        self.fuse, self.skip = fuse, skip
        self.suspect = suspect or (lambda _cause: None)
        self.isolated = suspect is not None
        self.optimized = case.graph

    def run(self) -> Cause:
        found = self._passes()
        if found is not None:
            return found
        if any(is_driven(instr, self.capabilities) for instr in self.optimized.instrs):
            within = replace(self.case, graph=self.optimized, cells=())
            return loops.by_instruction(
                self.target, within, self.sets, self.fuse, self.skip, located
            )
        for search in (self._fusion, self._plan, self._steps, self._together):
            found = search()
            if found is not None:
                return found
        return Cause(
            "unknown", "", "every stage and every step is right by itself, and so are all together"
        )

    # -- what core makes -------------------------------------------------------------------------

    def _passes(self) -> Cause | None:
        graph = self.case.graph
        backend = self.device.backend
        for each in graph_passes(self.capabilities, backend, skip=self.skip):
            cause = Cause("pass", each.name, "", ir_before=print_graph(graph))
            try:
                after = each.run(graph)
            except Exception as error:  # noqa: BLE001  (a backend's own pass may raise anything)
                return replace(cause, what=f"it raises {error_text(error)}")
            if after is not graph and after.key != graph.key:
                problem = self._by_host(self.case, self.sets, evaluating(after))
                if problem is not None:
                    what = f"the graph it makes gives other values: {problem.what}"
                    lines = tuple(map(str, problem.verdict.mismatches))
                    text = print_graph(after)
                    return replace(cause, what=what, ir_after=text, mismatches=lines)
            graph = self.optimized = after
        return None

    @cached_property
    def kernel_passes(self) -> Sequence[KernelPass]:
        return self.device.backend.passes_after_fusion()

    def _fused(self, passes: Sequence[KernelPass]) -> tuple[list[Launch], Program]:
        launches, program = fused_program(
            self.optimized, self.capabilities, passes, fused=self.fuse
        )
        kept = [x for x in launches if x.instr is None or x.instr.op.name != "constant"]
        return kept, replace(program, optimize=self.case.optimize)

    @cached_property
    def made(self) -> tuple[list[Launch], Program]:
        """The launches of the steps, one each, and the program."""
        return self._fused(self.kernel_passes)

    @cached_property
    def right(self) -> list[Values]:
        """Of every data set, the right array of every value."""
        return [values_of(self.optimized, inputs) for inputs in self.sets]

    def _fusion(self) -> Cause | None:
        try:
            launches, _ = self._fused(())
        except BringupError as error:
            what = f"it raises {error_text(error)}"
            return Cause("fusion", "", what, ir_before=print_graph(self.optimized))
        for launch in launches:
            if launch.kernel is None:
                continue
            kernel, cause = launch.kernel, self._of_fusion(launch, launch.kernel)
            if cause is not None:
                return cause
            for change in self.kernel_passes:
                before, kernel = kernel, change(kernel)
                problem = None if before == kernel else self._kernel_by_host(launch, kernel)
                if problem is not None:
                    what = f"the kernel it makes gives other values: {problem.what}"
                    return Cause(
                        "kernel pass", _named(change), what, kernel=str(kernel),
                        ir_before=str(before), ir_after=str(kernel),
                    )  # fmt: skip
        return None

    def _of_fusion(self, launch: Launch, kernel: Kernel) -> Cause | None:
        problem = self._kernel_by_host(launch, kernel)
        if problem is None:
            return None
        what = f"the kernel does not compute what its instructions do: {problem.what}"
        before = self._asked(launch.reads, launch.writes)
        return Cause(
            "fusion", kernel.name, what, kernel=str(kernel),
            ir_before=before, ir_after=str(kernel),
        )  # fmt: skip

    def _asked(self, given: Sequence[Value], wanted: Sequence[Value]) -> str:
        """What a step is to compute, as text."""
        given = [*given, *unread(self.optimized, given, wanted)]
        return print_graph(part(self.optimized, given, wanted))

    def _kernel_by_host(self, launch: Launch, kernel: Kernel) -> Problem | None:
        if kernel.points * max((s.trips for s in kernel.stages), default=1) > _MOST_POINTS:
            return None  # core's evaluator would take longer than it is worth
        given = [*launch.reads, *unread(self.optimized, launch.reads, launch.writes)]
        graph = part(self.optimized, given, launch.writes)
        sets = [[values[v] for v in given] for values in self.right]
        return self._by_host(about(self.case, graph), sets, by_kernel(launch, kernel))

    def _by_host(
        self, case: Case, sets: Sequence[list[Array]], runnable: Runnable
    ) -> Problem | None:
        return examine(self.target, runnable, case, sets)[0]

    def _plan(self) -> Cause | None:
        _, program = self.made
        try:
            verify_program(program)
            problem = self._by_host(
                self.case, self.sets, lambda inputs: evaluate_program(program, inputs)
            )
            what = "" if problem is None else problem.what
        except GraphError as error:
            what = error.what
        if not what:
            return None
        slots = together.in_the_way(self._places())
        name = slots[0] if slots else program.name
        return Cause(
            "plan", name, f"every kernel is right, and the planned program is not: {what}",
            steps=len(program.steps), ir_before=print_graph(self.optimized), ir_after=str(program),
            slots=slots, kernels=tuple(map(str, program.kernels)),
        )  # fmt: skip

    # -- what the device makes -------------------------------------------------------------------

    def _places(self) -> list[tuple[list[Place], list[Place]]]:
        launches, program = self.made
        return [places(s, x) for s, x in zip(program.steps, launches, strict=True)]

    def _steps(self) -> Cause | None:
        """The first step whose own results are wrong though its inputs are right."""
        _, program = self.made
        for number, (reads, writes) in enumerate(self._places()):
            step = program.steps[number]
            lone = alone(program, step, reads, writes)
            cause = self._accused(number, lone, writes)
            self.suspect(cause)
            graph, sets = self._piece(reads, writes)
            for spoil in (False, True):
                try:
                    runnable = runnable_of(self.device, lone, spoil=spoil)
                except Exception as error:  # noqa: BLE001  (what a backend raises is the answer)
                    return replace(cause, what=f"compiling it alone: {error_text(error)}")
                trial = _first(runnable, len(lone.inputs))
                problem, results = examine(self.target, trial, about(self.case, graph), sets)
                if problem is not None:
                    cause = replace(cause, what=_on_right_inputs(problem, spoil))
                    return self._guilty(cause, step, problem, results, reads, writes)
        return None

    def _piece(
        self, reads: Sequence[Place], writes: Sequence[Place]
    ) -> tuple[Graph, list[list[Array]]]:
        """The graph of one step, and its right inputs."""
        slots = inputs_of(reads)
        given = [next(v for v, slot in reads if slot == wanted) for wanted in slots]
        made = [v for v, _ in writes]
        given += unread(self.optimized, given, made)
        graph = part(self.optimized, given, made)
        return graph, [[values[v] for v in given] for values in self.right]

    def _accused(self, number: int, lone: Program, writes: Sequence[Place]) -> Cause:
        launches, program = self.made
        step, launch = program.steps[number], launches[number]
        kernel = str(step.kernel) if isinstance(step, KernelStep) else ""
        loop = isinstance(step, CONTROL_STEPS)
        kind = "kernel" if kernel else "loop" if loop else "op"
        source, asm = texts(self.device, lone) if self.isolated else ("", "")
        before = self._asked(launch.reads, [v for v, _ in writes])
        return Cause(
            kind, step.name, "the device died while it ran alone", number, len(program.steps),
            ir_before=before, ir_after=kernel or str(lone), kernel=kernel,
            kernels=tuple(map(str, program.kernels)), source=source, asm=asm,
        )  # fmt: skip

    def _guilty(
        self, cause: Cause, step: Step, problem: Problem, results: list[Array],
        reads: Sequence[Place], writes: Sequence[Place],
    ) -> Cause:  # fmt: skip
        """A cause with what is to be shown of it; of loops, what is guilty inside."""
        launches, program = self.made
        if isinstance(step, CONTROL_STEPS):
            instr = launches[cause.step or 0].instr
            assert instr is not None
            inside = loops.inside(
                self.target, self.case, instr, self.right, self.skip, located
            )  # fmt: skip
            if inside is not None:
                return inside
        if not cause.source:
            source, asm = texts(self.device, alone(program, step, reads, writes))
            cause = replace(cause, source=source, asm=asm)
        if cause.kind == "kernel":
            cause = self._by_op(cause, reads, writes)
        lines = tuple(map(str, problem.verdict.mismatches))
        path: tuple[str, ...] = ()
        if problem.kind == "wrong" and results:
            number = problem.data % len(self.sets)
            values = [v for v, _ in writes]
            path = trace(self.target, self.case, self.optimized, self.sets[number],
                         self.right[number], values, results, problem.verdict)  # fmt: skip
        return replace(cause, mismatches=lines, trace=path)

    def _by_op(self, cause: Cause, reads: Sequence[Place], writes: Sequence[Place]) -> Cause:
        """A cause with the ops of its kernel that are wrong alone, if it has several."""
        graph, sets = self._piece(reads, writes)
        if sum(bool(instr.operands) for instr in graph.instrs) < 2:
            return cause
        self.suspect(cause)
        ops = loops.wrong_alone(self.target, about(self.case, graph), sets, self.skip)
        if not ops:
            return cause
        so = "so is" if len(ops) == 1 else "so are"
        return replace(
            cause, ops=ops, what=f"{cause.what}; {so} {' and '.join(ops)} without the rest"
        )

    def _together(self) -> Cause | None:
        _, program = self.made
        self.suspect(
            Cause(
                "together",
                program.name,
                "every step runs alone, and the device died when they ran together",
                steps=len(program.steps),
                kernels=tuple(map(str, program.kernels)),
            )
        )
        found = together.first_spoilt(
            self.device, program, self._places(), self._is_right, self.sets, self.right,
            self.kernel_passes,
        )  # fmt: skip
        if found is not None and found.kind in ("kernel", "op", "loop"):
            return self._in_its_place(found)
        if found is not None:
            return replace(found, ir_before=print_graph(self.optimized), ir_after=str(program))
        whole = self.target.compile(
            self.case.graph, fuse=self.fuse, skip=self.skip, optimize=self.case.optimize
        )
        problem = self._by_host(self.case, self.sets, whole)
        if problem is None:
            return None
        if len(program.steps) == 1:  # whatever is wrong, this is what did it
            ((reads, writes),) = self._places()
            lone = alone(program, program.steps[0], reads, writes)
            cause = replace(self._accused(0, lone, writes), what=problem.what)
            return self._guilty(cause, program.steps[0], problem, [], reads, writes)
        return Cause(
            "device", program.name, "every step is right alone, all of them with a look into "
            f"memory, and the program is not: {problem.what}", steps=len(program.steps),
            ir_before=print_graph(self.optimized), ir_after=str(program),
            kernels=tuple(map(str, program.kernels)),
        )  # fmt: skip

    def _in_its_place(self, found: Cause) -> Cause:
        """A step that is wrong alone, but only with its results in scratch memory."""
        _, program = self.made
        number = found.step or 0
        reads, writes = self._places()[number]
        lone = alone(program, program.steps[number], reads, writes)
        source, asm = texts(self.device, lone)
        cause = self._accused(number, lone, writes)
        return replace(
            cause, what=found.what, slots=found.slots, mismatches=found.mismatches, source=source,
            asm=asm,
        )  # fmt: skip

    def _is_right(self, value: Value, array: Array, number: int) -> str:
        """What is wrong with the array of a value in a run on a data set, or nothing."""
        graph = part(self.optimized, self.optimized.inputs, [value])
        case = about(self.case, graph)
        found = verdict(self.target, case, [array], self.sets[number])
        return "" if found.ok else str(found.mismatches[0])


def _on_right_inputs(problem: Problem, spoilt: bool) -> str:
    where = ", in memory that held 0xFF" if spoilt else ""
    return f"on right inputs, alone{where}: {problem.what}"


def _named(change: KernelPass) -> str:
    return getattr(change, "__name__", type(change).__name__)


def _first(runnable: Runnable, count: int) -> Runnable:
    """The same for arrays of which only the first are its inputs."""
    return lambda inputs: runnable(inputs[:count])


__all__ = ["Suspect", "locate", "located"]


#: Characters of a text that a failure keeps.
MOST_TEXT = 100_000


def texts(device: OpenDevice, program: Program) -> tuple[str, str]:
    """Source and assembly; empty where the backend shows none.

    A device that renders kernels is asked itself, as it may differ from its backend.
    """
    source, asm = "", ""
    try:
        lowered = device.backend.lower(program)
        source, asm = lowered.source, lowered.asm
    except UnsupportedError:
        pass
    except Exception as error:  # noqa: BLE001  (showing a source is no reason to fail)
        source = f"not shown: {error_text(error)}"
    if isinstance(device.device, KernelsDevice):
        try:
            rendered = [device.device.render(kernel) for kernel in dict.fromkeys(program.kernels)]
        except Exception as error:  # noqa: BLE001  (what it raises is shown instead)
            return f"render raises {error_text(error)}", asm
        if rendered and all(isinstance(text, str) for text in rendered):
            source = "\n".join(map(str, rendered))
    return source[:MOST_TEXT], asm[:MOST_TEXT]


def trace(
    target: Target, case: Case, graph: Graph, inputs: list[Array], right: Values,
    made: Sequence[Value], results: Sequence[Array], found: Verdict,
) -> tuple[str, ...]:  # fmt: skip
    """One line for the wrong element of a step, one for the element of the program that it spoils.

    graph: what the steps were made of.  right: the right array of each of its values.  made,
    results: what the step writes, and what the device wrote.  found: the verdict on that.
    """
    names = Numbering(graph.inputs, graph.instrs)
    for mismatch in found.mismatches:
        value = made[mismatch.output]
        wrong = results[mismatch.output][mismatch.index]
        if value in graph.outputs:
            continue
        spoilt = _spoilt(target, case, graph, inputs, right, value, mismatch.index, wrong)
        if spoilt is not None:
            return (_described(names[value], mismatch), f"→ {spoilt}")
    return tuple(_described(names[made[m.output]], m) for m in found.mismatches[:1])


def _described(name: str, mismatch: Mismatch) -> str:
    place = ", ".join(map(str, mismatch.index))
    return f"{name}[{place}] is {mismatch.actual}, not {mismatch.expected}"


def _spoilt(
    target: Target, case: Case, graph: Graph, inputs: list[Array], right: Values,
    value: Value, index: tuple[int, ...], wrong: object,
) -> Mismatch | None:  # fmt: skip
    """The element of an output that one wrong element makes wrong, all else being right."""
    array = np.array(right[value])
    array[index] = wrong
    given = {**{v: right[v] for v in graph.inputs}, value: array}
    values = finished(graph, given)
    found = verdict(target, case, [values[v] for v in graph.outputs], inputs)
    return None if found.ok else found.mismatches[0]
