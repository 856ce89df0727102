"""What compiling gives: something to call, and everything that was made on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bringup.backend.device import Executable, Lowered
from bringup.backend.placement import Placement
from bringup.errors import UnsupportedError
from bringup.graph import Graph, Instr
from bringup.kernel.form import Kernel
from bringup.program.cost import loop_cost, program_cost, sum_costs
from bringup.program.program import Cost, Program
from bringup.records import record


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
        return self._texts().asm

    def _texts(self) -> Lowered:
        if self._lowered is None:
            self._lowered = self._lower()
        return self._lowered


def _counted(count: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


@record(eq=False)
class Part:
    """A part of a graph that was compiled for itself.

    loop: the loop or branch that it is, if core runs it.
    """

    compiled: Compiled
    loop: Instr | None = None


class CompiledParts(Compiled):
    """A graph that no one program holds.

    parts: in order.
    loop: what the whole graph is, if core runs it: the parts are its condition, body or branches.
    """

    __slots__ = ("_loop", "_parts", "_report")

    def __init__(
        self,
        graph: Graph,
        optimized: Graph,
        parts: Sequence[Part],
        executable: Executable | None,
        loop: Instr | None,
        report: Sequence[Placement] = (),
    ) -> None:
        programs = tuple(program for part in parts for program in part.compiled.programs)
        super().__init__(graph, optimized, programs, executable, self._joined, self._places)
        self._parts, self._loop, self._report = tuple(parts), loop, report

    @property
    def donated(self) -> frozenset[int]:
        """Nothing: a run takes no input for itself."""
        return frozenset()

    def cost(self) -> Cost:
        """Exact counts of one run; a loop counts as often as it is known to run, else once."""
        return self._cost_as(self._loop)

    def _cost_as(self, loop: Instr | None) -> Cost:
        """The cost as this instruction, which may know more of itself than the graph here."""
        costs = [_part_cost(part) for part in self._parts]
        if loop is None or not costs:  # what core prints costs nothing
            return sum_costs(costs)
        return loop_cost(loop, costs)

    def _places(self) -> Sequence[Placement]:
        rows = [*self._report]
        for part in self._parts:
            found = part.compiled.placement()
            if self._loop is not None:
                rows += _inside(part.compiled.graph.name, found)
            elif part.loop is not None:
                rows += found[1:]
        return rows

    def _joined(self) -> Lowered:
        compiled = [part.compiled for part in self._parts]
        sources, asms = "\n".join(p.source for p in compiled), "\n".join(p.asm for p in compiled)
        return Lowered(sources, asms)


def _part_cost(part: Part) -> Cost:
    found = part.compiled
    if part.loop is not None and isinstance(found, CompiledParts):
        return found._cost_as(part.loop)
    return found.cost()


def _inside(name: str, rows: Sequence[Placement]) -> Iterator[Placement]:
    for row in rows:
        yield replace(row, node=f"{name}: {row.node}")


__all__ = ["Compiled", "CompiledParts", "Part"]
