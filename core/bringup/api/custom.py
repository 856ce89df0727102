"""Derivatives of one's own: functions with a rule, without derivative, or computed again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import MethodType
from typing import Any

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.array import Array
from bringup.api.boundary import guarded, guarded_methods
from bringup.api.broadcasting import convert
from bringup.api.closures import closed_over, require_function
from bringup.api.creation import asarray, zeros
from bringup.api.defaults import current_float, default_dtype
from bringup.api.promotion import is_weak
from bringup.api.trace import LeafType, array_type, graph_name, leaf_type, trace_function
from bringup.dtypes import DType
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Graph, Literal, Value, replay
from bringup.ops.build import zeros_like
from bringup.ops.calls import RECOMPUTE, STOP, Derive, Rule
from bringup.ops.table import lookup
from bringup.records import record
from bringup.tracing.context import current
from bringup.tracing.pytree import TreeDef, flatten, prefix_leaves, unflatten
from bringup.types import TensorType


def stop_gradient(x: Any) -> Any:
    """`x` for which no derivative is taken: it counts as a constant, in every mode.

    x: a container of arrays, of any dtypes and shapes, and of Python numbers, which stay as they
    are.
    Returns a container like it, of equal values.

    >>> bu.grad(lambda x: x * bu.stop_gradient(x))(bu.asarray(3.0)).item()
    3.0
    """
    if current() is None:
        return x
    leaves, treedef = flatten(x)
    return unflatten(treedef, map(_stopped, leaves))


def _stopped(x: Any) -> Any:
    if not isinstance(x, Array) or not x.dtype.is_float:
        return x
    traced = trace_function(lambda arrays: arrays[0], [x.type], name="stop_gradient")
    return apply_all("call", [x], {"body": traced.graph, "rule": STOP}, weak=is_weak(x))[0]


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, whose intermediate values are not kept for its gradient but computed again.

    fn: takes and returns containers of arrays; what it uses from outside is differentiated too.
    The gradient of many such functions one after the other needs the memory of what goes between
    them and of one of them, at the price of computing each twice.

    >>> block = bu.checkpoint(lambda x: bu.sin(bu.sin(x)))
    >>> bu.grad(block)(bu.asarray(0.0)).item()
    1.0
    """
    require_function("checkpoint", fn, "the function")

    @guarded
    @functools.wraps(fn)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return fn(*args, **kwargs)
        return _TracedCall.of("checkpoint", fn, args, kwargs).emit(RECOMPUTE)

    return recomputed


#: The same by another name.
remat = checkpoint


@record(eq=False)
class _TracedCall:
    """A function traced where it is called.

    arrays, types, treedef: of the arguments, ``(args, kwargs)``.  graph: takes the leaves, then the
    captured arrays.  result: the shape of what it gives.
    default: the default float dtype there, which rules are traced with as well.
    """

    fn: Callable[..., Any]
    arrays: list[Array]
    types: list[LeafType]
    treedef: TreeDef
    graph: Graph
    captured: tuple[Array, ...]
    result: TreeDef
    default: DType

    @classmethod
    def of(
        cls, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _TracedCall:
        leaves, treedef = flatten((args, kwargs))
        paths = treedef.paths(f"{name}: an argument of {graph_name(fn)}")
        types = [leaf_type(x, path) for x, path in zip(leaves, paths, strict=True)]
        arrays = [
            x if isinstance(x, Array) else asarray(x, dtype=array_type(t).dtype)
            for x, t in zip(leaves, types, strict=True)
        ]

        @functools.wraps(fn)
        def packed(args_and_kwargs: Any) -> Any:
            return fn(*args_and_kwargs[0], **args_and_kwargs[1])

        traced = closed_over(packed, [treedef], types, None)
        graph, captured, result = traced.graph, traced.captured, traced.result
        return cls(fn, arrays, types, treedef, graph, captured, result, current_float())

    def emit(self, rule: Rule) -> Any:
        """The result of one instruction that holds the function."""
        if not self.graph.outputs:
            return unflatten(self.result, [])
        operands = [*self.arrays, *self.captured]
        if not operands:  # nothing to differentiate by
            return self.fn()
        attrs = {"body": self.graph, "rule": rule}
        return unflatten(self.result, apply_all("call", operands, attrs))


@guarded_methods
class _Custom:
    """What functions with rules of their own share.  fixed: positions that are no arrays."""

    def __init__(self, fn: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        """Raises OpTypeError for what is no function and for negative positions."""
        name = type(self).__name__
        require_function(name, fn, "the function")
        wrapper: Any = self
        functools.update_wrapper(wrapper, fn)
        self._fn = fn
        fixed = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        if any(i < 0 for i in fixed):
            raise OpTypeError(
                f"{name}: nondiff_argnums {nondiff_argnums} are no positions",
                fix="give positions of arguments, counted from 0",
            )
        self._fixed = fixed

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function: Any = self
        return self if instance is None else MethodType(function, instance)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {graph_name(self._fn)}>"

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, as rules take them."""
        if not kwargs:
            return args
        bound = inspect.signature(self._fn).bind(*args, **kwargs)
        if bound.kwargs:
            raise OpTypeError(
                f"{type(self).__name__}: {graph_name(self._fn)} has arguments by keyword alone: "
                f"{', '.join(bound.kwargs)}",
                fix="let rules and function take all arguments by position",
            )
        return bound.args

    def _emit(self, args: tuple[Any, ...], rule: Callable[[_RuleCall], Rule]) -> Any:
        name = type(self).__name__
        fixed = {i: args[i] for i in self._fixed if i < len(args)}
        moving = tuple(x for i, x in enumerate(args) if i not in fixed)

        @functools.wraps(self._fn)
        def with_fixed(*arrays: Any) -> Any:
            remaining = iter(arrays)
            return self._fn(
                *[fixed[i] if i in fixed else next(remaining) for i in range(len(args))]
            )

        site = _TracedCall.of(name, with_fixed, moving, {})
        outside = next((x for x in site.captured if x.is_traced and x.dtype.is_float), None)
        if outside is not None:
            raise OpTypeError(
                f"{name}: {graph_name(self._fn)} uses an array of type {outside.type} of the "
                "function around it, and its rule gives no derivative by that",
                fix="pass the array as an argument",
            )
        return site.emit(rule(_RuleCall(name, site, fixed, len(args))))


@record(eq=False)
class _RuleCall:
    """A call of a function with a rule.  fixed: arguments that are no arrays, by position, of
    `count` in all.
    """

    name: str
    site: _TracedCall
    fixed: dict[int, Any]
    count: int

    @property
    def args(self) -> TreeDef:
        """The shape of the arguments that are arrays: a tuple."""
        return self.site.treedef.children[0]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """All arguments by position."""
        arrays = iter(unflatten(self.args, leaves))
        return [self.fixed[i] if i in self.fixed else next(arrays) for i in range(self.count)]

    def trace(
        self, function: Callable[..., list[Array]], more: Sequence[LeafType]
    ) -> tuple[Graph, list[Value]]:
        """The graph of a function of the leaves and more arrays; and constants, emitted into the
        active builder, for the arrays that it captures.
        """
        count = len(self.site.types)
        same = current_float() is self.site.default
        with nullcontext() if same else default_dtype(self.site.default):
            traced = trace_function(
                lambda arrays: function(arrays[:count], arrays[count:]),
                [*self.site.types, *more],
                name=graph_name(self.site.fn),
            )
        constants: list[Value] = []
        for x in traced.captured:
            if x.is_traced:
                raise OpTypeError(
                    f"{self.name}: a rule of {graph_name(self.site.fn)} uses an array of type "
                    f"{x.type} of the function around it",
                    fix="pass the array as an argument of the function",
                )
            literal = Literal(np.asarray(x), x.type)
            constants.append(lookup("constant")(value=literal))
        return traced.graph, constants

    def matching_leaves(
        self,
        tree: Any,
        treedef: TreeDef,
        types: Sequence[TensorType],
        label: str,
        numbers: Sequence[bool] = (),
    ) -> list[Array]:
        """The float leaves of a tree that must be like another; zeros for None.

        numbers: whether each belongs to a Python number, which yields to arrays, so that it may
        have another float dtype.
        """
        try:
            leaves = prefix_leaves(tree, treedef, label)
        except ConversionError as error:
            raise OpTypeError(f"{self.name}: {error.what}", fix=error.fix) from None
        result = []
        yielding = numbers or [False] * len(types)
        paths = treedef.paths(label)
        for leaf, type_, path, number in zip(leaves, types, paths, yielding, strict=True):
            if not type_.dtype.is_float:
                continue
            array = zeros(type_.shape, dtype=type_.dtype) if leaf is None else _array(leaf, type_)
            if number and array.dtype.is_float:
                array = convert(array, type_.dtype)
            if array.type is not type_:
                raise OpTypeError(
                    f"{self.name}: {path} is {array.type}, and what it belongs to is {type_}",
                    fix=f"give it type {type_}, or None for zeros",
                )
            result.append(array)
        return result


def _array(leaf: Any, type_: TensorType) -> Array:
    if not isinstance(leaf, Array):
        return asarray(leaf, dtype=type_.dtype)
    return convert(leaf, type_.dtype) if is_weak(leaf) else leaf


@guarded_methods
class custom_vjp(_Custom):  # noqa: N801  (a decorator)
    """A function whose gradient is a function of the user's.

    fn: takes containers of arrays by position, and returns one.
    nondiff_argnums: positions of arguments that are handed on as they are, such as functions,
    strings and sizes; `bwd` gets them first.

    `defvjp` names the rule: ``fwd``, which takes what `fn` takes and returns ``(result,
    residuals)``, and ``bwd``, which takes the residuals, a container, and the cotangents of the
    result, and returns a tuple with a container of cotangents for each argument, where None stands
    for zeros.  Reverse mode, `vmap` and derivatives of derivatives go through it; forward mode
    raises UnsupportedError: see `custom_jvp`.

    >>> @bu.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, ct: (bu.clip(ct, -1.0, 1.0),))
    >>> bu.grad(lambda x: 5 * clipped(x))(bu.asarray(2.0)).item()
    1.0
    """

    _rule: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Name the rule, see the class.  Raises OpTypeError for what is no function."""
        require_function("defvjp", fwd, "fwd")
        require_function("defvjp", bwd, "bwd")
        self._rule = fwd, bwd

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        if self._rule is None:
            raise _no_rule(self, "defvjp(fwd, bwd)")
        fwd, bwd = self._rule
        args = self._positional(args, kwargs)
        if current() is None:
            return self._fn(*args)
        return self._emit(args, lambda call: _VjpRule(call, fwd, bwd))


class _VjpRule(Rule):
    forward = False

    def __init__(self, call: _RuleCall, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        super().__init__(graph_name(call.site.fn))
        self._call, self._fwd, self._bwd = call, fwd, bwd

    def pull(
        self, body: Graph, operands: Sequence[Value], cts: Sequence[Value], derive: Derive
    ) -> list[Value | None]:
        call, result = self._call, self._call.site.result

        def rule(leaves: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
            forward = self._fwd(*call.arguments(leaves))
            if not isinstance(forward, tuple) or len(forward) != 2:
                raise OpTypeError(
                    f"custom_vjp: fwd of {self.name} returned a {type(forward).__name__}, "
                    "not (result, residuals)",
                    fix="return a tuple of two",
                )
            remaining = iter(cotangents)
            tree = [next(remaining) if v.dtype.is_float else None for v in body.outputs]
            fixed = [call.fixed[i] for i in sorted(call.fixed)]
            pulled = self._bwd(*fixed, forward[1], unflatten(result, tree))
            pulled = tuple(pulled) if isinstance(pulled, list) else pulled
            if not isinstance(pulled, tuple) or len(pulled) != len(call.args.children):
                raise OpTypeError(
                    f"custom_vjp: the result of bwd of {self.name} is no tuple of "
                    f"{len(call.args.children)}, one for each argument",
                    fix="return a tuple of cotangents, None for zeros",
                )
            return call.matching_leaves(
                pulled,
                call.args,
                [x.type for x in call.site.arrays],
                f"the result of bwd of {self.name}",
                [not isinstance(t, TensorType) for t in call.site.types],
            )

        graph, constants = call.trace(rule, [ct.type for ct in cts])
        count = len(call.site.types)
        outputs = replay(graph, arguments=[*operands[:count], *cts, *constants])
        captured = sum(v.dtype.is_float for v in operands[count:])
        return [*outputs, *[None] * captured]


@guarded_methods
class custom_jvp(_Custom):  # noqa: N801  (a decorator)
    """A function whose derivative, in every mode, is a function of the user's.

    fn: takes containers of arrays by position, and returns one.
    nondiff_argnums: positions of arguments that are handed on as they are; the rule gets them
    first.

    `defjvp` names the rule: it takes the arguments and their tangents, two tuples of containers,
    and returns the result and its tangent, which must be linear in the tangents.  What is no float
    has None for a tangent.  Reverse mode transposes it.

    >>> @bu.custom_jvp
    ... def log1p_exp(x):
    ...     return bu.log(1 + bu.exp(x))
    >>> @log1p_exp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (dx,) = primals, tangents
    ...     return log1p_exp(x), dx / (1 + bu.exp(-x))
    >>> bu.grad(log1p_exp)(bu.asarray(100.0, dtype=bu.float32)).item()
    1.0
    """

    _rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Name the rule, see the class; returns it.  Raises OpTypeError for what is no function."""
        require_function("defjvp", jvp, "the rule")
        self._rule = jvp
        return jvp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        jvp = self._rule
        if jvp is None:
            raise _no_rule(self, "defjvp(rule)")
        args = self._positional(args, kwargs)
        if current() is None:
            return self._fn(*args)
        return self._emit(args, lambda call: _JvpRule(call, jvp))


class _JvpRule(Rule):
    def __init__(self, call: _RuleCall, jvp: Callable[..., Any]) -> None:
        super().__init__(graph_name(call.site.fn))
        self._call, self._jvp = call, jvp

    def pull(
        self, body: Graph, operands: Sequence[Value], cts: Sequence[Value], derive: Derive
    ) -> list[Value | None]:
        call, result = self._call, self._call.site.result
        floats = [x.dtype.is_float for x in call.site.arrays]

        def rule(leaves: Sequence[Array], moves: Sequence[Array]) -> list[Array]:
            remaining = iter(moves)
            tangents = unflatten(call.args, [next(remaining) if flag else None for flag in floats])
            fixed = [call.fixed[i] for i in sorted(call.fixed)]
            moved = self._jvp(*fixed, unflatten(call.args, leaves), tangents)
            if not isinstance(moved, tuple) or len(moved) != 2:
                raise OpTypeError(
                    f"custom_jvp: the rule of {self.name} returned a {type(moved).__name__}, "
                    "not (result, tangent)",
                    fix="return a tuple of two",
                )
            types = [v.type for v in body.outputs]
            return call.matching_leaves(moved[1], result, types, f"the tangent of {self.name}")

        types = [t for t, flag in zip(call.site.types, floats, strict=True) if flag]
        graph, constants = call.trace(rule, types)
        count = len(floats)
        wrt = range(count, count + len(types))
        pulled = derive(graph, wrt, range(len(graph.outputs)))
        zero = [zeros_like(pulled.inputs[i]) for i in wrt]
        outputs = replay(pulled, arguments=[*operands[:count], *zero, *constants, *cts])
        captured = sum(v.dtype.is_float for v in operands[count:])
        return [*outputs[len(graph.outputs) :], *[None] * captured]


def _no_rule(function: _Custom, method: str) -> OpTypeError:
    return OpTypeError(
        f"{type(function).__name__}: {graph_name(function._fn)} has no rule yet",
        fix=f"name one first: {graph_name(function._fn)}.{method}",
    )


__all__ = ["checkpoint", "custom_jvp", "custom_vjp", "remat", "stop_gradient"]
