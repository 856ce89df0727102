"""A right device that is the reference itself, and faults planted round it through public seams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.backend.capabilities import Capabilities, Shapes
from bringup.dtypes import STORED
from bringup.graph import Graph, Instr, Value
from bringup.ops.evaluate import run_instr
from bringup.ops.table import all_ops
from bringup.passes.pipeline import passes_for
from bringup_conformance.execution.targets import Runnable, missing_from

Array = np.ndarray[Any, Any]
VECTOR = 8


@dataclass(frozen=True, slots=True)
class Mode:
    """How a program was compiled, and which."""

    graph: Graph
    fuse: bool
    skip: frozenset[str]


#: What a fault makes of an instruction's operands and right result.
Edit = Callable[[Instr, Sequence[Array], Array, Mode], Array]
#: What a fault makes of a whole program's inputs, right outputs, and the call before.
Spoil = Callable[[Mode, Sequence[Array], list[Array], list[Array] | None], list[Array]]


@dataclass(slots=True)
class Reference:
    """A target that runs the reference evaluator, with a fault if one is given.

    Shapes small enough for every boundary to be met soon; simulated, so that runs are short.
    """

    edit: Edit | None = None
    spoil: Spoil | None = None
    name: str = "the reference"
    compiled: int = 0
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(
            ops={claim: frozenset(STORED) for row in all_ops() for claim in row.claims},
            shapes=Shapes(vector=VECTOR, block=64),
            simulated=True,
        )
    )

    @property
    def passes(self) -> tuple[str, ...]:
        names = (each.name for each in passes_for(self.capabilities.available))
        return tuple(dict.fromkeys(name for name in names if name != "decompose"))

    def missing(self, graph: Graph) -> str | None:
        return missing_from(self.capabilities, graph)

    def compile(
        self, graph: Graph, *, fuse: bool = True, skip: frozenset[str] = frozenset()
    ) -> Runnable:
        self.compiled += 1
        mode = Mode(graph, fuse, skip)
        last: list[list[Array]] = []

        def run(inputs: Sequence[Array]) -> list[Array]:
            outputs = self._outputs(mode, inputs)
            if self.spoil is not None:
                right = outputs
                outputs = self.spoil(mode, inputs, right, last[-1] if last else None)
                last.append(right)
            return outputs

        return run

    def _outputs(self, mode: Mode, inputs: Sequence[Array]) -> list[Array]:
        values: dict[Value, Array] = dict(zip(mode.graph.inputs, inputs, strict=True))
        for instr in mode.graph.instrs:
            operands = [values[v] for v in instr.operands]
            results = run_instr(instr, operands)
            if self.edit is not None and len(results) == 1:
                results = [self.edit(instr, operands, np.array(results[0]), mode)]
            values.update(zip(instr.results, results, strict=True))
        return [np.array(values[v]) for v in mode.graph.outputs]


def is_constant(value: Value) -> bool:
    return value.producer is not None and value.producer.op.name == "constant"


def users(value: Value, graph: Graph) -> list[Instr]:
    return [instr for instr in graph.instrs if value in instr.operands]


# Faults of one op.


def drops_the_tail(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A vector loop without its tail."""
    if instr.op.name == "mul" and right.size > VECTOR and right.size % VECTOR:
        right.reshape(-1)[right.size - right.size % VECTOR :] = 0
    return right


def loses_negative_zero(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """Negation as ``0 - x``."""
    if instr.op.name == "neg" and instr.result.dtype.is_float:
        right[right == 0] = 0
    return right


def folds_less(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A sum that drops its last elements if there are more than fill some vectors."""
    if instr.op.name != "reduce" or instr.attrs["kind"] != "add" or len(instr.attrs["dims"]) != 1:
        return right
    d = instr.attrs["dims"][0]
    n = operands[0].shape[d]
    if n <= 4 * VECTOR or n % VECTOR == 0:
        return right
    kept = np.moveaxis(np.moveaxis(operands[0], d, 0)[: n - n % VECTOR], 0, d)
    return np.asarray(instr.op.reference(kept, **instr.attrs))  # type: ignore[attr-defined]


def sums_in_half(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A sum of f16 that is kept in f16 all the way."""
    if instr.op.name != "reduce" or instr.attrs["kind"] != "add":
        return right
    if operands[0].dtype != np.float16 or instr.attrs["dims"] != tuple(range(operands[0].ndim)):
        return right
    total = np.float16(0)
    with np.errstate(all="ignore"):
        for x in operands[0].reshape(-1):
            total += x
    return np.asarray(total)


def ignores_nan(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A maximum that prefers numbers to NaN, as C's fmax does."""
    if instr.op.name == "max" and right.dtype == np.float32:
        return np.asarray(np.fmax(*operands))
    return right


def swaps_squares(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A transpose that leaves squares alone."""
    if instr.op.name == "transpose" and operands[0].shape == right.shape and right.ndim == 2:
        return np.array(operands[0])
    return right


def is_one_ulp_too_coarse(
    instr: Instr, operands: Sequence[Array], right: Array, mode: Mode
) -> Array:
    """A division by way of the reciprocal."""
    if instr.op.name == "div" and right.dtype == np.float32:
        with np.errstate(all="ignore"):
            quotient = operands[0] * (np.float32(1) / operands[1])
        return np.where(np.isfinite(quotient) & (operands[0] != 0), quotient, right)
    return right


def crashes_when_large(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """A driver that gives up past a block."""
    if instr.op.name == "exp" and right.size > 64:
        raise RuntimeError("device lost")
    return right


# Faults of fused programs.


def swaps_a_subtraction(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """``c - x`` computed as ``x - c`` where fused."""
    if instr.op.name == "sub" and mode.fuse and is_constant(instr.operands[0]):
        return np.asarray(instr.op.reference(*operands[::-1]))  # type: ignore[attr-defined]
    return right


def drops_a_zero_product(
    instr: Instr, operands: Sequence[Array], right: Array, mode: Mode
) -> Array:
    """A simplification ``x * 0 -> 0``, which forgets infinities, NaN and the sign of zero."""
    if instr.op.name == "mul" and "simplify" not in mode.skip:
        for value in instr.operands:
            literal = value.producer and value.producer.attrs.get("value")
            if literal is not None and literal.is_splat and not np.any(literal.array()):
                return np.zeros_like(right)
    return right


def takes_the_other_chain(
    instr: Instr, operands: Sequence[Array], right: Array, mode: Mode
) -> Array:
    """A fused join whose second part uses the constant of the first."""
    if instr.op.name != "concatenate" or not mode.fuse or len(operands) < 2:
        return right
    first, second = (v.producer for v in instr.operands[:2])
    if first is None or second is None or second.op.name != "add":
        return right
    if first.op.name != "mul" or not is_constant(first.operands[1]):
        return right
    d = instr.attrs["dim"]
    wrong = operands[1] * first.operands[1].producer.attrs["value"].array().reshape(-1)[0]  # type: ignore[union-attr]
    parts = [operands[0], wrong.astype(right.dtype), *operands[2:]]
    return np.concatenate(parts, axis=d)


def sees_partial_sums(instr: Instr, operands: Sequence[Array], right: Array, mode: Mode) -> Array:
    """Reduce, broadcast and combine without a barrier: the last row sees an unfinished fold."""
    if instr.op.name != "broadcast_in_dim" or not mode.fuse or not right.size:
        return right
    made = instr.operands[0].producer
    if made is not None and made.op.name == "reduce" and users(instr.result, mode.graph):
        right.reshape(-1)[-1] = 0
    return right


def swaps_two_outputs(
    mode: Mode, inputs: Sequence[Array], right: list[Array], last: list[Array] | None
) -> list[Array]:
    """Two outputs of one type in each other's place."""
    types = [(x.shape, x.dtype) for x in right]
    for i in range(len(right)):
        for j in range(i + 1, len(right)):
            if mode.fuse and types[i] == types[j]:
                right[i], right[j] = right[j], right[i]
                return right
    return right


def gives_the_last_call(
    mode: Mode, inputs: Sequence[Array], right: list[Array], last: list[Array] | None
) -> list[Array]:
    """A consumer placed before its producer: right on the first call alone."""
    deep = any(v.producer is not None for instr in mode.graph.instrs for v in instr.operands)
    return last if mode.fuse and deep and last is not None else right


def writes_its_input(
    mode: Mode, inputs: Sequence[Array], right: list[Array], last: list[Array] | None
) -> list[Array]:
    """An input taken as scratch though nobody gave it away."""
    if mode.fuse and len(mode.graph) > 1 and inputs and inputs[0].size:
        inputs[0].reshape(-1)[:1] = 1
    return right
