"""``bringup dump``: what a function becomes, level by level, without opening a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bringup.backend.registry import core_backends, load
from bringup.cli.app import LEVELS
from bringup.cli.output import document, heading, line
from bringup.cli.shell import did_you_mean
from bringup.cli.subject import compiled_for
from bringup.errors import BringupError, UnsupportedError
from bringup.loops.schedule import Scheduled
from bringup.passes.run import dump_folder

_BY_DEFAULT = ("passes", "program", "kernels", "cost")
_FUSION = "89-fusion"  # the first file of a dump after those of passes


def show(
    subject: str,
    types: Sequence[str],
    target: str,
    levels: Sequence[str],
    html: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Compile for a target and print the levels asked for, all but source and assembly by default.

    subject: ``file.py:function`` or ``module:function``, traced on ``types`` (``f32[4,8]``, or
    numbers); or a file of IR text.
    html: the file of a page with all levels, instead of text.
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
        compiled = compiled_for(subject, types, target)
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
        "schedule": lambda: [*map(_scheduled, compiled.schedules), *map(str, compiled.library)],
        "source": lambda: _text(lambda: compiled.source),
        "asm": lambda: _text(lambda: compiled.asm),
        "cost": lambda: asdict(compiled.cost()),
    }
    if html is not None:
        html.write_text(compiled.html(), encoding="utf-8")
        return
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
