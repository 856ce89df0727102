"""The clusters of a graph that is being fused: which instructions each holds, what it reads, and
which other clusters must run before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bringup.errors import UnsupportedError
from bringup.graph import Graph, Instr, Value
from bringup.graph.index import Axis, Index
from bringup.kernel.build import (
    Region,
    Shape,
    Unfusable,
    inlines,
    is_expensive,
    is_fold,
    shape_region,
)
from bringup.kernel.limits import Limits
from bringup.kernel.movement import is_movement, needs_of
from bringup.ops.table import Kind, opdef

#: An expensive instruction counts as many in the size of a body.
_EXPENSIVE = 8


@dataclass(slots=True, eq=False)
class Cluster:
    """Instructions that will run in one launch.

    region: the instructions, and the values that they leave in memory.
    whole: the instruction, if the device runs it as a call of its own.
    grid, stages, reads: as in `Shape`; adding an instruction that only rewrites indices keeps them
    right.
    contracts: whether a member is a contraction.
    weight: the size of the bodies, about, in instructions.
    last: the position in the graph of the last member.
    ends: the largest `last` of the cluster and of all clusters that must run before it.
    outside: values that members read and no member computes; None if not computed yet.
    merged_into: the cluster that all members moved to, if they did.
    """

    region: Region
    whole: Instr | None = None
    grid: tuple[Axis, ...] = ()
    stages: int = 1
    reads: dict[Value, list[Index]] = field(default_factory=dict)
    contracts: bool = False
    weight: int = 1
    last: int = 0
    ends: int = 0
    outside: set[Value] | None = None
    merged_into: Cluster | None = None

    @property
    def final(self) -> Cluster:
        """The cluster that holds the members now."""
        return self if self.merged_into is None else self.merged_into.final

    @property
    def sizes(self) -> list[int]:
        """Sizes of the grid's axes."""
        return [axis.size for axis in self.grid]

    @property
    def has_fold(self) -> bool:
        """Whether a member is a reduction or a contraction."""
        return any(map(is_fold, self.region.members))

    def memory_read(self) -> set[Value]:
        """The values that members read and no member computes."""
        if self.outside is None:
            members = self.region.members
            self.outside = {v for m in members for v in m.operands if v.producer not in members}
        return self.outside

    def take_shape(self, shape: Shape) -> None:
        """Replace what is known of the kernel by a new shape."""
        self.grid, self.stages = shape.grid, shape.stages
        self.reads = {value: list(indices) for value, indices in shape.reads.items()}
        self.contracts = any(is_contraction(member) for member in self.region.members)


class Clusters:
    """All clusters of a graph.  Every reader of a value is in a cluster before the value is.

    fuses: whether an instruction may be in a kernel.
    order: the position of each instruction in the graph.
    """

    def __init__(self, graph: Graph, limits: Limits, fuses: Callable[[Instr], bool]) -> None:
        self.graph = graph
        self.limits = limits
        self.order = {instr: i for i, instr in enumerate(graph.instrs)}
        self.users = graph.users()
        self.outputs = set(graph.outputs)
        self.all: list[Cluster] = []
        self._fuses = fuses
        self._holders: dict[Instr, list[Cluster]] = {}
        self._makers: dict[Value, Cluster] = {}

    def readers(self, instr: Instr) -> list[Cluster]:
        """The clusters with a member that reads a result of ``instr``."""
        readers: dict[int, Cluster] = {}
        for result in instr.results:
            for user in self.users[result]:
                for cluster in self._holders.get(user, ()):
                    readers[id(cluster)] = cluster
        return list(readers.values())

    def can_be_in_kernel(self, instr: Instr) -> bool:
        """Whether a kernel may compute ``instr``."""
        return len(instr.results) == 1 and inlines(instr) and self._fuses(instr)

    def shape_of(self, region: Region) -> Shape:
        """The kernel's shape.  Raises Unfusable if the region is not one kernel."""
        return shape_region(region, self.order, self.limits)

    def new(self, instr: Instr, *, whole: bool) -> Cluster:
        """A cluster of one instruction.  Raises UnsupportedError if that exceeds the limits."""
        region = Region({instr}, list(instr.results))
        position = self.order[instr]
        cluster = Cluster(region, instr if whole else None, last=position, ends=position)
        if not whole:
            try:
                cluster.take_shape(self.shape_of(region))
            except Unfusable as error:
                what = f"{instr.op.name} is no kernel of this device: {error}"
                raise UnsupportedError(what, location=instr.location) from error
        self._holders.setdefault(instr, []).append(cluster)
        self.all.append(cluster)
        self.add_outputs(cluster, instr.results)
        return cluster

    def add(self, cluster: Cluster, instr: Instr, shape: Shape | None = None) -> None:
        """Make ``instr`` a member.

        shape: of the kernel then; None if only the indices change at which the operands are read.
        """
        indices = cluster.reads.pop(instr.result, [])
        cluster.region.members.add(instr)
        cluster.outside = None
        cluster.weight += weight_of(instr)
        cluster.contracts = cluster.contracts or is_contraction(instr)
        self._holders.setdefault(instr, []).append(cluster)
        if shape is not None:
            cluster.take_shape(shape)
        else:
            _read_operands(cluster.reads, instr, indices)

    def add_outputs(self, cluster: Cluster, values: Iterable[Value]) -> None:
        """Record that the launch leaves these values in memory; their readers wait for it."""
        self._makers.update(dict.fromkeys(values, cluster))
        waiting = [cluster]
        while waiting:
            top = waiting.pop()
            users = (user for value in top.region.outputs for user in self.users[value])
            for reader in [c for user in users for c in self._holders.get(user, ())]:
                if reader.ends < top.ends:
                    reader.ends = top.ends
                    waiting.append(reader)

    def merge(self, first: Cluster, second: Cluster, region: Region, shape: Shape) -> None:
        """Move the members and outputs of ``second`` into ``first``.

        region, shape: of the two together.
        """
        first.region, first.outside = region, None
        first.last, first.ends = max(first.last, second.last), max(first.ends, second.ends)
        first.weight += second.weight
        first.take_shape(shape)
        for member in second.region.members:
            others = [c for c in self._holders[member] if c is not second and c is not first]
            self._holders[member] = [*others, first]
        self.add_outputs(first, second.region.outputs)
        second.merged_into = first
        self.all.remove(second)

    def makers(self, cluster: Cluster) -> list[Cluster]:
        """The clusters that leave in memory what ``cluster`` reads."""
        values = cluster.memory_read()
        return list({id(m): m for v in values if (m := self._makers.get(v)) is not None}.values())

    def needs(self, cluster: Cluster, other: Cluster) -> bool:
        """Whether ``cluster`` must run after ``other``, directly or through other clusters."""
        stack, seen = [cluster], {id(cluster)}
        while stack:
            top = stack.pop()
            if top is other:
                return True
            for value in top.memory_read():
                maker = self._makers.get(value)
                if maker is not None and id(maker) not in seen:
                    seen.add(id(maker))
                    if maker.ends >= other.last:  # what waits for the other ends no earlier
                        stack.append(maker)
        return False

    def in_order(self) -> list[Cluster]:
        """The clusters in an order that can run."""
        ordered: list[Cluster] = []
        done: set[int] = set()
        forwards = list(reversed(self.all))  # they were made from the outputs on
        for cluster in sorted(forwards, key=lambda c: c.last):
            self._visit(cluster, ordered, done)
        return ordered

    def _visit(self, cluster: Cluster, ordered: list[Cluster], done: set[int]) -> None:
        """Append a cluster to ``ordered`` after all that must run before it."""
        stack: list[tuple[Cluster, bool]] = [(cluster, False)]
        begun: set[int] = set()
        while stack:
            top, ready = stack.pop()
            if id(top) in done:
                continue
            if ready:
                done.add(id(top))
                ordered.append(top)
                continue
            assert id(top) not in begun, "kernels wait for each other"
            begun.add(id(top))
            stack.append((top, True))
            # Clusters that share an instruction may begin alike; they never end alike.
            makers = sorted(
                self.makers(top),
                key=lambda c: (-min(self.order[m] for m in c.region.members), -c.last),
            )
            stack.extend((m, False) for m in makers if id(m) not in done)

    def feeds_contraction(self, cluster: Cluster, instr: Instr) -> bool:
        """Whether a contraction of the cluster reads ``instr``, perhaps through other members."""
        stack, seen = [instr], set()
        while stack:
            for user in self.users[stack.pop().result]:
                if user in cluster.region.members and user not in seen:
                    if is_contraction(user):
                        return True
                    seen.add(user)
                    if not is_fold(user):
                        stack.append(user)
        return False


def is_contraction(instr: Instr) -> bool:
    """Whether the op is a product of matrices or a convolution."""
    return opdef(instr).kind is Kind.CONTRACTION


def is_source(instr: Instr) -> bool:
    """Whether the op has no operands: its elements are made wherever they are read, for nothing."""
    return opdef(instr).kind is Kind.SOURCE


def is_cheap(instr: Instr) -> bool:
    """Whether computing the instruction again costs less than storing its result."""
    return not is_fold(instr) and not is_expensive(instr)


def weight_of(instr: Instr) -> int:
    """The size of an instruction in a body, in cheap instructions."""
    return _EXPENSIVE if is_expensive(instr) else 1


def _read_operands(reads: dict[Value, list[Index]], instr: Instr, indices: list[Index]) -> None:
    """Add the indices at which operands of a new member are read, given those of its result."""
    for index in indices:
        if is_movement(instr):
            needed = [(value, where) for value, where, _ in needs_of(instr, index)]
        else:
            needed = [(value, index) for value in instr.operands]
        for value, where in needed:
            known = reads.setdefault(value, [])
            if where not in known:
                known.append(where)


__all__ = [
    "Cluster",
    "Clusters",
    "is_cheap",
    "is_contraction",
    "is_source",
    "weight_of",
]
