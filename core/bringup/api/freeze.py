"""`freeze`: a function with its parameters compiled in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from bringup.api import deferred
from bringup.api.apply import source
from bringup.api.array import Array
from bringup.api.creation import asarray
from bringup.api.derivatives import check_function
from bringup.api.jit import Entry, Jitted, compiled_as, positions_of, static_of
from bringup.api.trace import TracedFunction, graph_name, leaf_type
from bringup.backend.capabilities import Shapes
from bringup.dtypes import DType
from bringup.errors import ConversionError, TraceError
from bringup.graph import Graph, Value
from bringup.passes.dce import eliminate
from bringup.passes.known import split
from bringup.passes.panels import in_panels
from bringup.passes.pipeline import freezing_passes
from bringup.passes.run import PassContext, run_pipeline
from bringup.runtime import devices
from bringup.runtime.compiler import Options, compile_graph
from bringup.runtime.devices import DeviceSpec
from bringup.tracing.context import current
from bringup.tracing.pytree import flatten, unflatten
from bringup.types import TensorType

P = ParamSpec("P")
R = TypeVar("R")


class Frozen(Jitted[P, R]):
    """A function with its parameters compiled in; made by `freeze`.  Call it without them."""

    _maker = "freeze"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Computed constants, by the graph that computes them and the arrays it reads.
        self._constants: WeakValueDictionary[Any, Array] = WeakValueDictionary()
        # The arrays are kept alive: a new array could get the id of a dead one.
        self._read: dict[int, Array] = {}

    def _trace(self, call: Any, device: Any) -> Entry:
        return self._traced(
            call, device, device.capabilities.shapes if device is not None else None
        )

    def _traced(self, call: Any, device: Any, shapes: Shapes | None) -> Entry:
        """Trace, and replace arrays of outer scopes by the constants that are computed of them.

        shapes: of the machine that weights are laid out for.
        """
        entry = super()._trace(call, device)
        function = entry.function
        first = len(entry.types) - len(function.captured)
        outer = dict(enumerate(function.captured, first))
        known = {n: array for n, array in outer.items() if not array.is_traced}
        if not known:
            return entry
        graph = run_pipeline(
            function.graph,
            freezing_passes(frozenset(known)),
            context=PassContext.from_environment(),
        )
        constants, remaining = split(graph, known)
        if shapes is not None and shapes.panel and self._options.fuse:
            constants, remaining = in_panels(constants, remaining, shapes.panel, shapes.products)
        traced_arrays = [array for n, array in outer.items() if n not in known]
        computed = self._computed(constants, list(known.values()))
        entry.function = TracedFunction(remaining, (*traced_arrays, *computed), function.result)
        entry.types = tuple(v.type for v in remaining.inputs)
        return entry

    def _computed(self, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        """The outputs of a graph of constants; those not computed before are computed together."""
        self._read.update((id(array), array) for array in arrays)
        table = dict(zip(graph.inputs, arrays, strict=True))
        keys = {v: _key(graph, v, arrays) for v in graph.outputs if v not in table}
        cached = {v: self._constants.get(key) for v, key in keys.items()}
        table |= {v: array for v, array in cached.items() if array is not None}
        new = tuple(v for v in keys if v not in table)
        if new:
            device = arrays[0].device
            fallback = devices.get(self._fallback) if self._fallback is not None else None
            missing = eliminate(Graph(graph.inputs, graph.instrs, new, graph.name))
            compiled = compile_graph(missing, device, options=self._options, fallback=fallback)
            buffers = [array._concrete("a parameter")._buffer for array in arrays]
            results = deferred.execute(compiled, buffers, device)
            for value, buffer in zip(new, results, strict=True):
                array = self._constants[keys[value]] = Array(value.type, device, buffer)
                table[value] = array
        return [table[value] for value in graph.outputs]


def _key(graph: Graph, value: Value, arrays: Sequence[Array]) -> Any:
    """The identity of a constant: how it is computed, and from which arrays."""
    instrs = eliminate(Graph(graph.inputs, graph.instrs, [value])).instrs
    read = {v for instr in instrs for v in instr.operands} | {value}
    used = [(v, a) for v, a in zip(graph.inputs, arrays, strict=True) if v in read]
    alone = Graph([v for v, _ in used], instrs, [value])
    return alone.key, tuple(id(a) for _, a in used)


def freeze(
    fn: Callable[Concatenate[Any, P], R],
    params: Any,
    *,
    device: DeviceSpec = None,
    fallback: DeviceSpec = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    fuse: bool = True,
) -> Frozen[P, R]:
    """Compile ``fn(params, ...)`` for parameters that do not change any more: for inference.

    params: a container of arrays, numpy arrays and numbers, of any dtypes and shapes.  Their values
    are kept as they are now, on the device of the arrays, or moved to `device`.
    The other options are those of `jit`; positions are counted without `params`.

    Returns a function of the arguments after `params`, traced once per signature as by `jit`.  What
    depends on parameters and arrays of outer scopes alone is computed once, on the device, and kept
    in memory, for all signatures that need it; so are weights of large products as the panels that
    they are packed into, on a device that declares any.  Where a convolution or a product by such
    weights is scaled and shifted by feature, as by `nn.batch_norm`, the weights are scaled instead,
    and the shifts are one bias.  That rounds elsewhere: each result of n products and m scales and
    shifts is within ``(n + m + 1) u (sum |x w s| + |shifts|)`` of the exact one, to first order in
    u, half the epsilon of the dtype, as it is without freezing.  Half floats are summed in f32 and
    so have less to lose without: of the bound, ``u sum |x w s|`` for the scaled weights is new to
    them.  Weights scaled out of the normal range of their dtype lose more.

    Raises ConversionError for parameters that are no arrays, TraceError inside a traced function,
    and what `jit` raises.

    >>> params = {"w": bu.asarray([[1.0, 2.0], [0.0, 1.0]]), "scale": bu.asarray([3.0, 4.0])}
    >>> layer = bu.freeze(lambda p, x: x @ p["w"] * p["scale"], params)
    >>> layer(bu.asarray([[1.0, 2.0]])).tolist()
    [[3.0, 16.0]]
    >>> layer.lower(bu.float64[1, 2]).graph
    <Graph lambda: (f64[1,2], f64[2,2]) -> f64[1,2], 1 instruction>
    """
    check_function("freeze", fn)
    uploaded, where = _on_device(params, device)
    bound: Any = functools.partial(fn, uploaded)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(bound, name, getattr(fn, name, None) or graph_name(fn))
    donated = positions_of("donate_argnums", bound, donate_argnums, "freeze")
    static = static_of(bound, static_argnums, static_argnames, "freeze")
    options = Options(fuse=fuse)
    frozen: Frozen[P, R] = compiled_as(Frozen, bound, where, fallback, static, donated, options)
    return frozen


def _on_device(params: Any, device: DeviceSpec) -> tuple[Any, DeviceSpec]:
    """Parameters as arrays on one device; they stay valid if the user's arrays are donated."""
    if current() is not None:
        raise TraceError(
            "freeze computes with values, and nothing has one while a function is traced",
            fix="freeze outside of the traced function, and call the result in it",
        )
    leaves, treedef = flatten(params)
    for leaf, path in zip(leaves, treedef.paths("params"), strict=True):
        try:
            leaf_type(leaf, f"freeze: {path}")
        except ConversionError as error:
            error.fix = "leave it to the function, which may find it elsewhere than in params"
            raise
        if isinstance(leaf, TensorType | DType):
            raise ConversionError(
                f"freeze: {path} is the type {leaf}, which has no value",
                fix="pass an array; types stand for arrays in lower(…) and trace(…) only",
            )
    numbers = [isinstance(x, bool | int | float) and not isinstance(x, np.generic) for x in leaves]
    if all(numbers):
        return params, device
    first = next((leaf.device for leaf in leaves if isinstance(leaf, Array)), None)
    where = devices.get(first if device is None else device)
    # Arrays do not move to a device implicitly; the call raises an error if devices differ.
    uploaded = [
        leaf
        if number
        else _evaluated(asarray(leaf, device=device if isinstance(leaf, Array) else where))
        for leaf, number in zip(leaves, numbers, strict=True)
    ]
    return unflatten(treedef, uploaded), where


def _evaluated(x: Array) -> Array:
    """A second array of the same memory; sharing the leaf of `x` makes a donation copy."""
    leaf = source(x._concrete("a parameter"))
    return Array(x.type, x._device, x._buffer, leaf)
