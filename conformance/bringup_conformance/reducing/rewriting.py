"""Smaller programs from a program: cuts, rewirings, other outputs, other sizes, other dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bringup.dtypes import DType
from bringup.errors import BringupError
from bringup.graph import Builder, Graph, Instr, Literal, Value
from bringup.graph.verify import subgraphs
from bringup.ops.subgraphs import reached
from bringup.ops.table import lookup
from bringup.types import TensorType
from bringup_conformance.generate.growing import pruned
from bringup_conformance.generate.recipes import Recipe

#: A program under reduction: a graph and a recipe for each input.
Small = tuple[Graph, tuple[Recipe, ...]]
_FRESH = (Recipe("ramp"), Recipe("signed"), Recipe("negative"), Recipe("special"))


def fresh(graph: Graph, values: Sequence[Value], recipe: Recipe) -> dict[Value, Recipe]:
    """New data in the place of values: small integers where there is a loop with a condition, as a
    wrong device may count from any of them.
    """
    small = looping(graph)
    return {v: Recipe() if small and v.dtype.is_integer else recipe for v in values}


def looping(graph: Graph) -> bool:
    """Whether a loop with a condition is in a graph, at any depth."""
    here = any(instr.op.name == "while" for instr in graph.instrs)
    return here or any(map(looping, subgraphs(graph)))


def with_output(small: Small, value: Value) -> Small:
    """The part that one value needs, with that value as the output."""
    graph, recipes = small
    return pruned(Graph(graph.inputs, graph.instrs, (value,), graph.name), recipes)


def single_outputs(small: Small) -> Iterator[Small]:
    """Each value that is computed as the only output: those that halve what is needed first, as a
    bisection would go on if they fail, then the others, the one that needs least first.
    """
    graph, _ = small
    made = [v for instr in graph.instrs for v in instr.results if instr.op.name != "constant"]
    found = sorted((with_output(small, v) for v in made), key=lambda s: len(s[0].instrs))
    at = len(found) // 2
    while at < len(found) - 1:
        yield found[at]
        at += max(1, (len(found) - at) // 2)
    yield from found


def fewer_outputs(small: Small) -> Iterator[Small]:
    """Half of the outputs, then all but one, if there are several."""
    graph, recipes = small
    outputs = graph.outputs
    if len(outputs) < 2:
        return
    half = len(outputs) // 2
    halves = [outputs[:half], outputs[half:]] if len(outputs) > 3 else []
    for kept in (*halves, *(outputs[:i] + outputs[i + 1 :] for i in range(len(outputs)))):
        yield pruned(Graph(graph.inputs, graph.instrs, kept, graph.name), recipes)


def halves(small: Small) -> Iterator[Small]:
    """All that crosses a line replaced by new inputs: the first half of the instructions goes, then
    a quarter, and so on.
    """
    graph, _ = small
    users, steering = graph.users(), steers(graph)
    length = len(graph.instrs) // 2
    while length > 1:
        before = graph.instrs[:length]
        after = set(graph.instrs[length:])
        made = [v for instr in before for v in instr.results]
        crossing = [v for v in made if v in graph.outputs or not after.isdisjoint(users[v])]
        computed = [v for v in crossing if v.producer and v.producer.op.name != "constant"]
        if not steering.intersection(computed):
            for recipe in _FRESH[:2]:
                yield substituted(small, fresh(graph, computed, recipe))
        length //= 2


def prefixes(small: Small) -> Iterator[Small]:
    """All behind a line cut off, and what crosses it as outputs: the second half of the
    instructions goes, then a quarter, and so on.
    """
    graph, recipes = small
    length = len(graph.instrs) // 2
    while length:
        kept = graph.instrs[:-length]
        after = {v for instr in graph.instrs[-length:] for v in instr.operands}
        made = [v for instr in kept for v in instr.results if instr.op.name != "constant"]
        crossing = tuple(v for v in made if v in after or v in graph.outputs)
        if crossing:
            yield pruned(Graph(graph.inputs, kept, crossing, graph.name), recipes)
        length //= 2


def peeled(small: Small) -> Iterator[Small]:
    """An instruction that makes outputs alone cut off: what it is made of is returned instead."""
    graph, recipes = small
    users = graph.users()
    for instr in reversed(graph.instrs):
        if instr.op.name == "constant" or any(users[v] for v in instr.results):
            continue
        at = min(graph.outputs.index(v) for v in instr.results if v in graph.outputs)
        made = [v for v in instr.operands if v.producer and v.producer.op.name != "constant"]
        rest = [v for v in graph.outputs if v not in instr.results]
        outputs = tuple(dict.fromkeys((*rest[:at], *made, *rest[at:])))
        if outputs:
            yield pruned(Graph(graph.inputs, graph.instrs, outputs, graph.name), recipes)


def cuts(small: Small) -> Iterator[Small]:
    """The results of an instruction replaced by new inputs, those nearest to the outputs first."""
    for instr in _replaceable(small[0]):
        for recipe in _FRESH:
            yield substituted(small, fresh(small[0], instr.results, recipe))


def rewirings(small: Small) -> Iterator[Small]:
    """The results of an instruction replaced by operands of their types, or by constants."""
    for instr in _replaceable(small[0]):
        yield from (substituted(small, table) for table in shortcuts(instr))
        if instr.operands:
            yield substituted(small, dict.fromkeys(instr.results, 1))


def pairs(small: Small) -> Iterator[Small]:
    """Two instructions replaced at once, where neither can be alone: by operands or new inputs."""
    found = list(_replaceable(small[0]))
    for n, first in enumerate(found):
        for second in found[:n]:
            for one, other in product(_stand_ins(first), _stand_ins(second)):
                yield substituted(small, {**one, **other})


def _stand_ins(instr: Instr) -> list[dict[Value, Value | int | Recipe]]:
    return [*shortcuts(instr), dict.fromkeys(instr.results, _FRESH[0])]


def shortcuts(instr: Instr) -> Iterator[dict[Value, Value | int | Recipe]]:
    """Operands that may stand for the results of an instruction: of a loop, its state at first."""
    wanted = [v.type for v in instr.results]
    if len(wanted) > 1:
        first = len(instr.operands) - len(wanted)
        tries = [instr.operands[at : at + len(wanted)] for at in dict.fromkeys((first, 0))]
    else:
        tries = [(v,) for v in dict.fromkeys(instr.operands)]
    for operands in tries:
        if [v.type for v in operands] == wanted:
            yield dict(zip(instr.results, operands, strict=True))


def _replaceable(graph: Graph) -> Iterator[Instr]:
    steering = steers(graph)
    for instr in reversed(graph.instrs):
        empty = instr.op.name == "constant" and instr.results[0].type.size < 1
        if not empty and steering.isdisjoint(instr.results):
            yield instr


def steers(graph: Graph) -> frozenset[Value]:
    """The values that decide how often a loop runs: other ones might have it run for ever."""
    found: set[Value] = set()
    for instr in reversed(graph.instrs):
        found.update(instr.operands[i] for i in steering(instr))
        if not found.isdisjoint(instr.results):
            found.update(instr.operands)
    return frozenset(found)


def steering(instr: Instr) -> frozenset[int]:
    """The operands that decide how often a loop runs, itself or one inside it."""
    attrs, name = instr.attrs, instr.op.name
    if name == "case":
        return frozenset(n + 1 for inner in attrs["branches"] for n in _steered(inner))
    if name == "scan":
        first, last = attrs["consts"], attrs["consts"] + attrs["carries"]
        carried = {n: n - first for n in range(first, last)}
        return _carried(attrs["body"], _steered(attrs["body"]), carried)
    if name == "while":
        cond, body = attrs["cond"], attrs["body"]
        needed = reached(cond, [0]) | _steered(cond) | _steered(body)
        return _carried(body, needed, {n: n for n in range(len(body.inputs))})
    return frozenset()


def _steered(graph: Graph) -> frozenset[int]:
    """The inputs that decide how often loops inside run."""
    found = steers(graph)
    return frozenset(n for n, value in enumerate(graph.inputs) if value in found)


def _carried(body: Graph, needed: frozenset[int], places: Mapping[int, int]) -> frozenset[int]:
    """Inputs, and those that they hang on trip after trip; places: of carries, the outputs."""
    while (more := needed | reached(body, [places[n] for n in needed if n in places])) != needed:
        needed = more
    return needed


def substituted(small: Small, table: Mapping[Value, Value | int | Recipe]) -> Small:
    """Some values replaced: by a value, a splat, or a new input of a recipe."""
    graph, recipes = small
    builder, added = Builder(), list(recipes)
    found: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    for instr in graph.instrs:
        if not all(v in table for v in instr.results):
            results = builder.emit(instr.op, [found[v] for v in instr.operands], instr.attrs)
            found.update(zip(instr.results, results, strict=True))
        for value in instr.results:
            if value not in table:
                continue
            other = table[value]
            if isinstance(other, Value):
                found[value] = found[other]
            elif isinstance(other, Recipe):
                found[value] = builder.input(value.type)
                added.append(other)
            else:
                with builder:
                    literal = Literal.splat(other, value.type)
                    found[value] = lookup("constant")(value=literal)
    outputs = [found[v] for v in graph.outputs]
    return pruned(builder.build(outputs, graph.name), tuple(added))


def smaller_sizes(small: Small) -> Iterator[Small]:
    """A size replaced by a smaller one wherever it stands."""
    graph, recipes = small
    values = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    sizes = sorted({n for v in values for n in v.shape if n > 1}, reverse=True)
    for size in sizes:
        for other in dict.fromkeys((1, 2, 3, size // 4, size // 2, size - size // 4, size - 1)):
            if 0 < other < size:
                made = _rebuilt(graph, partial(_swap, size, other), None)
                if made is not None:
                    yield made, recipes


def _swap(old: int, new: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(new if n == old else n for n in shape)


def simpler_dtypes(small: Small, wanted: Sequence[tuple[DType, DType]]) -> Iterator[Small]:
    """A dtype replaced by another wherever it stands."""
    graph, recipes = small
    present = {v.dtype for v in graph.inputs}
    present |= {v.dtype for instr in graph.instrs for v in instr.results}
    for old, new in wanted:
        if old in present:
            made = _rebuilt(graph, tuple, {old: new})
            if made is not None:
                yield made, recipes


Resize = Callable[[Sequence[int]], tuple[int, ...]]


def _rebuilt(graph: Graph, resize: Resize, dtypes: Mapping[DType, DType] | None) -> Graph | None:
    """The graph with other shapes and dtypes, or None if some instruction does not take them."""
    swap = dtypes or {}
    builder = Builder()
    table = {
        v: builder.input(TensorType(resize(v.shape), swap.get(v.dtype, v.dtype)))
        for v in graph.inputs
    }
    try:
        for instr in graph.instrs:
            operands = [table[v] for v in instr.operands]
            attrs = {name: _retyped(a, swap) for name, a in instr.attrs.items()}
            attrs = {name: _inside(a, resize, swap) for name, a in attrs.items()}
            attrs = _resized(instr, attrs, operands, resize)
            results = builder.emit(instr.op, operands, attrs)
            table.update(zip(instr.results, results, strict=True))
    except (BringupError, ValueError, OverflowError):
        return None
    return builder.build([table[v] for v in graph.outputs], graph.name)


def _inside(value: Any, resize: Resize, swap: Mapping[DType, DType]) -> Any:
    """Sub-graphs likewise.  Raises ValueError if one does not take it."""
    if isinstance(value, tuple) and any(isinstance(each, Graph) for each in value):
        return tuple(_inside(each, resize, swap) for each in value)
    if not isinstance(value, Graph):
        return value
    made = _rebuilt(value, resize, swap)
    if made is None:
        raise ValueError(f"{value.name} does not take other types")
    return made


def _retyped(value: Any, swap: Mapping[DType, DType]) -> Any:
    if isinstance(value, DType):
        return swap.get(value, value)
    if isinstance(value, TensorType):
        return value.with_dtype(swap.get(value.dtype, value.dtype))
    if isinstance(value, Literal) and value.type.dtype in swap:
        type_ = value.type.with_dtype(swap[value.type.dtype])
        with np.errstate(all="ignore"):
            return Literal(value.elements.astype(type_.dtype.numpy), type_)
    return value


def _resized(
    instr: Instr, attrs: dict[str, Any], operands: Sequence[Value], resize: Resize
) -> dict[str, Any]:
    """Attributes that hold sizes, made to fit the operands' new ones.

    Raises ValueError if that is not clear.
    """
    name = instr.op.name
    if name == "iota":
        return {**attrs, "type": attrs["type"].with_shape(resize(attrs["type"].shape))}
    if name == "constant":
        return {**attrs, "value": _cropped(attrs["value"], resize(attrs["value"].type.shape))}
    if name == "reshape":
        return {**attrs, "shape": _reshaped(resize(attrs["shape"]), operands[0].type.size)}
    if name == "broadcast_in_dim":
        shape = list(resize(attrs["shape"]))
        for n, d in zip(operands[0].shape, attrs["dims"], strict=True):
            shape[d] = n if n != 1 else shape[d]
        return {**attrs, "shape": tuple(shape)}
    if name == "slice":
        return {**attrs, **_sliced(instr, attrs, operands[0].shape)}
    if name == "scan":
        return {**attrs, "length": resize((attrs["length"],))[0]}
    return attrs


def _cropped(literal: Literal, shape: tuple[int, ...]) -> Literal:
    type_ = literal.type.with_shape(shape)
    if literal.is_splat:
        return Literal(literal.elements, type_)
    return Literal(literal.array()[tuple(map(slice, shape))], type_)


def _reshaped(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if math.prod(shape) == size:
        return shape
    for d in range(len(shape)):
        rest = math.prod(shape[:d] + shape[d + 1 :])
        if rest and size % rest == 0:
            return (*shape[:d], size // rest, *shape[d + 1 :])
    raise ValueError(f"no shape like {shape} holds {size} elements")


def _sliced(instr: Instr, attrs: dict[str, Any], shape: Sequence[int]) -> dict[str, Any]:
    old = instr.operands[0].shape
    starts, limits = [], []
    columns = zip(old, shape, attrs["start"], attrs["limit"], attrs["stride"], strict=True)
    for before, after, start, limit, stride in columns:
        # Distances from either end stay; what no longer fits becomes a slice of less.
        if stride > 0:
            end = max(after - (before - limit), min(start, after))
            starts.append(min(start, end))
            limits.append(end)
        else:
            top = max(after - (before - start), min(limit, after - 1))
            starts.append(top)
            limits.append(max(-1, min(limit, top)))
    return {"start": tuple(starts), "limit": tuple(limits)}
