"""Running passes: verification, value checks, dumps and timings around each of them."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bringup import config
from bringup.errors import BringupError, GraphError
from bringup.graph import Graph
from bringup.graph.printer import print_graph
from bringup.graph.verify import ANY, LevelSpec, verify
from bringup.passes.base import Pass
from bringup.passes.check import check_values, terminates
from bringup.records import record

_log = logging.getLogger("bringup.passes")


@record
class PassContext:
    """What surrounds a run of passes.

    dump: directory that receives every graph as text, in ``<name>-<key>/NN-pass.txt``.
    check: 1 verifies after every pass, 2 also compares values.
    name: for dumps, if not the graph's.
    record(pass name, seconds): told how long each pass took.
    """

    dump: Path | None = None
    check: int = 0
    name: str = ""
    record: Callable[[str, float], None] | None = None

    @classmethod
    def from_environment(cls, record: Callable[[str, float], None] | None = None) -> PassContext:
        """The context that the BRINGUP variables ask for."""
        dump = config.text("BRINGUP_DUMP")
        return cls(Path(dump) if dump else None, config.level("BRINGUP_CHECK"), record=record)


def run_pipeline(graph: Graph, passes: Iterable[Pass], *, context: PassContext) -> Graph:
    """Run passes in order and return the last graph.

    A pass that another has settled is not run again while the graph stays the same.
    Raises UnsupportedError if the device lacks something, GraphError naming the pass that broke a
    rule or a value.
    """
    folder = None
    if context.dump is not None:
        folder = dump_folder(context.dump, graph, context.name or graph.name)
    if folder is not None:
        _write(folder, 0, "input", graph)
    if context.check >= 1:
        verify(graph)
    levels: list[LevelSpec] = []
    settled: set[str] = set()
    for number, each in enumerate(passes, 1):
        if each.level is not ANY:
            levels.append(each.level)
        before = graph
        if each.name not in settled:
            graph = _timed(each, graph, context)
            settled = settled.union(each.settles) if graph is before else set(each.settles)
        if folder is not None:
            _write(folder, number, each.name, graph)
        _check(each, before, graph, levels, context.check)
    return graph


def _timed(each: Pass, graph: Graph, context: PassContext) -> Graph:
    start = time.perf_counter()
    result = each.run(graph)
    seconds = time.perf_counter() - start
    if context.record is not None:
        context.record(each.name, seconds)
    _log.debug(
        "%s: %s: %d -> %d instructions, %.1f ms",
        graph.name, each.name, len(graph), len(result), seconds * 1e3,
    )  # fmt: skip
    return result


def _check(each: Pass, before: Graph, after: Graph, levels: list[LevelSpec], check: int) -> None:
    if check >= 1:
        _verify(each, before, after, levels)
    if check >= 2 and after is not before and not each.retypes:
        if terminates(before):
            check_values(each.name, before, after)
        else:
            _log.info("%s: %s: values not compared: a loop may be long", before.name, each.name)


def _verify(each: Pass, before: Graph, after: Graph, levels: list[LevelSpec]) -> None:
    try:
        for level in levels or [ANY]:
            verify(after, level)
        if not each.retypes and [v.type for v in before.inputs] != [v.type for v in after.inputs]:
            raise GraphError("the types of the inputs changed")
        if [v.type for v in before.outputs] != [v.type for v in after.outputs]:
            raise GraphError("the types of the outputs changed")
    except GraphError as error:
        raise GraphError(
            f"after pass {each.name}: {error.what}",
            location=error.location,
            instruction=error.instruction,
            fix=f"{each.name} promises: {each.doc}",
            notes=error.notes,
        ) from error


def dump_folder(dump: Path, graph: Graph, name: str) -> Path:
    """The folder of one graph's dumps, made if missing: its name, and a key of what it computes."""
    key = hashlib.sha256(print_graph(graph).encode()).hexdigest()[:12]
    # File systems take 255 bytes; the key tells names apart that begin alike.
    folder = dump / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:80]}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BringupError(
            f"the dumps cannot be written to {dump}: {error.strerror}",
            fix="set BRINGUP_DUMP to a directory that can be written, or unset it",
        ) from error
    return folder


def _write(folder: Path, number: int, name: str, graph: Graph) -> None:
    text = print_graph(graph, locations=True)
    (folder / f"{number:02}-{name}.txt").write_text(text + "\n", encoding="utf-8")
