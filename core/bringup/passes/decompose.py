"""Decomposition: what a device lacks becomes what it has, by the op table's ``decompose``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.errors import GraphError, UnsupportedError
from bringup.graph import Builder, Graph, Instr, Value, attrs_key, has_effects, rebuild, replay
from bringup.graph.printer import Numbering, format_call
from bringup.graph.verify import LevelSpec
from bringup.ops.table import OpDef, opdef
from bringup.passes.base import Available, Pass, as_results, deep


def decompose(available: Available) -> Pass:
    """Make the pass: it keeps composites the device claims, and ends with available ops only."""

    def allowed(instr: Instr) -> str | None:
        return None if available(instr) else f"the device does not have {_claim(instr)}"

    return Pass(
        "decompose",
        "ops the device lacks -> their decompositions, until it has them all",
        deep(lambda graph: _Decomposer(available).run(graph)),
        LevelSpec("available", allowed=allowed),
    )


class _Decomposer:
    """One run: equal instructions on equal types are expanded once."""

    def __init__(self, available: Available) -> None:
        self._available = available
        self._expansions: dict[Any, Graph] = {}
        self._open: list[Instr] = []

    def run(self, graph: Graph) -> Graph:
        if all(map(self._stays, graph.instrs)):
            return graph
        return rebuild(graph, self._rewrite)

    def _rewrite(self, instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if self._stays(instr):
            return None
        return replay(self._expansion(instr), arguments=operands)

    def _stays(self, instr: Instr) -> bool:
        # Core has to run loops that hold effects, and a scan becomes one of those.
        held = opdef(instr).decompose is not None and has_effects(instr.op, instr.attrs)
        return self._available(instr) and not held

    def _expansion(self, instr: Instr) -> Graph:
        types = tuple(v.type for v in instr.operands)
        key = (instr.op.name, types, attrs_key(instr.attrs))
        found = self._expansions.get(key)
        if found is None:
            if opdef(instr).decompose is None or key in map(_key, self._open):
                raise self._unsupported(instr)
            self._open.append(instr)
            found = self._expansions[key] = deep(self.run)(expand(instr))
            self._open.pop()
        return found

    def _unsupported(self, instr: Instr) -> UnsupportedError:
        outermost = (self._open or [instr])[0]
        call = format_call(
            instr.op.name, instr.operands, instr.attrs, Numbering(instr.operands, ())
        )
        notes = [
            f"needed by {made.op.name}, which the device lacks too" for made in self._open[::-1]
        ]
        return UnsupportedError(
            f"{_claim(instr)}: not available on the device, and "
            + (
                "has no decomposition"
                if opdef(instr).decompose is None
                else "decomposes into itself"
            ),
            location=outermost.location,
            instruction=call,
            fix=f"claim {opdef(instr).claim(instr.attrs)!r} for {_dtypes(instr)} in the backend's "
            "capabilities and implement it, or name a device that may take over: "
            'jit(f, fallback="…")',
            notes=tuple(notes),
        )


def expand(instr: Instr) -> Graph:
    """One step: the decomposition of an instruction as a graph of its operands.

    Raises GraphError if it gives other types than the instruction.
    """
    op = opdef(instr)
    assert op.decompose is not None
    with Builder() as builder:
        operands = [builder.input(v.type) for v in instr.operands]
        results = as_results(op.decompose(*operands, **instr.attrs))
    wanted, found = [v.type for v in instr.results], [v.type for v in results]
    if wanted != found:
        raise GraphError(f"{op.name}: decomposes into {found}, inferred {wanted}")
    return builder.build(results, op.name)


def _key(instr: Instr) -> tuple[Any, ...]:
    return (instr.op.name, tuple(v.type for v in instr.operands), attrs_key(instr.attrs))


def _claim(instr: Instr) -> str:
    op: OpDef = opdef(instr)
    return f"{op.claim(instr.attrs)} on {_dtypes(instr)}"


def _dtypes(instr: Instr) -> str:
    """The distinct dtypes of operands and results, all of which a claim must hold."""
    return ", ".join(dict.fromkeys(v.dtype.name for v in (*instr.operands, *instr.results)))
