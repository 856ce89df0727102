"""Functions and graphs that a command is about: ``file.py:function``, a program file or an entry of
it, or a file of IR text.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bringup.backend.registry import load
from bringup.cli.shell import found_wrong
from bringup.errors import BringupError, ProgramFileError
from bringup.graph.parser import parse_graph
from bringup.ops import find
from bringup.runtime.compiler import Compiled, lower_graph
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api.jit import Jitted


#: What the names of program files end with.
PROGRAM_FILE = ".bringup"
#: A function with a name in front and the types of its arguments behind it; and one of these.
_NAMED = re.compile(r"(?:(\w+)=)?(.*?)(?:\((.*)\))?", re.DOTALL)
_TYPE = re.compile(r"[^\s,\[\]]+(?:\[[^\]]*\])?")


def compiled_for(subject: str, types: Sequence[str], target: str) -> Compiled:
    """A function or graph, compiled for a target without hardware.

    subject: ``file.py:function`` or ``module:function``, traced on ``types`` (``f32[4,8]``, or
    numbers); ``file.bringup`` or ``file.bringup:entry``; or a file of IR text.
    Raises BringupError for what cannot be found or compiled.
    """
    if not names_function(subject):
        return _compile_text(Path(subject), types, target)
    jitted, arguments = function_of(subject, types)
    try:
        return jitted.lower(*arguments, target=target)
    except BringupError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)


def names_function(subject: str) -> bool:
    """Whether a text names a function, and no file of IR."""
    return ":" in subject or subject.endswith(PROGRAM_FILE)


def functions_of(
    texts: Sequence[str], types: Sequence[str]
) -> dict[str, tuple[Jitted[..., Any], list[Any]]]:
    """The functions of texts ``NAME=file.py:function(TYPES)``, and their arguments, by names.

    NAME is the function's if it is left out, and TYPES are ``types``.  A program file without an
    entry stands for all of its entries.  Raises BringupError.
    """
    found: dict[str, tuple[Jitted[..., Any], list[Any]]] = {}
    for text in texts:
        parts = _NAMED.fullmatch(text)
        assert parts is not None
        name, subject, own = parts.groups()
        if not names_function(subject):
            raise BringupError(
                f"{subject} names no function", fix="name file.py:function or module:function"
            )
        words = types if own is None else _TYPE.findall(own)
        names = [name or subject.rpartition(":")[2]]
        subjects = [subject]
        if name is None and ":" not in subject:
            names = list(_entries(subject))
            subjects = [f"{subject}:{entry}" for entry in names]
        for each, one in zip(names, subjects, strict=True):
            if each in found:
                raise BringupError(
                    f"two functions are called {each}", fix=f"name one of them: other={one}"
                )
            found[each] = function_of(one, words)
    return found


def function_of(subject: str, types: Sequence[str]) -> tuple[Jitted[..., Any], list[Any]]:
    """The function of a text, and the arguments that its types stand for."""
    from bringup.api.jit import Jitted, jit

    arguments = [_argument(text) for text in types]
    path, _, name = subject.rpartition(":")
    if (path or name).endswith(PROGRAM_FILE):
        return _entry(path, name), arguments
    function = _function(_module(path), name, path)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise BringupError(
            f"{name}{inspect.signature(function)} does not take the types given: {error}",
            fix="give one for each argument, such as 'f32[4,8]'",
        ) from None
    return function if isinstance(function, Jitted) else jit(function), arguments


def _entries(path: str) -> Mapping[str, Jitted[..., Any]]:
    """The entries of a program file."""
    from bringup.api.program_files import load

    try:
        return load(path).entries
    except ProgramFileError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)


def _entry(path: str, name: str) -> Jitted[..., Any]:
    """An entry of a program file.  path: empty where the name is that of the file."""
    entries = _entries(path or name)
    if not path and len(entries) == 1:
        return next(iter(entries.values()))
    if path and name in entries:
        return entries[name]
    raise BringupError(
        f"{path or name} has entries {', '.join(entries) or 'none'}",
        fix=f"name one of them: {path or name}:entry",
    )


def _compile_text(path: Path, types: Sequence[str], target: str) -> Compiled:
    if not path.is_file():
        raise BringupError(
            f"there is no file {path}", fix="name file.py:function, module:function or a file of IR"
        )
    if path.suffix == ".py":
        raise BringupError(f"{path} is Python, not a graph", fix=f"name its function: {path}:name")
    if types:
        raise BringupError("a graph in a file has its types already", fix="leave out the types")
    name, _, architecture = target.partition(":")
    try:
        graph = parse_graph(path.read_text(encoding="utf-8"), find, source=str(path))
        return lower_graph(graph, load(name), architecture)
    except BringupError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)


def _module(path: str) -> ModuleType:
    if not path.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not path.startswith(error.name or path):
                raise
            raise BringupError(f"there is no module {path!r}", fix="give a file: name.py") from None
    file = Path(path)
    if not file.is_file():
        raise BringupError(f"there is no file {path}", fix="name file.py:function")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, path: str) -> Callable[..., Any]:
    found: Any = getattr(module, name, None)
    if callable(found):
        function: Callable[..., Any] = found
        return function
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    close = difflib.get_close_matches(name, names) or names
    raise BringupError(
        f"{path} has no function {name!r}", fix=f"name one of {', '.join(close) or 'its functions'}"
    )


def _argument(text: str) -> TensorType | int | float:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return TensorType.parse(text)
