"""Functions of numpy on our arrays: operators are ours, everything else sees the values.

Other functions than operators are given what `Array.__array__` gives, so all of them return arrays
of numpy's, and none can be used on a traced array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.foreign import standard
from bringup.errors import ConversionError

#: Operators by the ufunc that numpy's arrays and scalars, on their left, call for them.
_OPERATORS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "power": "pow",
    "floor_divide": "floordiv", "remainder": "mod", "matmul": "matmul", "bitwise_and": "and",
    "bitwise_or": "or", "bitwise_xor": "xor", "left_shift": "lshift", "right_shift": "rshift",
}  # fmt: skip
#: A comparison and the one with its sides exchanged.
_COMPARISONS = {
    "equal": ("eq", "eq"), "not_equal": ("ne", "ne"), "less": ("lt", "gt"),
    "less_equal": ("le", "ge"), "greater": ("gt", "lt"), "greater_equal": ("ge", "le"),
}  # fmt: skip
_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip


def answer(
    ufunc: np.ufunc,
    method: str,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    namespace: Any,
) -> Any:
    """What numpy gets for ``ufunc.method(*inputs, **options)``, of which one is an array of ours.

    namespace: the public module, whose functions take traced arrays.
    Raises TraceError for traced arrays, ConversionError if one of ours is to be written.
    """
    if method == "__call__" and len(inputs) == 2 and not options:
        operator = _operator(ufunc.__name__, isinstance(inputs[0], Array))
        if operator is not None:
            ours, other = inputs if isinstance(inputs[0], Array) else reversed(inputs)
            return getattr(type(ours), operator)(ours, other)
    if any(isinstance(x, Array) for x in options.get("out") or ()):
        raise ConversionError(
            f"arrays are immutable: numpy's {ufunc.__name__} cannot write into one of ours",
            fix="leave out out= and keep the result",
        )
    what = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    what, fix = f"numpy's {what} of", _instead(ufunc.__name__, method, namespace)
    named = {name: _seen(x, what, fix) for name, x in options.items()}
    return getattr(ufunc, method)(*[_seen(x, what, fix) for x in inputs], **named)


def called(
    function: Callable[..., Any], args: Any, options: Mapping[str, Any], namespace: Any
) -> Any:
    """What numpy gets for a function that is no ufunc, of arrays of ours among its arguments.

    namespace, raises: as of `answer`.
    """
    name = function.__name__
    what, fix = f"numpy's {name} of", _instead(name, "__call__", namespace)

    def seen(x: Any) -> Any:
        if type(x) in (list, tuple):
            return type(x)(map(seen, x))
        return _seen(x, what, fix)

    return function(*map(seen, args), **{key: seen(x) for key, x in options.items()})


def _operator(name: str, ours_first: bool) -> str | None:
    """The method of ours that is the operator, as its left or its right operand."""
    if name in _COMPARISONS:
        return f"__{_COMPARISONS[name][not ours_first]}__"
    found = _OPERATORS.get(name)
    return found and f"__{'' if ours_first else 'r'}{found}__"


def _seen(x: Any, what: str, fix: str | None) -> Any:
    return x._exported(what, fix) if isinstance(x, Array) else x


def _instead(name: str, method: str, namespace: Any) -> str | None:
    """What takes a traced array where numpy's function cannot."""
    ours = _REDUCTIONS.get(name) if method == "reduce" else standard(name) or name
    return f"use bringup.{ours}" if ours and callable(getattr(namespace, ours, None)) else None


__all__ = ["answer", "called"]
