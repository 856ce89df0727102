"""The rewriting engine: rules applied by the builder itself, at the moment an instruction is made.

A rule looks at the instruction about to be made and answers with other values, made by emitting
into the active builder (which rewrites those in turn), or with None.  Operands are already
rewritten when a rule sees them, so one replay reaches the fixpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bringup.errors import GraphError
from bringup.graph import Builder, Graph, Instr, Literal, Operation, Value, current_builder, replay
from bringup.ops.build import rows
from bringup.ops.table import OpDef, all_ops
from bringup.passes.base import Available, as_results
from bringup.passes.fold import fold_call
from bringup.records import record
from bringup.types import TensorType

MAX_DEPTH = (
    32  # rewrites inside one another; every rule makes something simpler, so chains are short
)

Body = Callable[..., Value | tuple[Value, ...] | None]


@record
class Rule:
    """One rewrite.

    name: of the function.
    doc: its docstring; each of its lines with an arrow is an example, and is tested.
    ops: the ops it looks at.
    body: ``body(*operands, **attrs)`` gives the replacement or None.
    """

    name: str
    doc: str
    ops: tuple[str, ...]
    body: Body

    def rule_of(self, op: OpDef) -> Rule | None:
        """Itself, if it looks at the op."""
        return self if op.name in self.ops else None


class Family:
    """Rules that follow from the op table: one for every row of some kind.

    make: the rule of a row, or None; called when a program first has the row's op.
    """

    def __init__(self, make: Callable[[OpDef], Rule | None]) -> None:
        self._make = make
        self._made: dict[OpDef, Rule | None] = {}

    def rule_of(self, op: OpDef) -> Rule | None:
        """The rule for a row, if it has one."""
        if op not in self._made:
            self._made[op] = self._make(op)
        return self._made[op]


class Rules:
    """Rules and families in the order in which they are tried, looked up by op."""

    def __init__(self, *each: Rule | Family) -> None:
        self._each = each
        self._found: dict[Operation, tuple[Rule, ...]] = {}

    def __iter__(self) -> Iterator[Rule | Family]:
        return iter(self._each)

    def of(self, op: Operation) -> tuple[Rule, ...]:
        """The rules that look at an op."""
        found = self._found.get(op)
        if found is None:
            made = (each.rule_of(op) for each in self._each if isinstance(op, OpDef))
            found = self._found[op] = tuple(one for one in made if one is not None)
        return found


def all_rules(rules: Iterable[Rule | Family]) -> tuple[Rule, ...]:
    """The rules in order, every family with its rules for the whole table."""
    found: list[Rule] = []
    for each in rules:
        if isinstance(each, Rule):
            found.append(each)
        else:
            made = map(each.rule_of, all_ops())
            found += [one for one in made if one is not None]
    return tuple(found)


def rule(*ops: str) -> Callable[[Body], Rule]:
    """Make a `Rule` of a function, for instructions of these ops."""

    def make(body: Body) -> Rule:
        return Rule(body.__name__.lstrip("_"), body.__doc__ or "", ops, body)

    return make


class _Unavailable(Exception):
    """A rule made an instruction that the device does not have."""


class RewritingBuilder(Builder):
    """A builder that applies rules before it makes an instruction.

    rules: tried in order.
    available: a replacement stands only if the device has every op of it.
    dedupe: as in `Builder`; rules that look for equal operands need it.
    fold: also replace known results by constants.
    """

    def __init__(
        self,
        rules: Rules,
        available: Available,
        *,
        dedupe: bool = False,
        fold: bool = False,
    ) -> None:
        super().__init__(dedupe=dedupe)
        self._rules_of = rules.of
        self._available = available
        self._fold = fold
        self._depth = 0
        self.positions: dict[Value, int] = {}

    def input(self, type_: TensorType) -> Value:
        """A new graph input."""
        value = super().input(type_)
        self.positions[value] = len(self.positions)
        return value

    def emit_bound(
        self,
        op: Operation,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...]:
        """Append one instruction, or what the rules make of it, and return its results."""
        if self._depth < MAX_DEPTH:
            found = self._rewrite(op, operands, attrs, types)
            if found is not None:
                return found
        results = super().emit_bound(op, operands, attrs, types)
        if self._depth and not self._available(_producer(results)):
            raise _Unavailable
        for value in results:
            self.positions.setdefault(value, len(self.positions))
        return results

    def _rewrite(
        self,
        op: Operation,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...] | None:
        if self._fold:
            literals = fold_call(op, operands, attrs)
            if literals is not None:
                found = self._attempt(lambda: _constants(literals))
                if found is not None:
                    return found
        for each in self._rules_of(op):
            found = self._attempt(lambda body=each.body: body(*operands, **attrs))  # type: ignore[misc]
            if found is not None:
                _compare_types(each, op, found, types)
                return found
        return None

    def _attempt(
        self, make: Callable[[], Value | tuple[Value, ...] | None]
    ) -> tuple[Value, ...] | None:
        self._depth += 1
        made, seen = len(self._instrs), len(self._seen or ())
        try:
            found = make()
        except _Unavailable:
            # What it had made until then must not stay, though nobody reads it.
            del self._instrs[made:]
            while self._seen is not None and len(self._seen) > seen:
                self._seen.popitem()
            return None
        finally:
            self._depth -= 1
        return None if found is None else as_results(found)


def _constants(literals: tuple[Literal, ...]) -> tuple[Value, ...]:
    return tuple(rows.constant(value=literal) for literal in literals)


def _compare_types(
    each: Rule, op: Operation, results: Sequence[Value], wanted: tuple[TensorType, ...]
) -> None:
    found = tuple(v.type for v in results)
    if found != wanted:
        texts = [", ".join(map(str, types)) for types in (found, wanted)]
        raise GraphError(f"rule {each.name}: makes {texts[0]} of {op.name}, inferred {texts[1]}")


def _producer(results: tuple[Value, ...]) -> Instr:
    made = results[0].producer
    assert made is not None
    return made


def apply_rules(
    graph: Graph,
    rules: Rules,
    available: Available,
    *,
    dedupe: bool = False,
    fold: bool = False,
) -> Graph:
    """Replay a graph under rules; see `RewritingBuilder`."""
    builder = RewritingBuilder(rules, available, dedupe=dedupe, fold=fold)
    return builder.build(replay(graph, builder=builder), graph.name)


def in_order(x: Value, y: Value) -> bool:
    """Whether two operands that may change places stand right.

    Constants come last; otherwise what was made first comes first.
    """
    known = [v.literal is not None for v in (x, y)]
    if known[0] != known[1]:
        return known[1]
    builder = current_builder()
    assert isinstance(builder, RewritingBuilder)
    return builder.positions[x] <= builder.positions[y]


def made_by(value: Value, *names: str) -> Instr | None:
    """The instruction that made a value, if it is of one of these ops."""
    made = value.producer
    return made if made is not None and made.op.name in names else None


def is_splat(value: Value, element: Any) -> bool:
    """Whether a value is a constant whose elements all have the bits of `element`.

    element: a number, converted to the dtype.
    """
    literal = value.literal
    if literal is None or not literal.is_splat:
        return False
    return literal == Literal.splat(element, literal.type)
