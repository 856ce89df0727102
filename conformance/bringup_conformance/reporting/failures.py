"""Failures as plain data: one JSON object holds everything that runs the case again, alone."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np

from bringup.errors import BringupError
from bringup.graph import Value
from bringup.graph.parser import parse_graph
from bringup.graph.printer import print_graph
from bringup.ops.special_values import Special
from bringup.ops.table import find
from bringup.records import record
from bringup_conformance.cases import Case, Cells, Check, Outcome, Problem, instructions
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array

#: Plain data, as JSON holds it.
Plain = Mapping[str, Any]
#: Changes when a file of an earlier version means something else.
FORMAT = 2
#: Seconds without a sign of life after which a case hangs, unless a run is told otherwise.
TIMEOUT = 60.0


def suite_version() -> str:
    """The version of the distribution that brings the suite."""
    from importlib.metadata import version  # imports a parser of mail

    return version("bringup")


@record
class Run:
    """Where a failure was met.  device: its product and details.  timeout: seconds without a sign
    of life after which a case hangs.
    """

    backend: str
    seed: int
    device: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = TIMEOUT


def document(outcome: Outcome, run: Run) -> dict[str, Any]:
    """A failure as it was met: what was run, where, and what went wrong."""
    assert outcome.problem is not None
    case = outcome.case
    return {
        "format": FORMAT,
        "suite": suite_version(),
        "backend": run.backend,
        "device": dict(run.device),
        "run": {"level": case.level, "seed": run.seed},
        "options": {"skip": [], "timeout": run.timeout},
        "nodes": instructions(case.graph) if isinstance(case, Case) else 0,
        "case": item_to_json(case),
        "problem": problem_to_json(outcome.problem),
    }


def smallest(document: Plain) -> Plain:
    """The smallest form of a failure's case that is known."""
    form: Plain = document.get("reduced") or document["case"]
    return form


def problem_of(document: Plain) -> Plain:
    """What went wrong in that form."""
    problem: Plain = smallest(document).get("problem") or document["problem"]
    return problem


def timeout_of(document: Plain, timeout: float | None = None) -> float:
    """Seconds without a sign of life after which a failure's case hangs: those asked for, or those
    of the run that met it.
    """
    return float(document["options"].get("timeout", TIMEOUT)) if timeout is None else timeout


def is_check(document: Mapping[str, Any]) -> bool:
    """Whether a failure is of a check, which has no program and runs again by its name."""
    return bool(document["case"].get("check"))


def item_to_json(item: Case | Check) -> dict[str, Any]:
    """A case that `case_from_json` reads, or a check as a case without program and data."""
    if isinstance(item, Case):
        return case_to_json(item)
    return {
        **{name: getattr(item, name) for name in ("name", "level", "op", "dtype")},
        "ir": "",
        "data": [],
        "cells": [],
        "bitwise": False,
        "rules": list(item.rules),
        "check": True,
    }


def case_to_json(case: Case) -> dict[str, Any]:
    """A case that `case_from_json` reads."""
    return {
        "name": case.name,
        "level": case.level,
        "op": case.op,
        "dtype": case.dtype,
        "ir": print_graph(case.graph),
        "data": [[recipe.to_json() for recipe in recipes] for recipes in case.data],
        "cells": [_cells_to_json(cells) for cells in case.cells],
        "bitwise": case.bitwise,
        "optimize": case.optimize,
        "rules": list(case.rules),
    }


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Read `case_to_json`'s data.

    Raises ParseError, KeyError, TypeError or ValueError if it is none.
    """
    return Case(
        name=data["name"],
        level=data["level"],
        op=data["op"],
        dtype=data["dtype"],
        graph=(graph := parse_graph(data["ir"], find)),
        data=tuple(tuple(Recipe.from_json(r) for r in recipes) for recipes in data["data"]),
        cells=tuple(map(_cells_from_json, data.get("cells", ()), graph.outputs)),
        bitwise=bool(data.get("bitwise")),
        optimize=bool(data.get("optimize", True)),
        rules=tuple(data.get("rules", ())),
    )


def _cells_to_json(cells: Cells) -> dict[str, Any]:
    texts = [[list(cell.operands), cell.result] for cell in cells.cells]
    return {
        "cells": texts,
        "repeats": cells.repeats,
        "packed": cells.packed,
        "attrs": [name for name, _ in cells.cells[0].attrs],
        "rules": list(cells.rules),
    }


def _cells_from_json(data: Mapping[str, Any], output: Value) -> Cells:
    """Read `_cells_to_json`'s data; the values of the attributes that its cells give are those of
    the instruction that makes the output.
    """
    given = {} if output.producer is None else output.producer.attrs
    attrs = tuple((name, given[name]) for name in data.get("attrs", given))
    cells = tuple(
        Special(tuple(operands), result if isinstance(result, str) else tuple(result), attrs=attrs)
        for operands, result in data["cells"]
    )
    rules = tuple(data.get("rules", ()))
    return Cells(cells, int(data["repeats"]), bool(data["packed"]), rules)


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """What went wrong: kind, sentence, and the worst elements with their places."""
    verdict = problem.verdict
    return {
        "kind": problem.kind,
        "what": problem.what,
        "data_set": problem.data,
        "fused": problem.fused,
        "wrong": verdict.wrong,
        "compared": verdict.compared,
        "mismatches": [asdict(m) for m in verdict.mismatches],
        "ulps": list(verdict.ulps),
        "rules": list(problem.rules),
        "log": problem.log,
        "phase": problem.phase,
        "call": problem.call,
    }


def digest(arrays: list[Array]) -> str:
    """SHA-256 of shapes, dtypes and bytes."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.shape}{array.dtype}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def prepare(folder: Path) -> None:
    """Clear a folder of the failure files of an earlier run.  Raises OSError."""
    for old in (*folder.glob("failure-[0-9]*.json"), *folder.glob("failure-[0-9]*.py")):
        old.unlink()


def write(folder: Path, number: int, failure: Mapping[str, Any]) -> Path:
    """Write a failure as a file of its own, with a script beside it that runs it alone; returns the
    file's path.  Raises OSError.
    """
    path = folder / f"failure-{number:03}.json"
    rewrite(path, failure)
    return path


def rewrite(path: Path, failure: Mapping[str, Any]) -> None:
    """Write a failure to its file, and its script.  Raises OSError."""
    from bringup_conformance.reporting.scripts import script  # which imports this module

    path.write_text(json.dumps(failure, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".py").write_text(script(failure), encoding="utf-8")


def put(path: Path, text: str) -> Path:
    """Write a file at once, so that nobody reads half of it; returns its path.  Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a failure file.  Raises ValueError if it is none, or of a format not known here."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get("case"), dict):
        raise ValueError("it is no failure file")
    if data.get("format") != FORMAT:
        raise ValueError(
            f"it has format {data.get('format')}, written by version {data.get('suite')};"
            f" this suite reads format {FORMAT}: run the suite again to have the failure anew"
        )
    try:
        for form in filter(None, (data["case"], data.get("reduced"))):
            if not is_check(data):
                case_from_json(form)
            form.get("problem", data["problem"])["kind"]
    except RecursionError as error:
        raise ValueError("its program is nested too deeply") from error
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from error
    except (AttributeError, TypeError, BringupError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    return data
