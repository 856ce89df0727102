"""Runs the levels: single ops over dtypes, then random programs, each against the reference's
spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.dtypes import DType
from bringup.errors import BringupError, OpTypeError
from bringup.graph import Graph
from bringup.ops.table import Kind, OpDef, all_ops
from bringup_conformance.bounds import analyse
from bringup_conformance.choices import Stream
from bringup_conformance.growing import Setting
from bringup_conformance.numbers import Array
from bringup_conformance.programs import draw_program, usable_dtypes
from bringup_conformance.recipes import Recipe
from bringup_conformance.sizes import lengths
from bringup_conformance.support import Support, single
from bringup_conformance.targets import DeviceTarget, Target
from bringup_conformance.verdict import Verdict, judge

LEVELS = ("smoke", "ops", "fusion")
#: Programs of the fusion level, and elements of their largest value.
PROGRAMS = {"smoke": 10, "ops": 0, "fusion": 150}
_LIMIT = 4096
_POINTWISE = (Kind.ELEMENTWISE, Kind.COMPOSITE)


@dataclass(frozen=True, slots=True)
class Case:
    """One graph and its data.  group: the op, or ``program``; name: what tells it from others."""

    group: str
    dtype: str
    name: str
    graph: Graph
    data: tuple[tuple[Recipe, ...], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A case whose results are wrong, or that could not be run.  detail: the worst elements, or the
    error.
    """

    case: Case
    mode: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "case": self.case.name,
            "mode": self.mode,
            "detail": self.detail,
            "ir": str(self.case.graph),
            "recipes": [[r.to_json() for r in data] for data in self.case.data],
        }


@dataclass(slots=True)
class Report:
    """What a run found.

    cells: by (op, dtype): passed, failed, the worst error in ULP and as a share of the bound.
    unsupported: (op, dtype) and the device's reason.
    """

    backend: str
    level: str
    seed: int
    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    unsupported: dict[tuple[str, str], str] = field(default_factory=dict)
    cells: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed."""
        return self.failed == 0 and self.passed > 0

    def to_json(self) -> dict[str, Any]:
        """The object a run ends with; the smallest failing program first."""
        ordered = sorted(self.failures, key=lambda f: len(f.case.graph))
        return {
            "backend": self.backend,
            "level": self.level,
            "seed": self.seed,
            "passed": self.passed,
            "failed": self.failed,
            "unsupported": len(self.unsupported),
            "seconds": round(self.seconds, 3),
            "failures": [f.to_json() for f in ordered],
        }


def run(
    backend: str,
    level: str = "fusion",
    seed: int = 0,
    *,
    only: str = "",
    progress: Callable[[Case], None] = lambda _case: None,
) -> Report:
    """Run a level, and those below it, on a device by name.  Raises BackendError if it cannot be
    opened.
    """
    return run_on(DeviceTarget.named(backend), level, seed, only=only, progress=progress)


def run_on(
    target: Target,
    level: str = "fusion",
    seed: int = 0,
    *,
    only: str = "",
    progress: Callable[[Case], None] = lambda _case: None,
) -> Report:
    """Like `run`, on a target at hand."""
    start = time.perf_counter()
    report = Report(target.name, level, seed)
    support = Support(target.missing)
    for case in cases(target, support, level, seed, report):
        if only and only not in case.name:
            continue
        progress(case)
        _run_case(target, case, report)
    report.seconds = time.perf_counter() - start
    return report


def cases(
    target: Target, support: Support, level: str, seed: int, report: Report
) -> Iterator[Case]:
    """Every case of a level, the same ones for the same seed."""
    wanted = LEVELS[: LEVELS.index(level) + 1]
    sizes = lengths(target.capabilities.shapes)
    yield from _op_cases(support, sizes if "ops" in wanted else sizes[3:5], seed, report)
    for name in wanted:
        yield from _program_cases(target, support, PROGRAMS[name], (seed, name))


def _op_cases(support: Support, sizes: Sequence[int], seed: int, report: Report) -> Iterator[Case]:
    for row in all_ops():
        if row.kind not in _POINTWISE or row.arity not in (1, 2):
            continue
        for attrs in _attributes(row):
            for dtype in row.dtypes:
                yield from _one_op(support, row, attrs, dtype, sizes, seed, report)


def _one_op(
    support: Support,
    row: OpDef,
    attrs: dict[str, Any],
    dtype: DType,
    sizes: Sequence[int],
    seed: int,
    report: Report,
) -> Iterator[Case]:
    for size in sizes:
        types = (dtype[size],) * (row.arity or 1)
        try:
            reason = support.reason(row, types, attrs)
        except OpTypeError:
            return
        if reason is not None:
            report.unsupported[(row.claim(row.bind(attrs)), dtype.name)] = reason
            return
        label = ",".join(f"{k}={v}" for k, v in attrs.items())
        yield Case(
            row.name,
            dtype.name,
            f"{row.name}({label}).{dtype.name}[{size}]",
            single(row, types, attrs),
            tuple(
                tuple(Recipe(kind, seed * 97 + 13 * n + k) for n in range(len(types)))
                for k, kind in enumerate(("signed", "special"))
            ),
        )


def _attributes(row: OpDef) -> list[dict[str, Any]]:
    """Every combination of an op's choices; none for ops whose attributes depend on shapes."""
    found: list[dict[str, Any]] = [{}]
    for attr in row.attrs:
        if attr.choices:
            found = [{**known, attr.name: choice} for known in found for choice in attr.choices]
        elif attr.kind == "dtype":
            from bringup.dtypes import ALL

            found = [{**known, attr.name: choice} for known in found for choice in ALL]
        else:
            return []
    return found


def _program_cases(
    target: Target, support: Support, count: int, key: tuple[int | str, ...]
) -> Iterator[Case]:
    capabilities = target.capabilities
    dtypes = usable_dtypes(support)
    for number in range(count):
        exact = number % 3 == 2
        setting = Setting(
            support, capabilities.numerics, capabilities.shapes, exact, _LIMIT, dtypes
        )
        program = draw_program(Stream(*key, number), setting)
        name = f"program.{'exact' if exact else 'bounded'}.{number}"
        yield Case("program", "", name, program.graph, program.data)


def _run_case(target: Target, case: Case, report: Report) -> None:
    modes = {"fused": True, "op by op": False} if case.group == "program" else {"fused": True}
    cell = report.cells.setdefault((case.group, case.dtype), [0, 0, 0.0, 0.0])
    for mode, fuse in modes.items():
        try:
            verdict, shown = _compare(target, case, fuse)
        except (BringupError, ArithmeticError, LookupError, ValueError, TypeError) as error:
            verdict, shown = Verdict(1), f"{type(error).__name__}: {error}"
        good = verdict.ok
        cell[0] += good
        cell[1] += not good
        cell[2], cell[3] = max(cell[2], verdict.ulp), max(cell[3], verdict.ratio)
        report.passed += good
        report.failed += not good
        if not good:
            report.failures.append(Failure(case, mode, shown))


def _compare(target: Target, case: Case, fuse: bool) -> tuple[Verdict, str]:
    runnable = target.compile(case.graph, fuse=fuse)
    total = Verdict()
    for recipes in case.data:
        inputs: list[Array] = [
            recipe.make(value.type)
            for recipe, value in zip(recipes, case.graph.inputs, strict=True)
        ]
        spans = analyse(case.graph, inputs, target.capabilities.numerics)
        for number, (actual, span) in enumerate(zip(runnable(inputs), spans, strict=True)):
            total = total + judge(actual, span, number)
    return total, "; ".join(map(str, total.mismatches[:3]))
