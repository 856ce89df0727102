"""`export`: functions as a library that is made ahead of time, for programs without Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.aot.interface import Function, check_name, members
from bringup.aot.library import Library, WeightsPlace, make_library
from bringup.aot.weights import HeldArray, constants_of, elements_of
from bringup.api.arguments import choice_of, flag_of, integer_of
from bringup.api.program_files import Call, calls_of, program_pieces, traced_alone
from bringup.api.trace import argument_name, graph_name
from bringup.backend.link import LinkOptions
from bringup.backend.registry import core_backends, list_backends, load
from bringup.errors import BringupError, OpTypeError
from bringup.lazy import LazyTable
from bringup.records import record
from bringup.runtime.compiler import lower_graph

if TYPE_CHECKING:
    from bringup.api.jit import Jitted
    from bringup.backend.device import Backend

#: What makes source text of programs for no device, by target.
SOURCES: LazyTable[type[Backend]] = LazyTable(
    {
        "c11": ("bringup.aot.c_source", "CSource"),
        "opencl-c": ("bringup.aot.opencl_source", "OpenCLSource"),
    }
)
#: The target of what runs on any device.
PROGRAM = "program"


def export(
    name: str,
    functions: Mapping[str, tuple[Any, ...]],
    *,
    target: str,
    weights: WeightsPlace = "embedded",
    small: bool = False,
    threads: int = 1,
    metadata: Mapping[str, Any] | None = None,
) -> Library:
    """Several functions as one library, which share the code that they have in common.

    functions: by their names in C, each a tuple of a function and the types of its arguments.
    The rest is as in the method ``export`` of a jitted function.

    >>> functions = {"twice": (lambda x: x + x, bu.float32[8]),
    ...              "square": (lambda x: x * x, bu.float32[8])}
    >>> sorted(bu.export("maths", functions, target="wasm32").arena_bytes)
    ['maths_square', 'maths_twice']
    """
    options = options_of(weights, small, threads, metadata)
    calls = calls_of(functions)
    for own in calls:
        check_name(own)
    prefixes = [f"{name}_{own}" for own in calls]
    return _library(name, calls, prefixes, prefixes, target, options)


def export_one(
    jitted: Jitted[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    target: str,
    options: ExportOptions,
) -> Library:
    """One function as a library; see the method ``export`` of a jitted function."""
    calls = {graph_name(jitted._fn): (jitted, args, kwargs)}
    return _library(name, calls, [name], [f"{name}_run"], target, options)


def _library(
    name: str,
    calls: Mapping[str, Call],
    prefixes: Sequence[str],
    symbols: Sequence[str],
    target: str,
    options: ExportOptions,
) -> Library:
    """A library of functions.  prefixes, symbols: of each in C."""
    from bringup.api.jit import Jitted, jit

    check_name(name)
    if not isinstance(target, str):
        raise OpTypeError(f"target {target!r} is no text", fix="name one, such as 'wasm32'")
    if target == PROGRAM:
        options.check_for_program()
        file = b"".join(program_pieces(calls, options.metadata))
        return Library(name, PROGRAM, {}, {f"{name}.bringup": file})
    if options.metadata is not None:
        raise BringupError(
            f"export: a library for {target} holds no metadata", fix="leave metadata out"
        )
    backend, architecture = backend_of(target)
    made = []
    for (fn, args, kwargs), prefix, symbol in zip(calls.values(), prefixes, symbols, strict=True):
        jitted = fn if isinstance(fn, Jitted) else jit(fn)
        made.append(_function(jitted, prefix, symbol, args, kwargs, backend, architecture))
    return make_library(
        name, made, backend, architecture, weights=options.weights, options=options.link
    )


@record
class ExportOptions:
    """What `export` takes beside functions and a target."""

    weights: WeightsPlace
    link: LinkOptions
    metadata: Mapping[str, Any] | None

    def check_for_program(self) -> None:
        """Raise BringupError for what a program file does not choose."""
        if self.weights != "embedded" or self.link != LinkOptions():
            raise BringupError(
                "export: a program file holds its weights, and the device that runs it compiles it",
                fix="leave weights, small and threads out",
            )


def options_of(
    weights: WeightsPlace, small: bool, threads: int, metadata: Mapping[str, Any] | None
) -> ExportOptions:
    """The options, checked.  Raises OpTypeError, and BringupError for less than one thread."""
    count = integer_of("export", "threads", threads)
    if count < 1:
        raise BringupError(f"export: {count} threads", fix="give 1 or more")
    link = LinkOptions(small=flag_of("export", "small", small), threads=count)
    choice_of("export", "weights", weights, ("embedded", "external"))
    return ExportOptions(weights, link, metadata)


def backend_of(target: str) -> tuple[Backend, str]:
    """The backend that makes a library for a target, and the target as the backend knows it.

    target: what a backend of core's own makes libraries for, a language of `SOURCES`, or
    ``backend:target``.  Raises BringupError for one that no backend knows.
    """
    if target in SOURCES:
        return SOURCES[target](), target
    for own in core_backends():
        backend = load(own)
        if target in backend.link_targets():
            return backend, target
    name, _, architecture = target.partition(":")
    try:
        return load(name), architecture
    except BringupError as error:
        if any(status.name == name for status in list_backends()):
            raise  # it is there, and broken
        known = [known for own in core_backends() for known in load(own).link_targets()]
        known += [*SOURCES, PROGRAM]
        raise BringupError(
            f"no library can be made for {target!r}",
            notes=(error.what,),
            fix=f"use {', '.join(known)}, or backend:target",
        ) from None


def _function(
    jitted: Jitted[..., Any],
    prefix: str,
    symbol: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    backend: Backend,
    architecture: str,
) -> Function:
    """A function of a library: traced, compiled, its arrays fetched."""
    shapes = backend.capabilities(architecture).shapes
    _, _, call, entry = traced_alone(jitted, args, kwargs, "export", shapes)
    graph, captured = entry.function.graph, entry.function.captured
    program = lower_graph(graph, backend, architecture, options=jitted._options).program
    passed = len(graph.inputs) - len(captured)
    names = [
        argument_name(jitted._fn, path).removeprefix("argument ").rpartition(" of ")[0]
        for path in call.treedef.paths("arguments")
    ]
    arguments = members(names, program.inputs[:passed])
    results = members(entry.function.result.paths("result"), program.outputs, arguments)
    held = [
        HeldArray(f"{symbol}.weight{n}", type_, elements_of(np.asarray(array)))
        for n, (array, type_) in enumerate(zip(captured, program.inputs[passed:], strict=True))
    ]
    held += constants_of(program, symbol)
    return Function(prefix, symbol, program, arguments, results, tuple(held))


__all__ = ["backend_of", "export", "export_one", "options_of"]
