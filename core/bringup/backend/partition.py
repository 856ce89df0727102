"""Cut a graph into segments for a device and its explicit fallback, and count what moves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import cycle

from bringup.backend.placement import Placement, Target, how, obstacle, runs_on_host, unsupported
from bringup.graph import Builder, Graph, Instr, Value, has_effects
from bringup.graph.printer import Numbering, format_instr
from bringup.records import record


@record
class Segment:
    """A part of a graph for one device.

    graph: stands alone.
    inputs, outputs: the values of the whole graph that its inputs and outputs stand for, in order.
    loop: the instruction of the whole graph that it is, if that is a loop or branch which core runs
    for the device.
    """

    device: str
    graph: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    loop: Instr | None = None


@record
class Transfer:
    """A value of the whole graph that moves just before segment number ``before``.

    Results that move at the end have the number of segments there.
    """

    value: Value
    source: str
    target: str
    before: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.value.type.nbytes


@record
class Partition:
    """A graph cut for two devices: run the segments in order, moving what the transfers say.

    Inputs of the graph start on the first device, and its outputs end there.  An output that is an
    input of the graph stands in no segment.
    """

    segments: tuple[Segment, ...]
    transfers: tuple[Transfer, ...]
    report: tuple[Placement, ...]

    @property
    def bytes_moved(self) -> int:
        """Between the devices, in all."""
        return sum(t.nbytes for t in self.transfers)


def partition(graph: Graph, device: Target, fallback: Target | None = None) -> Partition:
    """Give ``device`` every instruction it can run and the rest to ``fallback``.

    graph: optimised, its composites decomposed as far as ``device`` needs.  Instructions are
    gathered into as few alternations as a greedy schedule finds; a loop or branch that core runs is
    a segment by itself.  Then each moves to the segment that reads it, where fusion can put both
    into one kernel, unless more memory would have to last until then.  Constants are made anew
    where they are read.
    Raises UnsupportedError for what neither device runs.
    """
    handed = {*graph.outputs, *_host_operands(graph, device)}
    home = {
        instr: _choose(graph, instr, device, fallback)
        for instr in graph.instrs
        if instr.literal is None or not handed.isdisjoint(instr.results)
    }
    names = (device.name, _HOST, *(() if fallback is None else (fallback.name,)))
    parts = _next_to_readers(graph, list(_gather(home, names)), handed)
    segments = tuple(_segment(graph, name, instrs, device.name, handed) for name, instrs in parts)
    transfers = tuple(_transfers(graph, segments, device.name))
    report = tuple(_report(graph, segments, parts, transfers, device, fallback))
    return Partition(segments, transfers, report)


#: Where what core runs is at home; no device has that name.
_HOST = ""


def _host_operands(graph: Graph, device: Target) -> Iterator[Value]:
    """What core hands to the loops and branches that it runs."""
    for instr in graph.instrs:
        if runs_on_host(instr, device.capabilities):
            yield from instr.operands


def _choose(graph: Graph, instr: Instr, device: Target, fallback: Target | None) -> str:
    on_host = runs_on_host(instr, device.capabilities)
    first = obstacle(instr, device.capabilities)
    if first is None:
        return _HOST if on_host else device.name
    if fallback is None:
        raise unsupported(graph, instr, device.name, first)
    second = obstacle(instr, fallback.capabilities)
    if second is None and not runs_on_host(instr, fallback.capabilities):
        return fallback.name
    if on_host:  # parts of its parts go to the fallback
        return _HOST
    if second is None:
        return fallback.name
    both = f"{first}; nor on {fallback.name}: {second}"
    raise unsupported(graph, instr, device.name, both)


def _gather(home: dict[Instr, str], names: tuple[str, ...]) -> Iterator[tuple[str, list[Instr]]]:
    """Runs of instructions of one device, each as long as dependencies allow."""
    pending = list(home)
    effects = [instr for instr in home if has_effects(instr.op, instr.attrs)]
    # Effects stay in the order in which they were asked for.
    before = dict(zip(effects[1:], effects, strict=False))
    done: set[Instr] = set()
    turns = cycle(names)
    while pending:
        here = next(turns)
        run: list[Instr] = []
        waiting: list[Instr] = []
        for instr in pending:
            needs = {v.producer for v in instr.operands if v.producer in home}
            if instr in before:
                needs.add(before[instr])
            alone = here == _HOST and bool(run)
            if home[instr] == here and needs <= done and not alone:
                run.append(instr)
                done.add(instr)
            else:
                waiting.append(instr)
        if run:
            yield here, run
        pending = waiting


def _next_to_readers(
    graph: Graph, parts: Sequence[tuple[str, list[Instr]]], handed: Collection[Value]
) -> list[tuple[str, list[Instr]]]:
    """Each instruction in the last part of its device that is not behind a part that reads it.

    What reads more bytes than it makes stays, unless they are needed there anyhow.
    """
    users, every = graph.users(), [instr for _, run in parts for instr in run]
    place = {instr: number for number, (_, run) in enumerate(parts) for instr in run}
    last_read = {
        value: max((place[user] for user in users[value]), default=0)
        for instr in every
        for value in instr.results
    } | dict.fromkeys((*graph.inputs, *graph.outputs), len(parts))
    for instr in reversed(every):
        home = parts[place[instr]][0]
        readers = [place[u] for value in instr.results for u in users[value]]
        if not readers or has_effects(instr.op, instr.attrs) or home == _HOST:
            continue
        number = max(n for n in range(min(readers) + 1) if parts[n][0] == home)
        kept = sum(v.type.nbytes for v in instr.operands if last_read.get(v, number) < number)
        if kept <= sum(value.type.nbytes for value in instr.results):
            place[instr] = number
            last_read |= {v: max(last_read.get(v, 0), number) for v in instr.operands}
    moved = [(name, [i for i in every if place[i] == n]) for n, (name, _) in enumerate(parts)]
    return [(name, run) for name, run in moved if run]


def _segment(
    graph: Graph, name: str, instrs: Sequence[Instr], first: str, handed: Collection[Value]
) -> Segment:
    """first: the device for which core runs loops.  handed: values that never are made anew."""
    on_host = name == _HOST
    builder = Builder()
    table: dict[Value, Value] = {}
    inputs: list[Value] = []
    for instr in instrs:
        for value in instr.operands:
            if value in table:
                continue
            if not on_host and value.producer is not None and value.literal is not None:
                _copy(builder, value.producer, table)
            else:
                table[value] = builder.input(value.type)
                inputs.append(value)
        _copy(builder, instr, table)
    outputs = tuple(_needed_later(graph, instrs, handed))
    device = first if on_host else name
    part = builder.build([table[v] for v in outputs], f"{graph.name}.{device}")
    return Segment(device, part, tuple(inputs), outputs, instrs[0] if on_host else None)


def _copy(builder: Builder, instr: Instr, table: dict[Value, Value]) -> None:
    builder.location = instr.location
    results = builder.emit(instr.op, [table[v] for v in instr.operands], instr.attrs)
    table.update(zip(instr.results, results, strict=True))


def _needed_later(
    graph: Graph, instrs: Sequence[Instr], handed: Collection[Value]
) -> Iterator[Value]:
    inside = set(instrs)
    users = graph.users()
    for instr in instrs:
        for value in instr.results:
            read_elsewhere = any(u not in inside for u in users[value])
            if value in handed or (read_elsewhere and instr.literal is None):
                yield value


def _transfers(graph: Graph, segments: Sequence[Segment], first: str) -> Iterator[Transfer]:
    places: dict[Value, list[str]] = {v: [first] for v in graph.inputs}
    for number, segment in enumerate(segments):
        yield from _moves(places, segment.inputs, segment.device, number)
        places.update({v: [segment.device] for v in segment.outputs})
    yield from _moves(places, dict.fromkeys(graph.outputs), first, len(segments))


def _moves(
    places: dict[Value, list[str]], values: Iterable[Value], target: str, number: int
) -> Iterator[Transfer]:
    for value in values:
        if target not in places[value]:
            yield Transfer(value, places[value][0], target, number)
            places[value].append(target)


def _report(
    graph: Graph,
    segments: Sequence[Segment],
    parts: Sequence[tuple[str, list[Instr]]],
    transfers: Sequence[Transfer],
    device: Target,
    fallback: Target | None,
) -> Iterator[Placement]:
    names = Numbering(graph.inputs, graph.instrs)
    for number, (segment, (_, instrs)) in enumerate(zip(segments, parts, strict=True)):
        due = {t.value: t.nbytes for t in transfers if t.before == number}
        for instr in instrs:
            moved = sum(due.pop(v, 0) for v in instr.operands)
            why = obstacle(instr, device.capabilities)
            reason = how(instr, device.capabilities) if why is None else f"{device.name}: {why}"
            yield Placement(format_instr(instr, names), segment.device, reason, moved)
    back = sum(t.nbytes for t in transfers if t.before == len(parts))
    if back and fallback is not None:
        yield Placement("return", device.name, f"results made on {fallback.name}", back)
