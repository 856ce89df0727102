"""The commands of one program as calls of the driver, over a table of addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from bringup.locks import ProcessLock
from bringup.program.program import ControlStep, Program, Slot, Step
from bringup_cuda import surface
from bringup_cuda.commands import Argument, Clear, Copy, Launch
from bringup_cuda.control import Driven
from bringup_cuda.errors import is_sticky
from bringup_cuda.graphs import GraphCache
from bringup_cuda.keeping import keep
from bringup_cuda.occupancy import blocks_of

if TYPE_CHECKING:
    from bringup_cuda.device import CudaDevice

#: Queues one command: the addresses of the body's table, the stream.
Action = Callable[[Sequence[int], Any], None]
#: From so many commands on, one launch of a graph takes less time.
LEAST_CAPTURED = 2


class Loaded:
    """A module of the driver's, shared by equal programs; the last that releases it drops it.

    settle: waits for queued work, whose code the driver would drop.
    """

    def __init__(self, module: Any, driver: surface.Driver, settle: Callable[[], None]) -> None:
        self.module = module
        self.users = 0
        self._driver = driver
        self._settle = settle
        self._functions: dict[str, Any] = {}

    def function(self, name: str, pointers: int, shared: int) -> Any:
        """A kernel, prepared for launches with so many pointers and bytes of shared memory."""
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self.module.get_function(name)
            found.prepare("P" * pointers)
            if shared:
                # Without asking there are 48 KiB less those that the kernel itself declares.
                allowed = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                found.set_attribute(allowed, shared)
        return found

    def release(self) -> None:
        """One user less."""
        self.users -= 1
        if self.users:
            return
        try:
            self._settle()
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # What the driver does not wait for it does not drop.
            keep(self.module)
            raise
        finally:
            self._functions.clear()
            self.module = None


class Body:
    """The commands of one program, its own or one that a loop runs.

    Its table of addresses holds inputs, outputs, constants, the arena and scratch, then places
    inside these.
    """

    __slots__ = (
        "_bases", "_constants", "_device", "_first", "_items", "_loaded", "_offsets", "_places",
        "_waits",
    )  # fmt: skip

    def __init__(
        self,
        device: CudaDevice,
        loaded: Loaded,
        program: Program,
        constants: Sequence[int],
        *,
        waits: bool,
    ) -> None:
        self._device = device
        self._loaded = loaded
        self._waits = waits
        self._constants = tuple(constants)
        inputs, outputs = len(program.inputs), len(program.outputs)
        after = inputs + outputs + len(constants)
        self._bases = {"input": 0, "output": inputs, "constant": inputs + outputs, "arena": after}
        self._first = after + 2
        self._offsets: dict[tuple[int, int], int] = {}
        self._places: list[tuple[int, int]] = []
        self._items: list[Straight | Driven] = []

    def add(self, command: Launch | Clear | Copy) -> None:
        """The next command."""
        if not self._items or not isinstance(self._items[-1], Straight):
            self._items.append(Straight(self._device, waits=self._waits))
        straight = self._items[-1]
        assert isinstance(straight, Straight)
        if isinstance(command, Launch):
            straight.add(self._launch(command), command.step)
        elif isinstance(command, Clear):
            straight.add(self._clear(command), None)
        elif command.nbytes and command.source != command.target:
            straight.add(self._copy(command), None)

    def add_control(self, step: ControlStep, bodies: Sequence[Body]) -> None:
        """The next command, a loop or branch over bodies of its own."""
        places = [self._place(slot) for slot in step.slots]
        self._items.append(Driven(self._device, step, places, self._bases["arena"] + 1, bodies))

    def finish(self) -> None:
        """There are no more commands."""
        self._places = list(self._offsets)
        for item in self._items:
            if isinstance(item, Straight):
                item.finish(self._first)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], arena: int, scratch: int) -> None:
        """Queue all commands, on these addresses.  The context must be current."""
        table = [*inputs, *outputs, *self._constants, arena, scratch]
        if self._places:
            table += [table[base] + offset for base, offset in self._places]
        for item in self._items:
            item.run(table)

    def close(self) -> None:
        """Let go of code and graphs."""
        for item in self._items:
            item.close()
        self._items.clear()

    def _place(self, argument: Argument) -> int:
        if isinstance(argument, Slot):
            base = self._bases[argument.space]
            base += argument.index if argument.space != "arena" else 0
        else:
            base = self._bases["arena"] + 1
        if not argument.offset:
            return base
        return self._offsets.setdefault((base, argument.offset), self._first + len(self._offsets))

    def _launch(self, command: Launch) -> Action:
        kernel = command.kernel
        places = [self._place(a) for a in command.arguments]
        function = self._loaded.function(kernel.name, len(places), kernel.shared_bytes)
        arguments = _getter(places)
        device = self._device
        blocks = blocks_of(kernel, function, device.driver, device.processors)
        grid, block, shared = (blocks, 1), (kernel.threads, 1, 1), kernel.shared_bytes
        direct = getattr(function, "_launch_kernel", None)
        if direct is not None:  # pragma: no cover on cuda-emulated - only drivers
            # What pycuda's own call ends in.  Before that it sets the shape of the block, which is
            # a call of the driver more and without meaning since CUDA 4.
            pack = Struct(f"{len(places)}P").pack
            return lambda table, stream: direct(
                grid, block, pack(*arguments(table)), shared, stream
            )
        call = function.prepared_async_call
        return lambda table, stream: call(
            grid, block, stream, *arguments(table), shared_size=shared
        )

    def _clear(self, command: Clear) -> Action:
        place, nbytes = self._place(command.target), command.nbytes
        memset = self._device.driver.memset_d8_async

        def clear(table: Sequence[int], stream: Any) -> None:
            memset(table[place], 0, nbytes, stream)

        return clear

    def _copy(self, command: Copy) -> Action:
        source, target = self._place(command.source), self._place(command.target)
        nbytes, memcpy = command.nbytes, self._device.driver.memcpy_dtod_async

        def copy(table: Sequence[int], stream: Any) -> None:
            if table[source] != table[target]:
                memcpy(table[target], table[source], nbytes, stream)

        return copy


class Straight:
    """Commands without a decision of the host between them: captured once, they are one launch."""

    __slots__ = ("_actions", "_device", "_graphs", "_key", "_lock", "_waits")

    def __init__(self, device: CudaDevice, *, waits: bool) -> None:
        self._device = device
        self._waits = waits
        self._actions: list[tuple[Action, Step | None]] = []
        self._graphs: GraphCache | None = None
        self._key = 0
        self._lock = ProcessLock()

    def add(self, action: Action, step: Step | None) -> None:
        """The next command, and what it belongs to."""
        self._actions.append((action, step))

    def finish(self, bases: int) -> None:
        """There are no more.

        bases: how many addresses at the start of a table tell it from others.
        """
        extras = self._device.extras
        if extras is not None and len(self._actions) >= LEAST_CAPTURED and not self._waits:
            self._graphs = GraphCache(extras)
        self._key = bases

    def run(self, table: Sequence[int]) -> None:
        """Queue all commands."""
        stream = self._device.streams.compute
        if self._graphs is None:
            self._queue(table, stream)
            return
        key = tuple(table[: self._key])
        # A graph that another thread drops meanwhile must not be launched.
        with self._lock:
            try:
                graph = self._graphs.find(key)
                if graph is None and self._graphs.repeats(key):
                    graph = self._captured(self._graphs, key, table)
                if graph is not None:
                    graph.launch(stream)
                    return
            except (
                self._device.driver.Error
            ) as error:  # pragma: no cover on cuda-emulated - only drivers
                if is_sticky(error):
                    raise
                # Such as no memory for the graph.  Launch by launch it may go on; what does not is
                # told with its step.
                self._graphs.give_up()
        self._queue(table, stream)

    def _captured(
        self, graphs: GraphCache, key: tuple[int, ...], table: Sequence[int]
    ) -> surface.Graph:
        streams = self._device.streams

        def queue() -> None:
            for action, _ in self._actions:
                action(table, streams.capture)

        # Two threads would find their work in one graph.
        with streams.capturing:
            return graphs.capture(key, streams.capture, queue)

    def close(self) -> None:
        """Let go of code and graphs."""
        with self._lock:
            if self._graphs is not None:
                self._graphs.clear()
            self._actions.clear()

    def _queue(self, table: Sequence[int], stream: Any) -> None:
        step = None
        try:
            for action, step in self._actions:  # noqa: B007  (the handler reads it)
                action(table, stream)
                if self._waits:  # pragma: no cover - only with BRINGUP_CHECK
                    stream.synchronize()
        except (
            self._device.driver.Error
        ) as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self._device.failed(error, step, alone=self._waits) from error


def _getter(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The entries of a table at these places, one at least, as a tuple."""
    if len(places) == 1:
        (place,) = places
        return lambda table: (table[place],)
    return itemgetter(*places)


__all__ = ["Body", "Loaded"]
