"""Python functions to graphs: arguments and outer arrays become inputs, results outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import lift, staged
from bringup.api.array import Array
from bringup.api.creation import asarray, refuse_masked
from bringup.api.promotion import host_dtype, is_weak, kind_of, scalar_dtype
from bringup.dtypes import PART_OF, DType
from bringup.errors import ConversionError, OpTypeError, ParseError, TraceError
from bringup.graph import Graph, Value
from bringup.records import record
from bringup.runtime.devices import OpenDevice
from bringup.tracing.context import Trace
from bringup.tracing.pytree import TreeDef, flatten, register_view, unflatten
from bringup.types import TensorType

#: The type of a leaf: an array's, or Python's ``bool``, ``int``, ``float`` for a scalar whose value
#: is not known.
LeafType = TensorType | type


@record(eq=False)
class TracedFunction:
    """A traced function.

    captured: arrays of outer scopes, the inputs after the leaves.
    result: the shape of the result.
    """

    graph: Graph
    captured: tuple[Any, ...]
    result: TreeDef


def leaf_type(leaf: Any, path: str = "an argument") -> LeafType:
    """The type under which a leaf is traced.  Raises ConversionError for what has none."""
    if type(leaf) is Array:
        return _KINDS[leaf.dtype.kind] if is_weak(leaf) else leaf._type
    if type(leaf) in (float, int, bool):
        return type(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        refuse_masked(leaf)
        try:
            return TensorType(leaf.shape, host_dtype(leaf.dtype))
        except OpTypeError as error:
            raise ConversionError(f"{path}: {error.what}", fix=error.fix) from None
    if isinstance(leaf, TensorType | DType):
        return leaf if isinstance(leaf, TensorType) else TensorType((), leaf)
    if isinstance(leaf, bool | int | float):
        return _KINDS[kind_of(leaf)]
    raise ConversionError(
        f"{path} is a {type(leaf).__name__}, which is no array",
        fix=_type_hint(leaf) or "pass an array, or make the argument of a jit static",
    )


def _seen(value: Any) -> Any:
    """Complex numbers of the host, and types of such, as the pairs that complex arrays are."""
    if isinstance(value, TensorType | DType):
        type_ = value if isinstance(value, TensorType) else TensorType((), value)
        if not type_.dtype.is_complex:
            return value
        real = imag = type_.with_dtype(PART_OF[type_.dtype])
    elif isinstance(value, np.ndarray) and value.dtype.kind != "c":
        return value
    else:
        real, imag = value.real, value.imag
    from bringup.api.complex import of_parts

    return of_parts(real, imag)


for _kind in (np.ndarray, np.complexfloating, complex, TensorType, DType):
    register_view(_kind, _seen)


def _type_hint(leaf: Any) -> str | None:
    """The fix for a type given as text."""
    try:
        type_ = TensorType.parse(leaf) if isinstance(leaf, str) else None
    except ParseError:
        return None
    if type_ is None:
        return None
    shape = f"[{', '.join(map(str, type_.shape))}]" if type_.shape else ""
    return f"write bringup.{type_.dtype.long_name}{shape} for the type"


_KINDS: dict[str, type] = {"bool": bool, "int": int, "uint": int, "float": float}


def array_type(leaf: LeafType) -> TensorType:
    """The type of the input that a leaf becomes at first."""
    if isinstance(leaf, TensorType):
        return leaf
    return TensorType((), scalar_dtype(leaf.__name__))


def trace_function(
    fn: Callable[[Sequence[Array]], Any],
    types: Sequence[LeafType],
    *,
    name: str,
    device: OpenDevice | None = None,
    known: Sequence[Array] = (),
) -> TracedFunction:
    """Run `fn` on traced arrays of these types, one list of them, and keep what it did.

    known: values of the arguments, where Python may look at them while tracing.
    Raises TraceError where Python needs a value that does not exist, or for a result that is no
    array.
    """
    trace = Trace(name, device)
    with trace:
        arguments = []
        for i, leaf in enumerate(types):
            value = trace.argument(array_type(leaf), known[i] if known else None)
            arguments.append(staged(trace, value, weak=not isinstance(leaf, TensorType)))
        leaves, result = flatten(fn(arguments))
        paths = result.paths("the result")
        outputs = [_output(trace, leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
    return TracedFunction(trace.graph(outputs), tuple(trace.captured), result)


def _output(trace: Trace, leaf: Any, path: str) -> Value:
    if not isinstance(leaf, Array):
        if not isinstance(leaf, bool | int | float | np.ndarray | np.generic):
            raise TraceError(
                f"{path} of {trace.name!r} is a {type(leaf).__name__}, which is no array",
                fix="return arrays, numbers, or containers of them",
            )
        leaf = asarray(leaf)
    return lift(trace, leaf)


def graph_name(fn: Callable[..., Any]) -> str:
    """A name for the graph of a function: its own, as far as the IR can print it."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "main"


def parameters(fn: Callable[..., Any]) -> list[str]:
    """Names of positional parameters, or nothing where Python does not tell."""
    try:
        result = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in result if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def argument_name(fn: Callable[..., Any], path: str) -> str:
    """``arguments[0][1]['w']`` in words of the function's parameters."""
    kind, _, steps = path.removeprefix("arguments[").partition("][")
    step, _, inner = steps.partition("]")
    names = parameters(fn)
    if kind == "0" and int(step) < len(names):
        step = names[int(step)]
    return f"argument {step.strip(chr(39))}{inner} of {graph_name(fn)}"


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The graph of a function for arguments like these.

    args, kwargs: containers of types (``f32[4, 8]``), arrays, numpy arrays and numbers; values are
    not looked at.
    Returns a graph whose inputs are the leaves in order, then the outer arrays the function uses.
    Raises TraceError, with the line, where Python needs a value, as in ``if`` on an array.

    >>> print(bu.trace(lambda x: x * x + 1, bu.float32[4]))
    graph lambda(%0: f32[4]) {
      %1: f32[4] = mul(%0, %0)
      %2: f32[4] = constant() {value=f32[4](1.0)}
      %3: f32[4] = add(%1, %2)
      return %3
    }
    """
    if isinstance(fn, Array):
        raise OpTypeError(
            f"trace: {fn.type} is an array, no function",
            fix="use bringup.linalg.trace for the sum of a diagonal",
        )
    return _traced(fn, args, kwargs).graph


def eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function with types in the place of arrays; nothing is computed.

    args, kwargs, raises: as of `trace`.

    >>> bu.eval_shape(lambda x: {"y": x @ x.T}, bu.float32[4, 8])
    {'y': f32[4,4]}
    """
    result = _traced(fn, args, kwargs)
    return unflatten(result.result, [value.type for value in result.graph.outputs])


def _traced(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> TracedFunction:
    leaves, treedef = flatten((args, kwargs))
    paths = [argument_name(fn, path) for path in treedef.paths("arguments")]
    types = [leaf_type(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]

    def call(arrays: Sequence[Array]) -> Any:
        positional, named = unflatten(treedef, arrays)
        return fn(*positional, **named)

    return trace_function(call, types, name=graph_name(fn))
