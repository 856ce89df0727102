"""Faults of random numbers, as rewrites of the generators and of what is made of their words.

Generators here have no state: a word is a function of key and counter.  What the list says of state
that is not advanced is a counter that is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.backend import Backend
from bringup.dtypes import u32
from bringup.graph import Graph, Instr, Value, current_builder, rebuild
from bringup.passes.base import Pass, deep
from bringup_selftest.corpus import Faults, with_passes
from bringup_selftest.device import BLOCK
from bringup_selftest.editing import call, is_made_by, number
from bringup_selftest.faults.passes import as_pass

FAULTS = Faults("Random numbers", "pass", depth=3)
Values = tuple[Value, ...]
GENERATORS = ("threefry2x32", "philox4x32")


def _generators(edit: Callable[[Values], Values]) -> Callable[[Graph], Graph]:
    """An edit of the operands of every generator: two words of key, then the counter."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in GENERATORS:
            return None
        return current_builder().emit(instr.op, edit(operands), instr.attrs)

    return deep(lambda graph: rebuild(graph, rewrite))


@FAULTS.by(lambda inject: inject, "RN02", "words depend on how often a program was compiled")
def by_compilation(backend: Backend) -> Backend:
    times: dict[object, int] = {}

    def run(graph: Graph) -> Graph:
        shapes = tuple((i.op.name, i.result.type) for i in graph.instrs if len(i.results) == 1)
        before = times[shapes] = times.get(shapes, -1) + 1

        def other(operands: Values) -> Values:
            key = call("add", operands[0], number(before, operands[0]))
            return (key, *operands[1:])

        return _generators(other)(graph)

    return with_passes(Pass("key", "key -> another", run))(backend)


def by_tile(operands: Values) -> Values:
    """The counter begins again in every tile."""
    x = operands[2]
    return (*operands[:2], call("rem", x, number(BLOCK, x)), *operands[3:])


def by_blocks(operands: Values) -> Values:
    """The counter is advanced by words, not by blocks of words."""
    x = operands[2]
    return (*operands[:2], call("mul", x, number(len(operands) - 2, x)), *operands[3:])


@FAULTS.by(as_pass("randoms"), "RN05", "a second draw repeats the first")
def not_advanced(graph: Graph) -> Graph:
    seen: dict[object, Values] = {}

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in GENERATORS:
            return None
        key = (instr.op.name, *(_bits(v) for v in operands[:2]), operands[2].type)
        if key not in seen:
            seen[key] = current_builder().emit(instr.op, operands, instr.attrs)
        return seen[key]

    return rebuild(graph, rewrite)


def _bits(value: Value) -> object:
    if is_made_by(value, "broadcast_in_dim") and value.producer is not None:
        return _bits(value.producer.operands[0])
    literal = value.literal
    return value if literal is None else literal.elements.tobytes()


@FAULTS.by(
    as_pass("redraw"),
    "FU22",
    "random words are drawn anew per consumer (tensorflow#11849)",
    group="Fusion",
)
def drawn_again(graph: Graph) -> Graph:
    read: set[Value] = set()

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        taken = [_redrawn(v) if v in read and is_made_by(v, *GENERATORS) else v for v in operands]
        read.update(operands)
        if all(a is b for a, b in zip(taken, operands, strict=True)):
            return None
        return current_builder().emit(instr.op, taken, instr.attrs)

    return rebuild(graph, rewrite)


def _redrawn(value: Value) -> Value:
    made = value.producer
    assert made is not None
    key = call("add", made.operands[0], number(1, made.operands[0]))
    return current_builder().emit(made.op, (key, *made.operands[1:]), made.attrs)[value.index]


def _of_words(change: Callable[[Value, int], Value]) -> Callable[[Graph], Graph]:
    """A rewrite of the floats made of random words, ``convert(word >> k)``."""

    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        floats = instr.op.name == "convert" and instr.result.dtype.is_float
        if not floats or not is_made_by(operands[0], "shr") or operands[0].dtype is not u32:
            return None
        assert operands[0].producer is not None
        word, count = operands[0].producer.operands
        if is_made_by(count, "broadcast_in_dim") and count.producer is not None:
            count = count.producer.operands[0]
        literal = count.literal
        if literal is None or not literal.is_splat:
            return None
        wrong = change(word, int(literal.scalar))
        return current_builder().emit(instr.op, (wrong,), instr.attrs)

    return lambda graph: rebuild(graph, rewrite)


def rounded_up(word: Value, count: int) -> Value:
    """A fraction of a word is rounded to nearest, up to 1 at the end (Fuser#1653)."""
    if count < 2:
        return call("shr", word, number(count, word), kind="logical")
    half = call("shr", word, number(count - 1, word), kind="logical")
    return call("shr", call("add", half, number(1, half)), number(1, half), kind="logical")


def low_bits_lost(word: Value, count: int) -> Value:
    """The lowest bits of a fraction are never set."""
    high = call("shr", word, number(min(count + 2, 31), word), kind="logical")
    return call("shl", high, number(min(count + 2, 31) - count, word))


@FAULTS.by(as_pass("randoms"), "RN06a", "two words of a block are swapped")
def words_swapped(graph: Graph) -> Graph:
    def rewrite(instr: Instr, operands: Values) -> Sequence[Value] | None:
        if instr.op.name not in GENERATORS:
            return None
        first, second, *rest = current_builder().emit(instr.op, operands, instr.attrs)
        return (second, first, *rest)

    return rebuild(graph, rewrite)


FAULTS.by(as_pass("randoms"), "RN02b", "the counter begins again in every tile")(
    _generators(by_tile)
)
FAULTS.by(as_pass("randoms"), "RN04", "a fraction is rounded up to 1 (Fuser#1653)")(
    _of_words(rounded_up)
)
FAULTS.by(as_pass("randoms"), "RN04b", "the lowest bits of a fraction are never set")(
    _of_words(low_bits_lost)
)
FAULTS.by(as_pass("randoms"), "RN05b", "the counter is advanced by words")(_generators(by_blocks))
