"""Which instructions a target can run, by its own declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, attrs_key
from bringup.ops.table import OpDef, lookup
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
        dtypes = tuple(v.dtype for v in (*graph.inputs, *graph.outputs))
        bound = graph.instrs[-1].attrs
        key = (row.claim(bound), dtypes, attrs_key(bound) if row.holds_graphs else ())
        if key not in self._known:
            self._known[key] = self._missing(graph)
        return self._known[key]

    def has(self, row: OpDef, operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> bool:
        """Whether an instruction is valid and can run."""
        try:
            return self.reason(row, operands, attrs) is None
        except OpTypeError:
            return False


def reason_of(graph: Graph, support: Support) -> str | None:
    """Why the first instruction that cannot run cannot, or None."""
    for instr in graph.instrs:
        types = [v.type for v in instr.operands]
        reason = support.reason(lookup(instr.op.name), types, instr.attrs)
        if reason is not None:
            return reason
    return None


def single(row: OpDef, operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """A graph of one instruction.  Raises OpTypeError if the row does not take these operands and
    attributes.
    """
    with Builder() as builder:
        results = row(*(builder.input(type_) for type_ in operands), **attrs)
        outputs = results if isinstance(results, tuple) else (results,)
        return builder.build(outputs, row.name)
