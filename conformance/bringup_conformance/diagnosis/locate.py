"""The search for the cause of a failure, along the way that a program takes.

The failing data runs through every stage by core's own evaluators: the graph after each pass, every
kernel by itself, the planned program.  The first stage that gives a result outside the bounds of
the graph as it was traced is wrong.  If all of them are right, the device is asked: each step of
the program alone, on right inputs; then the first steps together, with a look into memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bringup.backend.adapters import RenderingDevice
from bringup.backend.device import KernelPass
from bringup.backend.placement import runs_on_host
from bringup.dtypes import as_dtype
from bringup.errors import BringupError, GraphError, UnsupportedError
from bringup.graph import Graph, Value
from bringup.graph.printer import Numbering, print_graph
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.kernel.split import ChunkLength
from bringup.program.evaluate import evaluate_program
from bringup.program.program import ControlStep, KernelStep, Program, Step
from bringup.program.verify import verify_program
from bringup.runtime import transfer
from bringup.runtime.compiler import (
    chunk_length_of,
    executable_of,
    fused_program,
    graph_passes,
)
from bringup.runtime.devices import OpenDevice
from bringup.types import TensorType
from bringup_conformance.cases import Case, Problem
from bringup_conformance.diagnosis.cause import MOVES, Cause
from bringup_conformance.diagnosis.interference import first_corruption, overlapping_slots
from bringup_conformance.diagnosis.op_by_op import (
    cause_by_instruction,
    cause_inside,
    ops_wrong_alone,
)
from bringup_conformance.diagnosis.run_part import (
    DataSets,
    Values,
    case_of,
    completed,
    data_sets,
    graph_reference,
    kernel_reference,
    reference_values,
    run_and_compare,
    subgraph,
    unread_inputs,
    verdict,
)
from bringup_conformance.diagnosis.step_programs import (
    PlacedValue,
    input_slots,
    single_step,
    step_values,
)
from bringup_conformance.execution.running import error_text, problem_raised
from bringup_conformance.execution.targets import DeviceTarget, Runnable, Target, runnable_of
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.oracle.verdict import Mismatch, Verdict

#: Told what would be the cause if the device died now.
Suspect = Callable[[Cause], None]
#: Grid points times iterations of a kernel that core's evaluator is asked for.
_MOST_POINTS = 1 << 22
#: Seconds after which work that nobody waited for is done.
_MOMENT = 0.2
#: Characters of a text that a failure keeps.
_MOST_TEXT = 100_000
Placed = Sequence[PlacedValue]


def locate(
    target: Target,
    case: Case,
    *,
    fuse: bool = True,
    skip: frozenset[str] = frozenset(),
    suspect: Suspect | None = None,
) -> Cause:
    """The cause of a case's failure.

    fuse, skip: how the program is compiled where it fails.  suspect: told before everything that
    may end this process.
    """
    sets = data_sets(case)
    with np.errstate(all="ignore"):
        return located(target, case, sets, fuse=fuse, skip=skip, suspect=suspect)


def located(
    target: Target,
    case: Case,
    sets: DataSets,
    *,
    fuse: bool,
    skip: frozenset[str],
    suspect: Suspect | None,
) -> Cause:
    """The cause of a case's failure on given arrays."""
    if not isinstance(target, DeviceTarget):
        return cause_by_instruction(target, case, sets, fuse, skip, located)
    return _Search(target, case, sets, fuse, skip, suspect).run()


class _Search:
    """One search on an opened device.

    isolated: whether this process may end with the device.
    optimized: the graph after all passes that core makes kernels of.
    """

    def __init__(
        self,
        target: DeviceTarget,
        case: Case,
        sets: DataSets,
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
        cause = self._in_passes()
        if cause is not None:
            return cause
        if self._has_host_loops:
            case = replace(self.case, graph=self.optimized, cells=())
            return cause_by_instruction(self.target, case, self.sets, self.fuse, self.skip, located)
        for search in (
            self._in_fusion, self._in_plan, self._in_transfers, self._in_single_steps,
            self._in_company,
        ):  # fmt: skip
            cause = search()
            if cause is not None:
                return cause
        return Cause(
            "unknown", "", "every stage and every step is right by itself, and so are all together"
        )

    @property
    def _has_host_loops(self) -> bool:
        """Whether the host drives loops or branches of the program."""
        return any(runs_on_host(instr, self.capabilities) for instr in self.optimized.instrs)

    def _problem(self, case: Case, sets: DataSets, runnable: Runnable) -> Problem | None:
        return run_and_compare(self.target, runnable, case, sets)[0]

    # -- what core makes -------------------------------------------------------------------------

    def _in_passes(self) -> Cause | None:
        graph = self.case.graph
        backend = self.device.backend
        for each in graph_passes(self.capabilities, backend, skip=self.skip):
            cause = Cause("pass", each.name, "", ir_before=print_graph(graph))
            try:
                after = each.run(graph)
            except Exception as error:  # noqa: BLE001  (a backend's own pass may raise anything)
                return replace(cause, what=f"it raises {error_text(error)}")
            if after is not graph and after.key != graph.key:
                problem = self._problem(self.case, self.sets, graph_reference(after))
                if problem is not None:
                    what = f"the graph it makes gives other values: {problem.what}"
                    return replace(
                        cause, what=what, ir_after=print_graph(after), mismatches=_lines(problem)
                    )
            graph = self.optimized = after
        return None

    @cached_property
    def kernel_passes(self) -> Sequence[KernelPass]:
        return self.device.backend.passes_after_fusion()

    def _fused(
        self, passes: Sequence[KernelPass], chunk_length: ChunkLength
    ) -> tuple[list[Launch], Program]:
        launches, program = fused_program(
            self.optimized, self.capabilities, passes, chunk_length=chunk_length, fused=self.fuse
        )
        launches = [x for x in launches if x.instr is None or x.instr.literal is None]
        return launches, replace(program, optimize=self.case.optimize)

    @cached_property
    def planned(self) -> tuple[list[Launch], Program]:
        """The launches of the steps, one each, and the program."""
        return self._fused(
            self.kernel_passes, chunk_length_of(self.device.backend, self.capabilities)
        )

    @cached_property
    def values(self) -> list[Values]:
        """Of every data set, the right array of every value."""
        return [reference_values(self.optimized, inputs) for inputs in self.sets]

    @cached_property
    def placed_values(self) -> list[Values]:
        """Of every data set, the right array of every value that a step reads or writes: partial
        results of folds that were cut are no values of the graph.
        """
        placed = [dict(values) for values in self.values]
        for launch in self.planned[0]:
            if launch.kernel is not None and not placed[0].keys() >= set(launch.writes):
                run = kernel_reference(launch, launch.kernel)
                for table in placed:
                    results = run([table[v] for v in launch.reads])
                    for value, array in zip(launch.writes, results, strict=True):
                        table.setdefault(value, array)
        return placed

    def _fold_of(self, number: int) -> range:
        """The steps that compute what one kernel would: two where a fold was cut, else the step."""
        launch, known = self.planned[0][number], self.values[0].keys()
        is_first = not known >= set(launch.writes)
        is_second = not known >= set(launch.reads)
        return range(number - is_second, number + is_first + 1)

    def _in_fusion(self) -> Cause | None:
        try:
            launches, _ = self._fused((), lambda _kernel: 0)
        except BringupError as error:
            what = f"it raises {error_text(error)}"
            return Cause("fusion", "", what, ir_before=print_graph(self.optimized))
        for launch in launches:
            if launch.kernel is None:
                continue
            kernel = launch.kernel
            problem = self._kernel_problem(launch, kernel)
            if problem is not None:
                what = f"the kernel does not compute what its instructions do: {problem.what}"
                before = self._instructions_of(launch.reads, launch.writes)
                return Cause(
                    "fusion", kernel.name, what, kernel=str(kernel), ir_before=before,
                    ir_after=str(kernel),
                )  # fmt: skip
            for change in self.kernel_passes:
                before_pass, kernel = kernel, change(kernel)
                changed = before_pass != kernel
                problem = self._kernel_problem(launch, kernel) if changed else None
                if problem is not None:
                    name = getattr(change, "__name__", type(change).__name__)
                    what = f"the kernel it makes gives other values: {problem.what}"
                    return Cause(
                        "kernel pass", name, what, kernel=str(kernel),
                        ir_before=str(before_pass), ir_after=str(kernel),
                    )  # fmt: skip
        return self._in_cut_folds()

    def _in_cut_folds(self) -> Cause | None:
        """A fold whose two kernels do not compute what the one does that they were made of."""
        launches, _ = self.planned
        for number, launch in enumerate(launches):
            steps = self._fold_of(number)
            if len(steps) == 1 or launch.kernel is None or _is_long(launch.kernel):
                continue
            graph, sets, values = self._step_part(number)
            run = self._run_of(values, number, None)
            problem = self._problem(case_of(self.case, graph), sets, run)
            if problem is not None:
                kernels = "\n\n".join(str(launches[n].kernel) for n in steps)
                what = f"the kernels of a cut fold give other values: {problem.what}"
                return Cause(
                    "fusion", launch.kernel.name, what, kernel=kernels,
                    ir_before=print_graph(graph), ir_after=kernels,
                )  # fmt: skip
        return None

    def _instructions_of(self, reads: Sequence[Value], writes: Sequence[Value]) -> str:
        """What a step is to compute, as text."""
        return print_graph(self._part(reads, writes)[0])

    def _part(
        self, reads: Sequence[Value], writes: Sequence[Value]
    ) -> tuple[Graph, list[list[Array]]]:
        """The part of the graph that a step computes, and its right inputs."""
        inputs = [*reads, *unread_inputs(self.optimized, reads, writes)]
        graph = subgraph(self.optimized, inputs, writes)
        return graph, [[values[v] for v in inputs] for values in self.values]

    def _kernel_problem(self, launch: Launch, kernel: Kernel) -> Problem | None:
        if _is_long(kernel):
            return None
        graph, sets = self._part(launch.reads, launch.writes)
        return self._problem(case_of(self.case, graph), sets, kernel_reference(launch, kernel))

    def _in_plan(self) -> Cause | None:
        _, program = self.planned
        try:
            verify_program(program)
            problem = self._problem(
                self.case, self.sets, lambda inputs: evaluate_program(program, inputs)
            )
            what = "" if problem is None else problem.what
        except GraphError as error:
            what = error.what
        if not what:
            return None
        slots = overlapping_slots(self.steps)
        return Cause(
            "plan", slots[0] if slots else program.name,
            f"every kernel is right, and the planned program is not: {what}",
            steps=len(program.steps), ir_before=print_graph(self.optimized), ir_after=str(program),
            slots=slots, kernels=tuple(map(str, program.kernels)),
        )  # fmt: skip

    # -- what the device makes -------------------------------------------------------------------

    @cached_property
    def steps(self) -> list[tuple[list[PlacedValue], list[PlacedValue]]]:
        """What each step reads and writes."""
        launches, program = self.planned
        return [step_values(s, x) for s, x in zip(program.steps, launches, strict=True)]

    def _in_transfers(self) -> Cause | None:
        """Inputs and constants of the program that do not come back from the device as they went
        there.
        """
        device, constants = self.device.device, self.planned[1].constants
        moved = [
            (f"input {number} of type {value.type}", inputs[number])
            for inputs in self.sets
            for number, value in enumerate(self.case.graph.inputs)
        ]
        moved += [(f"a constant of type {each.type}", each.array()) for each in constants]
        for there, array in moved:
            type_ = TensorType(array.shape, as_dtype(array.dtype))
            self.suspect(Cause("call", "upload", f"the device died at an upload of {there}"))
            try:
                buffer = transfer.upload(device, array)
                self.suspect(Cause("call", "download", f"the device died at a download of {there}"))
                back = transfer.download(device, buffer, type_)
            except Exception as error:  # noqa: BLE001  (what a backend raises is the answer)
                problem = problem_raised(error)
                return Cause("call", problem.call, f"without any step: {problem.what}")
            if not bool(same_bits(back, array).all()):
                what = f"{there} comes back with other bits, without any step between"
                return Cause("call", "upload or download", what)
        return None

    def _not_awaited(self, single: Program, inputs: Sequence[Array]) -> Cause | None:
        """A download that gives other bits a moment later: it does not wait for the step."""
        device = self.device.device
        buffers = [transfer.upload(device, array) for array in inputs]
        executable = executable_of(self.device, single)
        results = transfer.execute(device, executable, buffers, len(single.outputs))
        pairs = list(zip(results, single.outputs, strict=True))
        early = [transfer.download(device, buffer, type_) for buffer, type_ in pairs]
        time.sleep(_MOMENT)
        late = [transfer.download(device, buffer, type_) for buffer, type_ in pairs]
        if all(bool(same_bits(x, y).all()) for x, y in zip(early, late, strict=True)):
            return None
        what = f"it does not wait for {single.steps[0].name}: a moment later it gives other bits"
        return Cause("call", "download", what)

    def _in_single_steps(self) -> Cause | None:
        """The first step whose own results are wrong though its inputs are right."""
        _, program = self.planned
        for number, (reads, writes) in enumerate(self.steps):
            single = single_step(program, program.steps[number], reads, writes)
            cause = self._step_as_cause(number, single)
            self.suspect(cause)
            graph, sets, values = self._step_part(number)
            for spoil in (False, True):
                try:
                    runnable = runnable_of(self.device, single, spoil=spoil)
                except Exception as error:  # noqa: BLE001  (what a backend raises is the answer)
                    failed = problem_raised(error, "compiling it alone: ")
                    return replace(cause, what=failed.what, call=failed.call)
                trial = self._run_of(values, number, runnable)
                problem, results = run_and_compare(
                    self.target, trial, case_of(self.case, graph), sets
                )
                if problem is not None:
                    late = problem.kind in ("wrong", "unstable") and self._not_awaited(
                        single, [self.placed_values[0][v] for v in self._operands_of(number)]
                    )
                    if late:
                        return late
                    where = ", in memory that held 0xFF" if spoil else ""
                    what = f"on right inputs, alone{where}: {problem.what}"
                    return self._step_details(replace(cause, what=what), number, problem, results)
        return None

    def _step_part(self, number: int) -> tuple[Graph, list[list[Array]], list[Value]]:
        """The part of the graph that a step computes, its right inputs, and their values.

        Of a fold that was cut, what both steps compute.
        """
        inputs: dict[Value, None] = {}
        for n in self._fold_of(number):
            inputs |= dict.fromkeys(self._operands_of(n))
        values = [value for value in inputs if value in self.values[0]]
        graph, sets = self._part(values, self._results_of(number))
        return graph, sets, values

    def _operands_of(self, number: int) -> list[Value]:
        """The values that a step alone takes as inputs."""
        reads, _ = self.steps[number]
        return [next(v for v, s in reads if s == slot) for slot in input_slots(reads)]

    def _results_of(self, number: int) -> list[Value]:
        """The values of the graph that a step writes; of a fold that was cut, both steps."""
        written = [v for n in self._fold_of(number) for v, _ in self.steps[n][1]]
        return [value for value in written if value in self.values[0]]

    def _run_of(self, inputs: Sequence[Value], number: int, runnable: Runnable | None) -> Runnable:
        """A step that ``runnable`` runs alone, as what computes the results of `_results_of`.

        Of a fold that was cut, core's evaluator runs the other step; both, if there is no runnable.
        inputs: the values of the arrays that it will be called with first.
        """
        launches, results = self.planned[0], self._results_of(number)

        def run(arrays: Sequence[Array]) -> list[Array]:
            table = {**self.values[0], **dict(zip(inputs, arrays, strict=False))}
            for n in self._fold_of(number):
                _, writes = self.steps[n]
                if n == number and runnable is not None:
                    written = runnable([table[v] for v in self._operands_of(n)])
                else:
                    launch = launches[n]
                    assert launch.kernel is not None
                    reference = kernel_reference(launch, launch.kernel)
                    written = reference([table[v] for v in launch.reads])
                table |= dict(zip((v for v, _ in writes), written, strict=True))
            return [table[v] for v in results]

        return run

    def _step_as_cause(self, number: int, single: Program) -> Cause:
        _, program = self.planned
        step = program.steps[number]
        kernel = str(step.kernel) if isinstance(step, KernelStep) else ""
        kind = "kernel" if kernel else "loop" if isinstance(step, ControlStep) else "op"
        source, asm = texts(self.device, single) if self.isolated else ("", "")
        before = print_graph(self._step_part(number)[0])
        return Cause(
            kind, step.name, "the device died while it ran alone", number, len(program.steps),
            ir_before=before, ir_after=kernel or str(single), kernel=kernel,
            kernels=tuple(map(str, program.kernels)), source=source, asm=asm,
        )  # fmt: skip

    def _step_details(
        self, cause: Cause, number: int, problem: Problem, results: list[Array]
    ) -> Cause:
        """A step as the cause, with what is to be shown of it; of a loop, the cause inside; or the
        method of the device that raised beside the step.
        """
        if problem.call in MOVES:
            return Cause("call", problem.call, problem.what)
        cause = replace(cause, call=problem.call)
        (launches, program), (reads, writes) = self.planned, self.steps[number]
        step: Step = program.steps[number]
        if isinstance(step, ControlStep):
            instr = launches[number].instr
            assert instr is not None
            inside = cause_inside(
                self.target, self.case, instr, self.values, self.skip, located
            )  # fmt: skip
            if inside is not None:
                return inside
        if not cause.source:
            source, asm = texts(self.device, single_step(program, step, reads, writes))
            cause = replace(cause, source=source, asm=asm)
        if cause.kind == "kernel":
            cause = self._with_wrong_ops(cause, number)
        path: tuple[str, ...] = ()
        if problem.kind == "wrong" and results:
            data = problem.data % len(self.sets)
            path = trace(
                self.target, self.case, self.optimized, self.sets[data], self.values[data],
                self._results_of(number), results, problem.verdict,
            )  # fmt: skip
        return replace(cause, mismatches=_lines(problem), trace=path)

    def _with_wrong_ops(self, cause: Cause, number: int) -> Cause:
        """A cause with the ops of its kernel that are wrong alone, if it has several."""
        graph, sets, _ = self._step_part(number)
        if sum(bool(instr.operands) for instr in graph.instrs) < 2:
            return cause
        self.suspect(cause)
        ops = ops_wrong_alone(self.target, case_of(self.case, graph), sets, self.skip)
        if not ops:
            return cause
        so = "so is" if len(ops) == 1 else "so are"
        what = f"{cause.what}; {so} {' and '.join(ops)} without the rest"
        return replace(cause, ops=ops, what=what)

    def _in_company(self) -> Cause | None:
        """Steps that are right alone and wrong together; else whatever the device does wrong."""
        _, program = self.planned
        count, kernels = len(program.steps), tuple(map(str, program.kernels))
        what = "every step runs alone, and the device died when they ran together"
        self.suspect(Cause("together", program.name, what, steps=count, kernels=kernels))
        cause = first_corruption(
            self.device, program, self.steps, self._judge, self.sets, self.placed_values,
            self.kernel_passes,
        )  # fmt: skip
        if cause is not None and cause.kind in ("kernel", "op", "loop"):
            return self._wrong_in_scratch(cause)
        before, after = print_graph(self.optimized), str(program)
        if cause is not None:
            return replace(cause, ir_before=before, ir_after=after)
        whole = self.target.compile(
            self.case.graph, fuse=self.fuse, skip=self.skip, optimize=self.case.optimize
        )
        problem = self._problem(self.case, self.sets, whole)
        if problem is None:
            return None
        if count == 1:  # whatever is wrong, this step did it
            single = single_step(program, program.steps[0], *self.steps[0])
            cause = replace(self._step_as_cause(0, single), what=problem.what)
            return self._step_details(cause, 0, problem, [])
        what = (
            "every step is right alone, all of them with a look into memory, and the program is"
            f" not: {problem.what}"
        )
        return Cause(
            "device", program.name, what, steps=count, ir_before=before, ir_after=after,
            kernels=kernels,
        )  # fmt: skip

    def _wrong_in_scratch(self, cause: Cause) -> Cause:
        """A step that is wrong alone, but only with its results in scratch memory."""
        _, program = self.planned
        number = cause.step or 0
        single = single_step(program, program.steps[number], *self.steps[number])
        source, asm = texts(self.device, single)
        return replace(
            self._step_as_cause(number, single), what=cause.what, slots=cause.slots,
            mismatches=cause.mismatches, source=source, asm=asm,
        )  # fmt: skip

    def _judge(self, value: Value, array: Array, data: int) -> str:
        """What is wrong with the array of a value in a run on a data set, or nothing.

        A partial result is right if core's evaluator makes right values of it.
        """
        if value not in self.values[data]:
            launch = next(x for x in self.planned[0] if value in x.reads)
            assert launch.kernel is not None
            table = {**self.placed_values[data], value: array}
            results = kernel_reference(launch, launch.kernel)([table[v] for v in launch.reads])
            pairs = zip(launch.writes, results, strict=True)
            return next(filter(None, (self._judge(v, x, data) for v, x in pairs)), "")
        case = case_of(self.case, subgraph(self.optimized, self.optimized.inputs, [value]))
        judgement = verdict(self.target, case, [array], self.sets[data])
        return "" if judgement.ok else str(judgement.mismatches[0])


def _lines(problem: Problem) -> tuple[str, ...]:
    return tuple(map(str, problem.verdict.mismatches))


def _is_long(kernel: Kernel) -> bool:
    """Whether core's evaluator would take longer for a kernel than it is worth."""
    return kernel.points * max((s.trips for s in kernel.stages), default=1) > _MOST_POINTS


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
    renderer = device.device
    if isinstance(renderer, RenderingDevice):
        try:
            different = {step.kernel: step for step in program.kernel_steps}
            rendered = [renderer.render(renderer.lower_step(s)) for s in different.values()]
        except Exception as error:  # noqa: BLE001  (what it raises is shown instead)
            return f"render raises {error_text(error)}", asm
        if rendered and all(isinstance(text, str) for text in rendered):
            source = "\n".join(map(str, rendered))
    return source[:_MOST_TEXT], asm[:_MOST_TEXT]


def trace(
    target: Target, case: Case, graph: Graph, inputs: list[Array], right: Values,
    written: Sequence[Value], results: Sequence[Array], judgement: Verdict,
) -> tuple[str, ...]:  # fmt: skip
    """One line for the wrong element of a step, one for the element of the program that it makes
    wrong, all else being right.

    graph: what the steps were made of.  right: the right array of each of its values.  written,
    results: what the step writes, and what the device wrote.  judgement: the verdict on that.
    """
    names = Numbering(graph.inputs, graph.instrs)
    for mismatch in judgement.mismatches:
        value = written[mismatch.output]
        if value in graph.outputs:
            continue
        array = np.array(right[value])
        array[mismatch.index] = results[mismatch.output][mismatch.index]
        values = completed(graph, {**{v: right[v] for v in graph.inputs}, value: array})
        spoilt = verdict(target, case, [values[v] for v in graph.outputs], inputs)
        if not spoilt.ok:
            return (_described(names[value], mismatch), f"→ {spoilt.mismatches[0]}")
    return tuple(_described(names[written[m.output]], m) for m in judgement.mismatches[:1])


def _described(name: str, mismatch: Mismatch) -> str:
    index = ", ".join(map(str, mismatch.index))
    return f"{name}[{index}] is {mismatch.actual}, not {mismatch.expected}"
