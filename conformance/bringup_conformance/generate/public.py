"""Public functions as programs: what the examples of their docstrings call, traced.

The rows that a function is made of are checked one by one; how it puts them together, and with
which attributes, shows here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import bringup as bu
from bringup.dtypes import DType, f32, f64, i32, i64
from bringup.errors import BringupError
from bringup.graph import Builder, Graph, replay
from bringup.passes.check import terminates
from bringup.types import TensorType
from bringup_conformance.cases import PROGRAMS, Case, Unsupported, instructions
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.programs import data_sets

#: Modules whose functions compute.
MODULES = ("", "fft", "linalg", "nn", "optim", "random", "special")
#: What stands for dtypes of examples that not every device has.
_NARROW = {f64: f32, i64: i32}
#: Instructions of the largest program that is worth its time.
_MOST = 200
#: Functions that share a program: most of a small one's time goes into compiling it.
_TOGETHER = 4
_KINDS = ("small", "positive", "ramp")


def names() -> list[str]:
    """The functions, as ``linalg.solve``, each by the first of its names."""
    first_names: dict[Any, str] = {}
    for module in MODULES:
        owner = _owner(module)
        for name in dir(owner):
            value = getattr(owner, name)
            kind = isinstance(value, type | DType)
            if callable(value) and not kind and value.__name__ == name:
                first_names.setdefault(value, f"{module}.{name}".lstrip("."))
    return list(first_names.values())


def programs(module: str) -> list[list[str]]:
    """The functions of a module with graphs to run, those of one program together."""
    fitting = [n for n in names() if n.rpartition(".")[0] == module and _worthwhile(n)]
    return [fitting[n : n + _TOGETHER] for n in range(0, len(fitting), _TOGETHER)]


def named(module: str) -> str:
    """What the programs of a module are called."""
    return f"public-{module or 'array'}"


def cases(support: Support, module: str, seed: int) -> Iterator[Case | Unsupported]:
    """The programs of a module's functions."""
    for number, together in enumerate(programs(module)):
        name_prefix = f"fusion/{PROGRAMS}/f32/{named(module)}-{number}"
        graphs: list[Graph] = []
        for name in together:
            for graph in _worthwhile(name):
                reason = support.reason_of(graph)
                if reason is None:
                    graphs.append(graph)
                else:
                    yield Unsupported(f"{name_prefix}-{name}", "fusion", PROGRAMS, "f32", reason)
        if graphs:
            graph = _joined(graphs)
            data = data_sets(graph, _KINDS, seed, step=1)
            tags = ("public", *(name if module else f"array.{name}" for name in together))
            yield Case(name_prefix, "fusion", PROGRAMS, "f32", graph, data, tags=tags)


def _worthwhile(name: str) -> list[Graph]:
    """The graphs of a function that are more than one row, not too large, and come to an end: a
    loop may have none on other data than the example's.
    """
    fitting = (g for g in graphs_of(name) if 1 < instructions(g) <= _MOST)
    return [graph for graph in fitting if terminates(graph)]


def _joined(graphs: Sequence[Graph]) -> Graph:
    """One program that computes several, each of inputs of its own."""
    builder = Builder()
    outputs = [value for graph in graphs for value in replay(graph, builder=builder)]
    return builder.build(outputs, "public")


class _Called(Exception):
    """A function was called."""

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.arguments = arguments
        self.named = named


class _Stand:
    """A module in whose place one function says how it is called."""

    def __init__(self, owner: ModuleType, name: str) -> None:
        self._owner = owner
        self._name = name

    def __getattr__(self, name: str) -> Any:
        first, _, rest = self._name.partition(".")
        value = getattr(self._owner, name)
        if value is bu.devices:  # it would open every device, each in a process of its own
            raise AttributeError(name)
        if name != first:
            return value
        return _Stand(value, rest) if rest else _tell


def _tell(*arguments: Any, **named: Any) -> None:
    raise _Called(arguments, named)


@cache
def graphs_of(name: str) -> tuple[Graph, ...]:
    """What a function records of the arguments with which its examples call it, in the dtypes that
    most devices have.
    """
    import doctest  # with debuggers and more, which worker processes would import as they start

    function = _function(name)
    examples = doctest.DocTestParser().get_examples(function.__doc__ or "")
    here: dict[str, Any] = {"bu": _Stand(bu, name)}
    graphs: list[Graph] = []
    for example in examples:
        try:
            exec(compile(example.source, f"<example of {name}>", "exec"), here)
        except _Called as call:
            graphs += filter(None, [_traced(function, call)])
        except Exception:  # noqa: BLE001  (it goes on from an example that was cut short)
            continue
    return tuple(graphs)


def _traced(function: Callable[..., Any], call: _Called) -> Graph | None:
    """What a call records, of the types of the arrays among its arguments."""
    leaves, rest = bu.tree.flatten((call.arguments, call.named))
    positions = [n for n, leaf in enumerate(leaves) if isinstance(leaf, bu.Array)]
    types = [
        TensorType(leaves[n].shape, _NARROW.get(leaves[n].dtype, leaves[n].dtype))
        for n in positions
    ]

    def run(*arrays: bu.Array) -> Any:
        call_leaves = list(leaves)
        for position, array in zip(positions, arrays, strict=False):
            call_leaves[position] = array
        arguments, named = bu.tree.unflatten(rest, call_leaves)
        results = function(*arguments, **named)
        if isinstance(results, bu.optim.Optimizer):
            results = results.update(arrays[-1], results.init(arrays[-1]), arrays[-1])
        return [leaf for leaf in bu.tree.flatten(results)[0] if isinstance(leaf, bu.Array)]

    try:
        return bu.trace(run, *(types or [f32[5]]))
    except BringupError:
        return None


def _owner(module: str) -> ModuleType:
    return getattr(bu, module) if module else bu


def _function(name: str) -> Callable[..., Any]:
    module, _, own = name.rpartition(".")
    function: Callable[..., Any] = getattr(_owner(module), own)
    return function
