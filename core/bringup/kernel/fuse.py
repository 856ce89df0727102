"""Fusion: partition a graph into clusters, each one launch.

Instructions are visited from the outputs backwards, so that all readers of a value are placed
before it is.  A value that one cluster alone reads joins that cluster if the result is still one
kernel; a cheap value is computed again in every cluster that reads it; anything else is stored, by
the cluster of a reader where that is possible (a kernel with several outputs), otherwise by a new
cluster.  Last, independent clusters over the same grid that read the same memory become one.

What may join what is decided by the rules of `kernel.fusion_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from bringup.errors import Location
from bringup.graph import Graph, Instr, Value
from bringup.graph.index import forget
from bringup.graph.printer import Numbering, format_instr
from bringup.kernel.axes import normalize_axes
from bringup.kernel.build import Region, Unfusable, build_kernel, is_fold
from bringup.kernel.clusters import Cluster, Clusters, is_cheap, is_source, weight_of
from bringup.kernel.form import Kernel
from bringup.kernel.fusion_rules import (
    READERS,
    SIBLINGS,
    STORED_BY,
    Inside,
    Together,
    TogetherRule,
    inside_rules,
)
from bringup.kernel.limits import Limits
from bringup.kernel.movement import is_movement
from bringup.kernel.order import by_memory
from bringup.ops.table import Kind, OpDef, opdef
from bringup.records import record


@record
class Launch:
    """One step of the fused graph: a kernel over values, or (kernel None) one instruction left
    whole.

    values: what it reads and writes, in the order of the kernel's buffers.
    location: of the user's code.
    """

    kernel: Kernel | None
    instr: Instr | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    values: tuple[Value, ...]
    location: Location | None = None


@record
class Refusal:
    """A rule that kept an instruction out of a cluster, and its reason."""

    instr: Instr
    cluster: Cluster
    rule: str
    reason: str


def fuse(
    graph: Graph,
    limits: Limits,
    *,
    fuses: Callable[[Instr], bool] = lambda _instr: True,
    depth: bool = True,
    donated: frozenset[int] = frozenset(),
    report: list[str] | None = None,
) -> list[Launch]:
    """Partition ``graph`` into launches in a runnable order that keeps little in memory.

    fuses: whether an instruction may stand in a kernel; the others are left whole.  depth=False
    makes one kernel of each instruction (nothing is fused), which is the reference for the fused
    result.  donated: positions of inputs whose memory outputs may take.
    report: a list to which lines are added that say, for each value that one launch stores for
    another, which rules kept it out of the launches that read it.
    Raises UnsupportedError for an instruction that alone exceeds the limits.
    """
    try:
        fusion = _Fusion(graph, limits, fuses, depth, donated)
        launches = fusion.run()
        if report is not None:
            report += fusion.explain(launches)
        return launches
    finally:
        forget()


_Asked = TypeVar("_Asked", Inside, Together)


class _Fusion:
    """The partition of one graph.

    depth: False leaves every instruction in a cluster of its own.
    refusals: what the rules of `kernel.fusion_rules` refused, in order.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        fuses: Callable[[Instr], bool],
        depth: bool,
        donated: frozenset[int],
    ) -> None:
        self.graph = graph
        self.limits = limits
        self.depth = depth
        self.donated = donated
        self.clusters = Clusters(graph, limits, fuses)
        self.refusals: list[Refusal] = []

    def run(self) -> list[Launch]:
        for instr in reversed(self.graph.instrs):
            self._place(instr)
        if self.depth:
            self._merge_siblings()
        return self._launches()

    # -- placing one instruction -------------------------------------------------------------------

    def _place(self, instr: Instr) -> None:
        readers = self.clusters.readers(instr)
        is_output = not self.clusters.outputs.isdisjoint(instr.results)
        if not readers and not is_output:
            return
        in_kernels = all(reader.whole is None for reader in readers)
        if not self.clusters.can_be_in_kernel(instr):
            self.clusters.new(instr, whole=True)
        elif is_source(instr) and not is_output and in_kernels:
            for reader in readers:
                self.clusters.add(reader, instr)
        elif not self.depth or not in_kernels or not readers:
            self._store(instr, readers if self.depth else [])
        else:
            self._place_fused(instr, readers, is_output)

    def _place_fused(self, instr: Instr, readers: list[Cluster], is_output: bool) -> None:
        if not is_output and self._compute_inside(readers, instr):
            return
        # One number costs nothing to store, and readers that wait for each other keep more alive.
        spread = is_fold(instr) or instr.result.type.size > 1
        if not is_cheap(instr) and spread and len(readers) > 1:
            readers = self._unite(readers, instr)
            if len(readers) == 1 and not is_output and self._compute_inside(readers, instr):
                return
        self._store(instr, readers, is_output)

    def _compute_inside(self, readers: Sequence[Cluster], instr: Instr) -> bool:
        """Make ``instr`` a member of each of ``readers``: of all of them or of none."""
        questions: list[Inside] = []
        for reader in readers:
            question = Inside(self.clusters, reader, instr, copies=len(readers) > 1)
            if not self._allowed(inside_rules(instr), question, instr, reader):
                return False
            questions.append(question)
        for question in questions:
            cluster = question.cluster
            cluster.weight += weight_of(instr) * max(len(question.indices) - 1, 0)
            self.clusters.add(cluster, instr, question.shape)
        return True

    def _store(self, instr: Instr, readers: list[Cluster], read_elsewhere: bool = True) -> None:
        """Leave the value in memory, made by a reader's kernel if the rules allow it, otherwise by
        one of its own.

        read_elsewhere: something besides ``readers`` reads the value; otherwise a kernel that is
        its only reader computes it without storing it.
        """
        for host in sorted(readers, key=lambda c: -len(c.region.members)):
            others = tuple(reader for reader in readers if reader is not host)
            question = Inside(self.clusters, host, instr, stored=instr.results, needed_by=others)
            if not self._allowed(STORED_BY, question, instr, host):
                continue
            self.clusters.add(host, instr, question.shape)
            if read_elsewhere or others:
                host.region.outputs += instr.results
                self.clusters.add_outputs(host, instr.results)
            return
        self.clusters.new(instr, whole=False)

    # -- joining clusters --------------------------------------------------------------------------

    def _unite(self, readers: list[Cluster], instr: Instr) -> list[Cluster]:
        """Join readers that can become one kernel together with ``instr``, so that it need not be
        stored for them.
        """
        united = [readers[0]]
        for reader in readers[1:]:
            if not any(
                self._merge(READERS, Together(self.clusters, first, reader, instr), instr)
                for first in united
            ):
                united.append(reader)
        return united

    def _merge_siblings(self) -> None:
        """Join independent clusters that read the same memory over the same grid."""
        clusters = self.clusters.all
        position = 0
        while position < len(clusters):
            first = clusters[position]
            for second in clusters[position + 1 :] if first.whole is None else ():
                if self._merge(SIBLINGS, Together(self.clusters, first, second)):
                    break
            else:
                position += 1

    def _merge(
        self,
        rules: tuple[TogetherRule, ...],
        question: Together,
        instr: Instr | None = None,
    ) -> bool:
        """Make two clusters one if the rules allow it."""
        if not self._allowed(rules, question, instr, question.first):
            return False
        assert question.region is not None
        assert question.shape is not None
        self.clusters.merge(question.first, question.second, question.region, question.shape)
        return True

    def _allowed(
        self,
        rules: tuple[Callable[[_Asked], str | None], ...],
        question: _Asked,
        instr: Instr | None,
        cluster: Cluster,
    ) -> bool:
        """Whether no rule refuses; a refusal to place ``instr`` is remembered."""
        for rule in rules:
            reason = rule(question)
            if reason is not None:
                if instr is not None:
                    self.refusals.append(Refusal(instr, cluster, rule.__name__, reason))
                return False
        return True

    # -- result ------------------------------------------------------------------------------------

    def _launches(self) -> list[Launch]:
        ordered = self.clusters.in_order()
        reads = [cluster.memory_read() for cluster in ordered]
        writes = [cluster.region.outputs for cluster in ordered]
        launches: list[Launch] = []
        for cluster in [ordered[n] for n in by_memory(self.graph, reads, writes, self.donated)]:
            try:
                launches.append(self._launch(cluster, len(launches)))
            except Unfusable as error:
                members = cluster.region.members
                self.refusals += (Refusal(m, cluster, "one_kernel", str(error)) for m in members)
                launches += self._launch_apart(cluster, launches)
        return launches

    def _launch_apart(self, cluster: Cluster, before: list[Launch]) -> list[Launch]:
        """One kernel for each instruction of a cluster whose body grew too large.

        Indices are counted while clusters grow, masks are not: they can multiply.
        """
        written = {value for launch in before for value in launch.writes}
        launches: list[Launch] = []
        for instr in sorted(cluster.region.members, key=self.clusters.order.__getitem__):
            is_output = instr.result in cluster.region.outputs
            if (is_source(instr) and not is_output) or instr.result in written:
                continue
            makers = {v.producer for v in instr.operands if v.producer is not None}
            sources = {m for m in makers if is_source(m) and self.clusters.can_be_in_kernel(m)}
            alone = Cluster(Region({instr} | sources, list(instr.results)))
            launches.append(self._launch(alone, len(before) + len(launches)))
        return launches

    def _launch(self, cluster: Cluster, number: int) -> Launch:
        if cluster.whole is not None:
            instr = cluster.whole
            values = instr.operands + instr.results
            return Launch(None, instr, instr.operands, instr.results, values, instr.location)
        order = self.clusters.order
        name = f"k{number}_{_label(cluster.region, order)}"
        lowered = build_kernel(cluster.region, order, self.limits, name)
        written = set(cluster.region.outputs)
        reads = tuple(v for v in lowered.values if v not in written)
        writes = tuple(v for v in lowered.values if v in written)
        makers = (v.producer for v in writes if v.producer is not None)
        location = next((m.location for m in makers if m.location is not None), None)
        kernel = normalize_axes(lowered.kernel)
        return Launch(kernel, None, reads, writes, lowered.values, location)

    # -- explanation -------------------------------------------------------------------------------

    def explain(self, launches: Sequence[Launch]) -> list[str]:
        """For each value that one launch leaves in memory for another: both, and the refusals."""
        numbering = Numbering(self.graph.inputs, self.graph.instrs)
        makers = {value: _name(launch) for launch in launches for value in launch.writes}
        refusals: defaultdict[Instr, list[Refusal]] = defaultdict(list)
        for refusal in self.refusals:
            refusals[refusal.instr].append(refusal)
        lines: list[str] = []
        for value, maker in makers.items():
            readers = [_name(launch) for launch in launches if value in launch.reads]
            instr = value.producer
            if not readers or instr is None:
                continue
            lines.append(format_instr(instr, numbering))
            lines.append(f"  stored by {maker}, read by {', '.join(readers)}")
            if not self.clusters.can_be_in_kernel(instr):
                lines.append("  the device runs it as one call")
            elif value in self.clusters.outputs:
                lines.append("  it is an output of the program")
            reasons = [
                f"  not in {makers[r.cluster.final.region.outputs[0]]}: {r.rule}: {r.reason}"
                for r in refusals[instr]
            ]
            lines += dict.fromkeys(reasons)
        return lines


def _name(launch: Launch) -> str:
    if launch.kernel is not None:
        return launch.kernel.name
    assert launch.instr is not None
    return f"the call of {launch.instr.op.name}"


def _is_minor(op: OpDef) -> bool:
    return op.kind is Kind.SOURCE or op.adapts


def _label(region: Region, order: dict[Instr, int]) -> str:
    """A readable name from the ops that matter."""
    members = sorted(region.members, key=order.__getitem__)
    names = [m.op.name for m in members if not is_movement(m) and not _is_minor(opdef(m))]
    names = names or ["copy"]
    return "_".join(dict.fromkeys(names[-4:]))
