"""A program as a picture: inputs above, outputs below, wrong and guilty nodes marked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bringup.graph import Graph, Value
from bringup.graph.printer import Numbering, format_instr
from bringup.html.layout import HEIGHT, Placed, place
from bringup.html.markup import Markup, join, tag
from bringup.records import record

# Width of a character of the picture's monospaced text, and room beside it.
_CHARACTER, _PADDING = 7.3, 20
_MAX_CHARACTERS = 30
_ARROW = 6


@record
class Node:
    """A box: two lines of text, a longer title, and the class that it is drawn by."""

    lines: tuple[str, str]
    title: str
    look: str

    @property
    def width(self) -> float:
        """The width that its text needs."""
        return _CHARACTER * max(map(len, self.lines)) + _PADDING


def drawing(
    graph: Graph,
    recipes: Sequence[str] = (),
    wrong: Collection[int] = (),
    guilty: Collection[int] = (),
) -> Markup:
    """An SVG picture of a graph.

    recipes: what fills each input.  wrong: numbers of outputs with wrong elements.  guilty: numbers
    of the instructions that are known to cause them.
    """
    return picture(*_parts(graph, recipes, wrong, guilty), _in_words(graph, wrong, guilty))


def picture(
    nodes: Sequence[Node], edges: Sequence[tuple[int, int]], sinks: Collection[int], words: str
) -> Markup:
    """An SVG picture of nodes in layers.

    edges, sinks: as `bringup.html.layout.place` takes them.  words: the picture for who cannot see.
    """
    placed = place([node.width for node in nodes], edges, sinks)
    ports = _ports(placed, edges)
    shapes = [_edge(placed, way, port) for way, port in zip(placed.routes, ports, strict=True)]
    shapes += [_node(placed, n, node) for n, node in enumerate(nodes)]
    return tag(
        "svg",
        tag("title", words),
        shapes,
        role="img",
        class_="program",
        width=round(placed.width),
        height=round(placed.height),
        style=f"--width:{placed.width:.0f}px",
        viewBox=f"0 0 {placed.width:.0f} {placed.height:.0f}",
    )


def _parts(
    graph: Graph, recipes: Sequence[str], wrong: Collection[int], guilty: Collection[int]
) -> tuple[list[Node], list[tuple[int, int]], list[int]]:
    """The boxes of a graph, the edges between their numbers, and the boxes that may sink."""
    names, node_of = Numbering(graph.inputs, graph.instrs), dict[Value, int]()
    nodes, edges, sinks = list[Node](), list[tuple[int, int]](), list[int]()
    for i, value in enumerate(graph.inputs):
        node_of[value] = len(nodes)
        sinks.append(len(nodes))
        recipe = recipes[i] if i < len(recipes) else ""
        lines = (f"{names[value]}: {value.type}", _short(recipe))
        nodes.append(Node(lines, f"input {i}: {value.type} {recipe}", "input"))
    for i, instr in enumerate(graph.instrs):
        number = len(nodes)
        look = "op guilty" if i in guilty else "op" if instr.operands else "source"
        # The op with its attributes, as much as fits a box.
        attributes = [_short(_attribute(value)) for value in instr.attrs.values()]
        call = _short(" ".join([instr.op.name, *filter(None, attributes)]))
        types = ", ".join(str(v.type) for v in instr.results)
        nodes.append(Node((call, _short(types)), format_instr(instr, names), look))
        edges += [(node_of[v], number) for v in instr.operands]
        node_of.update(dict.fromkeys(instr.results, number))
        if not instr.operands:
            sinks.append(number)
    for i, value in enumerate(graph.outputs):
        look = "output wrong" if i in wrong else "output"
        lines = (f"output {i}", "wrong" if i in wrong else "")
        edges.append((node_of[value], len(nodes)))
        nodes.append(Node(lines, f"output {i}: {value.type}", look))
    return nodes, edges, sinks


def _attribute(value: Any) -> str:
    if isinstance(value, Graph):
        return "{…}"
    if isinstance(value, tuple):
        return f"({','.join(map(_attribute, value))})"
    elements = getattr(value, "elements", None)
    if elements is not None:
        return str(elements[0]) if elements.size == 1 else "…"
    return "" if value is None else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _in_words(graph: Graph, wrong: Collection[int], guilty: Collection[int]) -> str:
    """The picture in words, for screen readers."""
    ops = ", then ".join(instr.op.name for instr in graph.instrs)
    bad = f"; output {', '.join(map(str, sorted(wrong)))} is wrong" if wrong else ""
    blame = "".join(f"; {graph.instrs[i].op.name} is guilty" for i in sorted(guilty))
    count = len(graph.inputs)
    return f"{count} input{'s' if count != 1 else ''}: {ops or 'no op'}{bad}{blame}"


def _ports(placed: Placed, edges: Sequence[tuple[int, int]]) -> list[float]:
    """Where on its box each edge ends: operands side by side, in their order."""
    into: Mapping[int, list[int]] = {b: [] for _, b in edges}
    for number, (_, b) in enumerate(edges):
        into[b].append(number)
    ports = [0.0] * len(edges)
    for b, numbers in into.items():
        box, count = placed.boxes[b], len(numbers)
        for i, number in enumerate(numbers):
            ports[number] = box.x + box.width * ((i + 1) / (count + 1) - 0.5)
    return ports


def _edge(placed: Placed, way: Sequence[int], port: float) -> Markup:
    first, last = placed.boxes[way[0]], placed.boxes[way[-1]]
    points = [(first.x, first.y + HEIGHT)]
    for n in way[1:-1]:
        box = placed.boxes[n]
        points += [(box.x, box.y), (box.x, box.y + HEIGHT)]
    points.append((port, last.y - _ARROW))
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (y0 + y1) / 2
        path += f"C{x0:.0f} {half:.0f} {x1:.0f} {half:.0f} {x1:.0f} {y1:.0f}"
    head = f"M{port - 4:.0f} {last.y - _ARROW - 1:.0f}h8l-4 {_ARROW + 1}z"
    return join((tag("path", d=path, class_="edge"), tag("path", d=head, class_="head")))


def _node(placed: Placed, n: int, node: Node) -> Markup:
    box = placed.boxes[n]
    left, round_ = box.x - box.width / 2, 14 if node.look.startswith(("input", "output")) else 4
    shape = tag("rect", x=left, y=box.y, width=box.width, height=HEIGHT, rx=round_)
    if not node.lines[1]:
        texts = [tag("text", node.lines[0], x=box.x, y=box.y + HEIGHT / 2 + 4)]
    else:
        texts = [
            tag("text", node.lines[0], x=box.x, y=box.y + 17),
            tag("text", node.lines[1], x=box.x, y=box.y + 32, class_="second"),
        ]
    return tag("g", tag("title", node.title), shape, texts, class_=f"node {node.look}")
