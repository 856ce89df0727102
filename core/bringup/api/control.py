"""Control flow on values that Python does not know: loops and branches as parts of the program.

The functions given are traced, not called for each iteration.  What they use from outside becomes
an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.arguments import items_of
from bringup.api.array import Array
from bringup.api.broadcasting import convert
from bringup.api.closures import (
    Closed,
    State,
    body_of,
    closed_over,
    graph_of,
    require_function,
    state_of,
    unchanged,
)
from bringup.api.creation import asarray
from bringup.api.elementwise import less, logical_or, where
from bringup.dtypes import bool_, i32
from bringup.errors import ConversionError, OpTypeError
from bringup.tracing.pytree import TreeDef, unflatten
from bringup.types import TensorType

R = TypeVar("R")
Y = TypeVar("Y")


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], R], init_val: Any) -> R:
    """Run `body_fun` on a state as long as `cond_fun` of it holds.

    cond_fun: takes the state, gives one bool.
    body_fun: takes the state, gives the next one: the same containers, types and shapes.
    init_val: the state at first, a container of arrays.
    Returns the last state, `init_val` if `cond_fun` does not hold at first.

    How often it runs may depend on values, so `grad` does not go through it: use `scan`, or
    `fori_loop` with bounds that are Python ints.
    Raises OpTypeError if the state changes its type, which the message names.

    >>> bu.while_loop(lambda x: x < 100, lambda x: x * 2, bu.asarray(3)).item()
    192
    """
    last: R = _while("while_loop", cond_fun, body_fun, init_val, None)
    return last


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], R],
    init_val: Any,
    *,
    unroll: int | bool = 1,
) -> R:
    """``state = body_fun(i, state)`` for each i from `lower` up to, and without, `upper`.

    lower, upper: Python ints, or 0-d integer arrays; with Python ints `grad` goes through the loop.
    body_fun: takes i and the state, gives the next one: the same containers, types and shapes.
    init_val: the state at first.
    unroll: taken for JAX's sake, as in `scan`.
    Returns the last state.
    Raises OpTypeError if the state changes its type, which the message names.

    >>> bu.fori_loop(1, 5, lambda i, x: x * i, bu.asarray(1)).item()
    24
    """
    require_function("fori_loop", body_fun, "body_fun")
    if type(lower) is int and type(upper) is int:

        @wraps(body_fun)
        def step(carry: Any, _row: None) -> Any:
            return (carry[0] + 1, body_fun(*carry)), None

        length = max(0, upper - lower)
        carry, _ = _scan("fori_loop", step, (lower, init_val), None, length, False, ("i", "state"))
        result: R = carry[1]
        return result
    first, last = (_integer_scalar(bound) for bound in (lower, upper))
    start = convert(first, last.dtype) if type(lower) is int else first
    stop = convert(last, start.dtype)

    def holds(state: Any) -> Any:
        return less(state[0], stop)

    @wraps(body_fun)
    def advance(state: Any) -> Any:
        return state[0] + 1, body_fun(*state)

    state: tuple[Any, R] = _while("fori_loop", holds, advance, (start, init_val), ("i", "state"))
    return state[1]


def scan(
    f: Callable[[Any, Any], tuple[R, Y]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[R, Y]:
    """Run ``carry, y = f(carry, x)`` for each row of `xs`, and stack the ys.

    f: takes the carry and one row of each array of `xs`; gives the next carry, of the same
    containers, types and shapes, and a container of arrays to stack, or None.
    init: the carry at first, a container of arrays.
    xs: a container of arrays whose first dimensions are all the same, or None with a `length`.
    reverse: from the last row to the first; the ys still stand where their rows do.
    unroll: taken for JAX's sake; how a loop is compiled is decided here.
    Returns the last carry, and the ys with one more first dimension.

    `grad` goes through it: each carry is kept, and what an iteration computed from it is computed
    again on the way back.
    Raises OpTypeError if the carry changes its type, which the message names, or lengths differ.

    >>> total, sums = bu.scan(lambda s, x: (s + x, s + x), bu.asarray(0), bu.asarray([1, 2, 3]))
    >>> total.item(), sums.tolist()
    (6, [1, 3, 6])
    """
    return _scan("scan", f, init, xs, length, reverse, None)


def cond(pred: Any, true_fun: Callable[..., R], false_fun: Callable[..., R], *operands: Any) -> R:
    """``true_fun(*operands)`` if `pred` holds, else ``false_fun(*operands)``; one of them runs.

    pred: a 0-d bool array, or a Python bool.
    Both functions give the same containers, types and shapes.  A Python bool decides at once: the
    other function is not called, so nothing compares what the two give.
    Raises OpTypeError if they differ and an array decides, or `pred` is no bool.

    >>> x = bu.asarray(-3.0)
    >>> bu.cond(x < 0, lambda x: -x, lambda x: x, x).item()
    3.0
    """
    for label, branch in (("true_fun", true_fun), ("false_fun", false_fun)):
        require_function("cond", branch, label)
    if isinstance(pred, bool | np.bool_):
        return (true_fun if pred else false_fun)(*operands)
    pred = asarray(pred)
    if pred.type is not bool_[()]:
        shaped = "reduce it with any or all, or choose element by element with where"
        raise OpTypeError(
            f"cond: the predicate is {pred.type}, not one bool",
            fix=shaped if pred.shape else "compare it, as in x != 0",
        )
    index = convert(pred, i32)
    functions, names = (false_fun, true_fun), ("false_fun", "true_fun")
    result: R = _switch("cond", index, functions, names, operands)
    return result


def switch(index: Any, branches: Sequence[Callable[..., R]], *operands: Any) -> R:
    """The branch at ``index``, on the operands; any index that is no branch runs the last one.

    index: a 0-d integer array, or a Python int.
    The branches give the same containers, types and shapes.  A Python int decides at once: the
    other branches are not called, so nothing compares what they give.
    Raises OpTypeError if they differ and an array decides, or `index` is no integer.

    >>> steps = [lambda x: x + 1, lambda x: x * 10]
    >>> bu.switch(bu.asarray(1), steps, bu.asarray(4)).item()
    40
    """
    branches = tuple(items_of("switch", "branches", branches))
    for n, branch in enumerate(branches):
        require_function("switch", branch, f"branch {n}")
    if not branches:
        raise OpTypeError("switch: there are no branches", fix="give one at least")
    if type(index) is int:
        return branches[index if 0 <= index < len(branches) else -1](*operands)
    number = _integer_scalar(index, "switch: the index")
    if number.dtype is not i32:
        # Clip before converting to i32: a wrapped index would choose another branch.
        outside = logical_or(number < 0, number >= len(branches))
        number = convert(where(outside, len(branches) - 1, number), i32)
    names = [f"branch {n}" for n in range(len(branches))]
    result: R = _switch("switch", number, branches, names, operands)
    return result


def _while(
    name: str,
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    labels: tuple[str, ...] | None,
) -> Any:
    require_function(name, cond, "cond_fun")
    require_function(name, body, "body_fun")
    state = state_of(name, init, "state", labels)
    if not state.arrays:
        raise OpTypeError(f"{name}: the state holds no array", fix="give it one")
    run = state.settled(
        lambda candidate: closed_over(
            body, [candidate.treedef], candidate.types, candidate.array_types
        )
    )
    test = closed_over(cond, [state.treedef], state.types, None)
    if [v.type for v in test.graph.outputs] != [bool_[()]]:
        types = ", ".join(str(v.type) for v in test.graph.outputs) or "nothing"
        raise OpTypeError(
            f"{name}: cond_fun gives {types}, not one bool",
            fix="compare something, as in x != 0; any and all make one bool of several",
        )
    outer = list({id(x): x for x in (*test.captured, *run.captured)}.values())
    attrs = {
        "cond": graph_of(test, state.types, outer),
        "body": graph_of(run, state.types, outer, passing=True),
    }
    results = apply_all("while", [*state.arrays, *outer], attrs)[: len(state.arrays)]
    for n in unchanged(run.graph, len(results)):
        results[n] = state.arrays[n]
    return unflatten(state.treedef, results)


def _scan(
    name: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
    labels: tuple[str, ...] | None,
) -> tuple[Any, Any]:
    require_function(name, f, "f")
    carry = state_of(name, init, "carry", labels)
    stacks = state_of(name, xs, "xs", None)
    length = _length(name, [x.type for x in stacks.arrays], stacks.paths, length)
    rows = [x.type.with_shape(x.shape[1:]) for x in stacks.arrays]

    def trace(candidate: Any) -> Closed:
        trees = [candidate.treedef, stacks.treedef]
        return closed_over(f, trees, [*candidate.types, *rows], candidate.array_types, pair=name)

    run = carry.settled(trace)
    tail: TreeDef = run.result.children[1]
    last, results = _scanned(run, carry, stacks.arrays, rows, length, reverse)
    return unflatten(carry.treedef, last), unflatten(tail, results)


def _scanned(
    run: Closed,
    carry: State,
    stacks: Sequence[Array],
    rows: Sequence[TensorType],
    length: int,
    reverse: bool,
) -> tuple[list[Array], list[Array]]:
    """The carry at the end, and the stacked results.

    A value that `run` returns unchanged is a const: gradients keep a copy of a carry per row.
    """
    count = len(carry.arrays)
    fixed = unchanged(run.graph, count)
    moving = [n for n in range(count) if n not in fixed]
    outer = [*(carry.arrays[n] for n in fixed), *run.captured]
    if not (outer or moving or rows):
        outer = [asarray(0)]
    attrs = {
        "body": body_of(run, [*carry.types, *rows], fixed, outer),
        "length": length,
        "reverse": bool(reverse),
        "consts": len(outer),
        "carries": len(moving),
    }
    results: list[Array] = []
    if len(fixed) < len(run.graph.outputs):
        operands = [*outer, *(carry.arrays[n] for n in moving), *stacks]
        results = apply_all("scan", operands, attrs)
    last = list(carry.arrays)
    for n, x in zip(moving, results, strict=False):
        last[n] = x
    return last, results[len(moving) :]


def _length(
    name: str, types: Sequence[TensorType], paths: Sequence[str], length: int | None
) -> int:
    """How many rows there are.  Raises OpTypeError unless all agree."""
    source = "length"
    for type_, path in zip(types, paths, strict=True):
        if not type_.shape:
            raise OpTypeError(
                f"{name}: {path} is {type_}, which has no rows",
                fix="use what is the same for each row inside the function, not in xs",
            )
        if length is None:
            length, source = type_.shape[0], path
        elif length != type_.shape[0]:
            raise OpTypeError(
                f"{name}: {path} has {type_.shape[0]} rows, {source} says {length}",
                fix="give all of them as many rows",
            )
    if length is None:
        raise OpTypeError(f"{name}: nothing says how often to run", fix="give xs, or length=")
    if type(length) is not int or length < 0:
        raise OpTypeError(f"{name}: length={length!r} is no count", fix="pass an int")
    return length


def _switch(
    name: str,
    index: Array,
    branches: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: tuple[Any, ...],
) -> Any:
    for branch, label in zip(branches, names, strict=True):
        require_function(name, branch, label)
    state = state_of(name, operands, "operands", None)
    trees = list(state.treedef.children)
    closed = [closed_over(branch, trees, state.types, None) for branch in branches]
    result_types = _common_types(name, closed, names)
    if any(result_types != [v.type for v in traced.graph.outputs] for traced in closed):
        closed = [closed_over(branch, trees, state.types, result_types) for branch in branches]
    _check_alike(name, closed, names)
    if not closed[0].graph.outputs:
        return unflatten(closed[0].result, [])
    outer = list({id(x): x for traced in closed for x in traced.captured}.values())
    graphs = tuple(graph_of(traced, state.types, outer) for traced in closed)
    results = apply_all("case", [index, *state.arrays, *outer], {"branches": graphs})
    return unflatten(closed[0].result, results)


def _common_types(name: str, branches: Sequence[Closed], names: Sequence[str]) -> list[TensorType]:
    """The types of the results, each from a branch where it is not weak, if there is one.

    Raises OpTypeError unless all branches give the same containers.
    """
    for branch, label in zip(branches[1:], names[1:], strict=True):
        if branch.result != branches[0].result:
            raise OpTypeError(
                f"{name}: {names[0]} gives {branches[0].result}, {label} gives {branch.result}",
                fix="make them give the same containers",
            )
    result = []
    for position, value in enumerate(branches[0].graph.outputs):
        strong = (b.graph.outputs[position].type for b in branches if not b.weak[position])
        result.append(next(strong, value.type))
    return result


def _check_alike(name: str, branches: Sequence[Closed], names: Sequence[str]) -> None:
    paths = list(branches[0].result.paths("the result"))
    for branch, label in zip(branches[1:], names[1:], strict=True):
        for path, first, second in zip(
            paths, branches[0].graph.outputs, branch.graph.outputs, strict=True
        ):
            if first.type is not second.type:
                cast = f"convert one of them, as in astype(x, {first.dtype.long_name})"
                raise OpTypeError(
                    f"{name}: {path} is {first.type} from {names[0]}, {second.type} from {label}",
                    fix=cast if first.shape == second.shape else "make the shapes equal",
                )


def _integer_scalar(value: Any, label: str = "fori_loop: a bound") -> Array:
    """A 0-d integer array."""
    try:
        result = asarray(value)
    except ConversionError:
        result = None
    if result is None or result.shape or not result.dtype.is_integer:
        shown = type(value).__name__ if result is None else str(result.type)
        raise OpTypeError(
            f"{label} is {shown}, not one integer", fix="pass an int, or a 0-d array of integers"
        )
    return result


__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]
