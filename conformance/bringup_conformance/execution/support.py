"""Which instructions a target can run, by its own declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Instr, attrs_key
from bringup.ops.table import OpDef, opdef
from bringup.types import TensorType

Missing = Callable[[Graph], str | None]


class Support:
    """What can be generated for a target.

    missing: as in `Target`.

    >>> from bringup.dtypes import f32
    >>> from bringup.ops.table import lookup
    >>> Support(lambda graph: None).has(lookup("exp"), (f32[3],), {})
    True
    """

    def __init__(self, missing: Missing) -> None:
        self._missing = missing
        self._known: dict[tuple[Any, ...], str | None] = {}

    def reason(
        self, row: OpDef, operands: Sequence[TensorType], attrs: Mapping[str, Any]
    ) -> str | None:
        """Why an instruction of these operand types cannot run, or None.  Raises OpTypeError if it
        is none.
        """
        graph = single(row, operands, attrs)
        return self._reason(graph.instrs[-1], lambda: graph)

    def reason_of(self, graph: Graph) -> str | None:
        """Why the first instruction of a graph that cannot run cannot, or None."""
        for instr in graph.instrs:
            reason = self._reason(instr, partial(_alone, instr))
            if reason is not None:
                return reason
        return None

    def _reason(self, instr: Instr, graph: Callable[[], Graph]) -> str | None:
        """graph: makes the graph of the instruction alone, for what is not known yet."""
        row, dtypes = opdef(instr), tuple(v.dtype for v in (*instr.operands, *instr.results))
        key = (row.claim(instr.attrs), dtypes, attrs_key(instr.attrs) if row.holds_graphs else ())
        if key not in self._known:
            self._known[key] = self._missing(graph())
        return self._known[key]

    def has(self, row: OpDef, operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> bool:
        """Whether an instruction is valid and can run."""
        try:
            return self.reason(row, operands, attrs) is None
        except OpTypeError:
            return False


def _alone(instr: Instr) -> Graph:
    return single(opdef(instr), [v.type for v in instr.operands], instr.attrs)


def single(row: OpDef, operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """A graph of one instruction.  Raises OpTypeError if the row does not take these operands and
    attributes.
    """
    with Builder() as builder:
        results = row(*(builder.input(type_) for type_ in operands), **attrs)
        outputs = results if isinstance(results, tuple) else (results,)
        return builder.build(outputs, row.name)
