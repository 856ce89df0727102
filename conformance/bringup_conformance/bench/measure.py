"""Measure the workloads on a device: whole programs, and each of their launches alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from bringup.backend.device import Executable
from bringup.errors import BringupError, UnsupportedError
from bringup.loops.schedule import Scheduled
from bringup.program.cost import program_cost
from bringup.program.program import ControlStep, KernelStep, OpStep, Program
from bringup.records import record
from bringup.runtime.compiled import Compiled
from bringup.runtime.devices import OpenDevice
from bringup.runtime.timing import Timer, step_alone
from bringup_conformance.bench.workloads import ARITHMETIC, COPY, SIZES, WORKLOADS, Workload

#: A time is the median of so many, each of runs that last so many seconds together; a roof is the
#: best of them.
_TURNS, _LEAST = 7, 4e-3
#: Kernels that a report names, those first that lose most time.
NAMED = 12
#: Fields of a bench that JSON holds as they are.
_PLAIN = ("device", "product", "date", "unsupported", "tuned")
_Step = KernelStep | OpStep


@record
class Roofs:
    """The most that the device was seen to do.

    bandwidth: bytes a second of a copy, by size.
    arithmetic: floating-point operations a second, the most of `ARITHMETIC`.
    """

    bandwidth: Mapping[str, float]
    arithmetic: float

    def seconds(self, size: str, nbytes: int, flops: int) -> float:
        """What a program takes that moves and computes so much, if one of the two is at its roof.

        Samuel Williams, Andrew Waterman and David Patterson, "Roofline: an insightful visual
        performance model for multicore architectures", Communications of the ACM 52 (4), 2009.
        """
        return max(nbytes / self.bandwidth[size], flops / self.arithmetic)


@record
class Row:
    """A workload of a size.

    seconds: of a call, until the device is done.  roof: of one that reaches a roof.
    bytes, flops, launches: exact counts of a call.  transfers: bytes that move between devices in
    it, beside arguments and results.
    """

    name: str
    family: str
    size: str
    seconds: float
    roof: float
    bytes: int
    flops: int
    launches: int
    transfers: int

    @property
    def share(self) -> float:
        """Of the roof that the program meets first."""
        return self.roof / self.seconds


@record
class Launch:
    """A launch of the largest size of a workload, run alone.

    schedule: the steps that made its loops; empty where the device runs it in another way.
    """

    kernel: str
    workload: str
    seconds: float
    roof: float
    schedule: str

    @property
    def lost(self) -> float:
        """Seconds above those of the roof."""
        return self.seconds - self.roof


@record
class Bench:
    """What was measured of a device.

    unsupported: why a workload has no row.  tuned: kernels for which faster schedules were found
    before.
    """

    device: str
    product: str
    date: str
    roofs: Roofs
    rows: Sequence[Row]
    launches: Sequence[Launch]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    tuned: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in seconds."""
        return {"format": 1, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bench:
        """What `to_json` gave.  Raises BringupError for anything else."""
        try:
            if data["format"] != 1:
                raise BringupError(
                    f"format {data['format']!r} of a bench is unknown", fix="measure again"
                )
            given = {name: data[name] for name in _PLAIN}
            return cls(
                **given,
                roofs=Roofs(**data["roofs"]),
                rows=[Row(**each) for each in data["rows"]],
                launches=[Launch(**each) for each in data["launches"]],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BringupError(
                "the file is no bench", fix="name the bench.json of a report"
            ) from error


def bench(
    device: OpenDevice,
    date: str,
    sizes: Sequence[str] = SIZES,
    only: Callable[[Workload], bool] = lambda _: True,
    on_row: Callable[[str, int, int], None] = lambda name, done, count: None,
) -> Bench:
    """Measure the workloads on a device.

    sizes: some of `SIZES`.  on_row: told the name of each row, the rows done and all.
    Raises UnsupportedError where the device cannot run the copy.
    """
    chosen = [each for each in WORKLOADS if only(each)]
    roofs = _roofs(device, sizes)
    rows, launches, unsupported = list[Row](), list[Launch](), dict[str, str]()
    jobs = [(each, size) for each in chosen for size in sizes]
    for done, (each, size) in enumerate(jobs):
        on_row(f"{each.name}, {size}", done, len(jobs))
        try:
            compiled = each.compiled(size)
            rows.append(_row(device, each, size, compiled, roofs))
            if size == sizes[-1]:
                launches += _launches(device, each, size, compiled, roofs, rows[-1])
        except UnsupportedError as error:
            unsupported[each.name] = error.what
    launches.sort(key=lambda launch: -launch.lost)
    product = device.info.product
    return Bench(device.name, product, date, roofs, rows, launches[:NAMED], unsupported)


def _roofs(device: OpenDevice, sizes: Sequence[str]) -> Roofs:
    bandwidth = {}
    for size in sizes:
        compiled = COPY.compiled(size)
        bandwidth[size] = _moved(compiled) / _seconds(device, compiled, min)
    fastest = 0.0
    for each in ARITHMETIC:
        for size in sizes:
            try:
                compiled = each.compiled(size)
            except UnsupportedError:
                continue
            fastest = max(fastest, compiled.cost().flops / _seconds(device, compiled, min))
    if not fastest:
        raise UnsupportedError(f"{device.name} runs neither sums nor products of f32")
    return Roofs(bandwidth, fastest)


def _moved(compiled: Compiled) -> int:
    cost = compiled.cost()
    return cost.bytes_read + cost.bytes_written


def _row(
    device: OpenDevice, workload: Workload, size: str, compiled: Compiled, roofs: Roofs
) -> Row:
    cost, nbytes = compiled.cost(), _moved(compiled)
    return Row(
        workload.name,
        workload.family,
        size,
        seconds=_seconds(device, compiled),
        roof=roofs.seconds(size, nbytes, cost.flops),
        bytes=nbytes,
        flops=cost.flops,
        launches=cost.kernels,
        transfers=sum(each.bytes_moved for each in compiled.placement()),
    )


def _seconds(
    device: OpenDevice, compiled: Compiled, of: Callable[[list[float]], float] = statistics.median
) -> float:
    """Of a call, on arrays that are on the device."""
    inputs = [value.type for value in compiled.graph.inputs]
    outputs = [value.type for value in compiled.graph.outputs]
    assert compiled.executable is not None, "it was compiled for a device"
    return of(_times(Timer(device, inputs, outputs), compiled.executable))


def _times(timer: Timer, executable: Executable) -> list[float]:
    """Seconds of runs, after one to warm up; a run that takes a second is not repeated."""
    timer.seconds(executable)
    once = timer.seconds(executable)
    if once > 1:
        return [once]
    count = max(1, round(_LEAST / max(once, 1e-7)))
    return [timer.seconds(executable, count) / count for _ in range(_TURNS)]


def _launches(
    device: OpenDevice,
    workload: Workload,
    size: str,
    compiled: Compiled,
    roofs: Roofs,
    whole: Row,
) -> Iterator[Launch]:
    """Each launch of a program; of a loop, one run of its body."""
    schedules = iter(compiled.schedules)
    steps = [step for program in compiled.programs for step in _steps(program)]
    for step in steps:
        scheduled = next(schedules) if isinstance(step, KernelStep) else None
        alone = step_alone(step)
        cost = program_cost(alone)
        if len(steps) == whole.launches == 1:
            seconds = whole.seconds
        else:
            timer = Timer(device, alone.inputs, alone.outputs)
            seconds = statistics.median(_times(timer, device.device.compile(alone)))
        nbytes = cost.bytes_read + cost.bytes_written
        roof = roofs.seconds(size, nbytes, cost.flops)
        yield Launch(step.name, workload.name, seconds, roof, _steps_of(scheduled))


def _steps(program: Program) -> Iterator[_Step]:
    for step in program.steps:
        if isinstance(step, ControlStep):
            for inner in step.programs:
                yield from _steps(inner)
        else:
            yield step


def _steps_of(scheduled: Scheduled | None) -> str:
    return "" if scheduled is None else str(scheduled.steps)
