"""The rows call, a graph of its own with a word on how it is differentiated, and after, which keeps
what is computed again from being computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.dtypes import STORED, i32
from bringup.errors import UnsupportedError
from bringup.graph import Builder, Graph, Value, replay
from bringup.graph.parser import register_attr_reader
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.build import rows
from bringup.ops.special_values import Special, cells
from bringup.ops.subgraphs import check_types, graph_attr, run, types_of
from bringup.ops.table import Attr, Attrs, Kind, Types, define
from bringup.types import TensorType

Values = Sequence[Value]
Derive = Callable[..., Graph]


class Rule:
    """How a call is differentiated; this one as its body is.

    name: of the function it is about, for messages and texts.
    forward: whether forward mode may pass, because what `pull` emits is linear in the cotangents by
    its own instructions.

    A rule is one object: calls with two rules are two calls, whatever these do.
    """

    forward = True

    def __init__(self, name: str) -> None:
        self.name = name

    def __ir__(self) -> str:
        return f"rule<{self.name}>"

    def pull(
        self, body: Graph, operands: Values, cts: Values, derive: Derive
    ) -> Sequence[Value | None]:
        """Emit the cotangents of the float operands, of those of the float results."""
        wrt, of = _floats(body.inputs), _floats(body.outputs)
        pulled = derive(body, wrt, of)
        return replay(pulled, arguments=[*operands, *cts])[len(body.outputs) :]


class _Stop(Rule):
    """Nothing comes back."""

    def pull(
        self, body: Graph, operands: Values, cts: Values, derive: Derive
    ) -> Sequence[Value | None]:
        return [None] * len(_floats(body.inputs))


class _Recompute(Rule):
    """The body is run again for its gradient, when the cotangents are there and not before."""

    def pull(
        self, body: Graph, operands: Values, cts: Values, derive: Derive
    ) -> Sequence[Value | None]:
        token = next((ct for ct in cts if ct.type.size), None)
        if token is not None:
            operands = [rows.after(x, token) if x.type.size else x for x in operands]
        return super().pull(body, operands, cts, derive)


class _Mapped(Rule):
    """The rule of a call for many examples: that of one example, mapped.

    one: the body for one example.  flags, has: which of its operands and results are by example.
    """

    def __init__(
        self,
        inner: Rule,
        one: Graph,
        flags: Sequence[bool],
        has: Sequence[bool],
        size: int,
        map_: Any,
    ) -> None:
        super().__init__(inner.name)
        self.forward = inner.forward
        self._inner, self._one, self._map = inner, one, map_
        self._flags, self._has, self._size = tuple(flags), tuple(has), size

    def pull(
        self, body: Graph, operands: Values, cts: Values, derive: Derive
    ) -> Sequence[Value | None]:
        wrt, of = _floats(self._one.inputs), _floats(self._one.outputs)
        with Builder() as builder:
            xs = [builder.input(v.type) for v in self._one.inputs]
            ys = [builder.input(self._one.outputs[i].type) for i in of]
            found = self._inner.pull(self._one, xs, ys, derive)
            known = [i for i, ct in enumerate(found) if ct is not None]
            graph = builder.build([ct for ct in found if ct is not None], self.name)
        flags = [*self._flags, *(self._has[i] for i in of)]
        mapped, by_example = self._map(graph, flags, self._size)
        made = replay(mapped, arguments=[*operands, *cts])
        gradients: list[Value | None] = [None] * len(wrt)
        for place, ct, many in zip(known, made, by_example, strict=True):
            flag = self._flags[wrt[place]]
            if many == flag:
                gradients[place] = ct
            elif many:
                gradients[place] = build.sum_(ct, (0,))
            else:
                spread = range(1, len(ct.shape) + 1)
                gradients[place] = build.broadcast_to(ct, (self._size, *ct.shape), spread)
        return gradients


class _Unknown(Rule):
    """The rule of a call that was read from text, which holds no functions."""

    forward = False

    def pull(
        self, body: Graph, operands: Values, cts: Values, derive: Derive
    ) -> Sequence[Value | None]:
        raise UnsupportedError(
            f"the derivative of {self.name} is a function of Python's, and text does not hold it",
            fix="differentiate before the graph becomes text",
        )


PLAIN, STOP, RECOMPUTE = Rule("plain"), _Stop("stop_gradient"), _Recompute("checkpoint")
_KNOWN = {rule.name: rule for rule in (PLAIN, STOP, RECOMPUTE)}
register_attr_reader("rule", lambda body: _KNOWN.get(body) or _Unknown(body))


def _floats(values: Values) -> list[int]:
    return [i for i, v in enumerate(values) if v.dtype.is_float]


def _infer_call(operands: Types, attrs: Attrs) -> Types:
    body = graph_attr("call", attrs, "body")
    check_types("call", "body takes", types_of(body.inputs), operands, "the operands are")
    return types_of(body.outputs)


def _call_reference(*operands: Any, body: Graph, rule: Rule) -> tuple[Array, ...]:
    return tuple(run(body, operands))


def _call_vjp(
    cts: Any, results: Any, *operands: Value, derive: Derive, body: Graph, rule: Rule
) -> tuple[Value | None, ...]:
    cotangents = cts if isinstance(cts, tuple) else (cts,)
    given = [cotangents[i] for i in _floats(body.outputs)]
    found: list[Value | None] = [None] * len(operands)
    pulled = rule.pull(body, operands, given, derive)
    for place, ct in zip(_floats(operands), pulled, strict=True):
        found[place] = ct
    return tuple(found)


def _call_batch(
    operands: Values,
    batched: Sequence[bool],
    size: int,
    /,
    *,
    body: Graph,
    rule: Rule,
    map_graph: Any,
) -> Any:
    many, has = map_graph(body, batched, size)
    mapped = rule if rule in _KNOWN.values() else _Mapped(rule, body, batched, has, size, map_graph)
    return rows.call(*operands, body=many, rule=mapped)


def _call_decompose(*operands: Value, body: Graph, rule: Rule) -> tuple[Value, ...]:
    return replay(body, arguments=operands)


def _difference() -> Graph:
    """A body, for cells."""
    with Builder() as builder:
        x, y = builder.input(TensorType((), i32)), builder.input(TensorType((), i32))
        return builder.build([rows.sub(x, y), y], "body")


call = define(
    name="call",
    arity=None,
    kind=Kind.COMPOSITE,
    doc=(
        "The results of body. Its rule says how it is differentiated: as body is, not at all, "
        "by running body again, or by functions of the user's, which text does not hold."
    ),
    attrs=(
        Attr("body", "graph", "takes the operands, gives the results"),
        Attr("rule", "rule", "how it is differentiated", default=PLAIN),
    ),
    infer=_infer_call,
    reference=_call_reference,
    vjp=_call_vjp,
    batch=_call_batch,
    special=(Special(("7", "5"), "2", ("i32",), (("body", _difference()),)),),
    dtypes=STORED,
    decompose=_call_decompose,
)


def _infer_after(operands: Types, _attrs: Attrs) -> Types:
    return (operands[0],)


def _after_decompose(x: Value, token: Value) -> Value:
    """The whole of x, from a place that depends on the token: starts are clamped, here to 0."""
    if not x.type.size or not token.type.size:
        return x
    shape = x.shape or (1,)
    first = rows.slice(
        token,
        start=(0,) * len(token.shape),
        limit=(1,) * len(token.shape),
        stride=(1,) * len(token.shape),
    )
    start = build.convert(build.reshape(first, ()), i32)
    whole = build.reshape(x, shape)
    moved = rows.dynamic_slice(whole, *[start] * len(shape), sizes=shape)
    return build.reshape(moved, x.shape)


after = define(
    name="after",
    arity=2,
    kind=Kind.COMPOSITE,
    doc=(
        "The first operand, once the second is there: equal computations before and after it "
        "are not merged, so that what is computed again is not kept instead."
    ),
    infer=_infer_after,
    reference=lambda x, token: x,
    vjp=lambda ct, result, x, token: (ct, None),
    special=cells(
        "2.5, 1 -> 2.5; -0.0, inf -> -0.0; nan, 1 -> nan; 3, 7 -> 3 (int uint)",
    ),
    dtypes=STORED,
    decompose=_after_decompose,
)

__all__ = ["PLAIN", "RECOMPUTE", "STOP", "Rule", "after", "call"]
