"""``bringup dump``: what a function becomes, level by level, without opening a device."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from bringup.backend.registry import core_backends, load
from bringup.cli.app import LEVELS
from bringup.cli.output import document, heading, line
from bringup.cli.shell import did_you_mean, found_wrong
from bringup.errors import BringupError, UnsupportedError
from bringup.graph.parser import parse_graph
from bringup.loops.schedule import Scheduled
from bringup.ops import find
from bringup.passes.run import dump_folder
from bringup.runtime.compiler import Compiled, lower_graph
from bringup.types import TensorType

_BY_DEFAULT = ("passes", "program", "kernels", "cost")
_FUSION = "89-fusion"  # the first file of a dump after those of passes


def show(
    subject: str, types: Sequence[str], target: str, levels: Sequence[str], *, as_json: bool
) -> None:
    """Compile for a target and print the levels asked for, all but source and assembly by default.

    subject: ``file.py:function`` or ``module:function``, traced on ``types`` (``f32[4,8]``, or
    numbers); or a file of IR text.
    Raises BringupError for what cannot be found or compiled.
    """
    chosen = tuple(levels) or _BY_DEFAULT
    unknown = [level for level in chosen if level not in LEVELS]
    if unknown:
        raise BringupError(
            f"there is no level {unknown[0]!r}", fix=did_you_mean(unknown[0], LEVELS)
        )
    target = target or _default_target()
    load(target.partition(":")[0])  # a wrong name is no error of the function
    with TemporaryDirectory() as folder, _dumping_to(folder):
        compiled = _compile(subject, types, target)
        # Bodies of loops that core runs are dumped beside it.
        subfolder = dump_folder(Path(folder), compiled.graph, compiled.graph.name)
        files = {f.stem: f.read_text(encoding="utf-8") for f in subfolder.glob("*.txt")}
    passes = {k: v for k, v in sorted(files.items()) if k < _FUSION}
    shown: dict[str, Callable[[], Any]] = {
        "passes": lambda: passes,
        "fusion": lambda: files.get(_FUSION, ""),
        "program": lambda: "\n\n".join(map(str, compiled.programs)),
        "kernels": lambda: [str(k) for k in compiled.kernels],
        "loops": lambda: [str(func) for func in compiled.loops],
        "schedule": lambda: [_scheduled(s) for s in compiled.schedules],
        "source": lambda: _text(lambda: compiled.source),
        "asm": lambda: _text(lambda: compiled.asm),
        "cost": lambda: asdict(compiled.cost()),
    }
    contents = {level: shown[level]() for level in LEVELS if level in chosen}
    if as_json:
        document(contents)
    else:
        _print(contents)


def _print(contents: dict[str, Any]) -> None:
    for level, content in contents.items():
        if level == "passes":
            _print_passes(content)
        elif level in ("kernels", "loops", "schedule"):
            _section(f"{level}: {len(content)}", "\n\n".join(content))
        elif level == "cost":
            _section("cost", "\n".join(f"{k} {v:,}" for k, v in content.items()))
        else:
            _section(level, content)


def _print_passes(passes: dict[str, str]) -> None:
    changes = [(text, list(names)) for text, names in groupby(passes, passes.__getitem__)]
    for text, (first, *idle) in changes:
        _section(first, text)
        if idle:
            heading(f"{', '.join(idle)}: no change")
            line()


def _section(title: str, text: str) -> None:
    heading(title)
    line(text.rstrip())
    line()


def _scheduled(scheduled: Scheduled | None) -> str:
    if scheduled is None:
        return "not shown: the backend does not run this kernel by loops"
    return str(scheduled)


def _text(get: Callable[[], str]) -> str:
    try:
        return get()
    except UnsupportedError as error:
        return f"not shown: {error.what}"


def _default_target() -> str:
    own = core_backends()
    if not own:
        raise BringupError("no backend comes with bringup itself", fix="name one with --target")
    return own[0]


def _compile(subject: str, types: Sequence[str], target: str) -> Compiled:
    path, colon, name = subject.rpartition(":")
    if not colon:
        return _compile_text(Path(subject), types, target)
    from bringup.api.jit import Jitted, jit

    function = _function(_module(path), name, path)
    jitted = function if isinstance(function, Jitted) else jit(function)
    arguments = [_argument(text) for text in types]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise BringupError(
            f"{name}{inspect.signature(function)} does not take the types given: {error}",
            fix=f"give one for each argument: bringup dump {subject} 'f32[4,8]' …",
        ) from None
    try:
        return jitted.lower(*arguments, target=target)
    except BringupError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)


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


@contextmanager
def _dumping_to(folder: str) -> Iterator[None]:
    before = os.environ.get("BRINGUP_DUMP")
    os.environ["BRINGUP_DUMP"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["BRINGUP_DUMP"]
        else:
            os.environ["BRINGUP_DUMP"] = before
