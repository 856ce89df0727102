"""Layered graph layout: nodes in layers from top to bottom, edges with few crossings.

It is Sugiyama's method: layers by the longest path, order by barycentres, then positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bringup.records import record

#: Sizes in pixels.
HEIGHT, GAP_X, GAP_Y, MARGIN = 40, 18, 34, 8
_BEND = 10
_SWEEPS = 8


@dataclass(slots=True)
class Box:
    """A node, or a bend of an edge that passes through a layer.  x: its middle.  y: its top."""

    width: float
    layer: int = 0
    real: bool = True
    x: float = 0.0
    y: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


@record
class Placed:
    """A graph with positions.

    boxes: the nodes in their order, then bends.  routes: for each edge, the boxes it runs through.
    """

    boxes: tuple[Box, ...]
    routes: tuple[tuple[int, ...], ...]
    width: float
    height: float


def place(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], sinks: Iterable[int] = ()
) -> Placed:
    """Lay out nodes of these widths.

    edges: pairs of numbers of nodes, each from a lower to a higher one.  sinks: nodes that may
    stand right above those that read them.

    >>> placed = place([50, 50, 50], [(0, 2), (1, 2)])
    >>> [box.layer for box in placed.boxes], placed.boxes[0].x < placed.boxes[1].x
    ([0, 0, 1], True)
    """
    boxes = [Box(width) for width in widths]
    _layers(boxes, edges, set(sinks))
    routes = [_route(boxes, a, b) for a, b in edges]
    layers: list[list[int]] = [[] for _ in range(max((b.layer for b in boxes), default=-1) + 1)]
    for n, box in enumerate(boxes):
        layers[box.layer].append(n)
    _order(boxes, layers)
    _spread(boxes, layers)
    left = min((b.x - b.width / 2 for b in boxes), default=0)
    for box in boxes:
        box.x += MARGIN - left
        box.y = MARGIN + box.layer * (HEIGHT + GAP_Y)
    width = max((b.x + b.width / 2 for b in boxes), default=0) + MARGIN
    height = 2 * MARGIN + len(layers) * (HEIGHT + GAP_Y) - GAP_Y
    return Placed(tuple(boxes), tuple(routes), width, height)


def _layers(boxes: list[Box], edges: Sequence[tuple[int, int]], sinks: set[int]) -> None:
    """Put each node into the layer that is the length of the longest path to it."""
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        boxes[b].layer = max(boxes[b].layer, boxes[a].layer + 1)
    for n in sinks:
        readers = [boxes[b].layer for a, b in edges if a == n]
        if readers:
            boxes[n].layer = min(readers) - 1


def _route(boxes: list[Box], start: int, end: int) -> tuple[int, ...]:
    """Add a bend in each layer that an edge passes through; returns its boxes."""
    way = [start]
    for layer in range(boxes[start].layer + 1, boxes[end].layer):
        boxes.append(Box(_BEND, layer, real=False))
        way.append(len(boxes) - 1)
    way.append(end)
    for a, b in pairwise(way):
        boxes[a].below.append(b)
        boxes[b].above.append(a)
    return tuple(way)


def _order(boxes: list[Box], layers: list[list[int]]) -> None:
    """Sort each layer by the mean position of its neighbours, downwards and upwards in turn."""
    position = {n: float(i) for layer in layers for i, n in enumerate(layer)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            wanted = {}
            for n in layer:
                near = boxes[n].above if down else boxes[n].below
                ends = [position[m] + (0 if down else _port(boxes[m], n)) for m in near]
                wanted[n] = sum(ends) / len(ends) if ends else position[n]
            layer.sort(key=lambda n: wanted[n])
            position.update({n: float(i) for i, n in enumerate(layer)})


def _port(box: Box, n: int) -> float:
    """Where on a node the edge of another one ends, from -0.5 to 0.5."""
    return (box.above.index(n) + 1) / (len(box.above) + 1) - 0.5


def _spread(boxes: list[Box], layers: list[list[int]]) -> None:
    """Put each node over the middle of its neighbours, as far as its layer has room."""
    for layer in layers:
        x = 0.0
        for n in layer:
            boxes[n].x = x + boxes[n].width / 2
            x += boxes[n].width + GAP_X
    for sweep in range(2 * _SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = []
            for n in layer:
                near = boxes[n].above + boxes[n].below
                wanted.append(sum(boxes[m].x for m in near) / len(near) if near else boxes[n].x)
            for n, x in zip(layer, _apart(boxes, layer, wanted), strict=True):
                boxes[n].x = x


def _apart(boxes: list[Box], layer: list[int], wanted: list[float]) -> list[float]:
    """The nearest positions without overlap: the mean of pushing to the right and to the left."""
    need = [(boxes[a].width + boxes[b].width) / 2 + GAP_X for a, b in pairwise(layer)]
    right, left = wanted[:], wanted[:]
    for i, least in enumerate(need):
        right[i + 1] = max(right[i + 1], right[i] + least)
    for i in range(len(need) - 1, -1, -1):
        left[i] = min(left[i], left[i + 1] - need[i])
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]
