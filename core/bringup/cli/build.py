"""``bringup build``: a function as a library for a processor, made ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from bringup.aot.library import Library, WeightsPlace
from bringup.aot.toolchain import file_name, linked
from bringup.cli.output import document, line, size_text
from bringup.cli.shell import found_wrong
from bringup.cli.subject import PROGRAM_FILE, function_of, names_function
from bringup.errors import BringupError


def show(
    subject: str,
    types: Sequence[str],
    target: str,
    *,
    name: str,
    folder: str,
    kind: str,
    weights: str,
    small: bool,
    threads: int,
    as_json: bool,
) -> None:
    """Make the library, write its files, and say what they are.

    subject, types: as in `bringup.cli.dump.show`, but no file of IR text.  name: of the library,
    the function's by default.  kind: object, static or shared.  Raises BringupError.
    """
    if not names_function(subject):
        raise BringupError(
            f"{subject} names no function", fix="name file.py:function or module:function"
        )
    function, arguments = function_of(subject, types)
    name = name or Path(subject.rpartition(":")[2]).name.removesuffix(PROGRAM_FILE)
    place = cast("WeightsPlace", weights)  # others are refused there
    try:
        library = function.export(
            name, *arguments, target=target, weights=place, small=small, threads=threads
        )
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
