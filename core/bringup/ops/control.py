"""Control flow: while and case, whose attributes hold closed sub-graphs.

Sub-graphs capture nothing: every value that they read is an operand.  A value that a loop does not
change is a part of its state, and the body returns it unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.dtypes import bool_, i32
from bringup.errors import OpTypeError, UnsupportedError
from bringup.graph import Builder, Graph, Value, current_builder
from bringup.ops._batch_control import batch_case, batch_while
from bringup.ops._numeric import Array
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.subgraphs import (
    as_tuple,
    check_types,
    chosen,
    graph_attr,
    is_zero,
    known_trips,
    reached,
    restricted,
    run,
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


def _infer_while(operands: Types, attrs: Attrs) -> Types:
    cond, body = (graph_attr("while", attrs, key) for key in ("cond", "body"))
    for name, graph in (("cond", cond), ("body", body)):
        check_types("while", f"{name} takes", types_of(graph.inputs), operands, "the state is")
    check_types("while", "cond gives", types_of(cond.outputs), (bool_[()],), "a condition is")
    check_types("while", "body gives", types_of(body.outputs), operands, "the state is")
    return operands


def _while_reference(*state: Any, cond: Graph, body: Graph) -> tuple[Array, ...]:
    values = [np.asarray(x) for x in state]
    holds, step = runner(cond), runner(body)
    while bool(holds(values)[0]):
        values = step(values)
    return tuple(values)


def _while_vjp(*_values: Any, **_attrs: Any) -> tuple[Value | None, ...]:
    raise UnsupportedError(
        "while has no derivative: how often it ran is known too late to keep what each run read",
        location=current_builder().location,
        fix="use fori_loop with bounds that are Python ints, or scan: both keep what they need",
    )


def _prune_while(live: frozenset[int], operands: tuple[Value, ...], attrs: Attrs) -> Pruned | None:
    cond, body = attrs["cond"], attrs["body"]
    needed = live | reached(cond, [0])
    while (more := needed | reached(body, needed)) != needed:
        needed = more
    if len(needed) == len(operands):
        return None
    indices = sorted(needed)
    graphs = {"cond": restricted(cond, indices, [0]), "body": restricted(body, indices, indices)}
    return Pruned(tuple(operands[i] for i in indices), graphs, tuple(indices))


def _passing(count: int, *outputs: int, dtype: TensorType) -> Graph:
    """A graph whose outputs are the inputs at these positions, for cells."""
    builder = Builder()
    inputs = [builder.input(dtype) for _ in range(count)]
    return builder.build([inputs[i] for i in outputs])


_FLAGS = tuple(
    (key, _passing(3, *given, dtype=bool_[()]))
    for key, given in (("cond", (0,)), ("body", (1, 1, 0)))
)

while_ = define(
    name="while",
    arity=None,
    kind=Kind.CONTROL,
    doc=(
        "The state after as many runs of body as cond holds before, none if it does not hold "
        "at first. It may run for ever. No derivative: scan has one."
    ),
    attrs=(
        Attr("cond", "graph", "takes the state, gives bool[]"),
        Attr("body", "graph", "takes the state, gives the next one"),
    ),
    infer=_infer_while,
    reference=_while_reference,
    vjp=_while_vjp,
    prune=_prune_while,
    traits=frozenset({Trait.LOOP}),
    batch=batch_while,
    special=(
        Special(("false", "true", "true"), "false", ("bool",), _FLAGS),
        Special(("true", "false", "true"), "false", ("bool",), _FLAGS),
    ),
)


def _infer_case(operands: Types, attrs: Attrs) -> Types:
    index, *types = operands
    if index.shape:
        raise OpTypeError(f"case: the index is {index}, not one i32", fix="pass an i32[] first")
    branches = attrs["branches"]
    if not isinstance(branches, tuple) or not branches:
        raise OpTypeError(
            f"case: attribute 'branches' must be graphs, got {branches!r}",
            fix="pass a tuple of one graph or more",
        )
    graphs = [graph_attr("case", {"branches": branch}, "branches") for branch in branches]
    results = types_of(graphs[0].outputs)
    for number, graph in enumerate(graphs):
        label = f"branch {number}"
        check_types("case", f"{label} takes", types_of(graph.inputs), tuple(types), "operands are")
        output_types = types_of(graph.outputs)
        check_types("case", f"{label} gives", output_types, results, "branch 0 gives")
    if not results:
        raise OpTypeError("case: the branches give nothing", fix="give at least one value")
    return results


def _case_reference(index: Any, *operands: Any, branches: tuple[Graph, ...]) -> Any:
    results = run(branches[chosen(int(index), len(branches))], operands)
    return tuple(results) if len(results) > 1 else results[0]


def _case_vjp(
    ct: Any, _result: Any, *operands: Value, derive: Derive, branches: tuple[Graph, ...]
) -> tuple[Value | None, ...]:
    index, *inputs = operands
    cts = ct if isinstance(ct, tuple) else (ct,)
    wrt = [i for i, v in enumerate(inputs) if v.dtype.is_float]
    of = [o for o, c in enumerate(cts) if c.dtype.is_float and not is_zero(c)]
    if not wrt or not of:
        return (None,) * len(operands)
    pulled_branches: list[Graph] = []
    for branch in branches:
        pulled = derive(branch, wrt, of)
        derivatives = range(len(branch.outputs), len(pulled.outputs))
        pulled_branches.append(restricted(pulled, range(len(pulled.inputs)), derivatives))
    results = rows.case(index, *inputs, *(cts[o] for o in of), branches=tuple(pulled_branches))
    cotangents = dict(zip(wrt, as_tuple(results), strict=True))
    return (None, *(cotangents.get(i) for i in range(len(inputs))))


def _prune_case(live: frozenset[int], operands: tuple[Value, ...], attrs: Attrs) -> Pruned | None:
    branches = attrs["branches"]
    outputs = sorted(live)
    read = sorted(frozenset[int]().union(*(reached(b, outputs) for b in branches)))
    if len(outputs) == len(branches[0].outputs) and len(read) == len(operands) - 1:
        return None
    pruned = {"branches": tuple(restricted(b, read, outputs) for b in branches)}
    return Pruned((operands[0], *(operands[1 + i] for i in read)), pruned, tuple(outputs))


_EITHER = (("branches", tuple(_passing(3, i, dtype=i32[()]) for i in range(3))),)

case = define(
    name="case",
    arity=None,
    kind=Kind.CONTROL,
    doc=(
        "What one of the branches makes of the operands after the first, which is its number; "
        "any number that is none selects the last branch."
    ),
    attrs=(Attr("branches", "graph", "graphs that take and give the same types"),),
    infer=_infer_case,
    reference=_case_reference,
    vjp=_case_vjp,
    prune=_prune_case,
    traits=frozenset({Trait.BRANCH}),
    batch=batch_case,
    dtypes=(i32,),
    special=tuple(
        Special((index, "5", "6", "7"), result, ("i32",), _EITHER)
        for index, result in (
            ("0", "5"),
            ("1", "6"),
            ("3", "7"),
            ("-1", "7"),
            ("INT_MIN", "7"),
            ("INT_MAX", "7"),
        )
    ),
)

__all__ = ["case", "chosen", "known_trips", "while_"]
