"""What a function becomes, as a page: graphs, launches, memory, kernels, loops and code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.errors import UnsupportedError
from bringup.graph import Graph, Instr
from bringup.html import document
from bringup.html.drawing import Node, drawing, picture
from bringup.html.markup import Markup, code, join, pairs, scrolled, tag
from bringup.kernel.form import Kernel
from bringup.loops import Func
from bringup.loops.schedule import Scheduled
from bringup.program.program import Cost, Program, Slot
from bringup.records import record

#: A larger graph is written as text: nobody finds his way in such a picture.
_MOST_NODES = 150
#: Of the picture of memory: the width of a step, and its height.
_STEP, _HEIGHT, _LEFT = 28, 220, 90


@record
class Levels:
    """A compiled function.

    graph, optimized: as it was traced, and after the passes.
    loops: those of kernels and of steps that the op library has.
    schedules: of the kernels; None for one that is not run by loops.
    source, asm: raise UnsupportedError where the backend shows none.
    """

    graph: Graph
    optimized: Graph
    programs: Sequence[Program]
    schedules: Sequence[Scheduled | None]
    loops: Sequence[Func]
    cost: Cost
    source: Callable[[], str]
    asm: Callable[[], str]

    @property
    def kernels(self) -> Sequence[Kernel]:
        """In order of launch."""
        return [kernel for program in self.programs for kernel in program.kernels]


def page(levels: Levels) -> str:
    """All levels as one page."""
    cost = levels.cost
    facts: list[tuple[str, str]] = [
        ("launches", f"{cost.kernels:,}"),
        ("bytes read", f"{cost.bytes_read:,}"),
        ("bytes written", f"{cost.bytes_written:,}"),
        ("operations", f"{cost.flops:,}"),
        ("scratch", f"{cost.arena_bytes:,} bytes"),
        ("most memory of a call", f"{cost.peak_bytes:,} bytes"),
    ]
    head = tag(
        "header",
        tag("p", "Levels", class_="kicker"),
        tag("h1", levels.graph.name),
        pairs([(name, value) for name, value in facts]),
    )
    sections = [
        ("As traced", "traced", _graph(levels.graph)),
        ("After passes", "passes", _graph(levels.optimized)),
        ("Launches", "launches", join(map(_program, levels.programs))),
        ("Kernels", "kernels", join(_kernels(levels))),
        ("Code", "code", join(_code(levels))),
    ]
    return document(f"{levels.graph.name}: levels", head, sections)


def _graph(graph: Graph) -> Markup:
    """A picture of a graph, or its text if it is large; then the bodies of its loops and branches,
    each likewise.
    """
    large = len(graph.instrs) + len(graph.inputs) > _MOST_NODES
    whole = code(str(graph)) if large else scrolled(drawing(graph), f"Graph {graph.name}")
    parts = [whole]
    for instr in graph.instrs:
        for name, body in _bodies(instr):
            title = f"{name} of {instr.op.name}"
            parts.append(tag("details", tag("summary", title), _graph(body), open=len(body) < 40))
    return join(parts)


def _bodies(instr: Instr) -> Iterator[tuple[str, Graph]]:
    for name, value in instr.attrs.items():
        if isinstance(value, Graph):
            yield name, value
        elif isinstance(value, tuple):
            numbered = enumerate(value)
            yield from ((f"{name} {n}", each) for n, each in numbered if isinstance(each, Graph))


# -- a program -------------------------------------------------------------------------------------


def _program(program: Program) -> Markup:
    parts = [tag("h3", program.name)]
    if len(program.steps) <= _MOST_NODES:
        parts.append(scrolled(_launches(program), f"Launches of {program.name}"))
    parts += [scrolled(memory, "Memory")] if (memory := _memory(program)) else []
    parts.append(tag("details", tag("summary", "as text"), code(str(program))))
    for step in program.steps:
        for inner in getattr(step, "programs", ()):
            title = f"{inner.name} of {step.name}"
            parts.append(tag("details", tag("summary", title), _program(inner)))
    return join(parts)


def _launches(program: Program) -> Markup:
    """Steps between arguments and results; an edge is a buffer."""
    nodes, edges = list[Node](), list[tuple[int, int]]()
    writer: dict[tuple[str, int, int], int] = {}
    for n, type_ in enumerate(program.inputs):
        writer["input", n, 0] = len(nodes)
        nodes.append(Node((f"argument {n}", str(type_)), f"argument {n}: {type_}", "input"))
    sinks = list(range(len(nodes)))
    for step in program.steps:
        number = len(nodes)
        types = ", ".join(str(slot.type) for slot in step.results)
        nodes.append(Node((step.name, types), f"{step.name}: {types}", "op"))
        for place in dict.fromkeys(map(_place, step.operands)):
            if place in writer and writer[place] != number:
                edges.append((writer[place], number))
        writer |= {_place(slot): number for slot in step.results}
    for n, type_ in enumerate(program.outputs):
        if ("output", n, 0) in writer:
            edges.append((writer["output", n, 0], len(nodes)))
        nodes.append(Node((f"result {n}", str(type_)), f"result {n}: {type_}", "output"))
    names = ", then ".join(step.name for step in program.steps)
    return picture(nodes, edges, sinks, f"launches: {names}")


def _place(slot: Slot) -> tuple[str, int, int]:
    return slot.space, slot.index, slot.offset


def _memory(program: Program) -> Markup | None:
    """Scratch memory: across the steps, up the bytes; a box is a buffer as long as it is needed."""
    lives: dict[tuple[int, int], tuple[int, int, Slot]] = {}
    finished: list[tuple[int, int, Slot]] = []
    for n, step in enumerate(program.steps):
        for slot in step.operands:
            if slot.space == "arena" and (key := (slot.offset, slot.type.nbytes)) in lives:
                lives[key] = (lives[key][0], n, slot)
        for slot in step.slots:
            if slot.space == "arena" and slot not in step.operands:
                key = (slot.offset, slot.type.nbytes)
                finished += [lives[key]] if key in lives else []
                lives[key] = (n, n, slot)
    finished += lives.values()
    if not finished or not program.arena_bytes:
        return None
    width = _LEFT + _STEP * len(program.steps) + 8
    scale = _HEIGHT / program.arena_bytes
    boxes = []
    for first, last, slot in finished:
        words = f"{slot.type} at {slot.offset:,}, steps {first} to {last}"
        boxes.append(
            tag(
                "g",
                tag("title", words),
                tag(
                    "rect",
                    x=_LEFT + _STEP * first,
                    y=_HEIGHT - (slot.offset + slot.type.nbytes) * scale,
                    width=_STEP * (last - first + 1),
                    height=max(1.5, slot.type.nbytes * scale),
                ),
            )
        )
    ticks = [
        tag("text", f"{part * program.arena_bytes // 4:,}", x=_LEFT - 8,
            y=max(9, _HEIGHT * (4 - part) / 4))
        for part in range(5)
    ]  # fmt: skip
    title = f"{len(finished)} buffers in {program.arena_bytes:,} bytes of scratch"
    frame = tag("path", d=f"M{_LEFT} 0V{_HEIGHT}H{width}", class_="frame")
    svg = tag(
        "svg",
        tag("title", title),
        boxes,
        frame,
        ticks,
        role="img",
        class_="memory",
        width=width,
        height=_HEIGHT + 2,
        viewBox=f"0 0 {width} {_HEIGHT + 2}",
    )
    return join((tag("p", f"{title}: across the steps, up the bytes.", class_="hint"), svg))


# -- kernels and code ------------------------------------------------------------------------------


def _kernels(levels: Levels) -> list[Markup]:
    parts = []
    both = zip(levels.kernels, levels.schedules, strict=True)
    for number, (kernel, scheduled) in enumerate(both):
        texts = [("kernel", str(kernel))]
        if scheduled is not None and scheduled.steps.steps:
            texts += [("loops before the schedule", str(scheduled.before))]
            texts += [("schedule", str(scheduled.steps))]
            texts += [("loops after it", str(scheduled.after))]
        elif scheduled is not None:
            texts += [("loops, which no schedule changes", str(scheduled.after))]
        inner = (tag("div", tag("h4", title), code(text)) for title, text in texts)
        side = tag("div", inner, class_="side")
        parts.append(
            tag("details", tag("summary", f"{number}: {kernel!r}"), side, open=number == 0)
        )
    names = {kernel.name for kernel in levels.kernels}
    parts += [
        tag("details", tag("summary", f"{func.name}: of the op library"), code(str(func)))
        for func in levels.loops
        if func.name not in names
    ]
    return parts or [tag("p", "There are no kernels.")]


def _code(levels: Levels) -> list[Markup]:
    parts = []
    for title, get in (("source", levels.source), ("assembly", levels.asm)):
        try:
            inner = code(get())
        except UnsupportedError as error:
            inner = tag("p", f"Not shown: {error.what}.")
        parts.append(tag("details", tag("summary", title), inner))
    return parts
