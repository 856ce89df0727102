"""`jit`: a function compiled once per signature and then called at the cost of a lookup."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np

from bringup.api.apply import inline
from bringup.api.array import Array
from bringup.api.boundary import guarded, guarded_methods
from bringup.api.broadcasting import convert
from bringup.api.creation import asarray, cast_host
from bringup.api.defaults import count_read, current_float, reads, uniform
from bringup.api.promotion import exact_literal
from bringup.api.trace import (
    LeafType,
    TracedFunction,
    argument_name,
    graph_name,
    leaf_type,
    parameters,
    trace_function,
)
from bringup.backend.dispatch import ArrayLayout, Dispatcher, FastArg, FastEntry, array_layout
from bringup.backend.registry import load
from bringup.backend.vendor_errors import REPORT, vendor_call
from bringup.bounded import BoundedDict
from bringup.dtypes import DType
from bringup.errors import (
    BringupError,
    ConversionError,
    DeviceError,
    OpTypeError,
    TraceError,
)
from bringup.graph import has_effects
from bringup.passes.pipeline import signature_passes
from bringup.passes.run import PassContext, run_pipeline
from bringup.records import record
from bringup.runtime import devices, nans, transfer
from bringup.runtime.compiler import Compiled, Options, compile_graph, lower_graph
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.context import current
from bringup.tracing.lazy import Leaf
from bringup.tracing.pytree import LEAF, Static, TreeDef, flatten, unflatten
from bringup.types import TensorType

if TYPE_CHECKING:  # calls load no module of exports
    from bringup.aot.library import Library, WeightsPlace

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

#: How many signatures of one function are remembered; then the oldest is traced anew when needed.
SIGNATURES = 4096


@record
class _Call:
    """The flattened arguments of one call."""

    leaves: list[Any]
    treedef: TreeDef
    types: tuple[LeafType, ...]
    static: tuple[tuple[int | str, Static], ...]


@guarded_methods
class Jitted(Generic[P, R]):
    """A compiled function; made by `jit`.  Call it like the function."""

    _maker = "jit"

    def __init__(
        self,
        fn: Callable[P, R],
        device: DeviceSpec,
        fallback: DeviceSpec,
        static: tuple[frozenset[int], frozenset[str]],
        donated: tuple[int, ...],
        options: Options,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._device = device
        self._fallback = fallback
        self._static = static
        self._donated = donated
        self._options = options
        self._entries: BoundedDict[Any, Entry] = BoundedDict(SIGNATURES)
        reference = weakref.ref(self)

        def slow(*args: Any, **kwargs: Any) -> Any:
            owner = reference()
            assert owner is not None
            return owner._call(args, kwargs)

        slow.__wrapped__ = fn  # type: ignore[attr-defined]
        self._fast = FastPath(type(self), guarded(slow))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: D102
        result: R = self._call(args, kwargs)
        return result

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Jitted[P, R]: ...
    @overload
    def __get__(
        self: Jitted[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        """By name, as functions go: copies are the function itself."""
        name: str = vars(self).get("__qualname__", repr(self))
        return name

    def __repr__(self) -> str:
        return f"<{self._maker} {graph_name(self._fn)}: {len(self._entries)} signatures>"

    def lower(self, *args: Any, target: str | None = None, **kwargs: Any) -> Compiled:
        """What a call would run: ``.graph .kernels .loops .program .source .asm .cost()``.

        args, kwargs: as in a call; types such as ``f32[4, 8]`` may stand for arrays.
        target: ``"backend:architecture"`` compiles without hardware; by default for the device of
        the call.

        >>> bu.jit(lambda x: bu.sum(x * 2)).lower(bu.float32[8]).graph.outputs[0].type
        f32[]
        """
        call = self._flattened(*self._described(args, kwargs))
        if target is not None:
            entry = self._trace(call, None)
            name, _, architecture = target.partition(":")
            return lower_graph(
                entry.function.graph,
                load(name),
                architecture,
                donated=entry.donated,
                options=self._options,
            )
        device = self._device_of(call.leaves)
        entry = self._trace(call, device)
        return self._compiled(entry, device)

    def export(
        self,
        name: str,
        *args: Any,
        target: str,
        weights: WeightsPlace = "embedded",
        small: bool = False,
        threads: int = 1,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Library:
        """A library of this function, made ahead of time: for C, C++ and Rust, without Python.

        name: of the library; its function is ``int NAME_run(args, results, arena)``.
        args, kwargs: types such as ``f32[1, 784]``, or what `lower` takes.
        target: a processor and its system, such as ``x86_64-linux-gnu``, ``aarch64-linux-gnu`` or
        ``wasm32``, or ``backend:target``; ``c11`` for C source, of any processor; ``opencl-c`` for
        OpenCL C with a host file of C; ``program`` for a program file, which `load` reads.
        weights: where the arrays stand that the function holds: ``embedded`` in the code, or
        ``external``, in a file of the format safetensors that the program maps into memory.
        small: whether little code counts for more than speed.
        threads: the most workers that share a call, through a function that the caller gives.
        metadata: what else a program file shall tell, as of `save`.
        Raises UnsupportedError for a target that is unknown, or lacks something.

        >>> library = bu.jit(lambda x: x + 1).export("model", bu.float32[8], target="wasm32")
        >>> sorted(library.files)
        ['model.h', 'model.hpp', 'model.mjs', 'model.o', 'model.rs']
        """
        from bringup.api.exporting import export_one, options_of

        options = options_of(weights, small, threads, metadata)
        return export_one(self, name, args, kwargs, target, options)

    def _alike(self, *, fuse: bool) -> Jitted[P, R]:
        """The same function with or without fusion, which reuses no memory of its arguments."""
        options = Options(fuse=fuse)
        kind = type(self).__base__  # without the class of its own that each function has
        result: Jitted[P, R] = compiled_as(
            kind, self._fn, self._device, self._fallback, self._static, (), options
        )
        return result

    def _compiled(self, entry: Entry, device: OpenDevice) -> Compiled:
        """The executable of a signature, compiled at its first use."""
        if entry.compiled is None:
            fallback = devices.get(self._fallback) if self._fallback is not None else None
            entry.compiled = compile_graph(
                entry.function.graph,
                device,
                donated=entry.donated,
                options=self._options,
                fallback=fallback,
            )
        return entry.compiled

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = reads()
        call = self._flattened(args, kwargs)
        hosted = reads()  # the default float decides the dtype of numpy's arrays, too
        if any(isinstance(leaf, TensorType | DType) for leaf in call.leaves):
            raise self._no_value(call)
        trace = current()
        device = trace.device if trace is not None else self._device_of(call.leaves)
        default = current_float()
        key = (call.treedef, call.types, call.static, device, default)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._trace(call, device)
            if not any(array.is_traced for array in entry.function.captured):
                for forgotten in self._entries.add(key, entry):
                    self._fast.forget(forgotten)
        if trace is not None:
            self._check_inlining(device)
            if entry.defaulted:
                count_read()
            arrays = [_inlined(x, t) for x, t in zip(call.leaves, entry.types, strict=False)]
            outputs = inline(entry.function.graph, [*arrays, *entry.function.captured])
            return unflatten(entry.function.result, outputs)
        assert device is not None
        outputs = _run(entry, self._compiled(entry, device), call.leaves, device)
        if not kwargs and not call.static and not entry.donated and not nans.wanted():
            decides = entry.defaulted or hosted != before
            self._fast.serve(entry, args, device, default if decides else None)
        return unflatten(entry.function.result, outputs)

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments that those of `lower` and `export` stand for."""
        return args, kwargs

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        positions, names = self._static
        static: list[tuple[int | str, Static]] = []
        if positions or names:
            static += [(i, self._as_static(i, a)) for i, a in enumerate(args) if i in positions]
            static += [(n, self._as_static(n, kwargs[n])) for n in sorted(kwargs) if n in names]
            args = tuple(None if i in positions else a for i, a in enumerate(args))
            kwargs = {n: None if n in names else a for n, a in kwargs.items()}
        leaves, treedef = flatten((args, kwargs))
        try:
            types = tuple([leaf_type(leaf) for leaf in leaves])
        except BringupError:
            # Paths are computed only when a leaf is wrong: they take time.
            for leaf, path in zip(leaves, treedef.paths("arguments"), strict=True):
                leaf_type(leaf, argument_name(self._fn, path))
            raise
        return _Call(leaves, treedef, types, tuple(static))

    def _no_value(self, call: _Call) -> ConversionError:
        """The error of a call with a type where a value is needed."""
        paths = call.treedef.paths("arguments")
        path, leaf = next(
            (p, x)
            for p, x in zip(paths, call.leaves, strict=True)
            if isinstance(x, TensorType | DType)
        )
        return ConversionError(
            f"{argument_name(self._fn, path)} is the type {leaf}, which has no value",
            fix="pass an array; types stand for arrays in lower(…) and trace(…) only",
        )

    def _as_static(self, where: int | str, value: Any) -> Static:
        try:
            return Static(value)
        except ConversionError as error:
            names = parameters(self._fn)
            name = names[where] if isinstance(where, int) and where < len(names) else where
            raise ConversionError(
                f"argument {name} of {graph_name(self._fn)}: {error.what}", fix=error.fix
            ) from None

    def _device_of(self, leaves: Sequence[Any]) -> OpenDevice:
        result = devices.get(self._device) if self._device is not None else None
        for leaf in leaves:
            if type(leaf) is not Array or leaf._device is None:
                continue
            if result is None:
                result = leaf._device
            elif leaf._device is not result:
                raise OpTypeError(
                    f"{graph_name(self._fn)}: an argument is on {leaf._device}, not on {result}",
                    fix=f'move it first: x.to("{result}")',
                )
        return result if result is not None else devices.get()

    def _check_inlining(self, device: OpenDevice | None) -> None:
        if self._device is not None and devices.get(self._device) is not device is not None:
            raise TraceError(
                f"{graph_name(self._fn)} is compiled for {self._device},"
                f" and the function around it is traced for {device}",
                fix="leave out device= of one of them",
            )

    def _trace(self, call: _Call, device: OpenDevice | None) -> Entry:
        static = dict(call.static)

        def run(arrays: Sequence[Array]) -> Any:
            args, kwargs = unflatten(call.treedef, arrays)
            args = [static[i].value if i in static else a for i, a in enumerate(args)]
            kwargs = {n: static[n].value if n in static else a for n, a in kwargs.items()}
            return self._fn(*args, **kwargs)

        before = reads()
        traced = trace_function(run, call.types, name=graph_name(self._fn), device=device)
        defaulted = reads() != before
        scalars = [i for i, leaf in enumerate(call.types) if not isinstance(leaf, TensorType)]
        passes = signature_passes(frozenset(scalars))
        graph = run_pipeline(traced.graph, passes, context=PassContext.from_environment())
        types = tuple(v.type for v in graph.inputs)
        function = TracedFunction(graph, traced.captured, traced.result)
        return Entry(function, types, self._donated_leaves(call.treedef), defaulted)

    def _donated_leaves(self, treedef: TreeDef) -> frozenset[int]:
        positional = treedef.children[0].children
        starts = [sum(child.leaves for child in positional[:i]) for i in range(len(positional))]
        return frozenset(
            leaf
            for i in self._donated
            if i < len(positional)
            for leaf in range(starts[i], starts[i] + positional[i].leaves)
        )


def _run(
    entry: Entry, compiled: Compiled, leaves: Sequence[Any], device: OpenDevice
) -> list[Array]:
    """Run with these arguments: upload those of the host and donate those to be donated."""
    graph = entry.function.graph
    arguments = [*leaves, *entry.function.captured]
    types = entry.types
    buffers = [
        _buffer(x, t, device) if i not in entry.donated else None
        for i, (x, t) in enumerate(zip(arguments, types, strict=True))
    ]
    # Donate last, so that an error in an argument does not delete the donated arrays.
    _donate(entry.donated, arguments, types, buffers, device)
    assert compiled.executable is not None
    run, count = compiled.executable, len(graph.outputs)
    if nans.wanted():
        result = nans.execute(compiled, graph, buffers, device, compiled.donated)
    else:
        result = transfer.execute(device.device, run, buffers, count, compiled.donated)
    return [Array(v.type, device, b) for v, b in zip(graph.outputs, result, strict=True)]


def _buffer(x: Any, type_: TensorType, device: OpenDevice) -> Any:
    if type(x) is Array:
        if x._buffer is None:
            x._concrete("the argument")
        return x._buffer
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        x = exact_literal(x, type_).array()
    return transfer.upload(device.device, cast_host(x, type_.dtype))


def _donate(
    donated: frozenset[int],
    arguments: Sequence[Any],
    types: Sequence[TensorType],
    buffers: list[Any],
    device: OpenDevice,
) -> None:
    """Fill in the buffers of donated arguments and mark their arrays deleted.

    Memory that something else still reads is copied first: a recorded operation, numpy, the same
    array elsewhere among the arguments.
    """
    count = Counter(map(id, arguments)) if donated else {}
    for i in sorted(donated):
        x = arguments[i]
        buffer = _buffer(x, types[i], device)
        if type(x) is Array and (count[id(x)] > 1 or _is_read(x)):
            buffer = transfer.duplicate(device.device, buffer, types[i])
        buffers[i] = buffer
    for i in donated:
        if type(arguments[i]) is Array:
            arguments[i]._buffer = arguments[i]._node = None


def _is_read(x: Array) -> bool:
    """Whether something besides the array may read its memory later."""
    node = x._node
    if node is None:
        return False
    if isinstance(node, Leaf) and node.shared:
        return True
    reference = weakref.ref(node)
    del node
    x._node = None
    return reference() is not None


def _inlined(x: Any, type_: TensorType) -> Array:
    """An argument as an operand of the enclosing trace."""
    if isinstance(x, Array):
        return convert(x, type_.dtype)
    return asarray(x, dtype=type_.dtype)


@overload
def jit(
    fn: Callable[P, R],
    *,
    device: DeviceSpec = None,
    fallback: DeviceSpec = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    fuse: bool = True,
) -> Jitted[P, R]: ...
@overload
def jit(
    fn: None = None,
    *,
    device: DeviceSpec = None,
    fallback: DeviceSpec = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    fuse: bool = True,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    device: DeviceSpec = None,
    fallback: DeviceSpec = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    fuse: bool = True,
) -> Any:
    """Compile a function: traced once per signature, fused, and run natively from then on.

    Arguments are containers of arrays, numpy arrays and Python scalars; results become arrays.  A
    signature is the shape of the containers, the types of the arrays, the kinds of the scalars, the
    static values and the device.  Arrays of outer scopes are captured as they are when a signature
    is traced.

    device: where to run; by default where the array arguments are, else the default device.
    fallback: a device that runs what the first one cannot; without it such a call is an error.
    `lower(…).placement()` tells what ran where, why, and how many bytes moved for it.
    static_argnums, static_argnames: arguments passed through to Python as they are: hashable,
    compared by type and bits.
    donate_argnums: arguments whose memory the call may reuse; their arrays are deleted by it.
    fuse: False makes one launch of every operation that is left after the passes: the yardstick for
    what fusion saves; see `compare`.

    Options are those of the outermost function: a `jit` function that is called while another is
    traced, or mapped or differentiated, becomes a part of what is around it.  So the gradient of
    `fn` without fusion is ``jit(grad(fn), fuse=False)``.

    Raises TraceError where Python needs a value (see `trace`), UnsupportedError.

    >>> step = bu.jit(lambda x, n: x * n, static_argnums=1)
    >>> step(bu.asarray([1.0, 2.0]), 3).tolist()
    [3.0, 6.0]
    """
    if fn is None:
        return functools.partial(
            jit,
            device=device,
            fallback=fallback,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            fuse=fuse,
        )
    donated = positions_of("donate_argnums", fn, donate_argnums)
    static = static_of(fn, static_argnums, static_argnames)
    return compiled_as(Jitted, fn, device, fallback, static, donated, Options(fuse=fuse))


def compiled_as(
    base: Any,
    fn: Callable[..., Any],
    device: DeviceSpec,
    fallback: DeviceSpec,
    static: tuple[frozenset[int], frozenset[str]],
    donated: tuple[int, ...],
    options: Options,
) -> Any:
    """A function as a `Jitted`, or a subclass of it, with checked options.

    base: the class.
    """
    if not callable(fn):
        raise OpTypeError(
            f"jit: {type(fn).__name__} is no function",
            fix="give a function first; options come by name",
        )
    if static[0].intersection(donated):
        raise OpTypeError(
            f"{base._maker}: an argument of {graph_name(fn)} is both static and donated",
            fix="choose one of them",
        )
    # A class of its own, so that its ``__call__`` can become the builtin of this function.
    kind = type(base._maker, (base,), {"__module__": Jitted.__module__})
    return kind(fn, device, fallback, static, donated, options)


# -- options that name parameters ------------------------------------------------------------------


def static_of(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    argnames: str | Sequence[str],
    maker: str = "jit",
) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of static arguments, each completed by the other.

    maker: the function whose options they are, for errors.

    Raises OpTypeError for those the function does not have.
    """
    names = parameters(fn)
    positions = positions_of("static_argnums", fn, argnums, maker)
    named = {*_several("static_argnames", argnames, str, maker)}
    _check_names(fn, named, maker)
    return (
        frozenset(positions) | {i for i, name in enumerate(names) if name in named},
        frozenset(named) | {names[i] for i in positions if i < len(names)},
    )


def positions_of(
    option: str, fn: Callable[..., Any], argnums: int | Sequence[int], maker: str = "jit"
) -> tuple[int, ...]:
    """Positions counted from 0.  Raises OpTypeError for those the function does not have.

    option: the name of the option.  maker: as in `static_of`.
    """
    names = parameters(fn)
    closed = not _takes(fn, inspect.Parameter.VAR_POSITIONAL)
    positions = _several(option, argnums, int | np.integer, maker)
    for position in positions:
        if position + len(names) < 0 or (closed and position >= len(names)):
            raise OpTypeError(
                f"{maker}: {option}={position}: {graph_name(fn)} has {len(names)} parameters",
                fix="count positions from 0, or from the end with -1",
            )
    return tuple(p % len(names) if p < 0 else p for p in positions)


def _several(option: str, value: Any, kind: Any, maker: str) -> tuple[Any, ...]:
    """One value of a kind, or several."""
    result = (value,) if isinstance(value, kind) else value
    if not isinstance(result, Collection) or not all(isinstance(item, kind) for item in result):
        raise OpTypeError(
            f"{maker}: {option}={value!r} names no parameters",
            fix="positions are ints and names are strings; give one, or a sequence of them",
        )
    return tuple(result)


def _check_names(fn: Callable[..., Any], named: set[str], maker: str) -> None:
    if _takes(fn, inspect.Parameter.VAR_KEYWORD):
        return
    known = [p.name for p in inspect.signature(fn).parameters.values()]
    for name in sorted(named.difference(known)):
        raise OpTypeError(
            f"{maker}: static_argnames={name!r}: {graph_name(fn)} has parameters"
            f" {', '.join(known)}",
            fix="name parameters as the function does",
        )


def _takes(fn: Callable[..., Any], kind: inspect._ParameterKind) -> bool:
    """Whether a function takes any number of arguments of a kind; True if Python does not know."""
    try:
        result = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is kind for p in result)


# -- calls that a device answers natively, without the interpreter ---------------------------------


_layouts: list[ArrayLayout | None] = []


def layout() -> ArrayLayout | None:
    """Where arrays keep their parts; None where this interpreter lays objects out differently."""
    if not _layouts:
        array_slots = array_layout(
            Array,
            type_slot="_type",
            device_slot="_device",
            buffer_slot="_buffer",
            defaults={"_node": None},
            epoch=devices.epoch,
        )
        _layouts.append(array_slots)
    return _layouts[0]


@dataclass(slots=True, eq=False)
class Entry:
    """One signature: what was traced, and what runs it.

    types: of the graph's inputs.
    donated: positions among the leaves.
    defaulted: whether the default float dtype decided something in it.
    """

    function: TracedFunction
    types: tuple[TensorType, ...]
    donated: frozenset[int]
    defaulted: bool
    compiled: Compiled | None = None


class FastPath:
    """The native table of one jitted function.  It is made at the second call: making it takes as
    long as many calls, and many functions are called once.

    owner: the function's own class; its ``__call__`` becomes the device's builtin once there is an
    entry.
    slow: what the builtin calls when no entry matches.
    """

    __slots__ = ("__weakref__", "_called", "_device", "_dispatcher", "_owner", "_served", "_slow")

    def __init__(self, owner: type, slow: Callable[..., Any]) -> None:
        self._owner = owner
        self._slow = slow
        self._called = False
        self._dispatcher: Dispatcher | None = None
        self._device: OpenDevice | None = None
        # By entry: the epoch for which it was given to the device; 0 if it is valid in every epoch.
        self._served: dict[Any, int] = {}

    def serve(
        self, entry: Entry, args: tuple[Any, ...], device: OpenDevice, under: DType | None
    ) -> None:
        """From the second call on, let the device answer calls like this one, if it can.

        under: the default float dtype that they hold for; None for any.
        """
        if not self._called or sys.is_finalizing():  # at the end nothing can be imported any more
            self._called = True
            return
        kinds = tuple([type(x) for x in args])
        hosted = Array not in kinds
        epoch = devices.epoch.value
        if hosted and epoch < 0:
            return
        stamp = epoch if hosted else 0
        key = (id(entry), kinds)
        if self._served.get(key) == stamp or (
            self._device is not None and self._device is not device
        ):
            return
        if under is None:
            self._add(key, stamp, entry, args, device)
            return
        with uniform(self) as same:
            if same and current_float() is under:
                self._add(key, stamp, entry, args, device)

    def _add(
        self, key: Any, stamp: int, entry: Entry, args: tuple[Any, ...], device: OpenDevice
    ) -> None:
        before = self._served.get(key)
        dispatcher = self._native_table(device)
        described = _describe(entry, args, device, stamp) if dispatcher is not None else None
        if dispatcher is not None and before is not None:
            dispatcher.clear()
            self._served.clear()
        self._served[key] = stamp
        if dispatcher is not None and described is not None and dispatcher.add(described):
            type.__setattr__(self._owner, "__call__", dispatcher.call)

    def clear(self) -> None:
        """Give up all entries; further calls bring back those that still hold."""
        self._served = {}
        if self._dispatcher is not None:
            self._dispatcher.clear()

    def forget(self, entry: Entry) -> None:
        """Drop an entry: a new one may get its id."""
        self._served = {k: v for k, v in self._served.items() if k[0] != id(entry)}

    def _native_table(self, device: OpenDevice) -> Dispatcher | None:
        if self._device is None:
            self._device = device
            where = layout()
            if where is not None:
                self._dispatcher = _dispatcher(device, where, self._slow)
        return self._dispatcher


def _dispatcher(
    device: OpenDevice, where: ArrayLayout, slow: Callable[..., Any]
) -> Dispatcher | None:
    with vendor_call(device.device, "dispatcher"):
        native: Any = device.device.dispatcher(where, slow)
    if native is not None and not all(hasattr(native, n) for n in ("call", "add", "clear")):
        problem = f"{type(device.device).__name__}.dispatcher gave {type(native).__name__}"
        raise DeviceError(problem, fix=REPORT)
    dispatcher: Dispatcher | None = native
    return dispatcher


def _describe(
    entry: Entry, args: tuple[Any, ...], device: OpenDevice, epoch: int
) -> FastEntry | None:
    """The entry in the device's terms; None for arguments or results that are not plain arrays."""
    result = entry.function.result
    leaf = result == LEAF
    if not leaf and (result.kind is not tuple or any(c != LEAF for c in result.children)):
        return None
    arguments = []
    for i, (x, type_) in enumerate(zip(args, entry.types, strict=False)):
        if type(x) is not Array and type(x) is not np.ndarray:
            return None
        arguments.append(FastArg("array" if type(x) is Array else "host", type_, i))
    compiled = entry.compiled
    if compiled is None or compiled.executable is None or len(compiled.programs) != 1:
        return None
    if any(has_effects(instr.op, instr.attrs) for instr in compiled.graph.instrs):
        return None
    if len(args) + len(entry.function.captured) != len(entry.types):  # one is a container
        return None
    # The arrays, not their handles: a captured array may be donated later.
    bound = tuple((len(args) + i, array) for i, array in enumerate(entry.function.captured))
    return FastEntry(
        args=tuple(arguments),
        executable=compiled.executable,
        outputs=tuple(v.type for v in entry.function.graph.outputs),
        device=device,
        epoch=epoch,
        bound=bound,
        tuple_out=not leaf,
    )
