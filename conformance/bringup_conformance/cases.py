"""One thing to check: a graph with its data, or the special cells of a row; and what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from bringup.graph import Graph
from bringup.graph.verify import subgraphs
from bringup.ops.special_values import Special
from bringup.ops.table import Kind, OpDef
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.verdict import Verdict

if TYPE_CHECKING:
    from bringup_conformance.execution.targets import Target

Status = Literal["pass", "fail"]
#: What stands for the op in names and tables of cases that are whole programs.
PROGRAMS = "programs"


def keeps_bits(row: OpDef) -> bool:
    """Whether the results of a row are elements of its operands, or constants: NaNs keep their
    bits.
    """
    return row.kind in (Kind.MOVEMENT, Kind.SOURCE) or row.name == "select"


def instructions(graph: Graph) -> int:
    """How many instructions a graph has, as the sizes of failures are counted: those of its
    sub-graphs among them, constants left out.
    """
    count = sum(instr.literal is None for instr in graph.instrs)
    return count + sum(map(instructions, subgraphs(graph)))


@record
class Cells:
    """One operand position's worth of special cells: rows of texts that fill the inputs of a
    graph's one instruction.

    cells: in order of elements; each stands `repeats` times, so that vector bodies and tails both
    meet it.  packed: whether cells are elements of one array, or the whole operands of a single
    cell.  rules: the id of each cell's rule, if that is known.
    """

    cells: tuple[Special, ...]
    repeats: int
    packed: bool
    rules: tuple[str, ...] = ()


@record
class Case:
    """A program to run on a target.

    name: level, op, dtype and more, unique in a run.  op, dtype: its place in the table.  data:
    sets of a recipe for each input.  cells: per output, the special cells that it shows, if that is
    what the case is about.
    bitwise: NaNs must keep their bits, as moved elements do.  split: also run it op by op.
    optimize: whether the device is asked for fast code, or for code in little time.
    tags: what else it can be selected by.  rules: ids of the rules it shows to hold.
    """

    name: str
    level: str
    op: str
    dtype: str
    graph: Graph
    data: tuple[tuple[Recipe, ...], ...] = ()
    cells: tuple[Cells, ...] = ()
    bitwise: bool = False
    split: bool = False
    optimize: bool = True
    tags: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


class NotOffered(Exception):
    """Raised by a check that finds, on the opened device, that what it is about is not offered.

    The message is the reason, and the check's result an `Unsupported`.
    """


@record
class Check:
    """Something a device promises beyond the values of one program, such as what it leaves alone.

    name: level, area and more, unique in a run.  op: the area, its place in the table.  rules: the
    ids of the rules it shows to hold.  run: finds what is wrong with a device, or nothing; may
    raise what the device raises, and NotOffered.  host: whether it asks the device nothing, being
    about what core makes of rows for every device.
    """

    name: str
    level: str
    op: str
    rules: tuple[str, ...]
    run: Callable[[Target], Problem | None] = field(repr=False)
    dtype: str = ""
    tags: tuple[str, ...] = ()
    host: bool = False


@record
class Unsupported:
    """Something the device does not declare, and the reason of its own decomposition."""

    name: str
    level: str
    op: str
    dtype: str
    reason: str


@record
class Problem:
    """What went wrong in one run of a case.

    kind: wrong (values outside their spans), shape, unstable (a second run differs), input (an
    input changed), broken (a promise of the runtime), refused (though claimed), crash (the device
    raised, or its process ended), hang, oom.
    what: one sentence.  data: number of the data set.  fused: whether in the fused program.
    rules: those that it breaks; empty for all of the case's.  log: of a process that ended, what it
    printed last, and its stack.  phase: what a process that hung did, of `heartbeat.PHASES`.
    call: what of the device raised it: a method, or ``function`` for that of an op.
    """

    kind: str
    what: str
    data: int = 0
    fused: bool = True
    verdict: Verdict = field(default_factory=Verdict)
    rules: tuple[str, ...] = ()
    log: str = ""
    phase: str = ""
    call: str = ""

    def alike(self, other: Problem) -> bool:
        """Whether another run went wrong in the same way: a hang in one phase of a program is not
        a hang in another, nor what one op raises or shares what another does.
        """
        if self.kind != other.kind:
            return False
        if self.kind in ("crash", "broken"):
            return without_numbers(self.what) == without_numbers(other.what)
        return self.kind != "hang" or self.phase == other.phase


def without_numbers(what: str) -> str:
    """The first line of what a device says, without the numbers and names of kernels that differ
    each time.
    """
    line = what.strip().split("\n", maxsplit=1)[0]
    for phase in ("compiling: ", "running: "):
        line = line.removeprefix(phase)
    return re.sub(r"0x[0-9a-f]+|\d+", "N", re.sub(r"\bk\d+_\w+", "kernel", line))[:100]


@record
class Outcome:
    """What came of a case or a check."""

    case: Case | Check
    verdict: Verdict
    problem: Problem | None = None

    @property
    def status(self) -> Status:
        """Whether the case passed."""
        return "pass" if self.problem is None else "fail"


@record
class Instance:
    """One instruction to check: operand types, attributes, and the kinds of data for the operands,
    cycled.

    far: so large that two sets of data have to do.
    """

    operands: tuple[TensorType, ...]
    attrs: tuple[tuple[str, object], ...] = ()
    kinds: tuple[str, ...] = ()
    far: bool = False
