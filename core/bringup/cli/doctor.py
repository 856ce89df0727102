"""``bringup doctor``: what is installed, its state, and what to do about it; or what a backend that
``bringup new`` has made still leaves to modules that stand in for its driver.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import platform
import stat
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs

from bringup import config
from bringup.backend.discovery import BackendStatus, candidates, select
from bringup.backend.probing import probe_elsewhere
from bringup.backend.registry import list_backends
from bringup.cli.output import document, heading, line, size_text, table
from bringup.records import record

_NEEDED = ("bringup", "numpy", "ml_dtypes", "llvmlite", "pluggy", "hypothesis")
_FAULTS = ("incompatible", "broken", "duplicate")
#: How the names of modules begin that stand in for a driver.
_STAND_IN = "simulated"
#: The row of numbers of a simulated machine.
_ROW = 'name="simulated"'


@record
class Place:
    """A line of a backend that is still simulated.

    uses: what stands in.  what: it does, and the driver's has to do.
    """

    file: str
    line: int
    function: str
    uses: str
    what: str


def show(name: str, *, as_json: bool) -> int:
    """Print the report, or that of one backend; returns 1 if there is something to do, else 0.

    Raises BackendError for a backend that is not installed.
    """
    return _show_all(as_json=as_json) if not name else _show_places(name, as_json=as_json)


def _show_places(name: str, *, as_json: bool) -> int:
    candidate = select(name, candidates())
    status = probe_elsewhere(candidate, opened=True)
    spec = importlib.util.find_spec(candidate.entry.module.partition(".")[0])
    folders = [] if spec is None else spec.submodule_search_locations or []
    places = [place for folder in folders for place in simulated_places(Path(folder))]
    if as_json:
        listed = [asdict(place) for place in places]
        document({"backend": asdict(status), "folders": list(folders), "simulated": listed})
        return int(bool(places) or status.state in _FAULTS)
    facts = (status.name, status.state, status.distribution, status.reason, status.fix)
    table(("name", "state", "distribution", "reason", "fix"), [facts], apart=True)
    line()
    if not places:
        heading("Nothing is simulated.")
    else:
        heading(f"{len(places)} places of {', '.join(folders)} are simulated:")
        rows = [(f"{p.file}:{p.line}", p.function, p.uses, p.what) for p in places]
        table(("place", "in", "uses", "to do"), rows, apart=True)
    return int(bool(places) or status.state in _FAULTS)


def simulated_places(folder: Path) -> Iterator[Place]:
    """The places of a package that use a module which stands in for a driver, and that say so to
    the suite.  Nothing is imported.
    """
    trees: dict[Path, ast.Module] = {}
    for file in sorted(folder.rglob("*.py")):
        with contextlib.suppress(SyntaxError, ValueError):  # of which the backend's state tells
            trees[file] = ast.parse(file.read_bytes())
    what = {
        f"{file.stem}.{node.name}": (ast.get_docstring(node) or "").partition("\n")[0]
        for file, tree in trees.items()
        if file.stem.startswith(_STAND_IN)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    what[_ROW] = "The numbers of your machine, and its name."
    for file, tree in trees.items():
        if file.stem.startswith(_STAND_IN):
            continue
        for node, function in _within(tree, ""):
            for uses in _stand_ins(node):
                to_do = what.get(uses, "Take it away when nothing else is simulated.")
                place = str(file.relative_to(folder))
                yield Place(place, getattr(node, "lineno", 0), function, uses, to_do)


def _stand_ins(node: ast.AST) -> Iterator[str]:
    """What stands in for a driver at this node itself."""
    match node:
        case ast.Attribute(value=ast.Name(id=module)) if module.startswith(_STAND_IN):
            yield f"{module}.{node.attr}"
        case ast.ImportFrom(module=str(module)):
            last = module.rpartition(".")[2]
            if last.startswith(_STAND_IN):
                yield from (f"{last}.{alias.name}" for alias in node.names)
        case ast.keyword(arg="simulated", value=ast.Constant(value=True)):
            yield "simulated=True"
        case ast.keyword(arg="name", value=ast.Constant(value="simulated")):
            yield _ROW


def _within(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """The nodes within one, each with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        yield child, function
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".lstrip(".")
        yield from _within(child, inner)


def _show_all(*, as_json: bool) -> int:
    """What is installed.

    Plugins are tried in interpreters of their own: this one imports none of them, so that a
    crashing driver is a line of the report.
    """
    backends = list_backends(probe=True)
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _NEEDED}}
    variables = {v.name: config.text(v.name) for v in config.VARIABLES}
    cache = _cache()
    if as_json:
        rows = [asdict(status) for status in backends]
        document({"versions": versions, "backends": rows, "variables": variables, "cache": cache})
    else:
        _print(versions, backends, cache)
    return int(_faults(versions, backends) > 0)


def _print(versions: dict[str, str], backends: list[BackendStatus], cache: dict[str, Any]) -> None:
    heading("Versions")
    table(("package", "version"), [(k, v or "not installed") for k, v in versions.items()])
    line()
    heading("Backends")
    rows = [(s.name, s.state, s.distribution, s.version, s.reason, s.fix) for s in backends]
    if rows:
        table(("name", "state", "distribution", "version", "reason", "fix"), rows, apart=True)
    else:
        line("none is installed")
    for status in backends:
        for text in status.output.splitlines():
            line(f"{status.name} printed: {text}")
    line()
    heading("Environment")
    table(
        ("variable", "value", "meaning", "fix"),
        [(v.name, config.text(v.name), v.doc, config.problem(v) or "") for v in config.VARIABLES],
    )
    line()
    heading("Cache")
    line(f"{cache['path']}: {cache['files']:,} files, {size_text(cache['bytes'])}")
    line()
    faults = _faults(versions, backends)
    heading(f"{faults} to fix" if faults else "Everything is in order.")


def _faults(versions: dict[str, str], backends: list[BackendStatus]) -> int:
    """How many packages, backends and variables need a fix."""
    missing = sum(not version for version in versions.values())
    broken = sum(status.state in _FAULTS for status in backends)
    return missing + broken + sum(config.problem(v) is not None for v in config.VARIABLES)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cache() -> dict[str, Any]:
    path = Path(platformdirs.user_cache_dir("bringup"))
    sizes: list[int] = []
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process tidies up meanwhile
            status = file.stat()
            sizes += [status.st_size] if stat.S_ISREG(status.st_mode) else []
    return {"path": str(path), "files": len(sizes), "bytes": sum(sizes)}
