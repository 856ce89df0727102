"""The order of launches: what frees memory runs as soon as it may."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

from bringup.graph import Graph, Value

#: Bytes that are not worth waiting for: the place of a number, such as a rate of learning, which
#: many launches wait for that would free much.
_NOTHING = 64


class _Schedule:
    """Launches that have run, and what the others wait for and would free.

    readers: of each value, the launches that have still to read it.
    missing: for each launch, how many of its operands have still to be made.
    growth: for each launch, the bytes of scratch memory that it writes, less those that it is the
    last to read.
    eager: launches that may run and grow no more than `_NOTHING`, by position.
    """

    def __init__(
        self,
        graph: Graph,
        reads: Sequence[Collection[Value]],
        writes: Sequence[Collection[Value]],
        donated: frozenset[int],
    ) -> None:
        self.reads, self.writes = reads, writes
        stored = {value for values in writes for value in values}
        self.scratch = stored.difference(graph.outputs)
        self.reused = {graph.inputs[i] for i in donated}
        self.readers: defaultdict[Value, set[int]] = defaultdict(set)
        for n, values in enumerate(reads):
            for value in values:
                self.readers[value].add(n)
        self.missing = [len(stored.intersection(values)) for values in reads]
        self.growth = [self._nbytes(values) for values in writes]
        self.done: set[int] = set()
        self.eager: list[int] = []
        for value in list(self.readers):
            self._count(value)
        for n in range(len(reads)):
            self._offer(n)

    def run(self, n: int) -> None:
        self.done.add(n)
        for value in self.writes[n]:
            for reader in self.readers[value]:
                self.missing[reader] -= 1
                self._offer(reader)
        for value in self.reads[n]:
            self.readers[value].discard(n)
            self._count(value)

    def _count(self, value: Value) -> None:
        """A reader that is the only one left frees the value."""
        if len(self.readers[value]) == 1:
            (n,) = self.readers[value]
            self.growth[n] -= self._nbytes([value])
            self._offer(n)

    def _offer(self, n: int) -> None:
        if (
            n not in self.done
            and self.growth[n] <= _NOTHING
            and not self.missing[n]
            and self._last(n)
        ):
            heappush(self.eager, n)

    def _last(self, n: int) -> bool:
        """Whether outputs of the launch may be written over every donated input of their size."""
        sizes = {value.type.nbytes for value in self.writes[n] if value not in self.scratch}
        return all(
            len(self.readers[value]) == 1
            for value in self.reused.intersection(self.reads[n])
            if value.type.nbytes in sizes and value.type.nbytes > _NOTHING
        )

    def _nbytes(self, values: Collection[Value]) -> int:
        return sum(value.type.nbytes for value in self.scratch.intersection(values))


def by_memory(
    graph: Graph,
    reads: Sequence[Collection[Value]],
    writes: Sequence[Collection[Value]],
    donated: frozenset[int],
) -> list[int]:
    """An order of launches in which less scratch memory is in use at a time.

    A launch that writes hardly more scratch memory than it is the last to read runs as soon as its
    operands are there, the others as they come.  So in a training step the gradient of weights and
    their update run when their operands are there, and the activations and cotangents that they
    read do not stay in memory until the end of the step.

    reads, writes: values in memory of each launch, in an order that can run.
    donated: inputs whose memory outputs may take.  A launch that reads one and writes an output of
    its size waits for the other readers of that input, as it could not write over it before.
    Returns the positions of all launches.
    """
    schedule = _Schedule(graph, reads, writes, donated)
    order: list[int] = []
    for first in range(len(reads)):
        while schedule.eager or first not in schedule.done:
            n = heappop(schedule.eager) if schedule.eager else first
            if n not in schedule.done:
                order.append(n)
                schedule.run(n)
    return order


__all__ = ["by_memory"]
