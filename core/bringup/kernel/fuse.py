"""Fusion: partition a graph into regions, each one launch.

Instructions are visited from the outputs backwards, so that all readers of a value are placed
before it is.  A value that one region alone reads joins that region if the result is still one
kernel; a cheap value is computed again in every region that reads it; anything else is stored, by
the region of a reader where that is possible (a kernel with several outputs), otherwise by a new
region.  Last, independent regions over the same grid that read the same memory are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from bringup.errors import UnsupportedError
from bringup.graph import Graph, Instr, Value
from bringup.kernel.axes import normalize_axes
from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, forget
from bringup.kernel.indexed import INDEXED, Index
from bringup.kernel.limits import Limits
from bringup.kernel.lower import (
    Region,
    Shape,
    Unfusable,
    inlines,
    is_expensive,
    is_fold,
    lower_region,
    opdef,
    shape_region,
)
from bringup.kernel.movement import is_movement, needs_of
from bringup.kernel.order import by_memory
from bringup.ops.table import Kind
from bringup.records import record

_CHEAP_READS = 4
_MAX_READS = 64
_SMALL = 1 << 12
#: Weight of the values a body grows to: compilers take more than linear time over long ones.
_MAX_WEIGHT = 1000
_EXPENSIVE = 8
#: A value that takes so many times the memory of what it is computed from is unpacked when read.
_UNPACKED = 3


@record
class Launch:
    """One step of the fused graph: a kernel over values, or (kernel None) one instruction left
    whole.
    """

    kernel: Kernel | None
    instr: Instr | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    values: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class _Cluster:
    """A region under construction.

    whole: the instruction left whole, if it is that.
    grid, stages, reads: as in `Shape`; they stay right while ops that only rewrite indices join.
    weight: of the values that the bodies compute, about.
    contracts: a contraction is a member.
    last: where the last member stands in the graph.
    ends: the largest of its own `last` and those of all clusters that it waits for.
    outside: what the members read that none of them makes; None until somebody asks.
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


def fuse(
    graph: Graph,
    limits: Limits,
    *,
    fuses: Callable[[Instr], bool] = lambda _instr: True,
    depth: bool = True,
    donated: frozenset[int] = frozenset(),
) -> list[Launch]:
    """Partition ``graph`` into launches in a runnable order that keeps little in memory.

    fuses: whether an instruction may stand in a kernel; the others are left whole.  depth=False
    makes one kernel of each instruction (nothing is fused), which is the reference for the fused
    result.  donated: positions of inputs whose memory outputs may take.
    Raises UnsupportedError for an instruction that alone exceeds the limits.
    """
    try:
        return _Fusion(graph, limits, fuses, depth, donated).run()
    finally:
        forget()


def _is_made_free(value: Value) -> bool:
    """Whether a value costs nothing wherever it is read; see `_Fusion._is_free`."""
    return value.producer is not None and _Fusion._is_free(value.producer)


class _Fusion:
    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        fuses: Callable[[Instr], bool],
        depth: bool,
        donated: frozenset[int],
    ) -> None:
        self.graph = graph
        self.donated = donated
        self.limits = limits
        self.fuses = fuses
        self.depth = depth
        self.order = {instr: i for i, instr in enumerate(graph.instrs)}
        self.users = graph.users()
        self.stored = set(graph.outputs)
        self.homes: dict[Instr, list[_Cluster]] = {}
        self.maker: dict[Value, _Cluster] = {}
        self.clusters: list[_Cluster] = []

    def run(self) -> list[Launch]:
        for instr in reversed(self.graph.instrs):
            self._place(instr)
        if self.depth:
            self._merge_siblings()
        return self._launches()

    # -- placing one instruction -------------------------------------------------------------------

    def _place(self, instr: Instr) -> None:
        readers = self._readers(instr)
        kept = any(r in self.stored for r in instr.results)
        if not readers and not kept:
            return
        if not self._kernel_able(instr):
            self._new_cluster(instr, whole=True)
        elif self._is_free(instr) and not kept and all(c.whole is None for c in readers):
            for cluster in readers:
                self._add(cluster, instr)
        elif not self.depth or any(c.whole is not None for c in readers) or not readers:
            self._store(instr, readers if self.depth else [])
        else:
            self._place_fused(instr, readers, kept)

    def _place_fused(self, instr: Instr, readers: list[_Cluster], kept: bool) -> None:
        cheap = self._is_cheap(instr)
        if not kept and (len(readers) == 1 or cheap) and self._absorb(readers, instr):
            return
        # One number costs nothing to store, and readers that wait for each other keep more alive.
        spread = is_fold(instr) or instr.result.type.size > 1
        if not cheap and spread and len(readers) > 1:
            readers = self._unite(readers, instr)
            if len(readers) == 1 and not kept and self._absorb(readers, instr):
                return
        self._store(instr, readers, kept)

    def _unite(self, readers: list[_Cluster], instr: Instr) -> list[_Cluster]:
        """Join readers that can become one kernel together with ``instr``, so that it need not be
        stored for them.
        """
        united = [readers[0]]
        for cluster in readers[1:]:
            if not any(self._apart(c, cluster) and self._join(c, cluster, {instr}) for c in united):
                united.append(cluster)
        return united

    def _apart(self, a: _Cluster, b: _Cluster) -> bool:
        """Whether both may be one launch as far as order goes."""
        contracts = a.contracts or b.contracts
        return not contracts and not self._reaches(a, b) and not self._reaches(b, a)

    def _readers(self, instr: Instr) -> list[_Cluster]:
        found: dict[int, _Cluster] = {}
        for result in instr.results:
            for user in self.users[result]:
                for cluster in self.homes.get(user, ()):
                    found[id(cluster)] = cluster
        return list(found.values())

    def _kernel_able(self, instr: Instr) -> bool:
        return len(instr.results) == 1 and inlines(instr) and self.fuses(instr)

    @staticmethod
    def _is_free(instr: Instr) -> bool:
        """Costs nothing wherever it is read: constants, counters, scalars spread over a shape."""
        return opdef(instr).kind is Kind.SOURCE

    @staticmethod
    def _is_cheap(instr: Instr) -> bool:
        return not is_fold(instr) and not is_expensive(instr)

    def _new_cluster(self, instr: Instr, *, whole: bool) -> _Cluster:
        region = Region({instr}, list(instr.results))
        at = self.order[instr]
        cluster = _Cluster(region, instr if whole else None, last=at, ends=at)
        if not whole:
            self._refresh(cluster, self._shape_alone(region, instr))
        self._register(cluster, instr)
        self.clusters.append(cluster)
        self._makes(cluster, instr.results)
        return cluster

    def _makes(self, cluster: _Cluster, values: Iterable[Value]) -> None:
        """Its launch leaves these values in memory; what reads them waits for it."""
        self.maker.update(dict.fromkeys(values, cluster))
        waiting = [cluster]
        while waiting:
            top = waiting.pop()
            users = (user for value in top.region.outputs for user in self.users[value])
            for reader in [c for user in users for c in self.homes.get(user, ())]:
                if reader.ends < top.ends:
                    reader.ends = top.ends
                    waiting.append(reader)

    def _shape_alone(self, region: Region, instr: Instr) -> Shape:
        try:
            return shape_region(region, self.order, self.limits)
        except Unfusable as error:
            raise UnsupportedError(
                f"{instr.op.name} is no kernel of this device: {error}", location=instr.location
            ) from error

    def _register(self, cluster: _Cluster, instr: Instr) -> None:
        self.homes.setdefault(instr, []).append(cluster)

    def _add(self, cluster: _Cluster, instr: Instr) -> None:
        cluster.region.members.add(instr)
        cluster.outside = None
        cluster.weight += _weight(instr)
        cluster.reads.pop(instr.result, None)
        cluster.contracts = cluster.contracts or opdef(instr).kind is Kind.CONTRACTION
        self._register(cluster, instr)

    @staticmethod
    def _refresh(cluster: _Cluster, shape: Shape) -> None:
        cluster.grid, cluster.stages = shape.grid, shape.stages
        cluster.reads = {v: list(r) for v, r in shape.reads.items()}
        cluster.contracts = any(opdef(m).kind is Kind.CONTRACTION for m in cluster.region.members)

    # -- joining -----------------------------------------------------------------------------------

    def _absorb(self, clusters: Sequence[_Cluster], instr: Instr) -> bool:
        """Compute ``instr`` inside each of ``clusters``: all of them or none."""
        tried: list[tuple[_Cluster, Shape | None]] = []
        for cluster in clusters:
            if len(clusters) > 1 and len(cluster.reads.get(instr.result, ())) > _CHEAP_READS:
                return False
            accepted, shape = self._try(cluster, instr)
            if not accepted:
                return False
            tried.append((cluster, shape))
        for cluster, shape in tried:
            indices = cluster.reads.get(instr.result, [])
            self._add(cluster, instr)
            cluster.weight += _weight(instr) * max(len(indices) - 1, 0)
            if shape is not None:
                self._refresh(cluster, shape)
            else:
                _follow(cluster.reads, instr, indices)
        return True

    def _try(self, cluster: _Cluster, instr: Instr) -> tuple[bool, Shape | None]:
        """Whether the cluster may compute ``instr``, with its new shape if that is more than new
        indices.
        """
        indices = cluster.reads.get(instr.result, [])
        if cluster.weight + _weight(instr) * len(indices) > _MAX_WEIGHT:
            return False, None
        if is_fold(instr):
            return self._try_shape(cluster, instr, [])
        reads = {*cluster.reads, *instr.operands} - {instr.result}
        if len(reads) + len(cluster.region.outputs) > self.limits.buffers:
            return False, None
        if is_movement(instr):
            asks = _fills(instr) or instr.op.name in INDEXED
            if (
                asks
                and cluster.contracts
                and self._feeds_contraction(cluster, instr)
                and not self._picks_members(cluster, instr)
            ):
                return False, None  # every product would ask again what one copy settles
            return len(indices) <= _MAX_READS, None
        if not self._worth_repeating(cluster, instr, indices):
            return False, None
        return len(indices) <= _CHEAP_READS, None

    def _picks_members(self, cluster: _Cluster, instr: Instr) -> bool:
        """Whether a gather picks whole members of a batch for a dot: it asks once for each."""
        (user, *others) = self.users[instr.result]
        if instr.op.name != "gather" or others or user.op.name != "dot_general":
            return False
        batch = user.attrs["batch"][user.operands.index(instr.result)]
        positions = set(range(instr.result.type.rank)) - set(instr.attrs["offset"])
        return user in cluster.region.members and positions <= set(batch)

    def _worth_repeating(self, cluster: _Cluster, instr: Instr, indices: list[Index]) -> bool:
        """An expensive value must not be computed many times over, whether per reader or per grid
        point.
        """
        contracted = cluster.contracts and self._feeds_contraction(cluster, instr)
        if contracted and _becomes_codes(instr):
            return False
        if not is_expensive(instr):
            few = sum(not _is_uniform(v) for v in instr.operands) <= 1
            return not contracted or few or self._unpacks(instr)
        if contracted:
            return False
        enough = 4 * max(instr.result.type.size, _SMALL // 4)
        return _evaluations(cluster.grid, indices) <= enough or self._becomes_row(
            cluster, instr, enough
        )

    def _unpacks(self, instr: Instr) -> bool:
        """Whether a value takes several times the memory of what it is computed from, as weights of
        a few bits with a scale for each group do: then reading that again costs less than reading
        the value.
        """
        sources, seen, stack = 0, {instr}, [instr]
        while stack:
            for operand in stack.pop().operands:
                made = operand.producer
                cheap = made is not None and self._kernel_able(made) and self._is_cheap(made)
                if made is None or not cheap:
                    sources += operand.type.nbytes
                elif made not in seen:
                    seen.add(made)
                    stack.append(made)
            if sources * _UNPACKED > instr.result.type.nbytes:
                return False
        return True

    def _becomes_row(self, cluster: _Cluster, instr: Instr, enough: int) -> bool:
        """Whether the reductions behind ``instr`` can join too, so that it is computed once for
        each of their points.
        """
        chain = self._up_to_folds(instr)
        if not any(map(is_fold, chain)):
            return False
        region = Region(cluster.region.members | chain, cluster.region.outputs)
        try:
            return shape_region(region, self.order, self.limits).points <= enough
        except Unfusable:
            return False

    def _up_to_folds(self, instr: Instr) -> set[Instr]:
        """``instr`` and what it is computed from at its own size, as far as the reductions and no
        further.
        """
        chain, stack = {instr}, [instr]
        while stack:
            for operand in stack.pop().operands:
                made = operand.producer
                if made is None or made in chain or not self._kernel_able(made):
                    continue
                if is_fold(made) or operand.type.size <= instr.result.type.size:
                    chain.add(made)
                    if not is_fold(made):
                        stack.append(made)
        return chain

    def _feeds_contraction(self, cluster: _Cluster, instr: Instr) -> bool:
        """Whether a contraction of the cluster reads ``instr``, perhaps through other members."""
        stack, seen = [instr], set()
        while stack:
            for user in self.users[stack.pop().result]:
                if user in cluster.region.members and user not in seen:
                    if opdef(user).kind is Kind.CONTRACTION:
                        return True
                    seen.add(user)
                    if not is_fold(user):
                        stack.append(user)
        return False

    def _try_shape(
        self, cluster: _Cluster, instr: Instr, outputs: list[Value]
    ) -> tuple[bool, Shape | None]:
        if is_fold(instr) and opdef(instr).kind is Kind.CONTRACTION and self._has_fold(cluster):
            return False, None
        region = Region(cluster.region.members | {instr}, cluster.region.outputs + outputs)
        try:
            return True, shape_region(region, self.order, self.limits)
        except Unfusable:
            return False, None

    @staticmethod
    def _has_fold(cluster: _Cluster) -> bool:
        return any(map(is_fold, cluster.region.members))

    def _store(self, instr: Instr, readers: list[_Cluster], kept: bool = True) -> None:
        """Leave the value in memory, made by a reader's kernel if that closes no cycle, else by one
        of its own.

        kept: somebody besides ``readers`` wants it; otherwise a kernel that is its only reader
        computes it without storing it.
        """
        for host in sorted(readers, key=lambda c: -len(c.region.members)):
            others = [c for c in readers if c is not host]
            if host.whole is not None or any(self._reaches(other, host) for other in others):
                continue
            if not self._hosts(host, instr):
                continue
            accepted, shape = self._try_shape(host, instr, list(instr.results))
            if accepted and shape is not None:
                self._add(host, instr)
                if kept or others:
                    host.region.outputs += instr.results
                    self._makes(host, instr.results)
                self._refresh(host, shape)
                return
        self._new_cluster(instr, whole=False)

    def _hosts(self, host: _Cluster, instr: Instr) -> bool:
        """Whether ``host`` may store the value besides its own: not if that makes it compute it
        more than once a point.
        """
        if host.weight >= _MAX_WEIGHT:
            return False
        if (host.contracts and self._feeds_contraction(host, instr)) or len(
            host.reads.get(instr.result, ())
        ) > 1:
            return False
        if is_fold(instr) and opdef(instr).kind is Kind.CONTRACTION:
            return not self._has_fold(host)
        return True

    def _reaches(self, target: _Cluster, source: _Cluster) -> bool:
        """Whether ``source`` needs, directly or not, something ``target`` makes."""
        stack, seen = [source], {id(source)}
        while stack:
            cluster = stack.pop()
            if cluster is target:
                return True
            for value in self._outside(cluster):
                maker = self.maker.get(value)
                if maker is not None and id(maker) not in seen:
                    seen.add(id(maker))
                    if maker.ends >= target.last:  # what waits for the target ends no earlier
                        stack.append(maker)
        return False

    @staticmethod
    def _outside(cluster: _Cluster) -> set[Value]:
        if cluster.outside is None:
            members = cluster.region.members
            cluster.outside = {v for m in members for v in m.operands if v.producer not in members}
        return cluster.outside

    # -- sideways ----------------------------------------------------------------------------------

    def _merge_siblings(self) -> None:
        """Join independent regions that read the same memory over the same grid."""
        at = 0
        while at < len(self.clusters):
            first = self.clusters[at]
            for second in self.clusters[at + 1 :] if first.whole is None else ():
                if self._siblings(first, second) and self._join(first, second, set()):
                    break
            else:
                at += 1

    def _siblings(self, a: _Cluster, b: _Cluster) -> bool:
        if a.whole is not None or b.whole is not None:
            return False
        # A shared number saves no memory traffic, but of small regions the launch is the cost.
        least = 1 if prod(_sizes(a)) <= _SMALL else 2
        shared = any(v.type.size >= least for v in self._outside(a) & self._outside(b))
        return shared and _sizes(a) == _sizes(b) and self._apart(a, b)

    def _join(self, a: _Cluster, b: _Cluster, extra: set[Instr]) -> bool:
        """Make ``b`` part of ``a`` if they are one kernel, also together with ``extra``."""
        reads = {*a.reads, *b.reads}.difference(*(m.results for m in extra))
        reads |= {v for m in extra for v in m.operands if not _is_made_free(v)}
        # A look at the counts first: full kernels meet every other sibling before they are done.
        if len(reads) + len(a.region.outputs) + len(b.region.outputs) > self.limits.buffers:
            return False
        if a.weight + b.weight > _MAX_WEIGHT:
            return False
        region = Region(a.region.members | b.region.members, a.region.outputs + b.region.outputs)
        try:
            shape = shape_region(
                Region(region.members | extra, region.outputs), self.order, self.limits
            )
            if extra:
                shape = shape_region(region, self.order, self.limits)
        except Unfusable:
            return False
        if not extra and shape.stages > max(a.stages, b.stages):
            return False
        a.region, a.outside = region, None
        a.last, a.ends = max(a.last, b.last), max(a.ends, b.ends)
        a.weight += b.weight
        self._refresh(a, shape)
        for member in b.region.members:
            homes = [c for c in self.homes[member] if c is not b and c is not a]
            self.homes[member] = [*homes, a]
        self._makes(a, b.region.outputs)
        self.clusters.remove(b)
        return True

    # -- result ------------------------------------------------------------------------------------

    def _launches(self) -> list[Launch]:
        ordered: list[_Cluster] = []
        done: set[int] = set()
        forwards = list(reversed(self.clusters))  # they were made from the outputs on
        for cluster in sorted(forwards, key=lambda c: c.last):
            self._visit(cluster, ordered, done)
        reads = [self._outside(c) for c in ordered]
        writes = [c.region.outputs for c in ordered]
        launches: list[Launch] = []
        for cluster in [ordered[n] for n in by_memory(self.graph, reads, writes, self.donated)]:
            try:
                launches.append(self._launch(cluster, len(launches)))
            except Unfusable:
                launches += self._launch_apart(cluster, launches)
        return launches

    def _launch_apart(self, cluster: _Cluster, before: list[Launch]) -> list[Launch]:
        """One kernel for each instruction of a cluster whose body grew too large.

        Indices are counted while clusters grow, masks are not: they can multiply.
        """
        written = {value for launch in before for value in launch.writes}
        launches: list[Launch] = []
        for instr in sorted(cluster.region.members, key=self.order.__getitem__):
            kept = instr.result in cluster.region.outputs
            if (self._is_free(instr) and not kept) or instr.result in written:
                continue
            free = {v.producer for v in instr.operands if v.producer is not None}
            members = {instr} | {m for m in free if self._is_free(m) and self._kernel_able(m)}
            alone = _Cluster(Region(members, list(instr.results)))
            launches.append(self._launch(alone, len(before) + len(launches)))
        return launches

    def _visit(self, cluster: _Cluster, ordered: list[_Cluster], done: set[int]) -> None:
        stack: list[tuple[_Cluster, bool]] = [(cluster, False)]
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
            makers = {id(m): m for v in self._outside(top) if (m := self.maker.get(v)) is not None}
            # Regions that share an instruction may begin alike; they never end alike.
            needed = sorted(
                makers.values(),
                key=lambda c: (-min(self.order[m] for m in c.region.members), -c.last),
            )
            stack.extend((m, False) for m in needed if id(m) not in done)

    def _launch(self, cluster: _Cluster, number: int) -> Launch:
        if cluster.whole is not None:
            instr = cluster.whole
            return Launch(
                None, instr, instr.operands, instr.results, instr.operands + instr.results
            )
        name = f"k{number}_{_label(cluster.region, self.order)}"
        lowered = lower_region(cluster.region, self.order, self.limits, name)
        written = set(cluster.region.outputs)
        reads = tuple(v for v in lowered.values if v not in written)
        writes = tuple(v for v in lowered.values if v in written)
        return Launch(normalize_axes(lowered.kernel), None, reads, writes, lowered.values)


def _fills(instr: Instr) -> bool:
    """Whether the instruction puts elements between or around others."""
    attrs = instr.attrs
    return instr.op.name == "pad" and any(
        n > 0 for key in ("lo", "hi", "interior") for n in attrs[key]
    )


def _weight(instr: Instr) -> int:
    return _EXPENSIVE if is_expensive(instr) else 1


def _evaluations(grid: tuple[Axis, ...], indices: list[Index]) -> int:
    """How often a value read at these indices is computed at most: once per grid point and element
    of the axes it needs.
    """
    most = 0
    for index in indices:
        product = 1
        for axis in {*grid, *(a for e in index for a in e.axes())}:
            product *= axis.size
        most = max(most, product)
    return most


def _follow(reads: dict[Value, list[Index]], instr: Instr, indices: list[Index]) -> None:
    """Where the operands of a joining instruction are read, given where its result is."""
    for index in indices:
        if is_movement(instr):
            needed = [(v, at) for v, at, _ in needs_of(instr, index)]
        else:
            needed = [(v, index) for v in instr.operands]
        for value, at in needed:
            known = reads.setdefault(value, [])
            if at not in known:
                known.append(at)


def _is_uniform(value: Value) -> bool:
    """Made of a constant alone."""
    made = value.producer
    while made is not None and is_movement(made) and len(made.operands) == 1:
        made = made.operands[0].producer
    return made is not None and made.op.name == "constant"


def _becomes_codes(instr: Instr) -> bool:
    """Whether floats become integers or floats of a quarter of their size: many tiles then read a
    quarter of the memory, and none rounds again.
    """
    if instr.op.name != "convert":
        return False
    before, after = instr.operands[0].dtype, instr.result.dtype
    return before.is_float and 4 * after.bits <= before.bits and after.kind != "bool"


def _sizes(cluster: _Cluster) -> list[int]:
    return [a.size for a in cluster.grid]


def _label(region: Region, order: dict[Instr, int]) -> str:
    """A readable name from the ops that matter."""
    names = [m.op.name for m in sorted(region.members, key=order.__getitem__) if not is_movement(m)]
    names = [n for n in names if n not in ("constant", "iota", "convert")] or ["copy"]
    return "_".join(dict.fromkeys(names[-4:]))
