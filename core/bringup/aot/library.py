"""Libraries made ahead of time: programs become files that a build of C, C++ or Rust takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from typing import Literal as OneOf

from bringup.aot.header import Interface, c_header
from bringup.aot.interface import Function
from bringup.aot.weights import embedded, external
from bringup.aot.wrappers import wrappers
from bringup.backend.device import Backend
from bringup.backend.link import Linked, LinkOptions, LinkUnit
from bringup.backend.vendor_errors import REPORT, vendor_call
from bringup.errors import BackendError, OpTypeError
from bringup.records import record

#: Where the arrays stand that functions hold: in the code, or in a file beside it.
WeightsPlace = OneOf["embedded", "external"]


@record
class Library:
    """The files of a library, and what its header says.

    name: of the library.  target: what it was made for.
    arena_bytes: the scratch memory that a call of each function needs.
    files: the content of each, by its name.
    """

    name: str
    target: str
    arena_bytes: Mapping[str, int]
    files: Mapping[str, bytes] = field(repr=False)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the files into a folder, which is made if it is not there; their paths.

        Raises OpTypeError for what is no path, OSError where nothing can be written.
        """
        given: Any = folder
        if not isinstance(given, str | os.PathLike) or "\0" in str(given):
            raise OpTypeError(f"write: {given!r} is no folder", fix="give a str")
        place = Path(given)
        place.mkdir(parents=True, exist_ok=True)
        paths = [place / name for name in self.files]
        for path, content in zip(paths, self.files.values(), strict=True):
            path.write_bytes(content)
        return paths


def make_library(
    name: str,
    functions: Sequence[Function],
    backend: Backend,
    target: str,
    *,
    weights: WeightsPlace = "embedded",
    options: LinkOptions,
) -> Library:
    """A library of functions, by a backend that makes machine code.

    Raises UnsupportedError, CompileError, and BringupError for names that clash.
    """
    arrays = [array for function in functions for array in function.held]
    files: dict[str, bytes] = {}
    file = b""
    if weights == "external" and arrays:
        held, offsets, file = external(arrays)
        files[f"{name}.safetensors"] = file
    else:
        held, offsets = embedded(arrays)
    units = [
        LinkUnit(
            f.symbol,
            f.program,
            len(f.arguments),
            tuple(offsets[a.elements] for a in f.held),
            f.prefix,
            tuple(member.name for member in (*f.arguments, *f.results)),
        )
        for f in functions
    ]
    with vendor_call(backend, "link"):
        linked: Any = backend.link(units, held, target, replace(options, name=name))
    if not isinstance(linked, Linked) or len(linked.arena_bytes) != len(units):
        raise BackendError(
            f"{type(backend).__name__}.link gave {linked!r}, no Linked with an arena for each unit",
            fix=REPORT,
        )
    interface = Interface(
        name, target, tuple(functions), linked.arena_bytes, options.threads, len(file),
        linked.driver, linked.weights_bytes,
    )  # fmt: skip
    files = {
        f"{name}{linked.suffix}": linked.data,
        **{f"{name}{suffix}": data for suffix, data in linked.files.items()},
        f"{name}.h": c_header(interface).encode(),
        **wrappers(interface),
        **files,
    }
    arenas = {f.symbol: n for f, n in zip(functions, linked.arena_bytes, strict=True)}
    return Library(name, target, arenas, files)


__all__ = ["Library", "WeightsPlace", "make_library"]
