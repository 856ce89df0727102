"""Faults of what public functions put together: two ops in a row that a device takes for one of its
own instructions, which has eight bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.dtypes import bf16, f32
from bringup.graph import Instr, Value, current_builder
from bringup.graph.builder import Rewrite
from bringup.kernel.form import Stage
from bringup_selftest.corpus import Faults
from bringup_selftest.editing import call, in_bodies, is_made_by

FAULTS = Faults("Public functions", "fus", depth=3)


def short(first: str, second: str) -> Callable[[Stage], Rewrite]:
    """What ``second`` makes of a result of ``first`` is rounded to eight bits."""

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if instr.op.name != second or not any(is_made_by(v, first) for v in operands):
            return None
        if instr.result.dtype is not f32:
            return None
        (made,) = current_builder().emit(instr.op, operands, instr.attrs)
        return (call("convert", call("convert", made, dtype=bf16), dtype=f32),)

    return lambda _stage: rewrite


FAULTS.by(in_bodies, "PF01a", "a quotient by a root has 8 bits")(short("sqrt", "div"))
FAULTS.by(in_bodies, "PF02a", "a logarithm and a sum have 8 bits")(short("log", "add"))
FAULTS.by(in_bodies, "PF03a", "a reciprocal root and a product have 8 bits")(short("rsqrt", "mul"))
