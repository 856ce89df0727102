"""Commands without a decision of the host between them, and their captured graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bringup.locks import ProcessLock
from bringup.program.program import Step
from bringup_cuda.driver import protocol
from bringup_cuda.driver.errors import is_sticky
from bringup_cuda.runtime.gpu import Gpu

#: Queues one command: takes the table of addresses and the stream.
Action = Callable[[Sequence[int], Any], None]

#: Commands from which on one launch of a graph takes less time than separate calls.
MIN_CAPTURED = 2
#: Graphs that one command list keeps, one for each set of addresses.
MAX_GRAPHS = 8
#: Sets of addresses that are remembered because they may come again.
MAX_SEEN = 32
#: How often a set must have been seen to replace the graph of another: capturing takes as long as a
#: few dozen launches.
MIN_SEEN_TO_REPLACE = 16


class CommandList:
    """Queues commands in order; captured once, they are one launch.

    waits: whether to wait after each command, to learn which one failed.
    """

    __slots__ = ("_actions", "_gpu", "_graphs", "_key_length", "_lock", "_waits")

    def __init__(self, gpu: Gpu, *, waits: bool) -> None:
        self._gpu = gpu
        self._waits = waits
        self._actions: list[tuple[Action, Step | None]] = []
        self._graphs: GraphCache | None = None
        self._key_length = 0
        self._lock = ProcessLock()

    def add(self, action: Action, step: Step | None) -> None:
        """Append a command.  step: the step that it belongs to, for errors."""
        self._actions.append((action, step))

    def finish(self, key_length: int) -> None:
        """End the list.  key_length: how many addresses of a table determine all others."""
        extras = self._gpu.extras
        if extras is not None and len(self._actions) >= MIN_CAPTURED and not self._waits:
            self._graphs = GraphCache(extras)
        self._key_length = key_length

    def run(self, table: Sequence[int]) -> None:
        """Queue all commands, with the addresses of a table."""
        stream = self._gpu.streams.compute
        if self._graphs is None:
            self._queue(table, stream)
            return
        key = tuple(table[: self._key_length])
        # A graph must not be launched while another thread drops it.
        with self._lock:
            try:
                graph = self._graphs.find(key)
                if graph is None and self._graphs.repeats(key):
                    graph = self._capture(self._graphs, key, table)
                if graph is not None:
                    graph.launch(stream)
                    return
            except (
                self._gpu.driver.Error
            ) as error:  # pragma: no cover on cuda-emulated - only drivers
                if is_sticky(error):
                    raise
                # For instance no memory for the graph: single launches may still succeed, and if
                # not, their error names the step.
                self._graphs.disable()
        self._queue(table, stream)

    def _capture(
        self, graphs: GraphCache, key: tuple[int, ...], table: Sequence[int]
    ) -> protocol.Graph:
        streams = self._gpu.streams

        def queue() -> None:
            for action, _ in self._actions:
                action(table, streams.capture)

        # All threads share the stream: only one may capture at a time.
        with streams.capturing:
            return graphs.capture(key, streams.capture, queue)

    def _queue(self, table: Sequence[int], stream: Any) -> None:
        step = None
        try:
            for action, step in self._actions:  # noqa: B007  (the handler reads it)
                action(table, stream)
                if self._waits:  # pragma: no cover - only with BRINGUP_CHECK
                    stream.synchronize()
        except self._gpu.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self._gpu.failed(error, step, alone=self._waits) from error

    def close(self) -> None:
        """Drop code and graphs."""
        with self._lock:
            if self._graphs is not None:
                self._graphs.clear()
            self._actions.clear()


class GraphCache:
    """The captured graphs of one command list, by the addresses of its buffers.

    A memory pool hands out the same memory again, so the calls of a loop repeat after a few
    iterations: addresses that were seen before are captured, and are one launch from then on.
    """

    def __init__(self, extras: protocol.Extras) -> None:
        self.extras = extras
        self._graphs: OrderedDict[tuple[int, ...], protocol.Graph] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._disabled = False

    def find(self, key: tuple[int, ...]) -> protocol.Graph | None:
        """The graph for these addresses."""
        return self._graphs.get(key)

    def repeats(self, key: tuple[int, ...]) -> bool:
        """Whether these addresses were asked for often enough to be worth a graph."""
        if self._disabled:  # pragma: no cover on cuda-emulated - only drivers
            return False
        times = self._seen.pop(key, 0)
        if times >= (1 if len(self._graphs) < MAX_GRAPHS else MIN_SEEN_TO_REPLACE):
            return True
        self._seen[key] = times + 1
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return False

    def capture(
        self, key: tuple[int, ...], stream: Any, queue: Callable[[], None]
    ) -> protocol.Graph:
        """Capture and keep the graph of the work that ``queue`` adds to ``stream``, which nobody
        else uses meanwhile.
        """
        self.extras.begin_capture(stream)
        try:
            queue()
            graph = self._graphs[key] = self.extras.end_capture(stream)
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # Take the stream out of capture mode, which it may refuse after a failure.
            with suppress(Exception):
                self.extras.end_capture(stream).free()
            raise
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)[1].free()
        return graph

    def disable(self) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Capture nothing any more, and free all graphs."""
        self._disabled = True
        with suppress(Exception):  # A failure here shows again where it is reported.
            self.clear()

    def clear(self) -> None:
        """Free all graphs."""
        while self._graphs:
            self._graphs.popitem()[1].free()
