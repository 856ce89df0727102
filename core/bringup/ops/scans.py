"""The composite row scan: a loop of known length over rows, which can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Builder, Graph, Value, replay
from bringup.ops import build
from bringup.ops._batch_control import batch_scan
from bringup.ops._checks import is_int
from bringup.ops._numeric import Array
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.subgraphs import (
    Parts,
    as_tuple,
    check_types,
    graph_attr,
    is_zero,
    reached,
    restricted,
    rows_of,
    runner,
    types_of,
)
from bringup.ops.table import (
    Attr,
    Attrs,
    Derive,
    Kind,
    Pruned,
    Trait,
    Types,
    define,
)
from bringup.types import TensorType

Values = tuple[Value, ...]


def _count(attrs: Attrs, key: str) -> int:
    value = attrs[key]
    if not is_int(value) or value < 0:
        raise OpTypeError(f"scan: {key}={value!r} is no count", fix=f"pass {key} as an int >= 0")
    count: int = value
    return count


def _infer(operands: Types, attrs: Attrs) -> Types:
    body, length = graph_attr("scan", attrs, "body"), _count(attrs, "length")
    parts = Parts(_count(attrs, "consts"), _count(attrs, "carries"))
    if parts.first_stack > len(operands):
        raise OpTypeError(
            f"scan: {len(operands)} operands for {parts.consts} consts, {parts.carries} carries",
            fix="count the operands again",
        )
    fixed_types = operands[: parts.first_stack]
    stack_types = enumerate(operands[parts.first_stack :], parts.first_stack)
    operand_types = (*fixed_types, *(rows_of(t, "scan", length, i) for i, t in stack_types))
    check_types("scan", "the body takes", types_of(body.inputs), operand_types, "it gets")
    carries = operands[parts.consts : parts.first_stack]
    output_types = types_of(body.outputs)
    check_types("scan", "the body gives", output_types[: parts.carries], carries, "the carry is")
    if not output_types:
        raise OpTypeError("scan: the body gives nothing", fix="give at least one value")
    stacks = (t.with_shape((length, *t.shape)) for t in output_types[parts.carries :])
    return (*carries, *stacks)


def _reference(
    *operands: Any, body: Graph, length: int, reverse: bool, consts: int, carries: int
) -> Any:
    parts = Parts(consts, carries)
    fixed, xs = operands[:consts], operands[parts.first_stack :]
    carry = [np.asarray(x) for x in operands[consts : parts.first_stack]]
    rows: list[Sequence[Array]] = []
    step = runner(body)
    for i in reversed(range(length)) if reverse else range(length):
        outputs = step([*fixed, *carry, *(x[i] for x in xs)])
        carry = outputs[:carries]
        rows.append(outputs[carries:])
    if reverse:
        rows.reverse()
    types = types_of(body.outputs[carries:])
    stacks = [
        np.stack([row[n] for row in rows]) if rows else np.empty((0, *t.shape), t.dtype.numpy)
        for n, t in enumerate(types)
    ]
    results = (*carry, *stacks)
    return results if len(results) > 1 else results[0]


def _row(stack: Value, index: Value) -> Value:
    """Row `index` of a stack."""
    shape = stack.shape[1:]
    zeros = [build.like(index, 0)] * len(shape)
    part = rows.dynamic_slice(stack, index, *zeros, sizes=(1, *shape))
    return build.reshape(part, shape)


def _put(stack: Value, row: Value, index: Value) -> Value:
    """A stack whose row `index` is replaced."""
    zeros = [build.like(index, 0)] * len(row.shape)
    update = build.reshape(row, (1, *row.shape))
    return rows.dynamic_update_slice(stack, update, index, *zeros)


def _decompose(
    *operands: Value, body: Graph, length: int, reverse: bool, consts: int, carries: int
) -> Value | Values:
    parts = Parts(consts, carries)
    row_types = types_of(body.outputs[carries:])
    stacks = [build.splat(0, t.with_shape((length, *t.shape))) for t in row_types]
    carry = operands[consts : parts.first_stack]
    if not length:
        results = (*carry, *stacks)
        return results if len(results) > 1 else results[0]
    counter = TensorType((), i32 if length < 1 << 31 else i64)
    state = (build.splat(0, counter), *operands, *stacks)

    def step(counter: Value, *values: Value) -> Values:
        row_index = rows.sub(build.like(counter, length - 1), counter) if reverse else counter
        inputs, outs = values[: len(operands)], values[len(operands) :]
        xs = [_row(x, row_index) for x in inputs[parts.first_stack :]]
        outputs = replay(body, arguments=(*inputs[: parts.first_stack], *xs))
        ys = [_put(s, y, row_index) for s, y in zip(outs, outputs[carries:], strict=True)]
        after = rows.add(counter, build.like(counter, 1))
        return (
            after,
            *inputs[:consts],
            *outputs[:carries],
            *inputs[parts.first_stack :],
            *ys,
        )

    cond = _graph(lambda at, *_: (rows.compare(at, build.like(at, length), direction="lt"),), state)
    last = as_tuple(rows.while_(*state, cond=cond, body=_graph(step, state)))
    results = (*last[1 + consts : 1 + parts.first_stack], *last[1 + len(operands) :])
    return results if len(results) > 1 else results[0]


def _graph(function: Any, like: Sequence[Value]) -> Graph:
    """A closed graph of a function that emits, for values of these types."""
    with Builder() as builder:
        return builder.build(function(*(builder.input(v.type) for v in like)), "loop")


def _residuals(*operands: Value, body: Graph, carries: int, consts: int, **attrs: Any) -> Values:
    """The scan with one more stack for each carry: its values before each iteration."""
    carries_before = body.inputs[consts : consts + carries]
    extended = Graph(body.inputs, body.instrs, (*body.outputs, *carries_before), body.name)
    return as_tuple(rows.scan(*operands, body=extended, carries=carries, consts=consts, **attrs))


def _vjp(
    ct: Any, result: Any, *operands: Value, derive: Derive, body: Graph, **attrs: Any
) -> tuple[Value | None, ...]:
    cts = ct if isinstance(ct, tuple) else (ct,)
    results = result if isinstance(result, tuple) else (result,)
    return _Pullback(cts, results, operands, body, attrs, derive).run()


class _Pullback:
    """The reverse pass of a scan: a scan in the other direction over the values that were read.

    consts: those of the scan.
    carries: the sums of the cotangents of the consts, then the cotangents of the carry.
    stacks: the carries before each iteration, the stacks of the scan, then the cotangents of its
    stacked results.
    """

    def __init__(
        self,
        cts: Sequence[Value],
        results: Sequence[Value],
        operands: Values,
        body: Graph,
        attrs: Attrs,
        derive: Derive,
    ) -> None:
        self.operands, self.attrs = operands, attrs
        self.parts = Parts(attrs["consts"], attrs["carries"])
        self.body = body
        self.carries_before = self._carries_before(results)
        self.floats = [i for i, v in enumerate(body.inputs) if v.dtype.is_float]
        # A carry always has a cotangent: later iterations may add to it.  Most stacks have none.
        self.of = [
            o
            for o, v in enumerate(body.outputs)
            if v.dtype.is_float and (o < self.parts.carries or not is_zero(cts[o]))
        ]
        self.cts = cts
        self.derived = derive(body, self.floats, self.of) if self.of else body
        gradients = self.derived.outputs[len(body.outputs) :]
        self.gradients = dict(zip(self.floats, gradients, strict=False))

    def run(self) -> tuple[Value | None, ...]:
        """The cotangents of the operands."""
        consts = [i for i in self._of_kind("const") if not is_zero(self.gradients[i])]
        carries, stacks = self._of_kind("carry"), self._of_kind("stack")
        if not self.of or not (consts or carries or stacks):
            return (None,) * len(self.operands)
        fixed = self.operands[: self.parts.consts]
        sums = [build.zeros_like(self.operands[i]) for i in consts]
        heads = [o for o in self.of if o < self.parts.carries]
        tails = [self.cts[o] for o in self.of if o >= self.parts.carries]
        carry = [*sums, *(self.cts[o] for o in heads)]
        stacks_read = [*self.carries_before, *self.operands[self.parts.first_stack :], *tails]
        results = rows.scan(
            *fixed,
            *carry,
            *stacks_read,
            body=self._body(consts, carries, stacks),
            length=self.attrs["length"],
            reverse=not self.attrs["reverse"],
            consts=len(fixed),
            carries=len(carry),
        )
        cotangents = dict(zip([*consts, *carries, *stacks], as_tuple(results), strict=True))
        return tuple(cotangents.get(i) for i in range(len(self.operands)))

    def _carries_before(self, results: Sequence[Value]) -> list[Value]:
        """The stacks of the carries before each iteration; from a second run if it kept none."""
        parts = self.parts
        before = self.body.inputs[parts.consts : parts.first_stack]
        stack_of = {v: results[o] for o, v in enumerate(self.body.outputs) if o >= parts.carries}
        if all(v in stack_of for v in before):
            return [stack_of[v] for v in before]
        again = _residuals(*self.operands, body=self.body, **self.attrs)
        return list(again[len(self.body.outputs) :])

    def _of_kind(self, kind: str) -> list[int]:
        parts = self.parts
        ranges = {
            "const": range(parts.consts),
            "carry": range(parts.consts, parts.first_stack),
            "stack": range(parts.first_stack, len(self.operands)),
        }
        return [i for i in self.floats if i in ranges[kind]]

    def _body(self, consts: list[int], carries: list[int], stacks: list[int]) -> Graph:
        parts, count = self.parts, len(self.body.inputs)
        heads = sum(o < parts.carries for o in self.of)
        with Builder() as builder:
            fixed = [builder.input(v.type) for v in self.body.inputs[: parts.consts]]
            sums = [builder.input(self.body.inputs[i].type) for i in consts]
            carry_cts = [builder.input(v.type) for v in self.derived.inputs[count : count + heads]]
            read = [builder.input(v.type) for v in self.body.inputs[parts.consts :]]
            tails = [builder.input(v.type) for v in self.derived.inputs[count + heads :]]
            outputs = replay(self.derived, arguments=(*fixed, *read, *carry_cts, *tails))
            gradients = dict(zip(self.floats, outputs[len(self.body.outputs) :], strict=True))
            total = [rows.add(s, gradients[i]) for s, i in zip(sums, consts, strict=True)]
            row_cotangents = [gradients[i] for i in (*carries, *stacks)]
            return builder.build((*total, *row_cotangents), f"back_{self.body.name}")


def _prune(live: frozenset[int], operands: Values, attrs: Attrs) -> Pruned | None:
    body: Graph = attrs["body"]
    parts = Parts(attrs["consts"], attrs["carries"])
    needed = live
    while True:
        read = reached(body, needed)
        more = needed | {o for i, o in parts.carried if i in read}
        if more == needed:
            break
        needed = more
    taken = read | {i for i, o in parts.carried if o in needed}
    if (len(needed), len(taken)) == (len(body.outputs), len(operands)) or not taken:
        return None
    inputs, outputs = sorted(taken), sorted(needed)
    pruned_attrs = {
        **attrs,
        "body": restricted(body, inputs, outputs),
        "consts": sum(i < parts.consts for i in inputs),
        "carries": sum(o < parts.carries for o in outputs),
    }
    return Pruned(tuple(operands[i] for i in inputs), pruned_attrs, tuple(outputs))


def _swap() -> Graph:
    """A body that exchanges its carry and its row, for cells."""
    builder = Builder()
    carry, x = builder.input(TensorType((), i32)), builder.input(TensorType((), i32))
    return builder.build([x, carry])


def _cell(length: int, reverse: bool) -> tuple[tuple[str, Any], ...]:
    return (
        ("body", _swap()), ("length", length), ("reverse", reverse), ("consts", 0), ("carries", 1)
    )  # fmt: skip


scan = define(
    name="scan",
    arity=None,
    kind=Kind.COMPOSITE,
    doc=(
        "Runs body once for each row of the stacks, in order or backwards: it takes the "
        "consts, the carry and the rows, and gives the next carry and rows of the stacked "
        "results. With length 0 the carry is the result. The gradient keeps each carry."
    ),
    attrs=(
        Attr("body", "graph", "takes consts, carry, rows; gives carry, rows"),
        Attr("length", "int", "how many rows the stacks have"),
        Attr("reverse", "bool", "from the last row to the first", default=False),
        Attr("consts", "int", "how many operands are the same for each run", default=0),
        Attr("carries", "int", "how many operands after them are the carry", default=0),
    ),
    infer=_infer,
    reference=_reference,
    vjp=_vjp,
    residuals=_residuals,
    prune=_prune,
    traits=frozenset({Trait.LOOP}),
    batch=batch_scan,
    special=(
        Special(("5", "[6, 7]"), "7", ("i32",), _cell(2, False)),
        Special(("5", "[6, 7]"), "6", ("i32",), _cell(2, True)),
        Special(("5", "[]"), "5", ("i32",), _cell(0, False)),
    ),
    decompose=_decompose,
)

__all__ = ["Parts", "scan"]
