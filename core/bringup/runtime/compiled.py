"""What compiling gives: something to call, and everything that was made on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bringup.backend.device import Executable, Lowered
from bringup.backend.placement import Placement
from bringup.errors import UnsupportedError
from bringup.graph import Graph
from bringup.kernel.form import Kernel
from bringup.program.cost import program_cost
from bringup.program.program import Cost, KernelStep, OpStep, Program
from bringup.records import record

if TYPE_CHECKING:  # compiling loads no module of loops
    from bringup.loops.form import Func
    from bringup.loops.schedule import Scheduled


@record
class ScheduledStep:
    """A step of a program at the loop level.

    loops: its functions before any schedule; none where the op library has none for it.
    schedules: how the device runs each of them; none where it runs the step in another way.
    """

    step: KernelStep | OpStep
    loops: Sequence[Func]
    schedules: Sequence[Scheduled]


class Compiled:
    """A compiled graph and everything that was made on the way.

    graph: as traced.
    optimized: after all passes.
    programs: kernels, slots, arena; one, or one for each segment of a graph that two devices share,
    and for each condition, body and branch that core runs for a device.
    executable: call it with handles; None when lowered without hardware.
    lower: makes the texts.  scheduled: makes every step at the loop level, those of loops and
    branches among them.  placement: makes the report.  cost: that of a graph in segments.
    """

    __slots__ = (
        "_cost", "_lower", "_lowered", "_placement", "_scheduled", "_steps", "donated",
        "executable", "graph", "optimized", "programs",
    )  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        optimized: Graph,
        programs: tuple[Program, ...],
        executable: Executable | None,
        lower: Callable[[], Lowered],
        scheduled: Callable[[], Sequence[ScheduledStep]],
        placement: Callable[[], Iterable[Placement]] = tuple,
        cost: Callable[[], Cost] | None = None,
    ) -> None:
        self.graph = graph
        self.optimized = optimized
        self.programs = programs
        self.executable = executable
        #: Positions of the inputs that a run takes for itself; none where there are segments.
        self.donated = programs[0].donated if cost is None else frozenset[int]()
        self._lower = lower
        self._lowered: Lowered | None = None
        self._scheduled = scheduled
        self._steps: Sequence[ScheduledStep] | None = None
        self._placement = placement
        self._cost = cost

    def __repr__(self) -> str:
        return f"<compiled {self.graph.name}: {_counted(len(self.kernels), 'kernel')}>"

    def __str__(self) -> str:
        """What it costs, and its kernels, a line each."""
        cost = self.cost()
        head = (
            f"{self.graph.name}: {_counted(cost.kernels, 'launch')},"
            f" reads {cost.bytes_read:,} bytes, writes {cost.bytes_written:,},"
            f" {_counted(cost.flops, 'flop')}, {cost.arena_bytes:,} bytes of scratch"
        )
        return "\n".join([head, *(f"  {kernel!r}" for kernel in self.kernels)])

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
    def kernels(self) -> tuple[Kernel, ...]:
        """The fused kernels, in order of launch."""
        return tuple(kernel for program in self.programs for kernel in program.kernels)

    def scheduled(self) -> Sequence[ScheduledStep]:
        """Every step at the loop level, those of loops and branches among them, in order."""
        if self._steps is None:
            self._steps = self._scheduled()
        return self._steps

    @property
    def loops(self) -> tuple[Func, ...]:
        """The loops of each kernel, before the device's own schedule, and of each step that the op
        library has, in order.  Where a backend runs one in another way, they are those of a machine
        of one thread.
        """
        return tuple(func for each in self.scheduled() for func in each.loops)

    @property
    def schedules(self) -> tuple[Scheduled | None, ...]:
        """How the device runs the loops of each kernel; None where it runs one in another way.

        Print one for its steps and the loops that they make.  `bringup.loops.schedule.apply` runs
        edited steps on ``before``.
        """
        steps = [each for each in self.scheduled() if isinstance(each.step, KernelStep)]
        return tuple(each.schedules[0] if each.schedules else None for each in steps)

    @property
    def library(self) -> tuple[Scheduled, ...]:
        """How the device runs the functions that the op library has for steps, such as sorts, in
        order; none of a step that it runs in another way.
        """
        steps = [each for each in self.scheduled() if isinstance(each.step, OpStep)]
        return tuple(scheduled for each in steps for scheduled in each.schedules)

    def cost(self) -> Cost:
        """Exact counts of one run, a loop as often as it is known to run, else once; see `Cost`.

        What moves between devices is in `placement`.
        """
        return program_cost(self.program) if self._cost is None else self._cost()

    def placement(self) -> tuple[Placement, ...]:
        """Each instruction of the optimised graph: its device, the reason, the bytes moved for it.

        Those inside loops and branches follow, after the name of their graph, with what moves in
        one iteration.  Empty when lowered without hardware.
        """
        return tuple(self._placement())

    @property
    def source(self) -> str:
        """What the backend's renderer wrote.  Raises UnsupportedError if it shows none."""
        return self._texts().source

    @property
    def asm(self) -> str:
        """What the backend's compiler made of it.  Raises UnsupportedError if it shows none."""
        texts = self._texts()
        if texts.source and not texts.asm:
            raise UnsupportedError(f"the backend shows no assembly of {self.graph.name}")
        return texts.asm

    def html(self) -> str:
        """All levels as one page: graphs, launches and memory as pictures, kernels, loops, code."""
        from bringup.html.levels import Levels, page

        levels = Levels(
            self.graph, self.optimized, self.programs, self.schedules, self.loops, self.cost(),
            lambda: self.source, lambda: self.asm,
        )  # fmt: skip
        return page(levels)

    def _repr_html_(self) -> str:
        """The page of `html`, in a frame, for notebooks."""
        from bringup.html import framed

        return framed(self.html())

    def _texts(self) -> Lowered:
        if self._lowered is None:
            self._lowered = self._lower()
        return self._lowered


def _counted(count: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


__all__ = ["Compiled"]
