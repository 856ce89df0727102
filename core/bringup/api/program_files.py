"""`save` and `load`: functions as files that any device runs, without their Python source."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import CodeType, MappingProxyType
from typing import Any

import numpy as np

from bringup.aot.program_file import (
    DIGEST_AT,
    NUMBERS,
    StoredArray,
    StoredEntry,
    pieces_of,
    with_locations,
)
from bringup.aot.program_reader import ProgramContents
from bringup.api.arguments import check_call, flag_of, path_of
from bringup.api.array import Array
from bringup.api.boundary import guarded_methods
from bringup.api.freeze import Frozen
from bringup.api.jit import Entry, Jitted, compiled_as, jit
from bringup.api.trace import LeafType, TracedFunction, argument_name, graph_name, parameters
from bringup.backend.capabilities import Shapes
from bringup.errors import BringupError, OpTypeError, TraceError
from bringup.runtime import devices, transfer
from bringup.runtime.compiler import Options
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.pytree import TreeDef, definition, flatten, unflatten
from bringup.types import TensorType

#: A function, its arguments, and its named ones.
Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


# -- saving ----------------------------------------------------------------------------------------


def save(
    path: str | os.PathLike[str],
    functions: Any,
    /,
    *args: Any,
    metadata: Mapping[str, Any] | None = None,
    locations: bool = True,
    **kwargs: Any,
) -> str:
    """Write a program file: functions as graphs, with the arrays that they hold, for any device.

    path: ends with ``.bringup`` by custom.  A file that is there is replaced in one step.
    functions: one function, whose ``args`` and ``kwargs`` are types such as ``f32[1, 784]``, or
    what `lower` takes; or several by their names, each a tuple of a function and its arguments.
    metadata: what else the file shall tell: anything that JSON gives back as it was.
    locations: whether it tells, for errors, the line of each operation and the name of its file.

    Returns the SHA-256 of the file.  The weights in it are the arrays of outer scopes, and the
    parameters of a function that `freeze` made; equal ones are there once.
    Raises ConversionError for what a file does not hold, and what `trace` raises.

    >>> import tempfile
    >>> place = f"{tempfile.mkdtemp()}/double.bringup"
    >>> digest = bu.save(place, lambda x: x + x, bu.float32[2], metadata={"author": "Ada"})
    >>> bu.load(place)(bu.asarray([1.0, 2.0], dtype=bu.float32)).tolist()
    [2.0, 4.0]
    """
    if isinstance(functions, Mapping):
        if args or kwargs:
            raise OpTypeError(
                "save: the types of several functions stand beside each of them",
                fix='give {"name": (function, *types)}',
            )
        calls = calls_of(functions)
    elif callable(functions):
        calls = {_name_of(functions): (functions, args, kwargs)}
    else:
        raise OpTypeError(
            f"save: a {type(functions).__name__} is no function",
            fix="save arrays with numpy.savez(file, *bringup.tree.flatten(x)[0])",
        )
    pieces = program_pieces(calls, metadata, locations=flag_of("save", "locations", locations))
    place = path_of("save", "path", path)
    unfinished = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.writelines(pieces)
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)
    return bytes(pieces[0][DIGEST_AT : DIGEST_AT + 64]).decode()


def calls_of(functions: Mapping[str, tuple[Any, ...]]) -> dict[str, Call]:
    """Functions by their names, from tuples of each and the types of its arguments.

    Raises OpTypeError for anything else.
    """
    given: Any = functions
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and isinstance(call, tuple) and call and callable(call[0])
        for name, call in given.items()
    ):
        raise OpTypeError(
            f"{functions!r} are no functions by their names",
            fix='give a dict such as {"name": (function, bringup.float32[8])}',
        )
    return {name: (fn, args, {}) for name, (fn, *args) in functions.items()}


def program_pieces(
    calls: Mapping[str, Call], metadata: Mapping[str, Any] | None, *, locations: bool = True
) -> list[bytes | memoryview]:
    """A program file in pieces; see `save`."""
    arrays = _Arrays()
    entries = {
        name: _stored(fn if isinstance(fn, Jitted) else jit(fn), args, kwargs, arrays, locations)
        for name, (fn, args, kwargs) in calls.items()
    }
    return pieces_of(entries, arrays.stored, {} if metadata is None else metadata)


def traced_alone(
    jitted: Jitted[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    what: str,
    shapes: Shapes | None = None,
) -> tuple[Sequence[Any], dict[str, Any], Any, Entry]:
    """A function traced for no device: its arguments, the call that they make, and the trace.

    what: the caller is asked for, as errors say it.
    shapes: of the machine that parameters of a frozen function are laid out for, if it is known.
    Raises OpTypeError for arguments that it does not take, TraceError for arrays that have no value
    yet.
    """
    args, kwargs = jitted._described(tuple(args), kwargs)
    check_call(jitted, args, kwargs)
    call = jitted._flattened(tuple(args), kwargs)
    if isinstance(jitted, Frozen):
        entry = jitted._traced(call, None, shapes)
    else:
        entry = jitted._trace(call, None)
    if any(array.is_traced for array in entry.function.captured):
        raise TraceError(
            f"{graph_name(jitted._fn)} uses arrays of a function that is being traced",
            fix=f"{what} outside of it",
        )
    return args, kwargs, call, entry


def _name_of(fn: Callable[..., Any]) -> str:
    return graph_name(fn._fn if isinstance(fn, Jitted) else fn)


def _stored(
    jitted: Jitted[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    arrays: _Arrays,
    locations: bool,
) -> StoredEntry:
    """An entry of a file: the function is traced, its arrays are added to those of the file."""
    args, kwargs, call, entry = traced_alone(jitted, args, kwargs, "save")
    function = entry.function
    positions, names = jitted._static
    given = [i for i in range(len(args)) if i not in positions]
    keywords = [name for name in sorted(kwargs) if name not in names]
    positional, named = call.treedef.children
    children = dict(zip(sorted(kwargs), named.children, strict=True))
    arguments = [
        definition(tuple, None, [positional.children[i] for i in given]),
        definition(dict, tuple(keywords), [children[name] for name in keywords]),
    ]
    known: dict[int | str, str] = dict(enumerate(parameters(jitted._fn)))
    static = {str(known.get(at, str(at))): _static_text(s.value) for at, s in call.static}
    if isinstance(jitted, Loaded):
        static = dict(jitted.static)
    held = _held_names(jitted._fn)
    return StoredEntry(
        graph=with_locations(function.graph, kept=locations),
        parameters=tuple(_parameters(jitted._fn, given, keywords)),
        arguments=definition(tuple, None, arguments),
        leaves=tuple(str(t) if isinstance(t, TensorType) else t.__name__ for t in call.types),
        result=function.result,
        weights=tuple(arrays.add(array, held.get(id(array))) for array in function.captured),
        donated=entry.donated,
        static=static,
        frozen=isinstance(jitted, Frozen),
    )


def _parameters(
    fn: Callable[..., Any], given: Sequence[int], keywords: Sequence[str]
) -> Iterator[inspect.Parameter]:
    """The parameters of an entry.

    given: positions of the arguments that were given so.  keywords: the others.
    """
    names = parameters(fn)
    kinds = inspect.signature(fn).parameters if names else {}
    # What a function takes as ``*args`` has no names, and nothing before it can be given by name.
    nameless = any(i >= len(names) or names[i] in keywords for i in given)
    for i in given:
        if nameless:
            yield inspect.Parameter(f"argument{i}", inspect.Parameter.POSITIONAL_ONLY)
        else:
            yield inspect.Parameter(names[i], kinds[names[i]].kind)
    for name in keywords:
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)


def _static_text(value: Any) -> str:
    """A value that is compiled in, for readers; functions and the like by their names."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_static_text, value))})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _held_names(fn: Any) -> dict[int, str]:
    """What arrays are called that a function holds, by their ids."""
    found: dict[int, str] = {}
    for name, value in _held(fn):
        try:
            leaves, tree = flatten(value)
        except BringupError:  # it is no container of arrays
            continue
        for leaf, path in zip(leaves, tree.paths(name), strict=True):
            if isinstance(leaf, Array):
                found.setdefault(id(leaf), re.sub(r"\W+", ".", path).strip("."))
    return found


def _held(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a function holds, and what it is called there: arguments that are bound to it, the
    attributes of the object whose method it is, or which it is, and variables that it reads.
    """
    while isinstance(fn, partial):
        yield from zip(parameters(fn.func), fn.args, strict=False)
        yield from fn.keywords.items()
        fn = fn.func
    yield from getattr(getattr(fn, "__self__", fn), "__dict__", {}).items()
    code = getattr(fn, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable without a value
                yield name, cell.cell_contents
        yield from ((n, fn.__globals__[n]) for n in _names_in(code) if n in fn.__globals__)


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that a function, or one inside it, reads from outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class _Arrays:
    """The arrays of a file that is being written; equal ones are there once.

    stored: by their names.
    """

    def __init__(self) -> None:
        self.stored: dict[str, StoredArray] = {}
        self._names: dict[tuple[TensorType, str], str] = {}

    def add(self, array: Array, name: str | None) -> str:
        """The name of an array in the file: this one, if it is free and not None."""
        host = np.ascontiguousarray(np.asarray(array))
        if host.dtype.byteorder == ">":  # pragma: no cover - only big-endian machines
            host = host.astype(host.dtype.newbyteorder("<"))
        elements = host.reshape(-1).view(np.uint8).data if host.size else b""
        digest = hashlib.sha256(elements).hexdigest()
        if (array.type, digest) not in self._names:
            number = len(self.stored)
            free = name or f"weight{number}"
            free = free if free not in self.stored else f"{free}.{number}"
            self._names[array.type, digest] = free
            self.stored[free] = StoredArray(array.type, elements, digest)
        return self._names[array.type, digest]


# -- loading ---------------------------------------------------------------------------------------


class _Weights:
    """The arrays of a file on devices, where they stay for as long as one of its entries lives."""

    def __init__(self, contents: ProgramContents, copy: bool) -> None:
        self._contents = contents
        self._put = transfer.upload if copy else transfer.borrow
        self._arrays: dict[tuple[OpenDevice, str], Array] = {}

    def on(self, device: OpenDevice, names: Sequence[str]) -> tuple[Array, ...]:
        """Arrays on a device; each is read from the file when it is first needed there."""
        for name in names:
            if (device, name) not in self._arrays:
                host = self._contents.array(name)
                buffer = self._put(device.device, host)
                self._arrays[device, name] = Array(self._contents.types[name], device, buffer)
        return tuple(self._arrays[device, name] for name in names)


class _Body:
    """Stands where a compiled function has its Python function: what is known of an entry.

    stored: what the file has of it.  types: of the leaves of its arguments.
    weights: those of the file.
    """

    def __init__(self, name: str, stored: StoredEntry, weights: _Weights) -> None:
        self.stored, self.weights = stored, weights
        self.types: tuple[LeafType, ...] = tuple(
            NUMBERS.get(leaf, value.type)
            for leaf, value in zip(stored.leaves, stored.graph.inputs, strict=False)
        )
        leaves = iter(stored.leaves)
        outputs = (str(value.type) for value in stored.graph.outputs)
        self.__name__ = self.__qualname__ = name
        self.__signature__ = inspect.Signature(
            [
                parameter.replace(annotation=_Text(tree.text(leaves)))
                for parameter, tree in zip(
                    stored.parameters, stored.arguments_by_parameter, strict=True
                )
            ],
            return_annotation=_Text(stored.result.text(outputs)),
        )
        self.__doc__ = f"{name}{self.__signature__}"

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("an entry runs its graph")


class _Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Loaded(Jitted[..., Any]):
    """An entry of a program file, made by `load`.  Call it as the function that was saved.

    It compiles for the device of a call, as what `jit` makes does.  Arguments that were static when
    it was saved are a part of it, and are not passed.  Without arguments, `lower` and `export` are
    of the types that were saved.
    """

    _maker = "load"
    _fn: Any

    @property
    def static(self) -> Mapping[str, str]:
        """Arguments that are a part of it, and the text of each."""
        return MappingProxyType(self._fn.stored.static)

    @property
    def ops(self) -> tuple[str, ...]:
        """What a device has to run, itself or by decompositions."""
        result: tuple[str, ...] = self._fn.stored.ops
        return result

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of all values."""
        result: tuple[str, ...] = self._fn.stored.dtypes
        return result

    def __repr__(self) -> str:
        return f"<load {self._fn.__doc__}>"

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args or kwargs:
            return args, kwargs
        body = self._fn
        leaves = [t if isinstance(t, TensorType) else t() for t in body.types]
        return unflatten(body.stored.arguments, leaves)

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body = self._fn
        try:
            bound = body.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise OpTypeError(f"{body.__name__}: {error}", fix=f"call {body.__doc__}") from None
        call = super()._flattened(bound.args, bound.kwargs)
        if call.treedef != body.stored.arguments:
            raise self._other_containers(call.treedef)
        inputs = body.stored.graph.inputs
        for i, (given, saved) in enumerate(zip(call.types, body.types, strict=True)):
            if not _fits(given, saved, inputs[i].type):
                raise self._other_type(call.treedef, i, given)
        return replace(call, types=body.types)

    def _other_containers(self, given: TreeDef) -> OpTypeError:
        """The error for the first argument that is made of other containers than was saved."""
        body = self._fn
        passed = [tree for part in given.children for tree in part.children]
        columns = (body.stored.parameters, body.stored.arguments_by_parameter, passed)
        name, saved, other = next(
            (parameter.name, saved, other)
            for parameter, saved, other in zip(*columns, strict=True)
            if saved != other
        )
        return OpTypeError(
            f"argument {name} of {body.__name__} is {other}, where {saved} was saved",
            fix="pass the same containers; * stands for an array or a number",
        )

    def _other_type(self, given: TreeDef, leaf: int, type_: LeafType) -> OpTypeError:
        body = self._fn
        path = list(given.paths("arguments"))[leaf]
        shown = type_ if isinstance(type_, TensorType) else type_.__name__
        return OpTypeError(
            f"{argument_name(body, path)} is {shown}, where {body.stored.leaves[leaf]} was saved",
            fix="convert it; shapes are static: save an entry for each of them",
        )

    def _trace(self, call: Any, device: OpenDevice | None) -> Entry:
        """The graph of the file, in place of a trace."""
        body = self._fn
        stored: StoredEntry = body.stored
        weights = body.weights.on(device or devices.get(), stored.weights)
        function = TracedFunction(stored.graph, weights, stored.result)
        types = tuple(value.type for value in stored.graph.inputs)
        return Entry(function, types, stored.donated, defaulted=False)


class _LoadedFrozen(Frozen[..., Any], Loaded):
    """An entry that was frozen: what follows from its weights is computed once for a device."""


def _fits(given: LeafType, saved: LeafType, type_: TensorType) -> bool:
    """Whether an argument can stand where another was saved.  type_: that of the graph's input."""
    if isinstance(given, TensorType):
        return given is type_
    if isinstance(saved, TensorType):
        if saved.shape:
            return False
        saved = float if saved.dtype.is_float else int if saved.dtype.is_integer else bool
    return given is saved or (given is int and saved is float)


@guarded_methods
class ProgramFile:
    """A program file that was loaded: its functions, and what it tells of itself; made by `load`.

    entries: its functions by their names; each is called, lowered and exported as a jitted one, and
    has ``ops``, ``dtypes`` and ``static``, what a device needs and what is compiled in.
    metadata: what was said when it was saved.
    hash: the SHA-256 of the file.  opset: the least that it needs.
    version: of bringup, which wrote it.

    Call it to run the entry that was asked for, or its only one.
    """

    def __init__(
        self,
        contents: ProgramContents,
        entry: str | None,
        device: DeviceSpec,
        fallback: DeviceSpec,
        copy: bool,
    ) -> None:
        self._contents = contents
        weights = _Weights(contents, copy)
        self.entries: Mapping[str, Loaded] = MappingProxyType(
            {
                name: _loaded(_Body(name, stored, weights), device, fallback)
                for name, stored in contents.entries.items()
            }
        )
        self.metadata: Mapping[str, Any] = MappingProxyType(contents.metadata)
        self.hash, self.opset, self.version = contents.hash, contents.opset, contents.version
        wanted: Any = entry
        if wanted is not None and not (isinstance(wanted, str) and wanted in self.entries):
            raise BringupError(
                f"{contents.path} has no entry {entry!r}",
                fix=f"it has {', '.join(self.entries) or 'none'}",
            )
        self._entry = next(iter(self.entries)) if len(self.entries) == 1 else entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the entry.  Raises BringupError if there are several to choose from."""
        if self._entry is None:
            raise BringupError(
                f"{self._contents.path} has entries {', '.join(self.entries)}",
                fix="choose one: load(path, entry=…), or .entries[…]",
            )
        return self.entries[self._entry](*args, **kwargs)

    def __repr__(self) -> str:
        entries = "; ".join(str(entry._fn.__doc__) for entry in self.entries.values())
        return f"<program file {self._contents.path}: {entries}>"

    @property
    def weights(self) -> Mapping[str, TensorType]:
        """The types of the arrays in the file, by their names."""
        return MappingProxyType(self._contents.types)

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._contents.nbytes

    def verify(self) -> None:
        """Compare all weights with their hashes, which else happens when they are first used.

        Raises ProgramFileError if one is damaged.
        """
        for name in self._contents.types:
            self._contents.array(name)


def _loaded(body: _Body, device: DeviceSpec, fallback: DeviceSpec) -> Loaded:
    kind = _LoadedFrozen if body.stored.frozen else Loaded
    static = (frozenset[int](), frozenset[str]())
    result: Loaded = compiled_as(kind, body, device, fallback, static, (), Options())
    return result


def load(
    path: str | os.PathLike[str],
    *,
    entry: str | None = None,
    device: DeviceSpec = None,
    fallback: DeviceSpec = None,
    copy: bool = False,
) -> ProgramFile:
    """A program file that `save` wrote, ready to be called; nothing in it is run as Python code.

    entry: the one that a call of the result runs, if the file has several.
    device, fallback: as of `jit`.
    copy: whether a device that could read the weights where the file is mapped has a copy all the
    same, which takes time and memory; calls that wait for memory can then be some percent faster.

    Weights are read when they are first used, and compared with their hashes then.
    Raises ProgramFileError for what is no program file, is damaged, or needs a later version.
    """
    copied = flag_of("load", "copy", copy)
    contents = ProgramContents(path_of("load", "path", path))
    return ProgramFile(contents, entry, device, fallback, copied)


__all__ = ["Loaded", "ProgramFile", "calls_of", "load", "program_pieces", "save", "traced_alone"]
