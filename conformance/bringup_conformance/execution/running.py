"""Running one case on a target: compile, call with each data set, compare.

Whatever the device raises is a result.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np

import bringup as bu
from bringup.dtypes import BY_NAME
from bringup.errors import BringupError, DeviceLostError, UnsupportedError
from bringup.ops.table import Kind, lookup
from bringup.program.program import Program
from bringup.runtime.compiler import observing_programs
from bringup_conformance.cases import Case, Check, NotOffered, Outcome, Problem
from bringup_conformance.execution.targets import (
    DeviceTarget,
    Runnable,
    SharedMemoryError,
    Target,
)
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.oracle.residuals import judge_residuals
from bringup_conformance.oracle.span import Span
from bringup_conformance.oracle.special import judge_cells, operands
from bringup_conformance.oracle.verdict import WORST, Mismatch, Verdict, judge, text_of
from bringup_conformance.rules.carried import broken

#: Characters kept of what a device raised.
_MAX_TEXT = 2000
# Programs of a check whose steps are told: the last ones.
_PROGRAMS = 8
# Packages whose lines say nothing about a backend: a decorator of its own may stand in contextlib.
_OTHERS = {"bringup", "bringup_conformance"} | sys.stdlib_module_names

Judgement = tuple[Verdict, Problem | None]
#: What each output may be, by number of data set.
Spans = dict[int, list[Span]]


def run_item(target: Target, item: Case | Check) -> Outcome:
    """Run a case or a check; never raises what the device raises.  A check raises NotOffered."""
    return run_case(target, item) if isinstance(item, Case) else run_check(target, item)


def run_check(target: Target, check: Check) -> Outcome:
    """Run a check; never raises what the device raises.  Raises NotOffered.

    A problem names the steps of the programs that the check had compiled.
    """
    # Programs of earlier items hold memory, and checks measure and fill the memory.
    if not check.host:
        bu.clear_caches()
    programs: dict[str, None] = {}  # the steps of each by name, in order

    def told(program: Program) -> None:
        programs.setdefault(", ".join(step.name for step in program.steps))

    with observing_programs(told):
        try:
            problem = check.run(target)
        except NotOffered:
            raise
        except Exception as error:  # noqa: BLE001  (what a backend raises is the check's result)
            problem = problem_raised(error)
    names = [*filter(None, programs)]
    if problem is not None and names:
        shown = "; ".join(["…"] * (len(names) > _PROGRAMS) + names[-_PROGRAMS:])
        what = f"{problem.what}\n  steps of the programs up to there: {shown}"
        problem = replace(problem, what=what)
    return Outcome(check, Verdict() if problem is None else problem.verdict, problem)


def run_case(target: Target, case: Case) -> Outcome:
    """Run a case; never raises what the device raises."""
    spans: Spans | None = {} if case.split else None
    verdict, problem = attempt(target, case, spans=spans)
    if problem is None and case.split:
        op_by_op, problem = attempt(target, case, fuse=False, spans=spans)
        verdict = verdict + op_by_op
    if problem is not None:
        problem = replace(problem, rules=broken(problem, case.rules))
    return Outcome(case, verdict, problem)


def attempt(
    target: Target,
    case: Case,
    *,
    fuse: bool = True,
    skip: frozenset[str] = frozenset(),
    spans: Spans | None = None,
) -> Judgement:
    """Compile a case in one way and run it on all its data.

    spans: a cache of what is right for each data set, for several ways to run one case.
    """
    try:
        runnable = target.compile(case.graph, fuse=fuse, skip=skip, optimize=case.optimize)
    except Exception as error:  # noqa: BLE001  (what a backend raises is the case's result)
        return Verdict(), problem_raised(error, "compiling: ", fuse=fuse)
    if case.cells:
        return _run_cells(runnable, case)
    return _run_data(target, runnable, case, fuse, spans)


def _run_data(
    target: Target, runnable: Runnable, case: Case, fuse: bool, spans: Spans | None
) -> Judgement:
    """Call a program with every data set in turn, then with the first again."""
    total = Verdict()
    first: list[Array] = []
    for number in range(len(case.data)):
        inputs = made_inputs(case, number)
        before = [x.copy() for x in inputs]
        results, problem = _call(runnable, case, inputs, number, fuse)
        if problem is not None:
            return total, problem
        first = first or results
        changed = changed_input(inputs, before)
        if changed:
            return total, Problem("input", changed, number, fuse)
        expected = None if spans is None else spans.get(number)
        if expected is None:
            expected = analyse(case.graph, inputs, target.capabilities.numerics)
            if spans is not None:
                spans[number] = expected
        verdict = _compared(case, results, inputs, expected)
        if not verdict.ok:
            verdict = _with_operands(case, before, verdict)
        total = total + verdict
        if not verdict.ok:
            return total, Problem("wrong", str(verdict.mismatches[0]), number, fuse, verdict)
    return total, _repeated(target, runnable, case, first, fuse)


def changed_input(inputs: Sequence[Array], before: Sequence[Array]) -> str:
    """What is wrong with an input that is not as it was; empty if all are."""
    for number, (x, y) in enumerate(zip(inputs, before, strict=True)):
        if not bool(same_bits(x, y).all()):
            return f"input {number} changed: after the call the device has other bits of it"
    return ""


def made_inputs(case: Case, number: int) -> list[Array]:
    """The arrays of one data set."""
    pairs = zip(case.data[number], case.graph.inputs, strict=True)
    return [recipe.make(value.type) for recipe, value in pairs]


def judged(
    case: Case, results: Sequence[Array], inputs: Sequence[Array], target: Target
) -> Verdict:
    """The verdict on all outputs of one call."""
    spans = analyse(case.graph, inputs, target.capabilities.numerics)
    return _compared(case, results, inputs, spans)


def _compared(
    case: Case, results: Sequence[Array], inputs: Sequence[Array], spans: Sequence[Span]
) -> Verdict:
    compare = _bitwise if case.bitwise else judge
    total, whole = judge_residuals(case.graph, results, inputs)
    for output, (actual, span) in enumerate(zip(results, spans, strict=True)):
        if output not in whole:
            total = total + compare(actual, span, output)
    return total


def _with_operands(case: Case, inputs: Sequence[Array], verdict: Verdict) -> Verdict:
    """The verdict with the operands of wrong elements, where one elementwise instruction on inputs
    computes them.
    """
    graph = case.graph
    arrays = dict(zip(graph.inputs, inputs, strict=True))

    def with_operands(mismatch: Mismatch) -> Mismatch:
        value = graph.outputs[mismatch.output]
        instr = value.producer
        if instr is None or lookup(instr.op.name).kind is not Kind.ELEMENTWISE:
            return mismatch
        if any(v not in arrays or v.shape not in (value.shape, ()) for v in instr.operands):
            return mismatch
        flat = np.ravel_multi_index(mismatch.index, value.shape) if value.shape else 0
        elements = [(arrays[v].flat[flat if v.shape else 0], v) for v in instr.operands]
        return replace(mismatch, operands=tuple(text_of(x, v.dtype) for x, v in elements))

    return replace(verdict, mismatches=tuple(map(with_operands, verdict.mismatches)))


def _bitwise(actual: Array, span: Span, output: int) -> Verdict:
    """The verdict on moved elements, which keep every bit: they are compared as integers."""
    verdict = judge(actual, span, output)
    if not verdict.ok or not span.exact or not span.dtype.is_float:
        return verdict
    word = np.dtype(f"u{actual.dtype.itemsize}")
    flat, expected = (np.asarray(a, order="C").reshape(-1) for a in (actual, span.middle))
    wrong = np.flatnonzero(flat.view(word) != expected.view(word))
    mismatches = []
    for i in map(int, wrong[:WORST]):
        index = tuple(map(int, np.unravel_index(i, actual.shape)))
        # NaNs with different bits print alike, so their bits are shown.
        shown, right = (
            f"nan with the bits {a[i : i + 1].tobytes()[::-1].hex()}" for a in (flat, expected)
        )
        mismatches.append(Mismatch(output, index, shown, right, right, right))
    return Verdict(len(wrong), actual.size, mismatches=tuple(mismatches))


def _call(
    runnable: Runnable, case: Case, inputs: list[Array], number: int, fuse: bool
) -> tuple[list[Array], Problem | None]:
    try:
        results = runnable(inputs)
    except Exception as error:  # noqa: BLE001  (what a backend raises is the case's result)
        return [], problem_raised(error, "running: ", number, fuse)
    expected = [(v.shape, v.dtype.numpy) for v in case.graph.outputs]
    actual = [(x.shape, x.dtype) for x in results]
    if actual != expected:
        return [], Problem("shape", f"results are {actual}, not {expected}", number, fuse)
    odd = odd_bool(results)
    return ([], Problem("wrong", odd, number, fuse)) if odd else (results, None)


def odd_bool(results: Sequence[Array]) -> str:
    """What is wrong with a bool that is neither 0 nor 1 in memory; empty if there is none."""
    for number, x in enumerate(results):
        largest = int(x.view(np.uint8).max()) if x.dtype == np.bool_ and x.size else 0
        if largest > 1:
            return f"output {number}: a bool is neither 0 nor 1 in memory, but {largest:#04x}"
    return ""


def _repeated(
    target: Target, runnable: Runnable, case: Case, first: list[Array], fuse: bool
) -> Problem | None:
    """Run the first data set again: a device that declares it gives the same bits."""
    if len(case.data) < 2 or not target.capabilities.deterministic:
        return None
    results, problem = _call(runnable, case, made_inputs(case, 0), 0, fuse)
    if problem is not None:
        return problem
    for output, (x, y) in enumerate(zip(first, results, strict=True)):
        if not bool(same_bits(x, y).all()):
            what = f"output {output} differs between two runs on equal data"
            return Problem("unstable", what, 0, fuse)
    return None


def _run_cells(runnable: Runnable, case: Case) -> Judgement:
    inputs = [array for cells in case.cells for array in operands(cells, BY_NAME[case.dtype])]
    results, problem = _call(runnable, case, inputs, 0, fuse=True)
    if problem is not None:
        return Verdict(), problem
    total, rules = Verdict(), dict[str, None]()
    for output, (actual, cells) in enumerate(zip(results, case.cells, strict=True)):
        verdict = judge_cells(actual, cells, case.graph.outputs[output].dtype, output)
        rules |= dict.fromkeys(m.rule for m in verdict.mismatches if m.rule)
        total = total + verdict
    if total.ok:
        return total, None
    what = str(total.mismatches[0])
    return total, Problem("wrong", what, 0, True, total, rules=tuple(rules))


class RemoteError(Exception):
    """What a device raised in another process, or the end of that process.

    kind: of problem.  log: what the process printed last, if it ended.  phase: in which it hung.
    """

    def __init__(self, kind: str, message: str, log: str = "", phase: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.log = log
        self.phase = phase


def problem_raised(error: Exception, when: str = "", data: int = 0, fuse: bool = True) -> Problem:
    """The problem that an exception of a device is.  when: put before its text."""
    log, phase, call = "", "", ""
    if isinstance(error, RemoteError):
        log, phase = error.log, error.phase
    elif isinstance(error, BringupError) and getattr(error, "step", None) is None:
        call = error.call  # what a wait raises for a step is not the wait's
    kind = problem_kind(error)
    what = error_text(error) if phase or kind == "broken" else when + error_text(error)
    return Problem(kind, what, data, fuse, log=log, phase=phase, call=call)


def is_lost(target: Target) -> bool:
    """Whether a device runs nothing more in this process, so that further results say nothing."""
    if not isinstance(target, DeviceTarget):
        return False
    try:
        target.device.device.synchronize()
    except DeviceLostError:
        return True
    except Exception:  # noqa: BLE001  (whatever it is, the next case will meet it)
        return False
    return False


def problem_kind(error: BaseException) -> str:
    """The kind of problem that an exception of a device is."""
    if isinstance(error, RemoteError):
        return error.kind
    if isinstance(error, SharedMemoryError):
        return "broken"
    if isinstance(error, MemoryError):
        return "oom"
    if isinstance(error, UnsupportedError):
        return "refused"
    return "hang" if isinstance(error, TimeoutError) else "crash"


def error_text(error: BaseException) -> str:
    """An exception as text: its class and message, and the line of the backend that raised it."""
    if isinstance(error, RemoteError | SharedMemoryError):
        return str(error)
    line = _line_of_backend(error)
    return f"{type(error).__name__}: {error}"[:_MAX_TEXT] + (f"\n  in {line}" if line else "")


def _line_of_backend(error: BaseException) -> str:
    """The innermost line of the package that core called and that raised the error, such as
    ``bringup_chip/ops.py:33 (tensor)``; empty if only core took part.
    """
    raised = error.__cause__ if isinstance(error, BringupError) and error.__cause__ else error
    package, found = "", ""
    for frame, line in traceback.walk_tb(raised.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        first = module.partition(".")[0]
        if first in _OTHERS or package not in ("", first):
            continue
        package, code = first, frame.f_code
        path = PurePath(code.co_filename)
        depth = module.count(".") + 1 + (path.stem == "__init__")
        found = f"{'/'.join(path.parts[-depth:])}:{line} ({code.co_name})"
    return found
