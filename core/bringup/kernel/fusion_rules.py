"""The policy of fusion: named rules that refuse what would not be one kernel, or a slow one.

`kernel.fuse` asks three questions.  Each has a list of rules, asked in order; a rule returns why
not, or None if it has nothing against it.  The first refusal decides.

* May a cluster compute an instruction, so that its result need not be in memory?
  `INSIDE_FOLD`, `INSIDE_MOVEMENT` and `INSIDE_ELEMENTWISE`, by the kind of the instruction.
* May a cluster compute an instruction and also store its result?  `STORED_BY`.
* May two clusters become one?  `SIBLINGS` for two that read the same memory, `READERS` for two that
  read one value, which both may then compute inside.

A rule is a function of the question with a docstring that says what it avoids.  To add one, write
it, put it into the lists it belongs to, and give it a case in the tests of this module.
``bringup dump --level fusion`` prints which rule kept each stored value out of its readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from bringup.graph import Instr, Value
from bringup.graph.index import Axis, Index
from bringup.kernel.build import Region, Shape, Unfusable, is_expensive, is_fold
from bringup.kernel.clusters import (
    Cluster,
    Clusters,
    is_cheap,
    is_contraction,
    is_source,
    weight_of,
)
from bringup.kernel.movement import is_indexed, is_movement
from bringup.ops.table import Kind, opdef

#: A value is computed again at so many indices of one kernel.
_INDICES = 4
#: A movement op stands for so many loads.
_LOADS = 64
#: Elements of a value that is small: launching its kernel costs more than its memory.
_SMALL = 1 << 12
#: The weight that bodies grow to: compilers take more than linear time over long ones.
MAX_WEIGHT = 1000
#: A value of so many times the memory of what it is computed from is unpacked when read.
_UNPACKED = 3


@dataclass(slots=True, eq=False)
class Inside:
    """The question whether a cluster may compute an instruction.

    copies: other clusters will compute it too.
    stored: the values that the cluster would store besides its outputs.
    needed_by: the other clusters that would read a stored value.
    shape: of the kernel with the instruction, once `one_kernel` has found it.
    """

    clusters: Clusters
    cluster: Cluster
    instr: Instr
    copies: bool = False
    stored: tuple[Value, ...] = ()
    needed_by: tuple[Cluster, ...] = ()
    shape: Shape | None = None

    @property
    def indices(self) -> list[Index]:
        """The indices at which the cluster reads the result."""
        return self.cluster.reads.get(self.instr.result, [])

    @property
    def feeds_contraction(self) -> bool:
        """Whether a contraction of the cluster would read the result while it multiplies."""
        return self.cluster.contracts and self.clusters.feeds_contraction(self.cluster, self.instr)


@dataclass(slots=True, eq=False)
class Together:
    """The question whether two clusters may become one.

    common: the instruction that both read and that must fit into the kernel as well; None for
    siblings.
    region, shape: of the two together, once `one_kernel_together` has found them.
    """

    clusters: Clusters
    first: Cluster
    second: Cluster
    common: Instr | None = None
    region: Region | None = None
    shape: Shape | None = None


# -- may a cluster compute an instruction? ---------------------------------------------------------


def copies_are_cheap(q: Inside) -> str | None:
    """Several clusters compute a value only if that costs less than storing it."""
    if q.copies and not is_cheap(q.instr):
        return "several kernels read it, and computing it again costs more than storing it"
    return None


def few_copies(q: Inside) -> str | None:
    """Several clusters compute a value only if each reads it at few indices."""
    if q.copies and len(q.indices) > _INDICES:
        return f"several kernels read it, this one at {len(q.indices)} indices"
    return None


def short_body(q: Inside) -> str | None:
    """The body stays short enough for the device's compiler."""
    weight = q.cluster.weight + weight_of(q.instr) * len(q.indices)
    return f"the body would weigh {weight}, more than {MAX_WEIGHT}" if weight > MAX_WEIGHT else None


def one_contraction(q: Inside) -> str | None:
    """A contraction is the only fold of its kernel: it wants a tiling of its own."""
    if is_contraction(q.instr) and q.cluster.has_fold:
        return "a contraction shares no kernel with another fold"
    return None


def one_kernel(q: Inside) -> str | None:
    """The cluster and the instruction have the form of one kernel within the device's limits."""
    region = q.cluster.region
    try:
        q.shape = q.clusters.shape_of(
            Region(region.members | {q.instr}, region.outputs + list(q.stored))
        )
    except Unfusable as error:
        return str(error)
    return None


def few_buffers(q: Inside) -> str | None:
    """The kernel takes no more buffers than the device allows."""
    reads = {*q.cluster.reads, *q.instr.operands} - {q.instr.result}
    buffers = len(reads) + len(q.cluster.region.outputs)
    limit = q.clusters.limits.buffers
    return f"needs {buffers} buffers, the device takes {limit}" if buffers > limit else None


def contraction_reads_plainly(q: Inside) -> str | None:
    """A contraction reads no operand through padding or data-dependent indices.

    It reads each element many times and would decide each time whether it is padding, or look up
    its index; a copy decides once.  A gather of whole members of a batch looks up once for each.
    """
    decides = pads(q.instr) or is_indexed(q.instr)
    if decides and q.feeds_contraction and not _picks_members(q):
        return "the contraction would look up or mask every element again and again"
    return None


def few_loads(q: Inside) -> str | None:
    """A movement op is read at a bounded number of indices: each becomes a load."""
    return f"read at {len(q.indices)} indices" if len(q.indices) > _LOADS else None


def codes_are_stored(q: Inside) -> str | None:
    """A contraction reads values that were rounded to codes of few bits from memory.

    That is a quarter of the memory traffic of the floats, and each is rounded once.
    """
    if becomes_codes(q.instr) and q.feeds_contraction:
        return "the contraction would read four times the memory and round each time"
    return None


def contraction_reads_one_array(q: Inside) -> str | None:
    """A contraction computes an operand from one array, besides numbers that are the same anywhere.

    It would read several arrays many times each instead of one.  Where all of them together are
    much smaller than the operand, as packed weights and their scales are, reading them costs less.
    """
    arrays = sum(not is_uniform(v) for v in q.instr.operands)
    if is_expensive(q.instr) or arrays <= 1 or not q.feeds_contraction:
        return None
    return None if _unpacks(q.clusters, q.instr) else f"the contraction would read {arrays} arrays"


def contraction_computes_cheaply(q: Inside) -> str | None:
    """A contraction computes no expensive op on an operand: it would for every column again."""
    if is_expensive(q.instr) and q.feeds_contraction:
        return "the contraction would compute it for each row or column of the other operand"
    return None


def expensive_once(q: Inside) -> str | None:
    """An expensive value is not computed many more times than it has elements.

    The exception is a value of a reduction that can join as well: then it is computed once for
    each point.
    """
    if not is_expensive(q.instr):
        return None
    enough = 4 * max(q.instr.result.type.size, _SMALL // 4)
    times = _evaluations(q.cluster.grid, q.indices)
    if times <= enough or _joins_with_reductions(q, enough):
        return None
    return f"would be computed {times:,} times for {q.instr.result.type.size:,} elements"


def few_evaluations(q: Inside) -> str | None:
    """An instruction is computed at few indices in one kernel."""
    return f"read at {len(q.indices)} indices" if len(q.indices) > _INDICES else None


# -- may a cluster store it as well? ---------------------------------------------------------------


def host_is_kernel(q: Inside) -> str | None:
    """What the device runs as a call of its own stores nothing else."""
    return "the device runs it as one call" if q.cluster.whole is not None else None


def readers_wait_for_host(q: Inside) -> str | None:
    """No other reader of the value must run before the kernel that stores it."""
    if any(q.clusters.needs(q.cluster, other) for other in q.needed_by):
        return "another reader must run before it"
    return None


def room_for_more(q: Inside) -> str | None:
    """The body is not already as long as bodies may be."""
    weight = q.cluster.weight
    return f"the body weighs {weight}, at least {MAX_WEIGHT}" if weight >= MAX_WEIGHT else None


def contraction_stores_results_only(q: Inside) -> str | None:
    """What a contraction reads is not stored by its kernel: it would be computed many times."""
    return "a contraction of the kernel reads it" if q.feeds_contraction else None


def computed_once_per_point(q: Inside) -> str | None:
    """A value that is stored is read at one index, so that each point computes it once."""
    return f"read at {len(q.indices)} indices" if len(q.indices) > 1 else None


# -- may two clusters be one? ----------------------------------------------------------------------


def two_kernels(q: Together) -> str | None:
    """What the device runs as a call of its own joins nothing."""
    whole = q.first.whole is not None or q.second.whole is not None
    return "the device runs one of them as one call" if whole else None


def same_memory(q: Together) -> str | None:
    """Both read an array in memory, so that one kernel reads it once.

    A shared number saves no memory traffic, but between small kernels the launch is the cost.
    """
    least = 1 if prod(q.first.sizes) <= _SMALL else 2
    shared = q.first.memory_read() & q.second.memory_read()
    return None if any(v.type.size >= least for v in shared) else "they read no common array"


def same_grid(q: Together) -> str | None:
    """Both have a grid of the same sizes."""
    return None if q.first.sizes == q.second.sizes else "their grids differ"


def no_contraction(q: Together) -> str | None:
    """Neither holds a contraction, which wants a tiling of its own."""
    contracts = q.first.contracts or q.second.contracts
    return "a contraction shares no kernel with another cluster" if contracts else None


def independent(q: Together) -> str | None:
    """Neither must run before the other."""
    ask = q.clusters.needs
    waits = ask(q.second, q.first) or ask(q.first, q.second)
    return "one must run before the other" if waits else None


def few_buffers_together(q: Together) -> str | None:
    """The kernel takes no more buffers than the device allows.

    It is asked before `one_kernel_together`, which takes longer: a full kernel meets every other
    sibling before fusion is done.
    """
    reads = {*q.first.reads, *q.second.reads}
    if q.common is not None:
        reads.difference_update(q.common.results)
        reads.update(
            v for v in q.common.operands if v.producer is None or not is_source(v.producer)
        )
    buffers = len(reads) + len(q.first.region.outputs) + len(q.second.region.outputs)
    limit = q.clusters.limits.buffers
    return f"needs {buffers} buffers, the device takes {limit}" if buffers > limit else None


def short_body_together(q: Together) -> str | None:
    """The body stays short enough for the device's compiler."""
    weight = q.first.weight + q.second.weight
    return f"the body would weigh {weight}, more than {MAX_WEIGHT}" if weight > MAX_WEIGHT else None


def one_kernel_together(q: Together) -> str | None:
    """Both have the form of one kernel, also with the instruction that both read."""
    first, second = q.first.region, q.second.region
    region = Region(first.members | second.members, first.outputs + second.outputs)
    try:
        if q.common is not None:
            q.clusters.shape_of(Region(region.members | {q.common}, region.outputs))
        q.shape = q.clusters.shape_of(region)
    except Unfusable as error:
        return str(error)
    q.region = region
    return None


def no_more_stages(q: Together) -> str | None:
    """The kernel has no more stages than the longer one, so that both read their memory at once."""
    assert q.shape is not None
    stages = max(q.first.stages, q.second.stages)
    return f"needs {q.shape.stages} stages, not {stages}" if q.shape.stages > stages else None


InsideRule = Callable[[Inside], str | None]
TogetherRule = Callable[[Together], str | None]

#: May a cluster compute a reduction or a contraction?
INSIDE_FOLD: tuple[InsideRule, ...] = (
    copies_are_cheap,
    few_copies,
    short_body,
    one_contraction,
    one_kernel,
)
#: May a cluster compute an op that only rewrites indices?
INSIDE_MOVEMENT: tuple[InsideRule, ...] = (
    copies_are_cheap,
    few_copies,
    short_body,
    few_buffers,
    contraction_reads_plainly,
    few_loads,
)
#: May a cluster compute any other instruction?
INSIDE_ELEMENTWISE: tuple[InsideRule, ...] = (
    copies_are_cheap,
    few_copies,
    short_body,
    few_buffers,
    codes_are_stored,
    contraction_reads_one_array,
    contraction_computes_cheaply,
    expensive_once,
    few_evaluations,
)
#: May a cluster compute an instruction and store the result?
STORED_BY: tuple[InsideRule, ...] = (
    host_is_kernel,
    readers_wait_for_host,
    room_for_more,
    contraction_stores_results_only,
    computed_once_per_point,
    one_contraction,
    one_kernel,
)
#: May two clusters that read one value become one that computes it?
READERS: tuple[TogetherRule, ...] = (
    no_contraction,
    independent,
    few_buffers_together,
    short_body_together,
    one_kernel_together,
)
#: May two clusters that read the same memory become one?
SIBLINGS: tuple[TogetherRule, ...] = (
    two_kernels,
    same_memory,
    same_grid,
    *READERS,
    no_more_stages,
)


def inside_rules(instr: Instr) -> tuple[InsideRule, ...]:
    """The rules for computing ``instr`` inside a cluster."""
    if is_fold(instr):
        return INSIDE_FOLD
    return INSIDE_MOVEMENT if is_movement(instr) else INSIDE_ELEMENTWISE


# -- what the rules look at ------------------------------------------------------------------------


def pads(instr: Instr) -> bool:
    """Whether the instruction puts elements between or around others."""
    attrs = instr.attrs
    return instr.op.name == "pad" and any(
        n > 0 for key in ("lo", "hi", "interior") for n in attrs[key]
    )


def is_uniform(value: Value) -> bool:
    """Whether all elements are one constant."""
    producer = value.producer
    while producer is not None and is_movement(producer) and len(producer.operands) == 1:
        producer = producer.operands[0].producer
    return producer is not None and producer.literal is not None


def becomes_codes(instr: Instr) -> bool:
    """Whether floats become integers or floats of at most a quarter of their bits."""
    if opdef(instr).kind is not Kind.ELEMENTWISE or len(instr.operands) != 1:
        return False
    before, after = instr.operands[0].dtype, instr.result.dtype
    return before.is_float and 4 * after.bits <= before.bits and after.kind != "bool"


def _picks_members(q: Inside) -> bool:
    """Whether a gather picks whole members of a batch for a product."""
    (user, *others) = q.clusters.users[q.instr.result]
    if q.instr.op.name != "gather" or others or user.op.name != "dot_general":
        return False
    batch = user.attrs["batch"][user.operands.index(q.instr.result)]
    positions = set(range(q.instr.result.type.rank)) - set(q.instr.attrs["offset"])
    return user in q.cluster.region.members and positions <= set(batch)


def _unpacks(clusters: Clusters, instr: Instr) -> bool:
    """Whether a value takes several times the memory of what it is computed from."""
    sources, seen, stack = 0, {instr}, [instr]
    while stack:
        for operand in stack.pop().operands:
            producer = operand.producer
            if (
                producer is None
                or not clusters.can_be_in_kernel(producer)
                or not is_cheap(producer)
            ):
                sources += operand.type.nbytes
            elif producer not in seen:
                seen.add(producer)
                stack.append(producer)
        if sources * _UNPACKED > instr.result.type.nbytes:
            return False
    return True


def _evaluations(grid: tuple[Axis, ...], indices: list[Index]) -> int:
    """How often a value read at these indices is computed at most: once for each grid point and
    each element of the axes that it needs.
    """
    axes = [{*grid, *(axis for e in index for axis in e.axes())} for index in indices]
    return max((prod(axis.size for axis in each) for each in axes), default=0)


def _joins_with_reductions(q: Inside, enough: int) -> bool:
    """Whether the reductions that an instruction depends on can join the cluster too, so that it is
    computed at most ``enough`` times.
    """
    chain = _up_to_folds(q.clusters, q.instr)
    if not any(map(is_fold, chain)):
        return False
    region = Region(q.cluster.region.members | chain, q.cluster.region.outputs)
    try:
        return q.clusters.shape_of(region).points <= enough
    except Unfusable:
        return False


def _up_to_folds(clusters: Clusters, instr: Instr) -> set[Instr]:
    """``instr`` and what it is computed from at its own size, up to and with the reductions."""
    chain, stack = {instr}, [instr]
    while stack:
        for operand in stack.pop().operands:
            producer = operand.producer
            if producer is None or producer in chain or not clusters.can_be_in_kernel(producer):
                continue
            if is_fold(producer) or operand.type.size <= instr.result.type.size:
                chain.add(producer)
                if not is_fold(producer):
                    stack.append(producer)
    return chain
