"""``bringup show``: what a program file holds, without a device."""

from __future__ import annotations

import inspect
import json
from typing import Any

from bringup.api.program_files import Loaded, ProgramFile, load
from bringup.cli.output import document, heading, line, size_text
from bringup.cli.shell import found_wrong
from bringup.errors import ProgramFileError


def show(path: str, *, as_json: bool) -> None:
    """Read a file, compare all of it with its hashes, and print what it tells.

    Raises ProgramFileError.
    """
    try:
        file = load(path)
        file.verify()
    except ProgramFileError as error:
        raise found_wrong(error)  # noqa: B904  (the same object)
    if as_json:
        document(_facts(file))
        return
    line(f"{path}: {size_text(file.nbytes)}, opset {file.opset}, by bringup {file.version}")
    line(f"sha256 {file.hash}")
    for key, value in file.metadata.items():
        line(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")
    for name, entry in file.entries.items():
        line()
        heading(f"{name}{inspect.signature(entry)}")
        for static, text in entry.static.items():
            line(f"  {static} = {text}")
        line(f"  ops: {', '.join(entry.ops)}")
        line(f"  dtypes: {', '.join(entry.dtypes)}")
    if file.weights:
        line()
        heading("weights")
    for name, type_ in file.weights.items():
        line(f"  {name}: {type_}")


def _facts(file: ProgramFile) -> dict[str, Any]:
    return {
        "hash": file.hash,
        "bytes": file.nbytes,
        "opset": file.opset,
        "version": file.version,
        "metadata": dict(file.metadata),
        "entries": {name: _entry(entry) for name, entry in file.entries.items()},
        "weights": {name: str(type_) for name, type_ in file.weights.items()},
    }


def _entry(entry: Loaded) -> dict[str, Any]:
    signature = inspect.signature(entry)
    return {
        "arguments": {p.name: str(p.annotation) for p in signature.parameters.values()},
        "result": str(signature.return_annotation),
        "static": dict(entry.static),
        "ops": list(entry.ops),
        "dtypes": list(entry.dtypes),
    }
