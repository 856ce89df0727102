"""``bringup build``: functions as a library for a processor, made ahead of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bringup.aot.library import Library
from bringup.aot.toolchain import file_name, linked
from bringup.api.exporting import export
from bringup.cli.output import document, line, size_text
from bringup.cli.shell import found_wrong
from bringup.cli.subject import PROGRAM_FILE, functions_of
from bringup.errors import BringupError


def show(
    subjects: Sequence[str],
    types: Sequence[str],
    target: str,
    *,
    name: str,
    folder: str,
    kind: str,
    weights: str,
    small: bool,
    threads: int,
    metadata: Sequence[str],
    as_json: bool,
) -> None:
    """Make the library, write its files, and say what they are.

    subjects, types: as in `functions_of`.  name: of the library, that of its only function or of
    the program file by default.  kind: object, static or shared.  metadata: texts ``KEY=VALUE``.
    Raises BringupError.
    """
    functions = functions_of(subjects, types)
    name = name or _name_of(subjects, functions)
    options: dict[str, Any] = {"target": target, "weights": weights, "small": small}
    options |= {"threads": threads, "metadata": _metadata(metadata)}
    try:
        if len(functions) == 1:
            [(function, arguments)] = functions.values()
            library = function.export(name, *arguments, **options)
        else:
            calls = {own: (function, *args) for own, (function, args) in functions.items()}
            library = export(name, calls, **options)
    except BringupError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)
    if kind != "object" and f"{name}.o" not in library.files:
        refusal = BringupError(
            f"{target} gives no machine code, of which a {kind} library could be made",
            fix="leave --kind out",
        )
        raise found_wrong(refusal)
    paths = library.write(folder)
    if kind != "object":
        symbols = tuple(library.arena_bytes)
        data = linked(kind, name, library.files[f"{name}.o"], symbols, library.target)
        paths.append(Path(folder) / file_name(kind, name, library.target))
        paths[-1].write_bytes(data)
    _report(library, paths, as_json=as_json)


def _name_of(subjects: Sequence[str], functions: Iterable[str]) -> str:
    """The name of a library that is given none.  Raises BringupError."""
    if len(subjects) == 1 and subjects[0].endswith(PROGRAM_FILE):
        return Path(subjects[0]).stem
    first, *others = functions
    if others:
        raise BringupError(
            f"{first}, {', '.join(others)} are a library without a name", fix="give one: --name"
        )
    return first


def _metadata(texts: Sequence[str]) -> dict[str, Any] | None:
    """Values that are JSON as it has them, others as texts.  Raises BringupError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BringupError(f"metadata {text!r} has no value", fix="say KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found or None


def _report(library: Library, paths: Sequence[Path], *, as_json: bool) -> None:
    sizes = {str(path): path.stat().st_size for path in paths}
    if as_json:
        arenas = dict(library.arena_bytes)
        document({"target": library.target, "files": sizes, "arena_bytes": arenas})
        return
    for symbol, nbytes in library.arena_bytes.items():
        line(f"{symbol}: {nbytes:,} bytes of arena")
    for path, nbytes in sizes.items():
        line(f"{path}  {size_text(nbytes)}")
