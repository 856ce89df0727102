"""Settings of every test run from this checkout."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# Tests start hundreds of interpreters.  Where Python is told to keep no bytecode, as in many
# containers, each of them would compile the SDK anew, which takes longer than most tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Who reads a failure of a test wants to see inside.
os.environ.setdefault("BRINGUP_TRACEBACK", "full")

# Tests are thousands of small programs: compiling them is most of the time.  The suite of
# conformance and `.ci/setups` run what users get.
os.environ.setdefault("BRINGUP_OPT", "0")
# Tests change emitters, whose code then is not what the files hold.
os.environ.setdefault("BRINGUP_EMIT", "1")

# No schedule that somebody has tuned on this machine.
os.environ.setdefault("BRINGUP_SCHEDULES", str(Path(__file__).parent / ".pytest_cache/schedules"))

# There is a process for each core and more: threads of numpy's products would wait for each other,
# and its library waits by computing.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Two runs of one commit must generate the same cases; deadlines measure the machine, not the code.
settings.register_profile(
    "bringup",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bringup")

# Python blocks of the pages run as they stand; doctest itself stumbles over code fences.
pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["*.md"], excludes=["DESIGN.md"]
).pytest()


#: What is collected, in the order in which it was named.
_ORDER = pytest.StashKey[list[Path]]()
#: Of the SDK's own variables, those that say how code for this machine is compiled.
_COMPILING = ("BRINGUP_CPU", "BRINGUP_OPT")
#: Blocks of pages that this process has run, by page and position.
_ran: set[tuple[str, int]] = set()
#: Counts the modules of tests that have ended in this process.
_ended = itertools.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One process more than cores: many tests wait, for limits of time and for other processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist asks for it
    from bringup_conformance.execution.runner import usable_cores

    return usable_cores() + 1


def pytest_configure(config: pytest.Config) -> None:
    """Each process begins to collect at another folder, and finds the rest compiled by others."""
    given, folders = getattr(config, "workerinput", None), [Path(arg) for arg in config.args]
    if given is not None and all(folder.exists() for folder in folders):
        config.stash[_ORDER] = [folder.resolve() for folder in folders]
        turn = int(given["workerid"].removeprefix("gw"))
        config.args = [*config.args[turn:], *config.args[:turn]]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules of the product are collected for their examples: those that have some."""
    module = collection_path.suffix == ".py" and "tests" not in collection_path.parts
    if not module or not config.getoption("doctestmodules"):
        return None
    return ">>>" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All processes have one order, and what several modules show of a function is run once."""
    folders = config.stash.get(_ORDER, [])

    @cache
    def place(path: Path) -> int:
        return next(n for n, folder in enumerate(folders) if path.is_relative_to(folder))

    if folders:
        items.sort(key=lambda item: place(item.path))
    seen: set[tuple[str, str]] = set()
    examples = [item for item in items if isinstance(item, pytest.DoctestItem)]
    # What a package shows may depend on what has been imported: the others come first.
    for item in sorted(examples, key=lambda item: item.path.name == "__init__.py"):
        key = item.dtest.name.rpartition(".")[2], item.dtest.docstring
        if key in seen:
            items.remove(item)
        seen.add(key)


def pytest_collection_finish() -> None:
    """Searches for garbage are rare, because the programs of many tests live at once."""
    gc.set_threshold(200_000, 20, 20)
    _keep_what_is_there()


def _keep_what_is_there() -> None:
    """No search for garbage looks again at what is there now: tests, modules, tables of theirs."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A block of a page builds on those before it, which another process may have run."""
    block = getattr(item, "example", None)
    if not isinstance(block, Example):
        return
    _ran.add((block.path, block.start))
    for earlier in block.document.examples():
        at = earlier.path, earlier.start
        if earlier.start < block.start and at not in _ran:
            _ran.add(at)
            earlier.evaluate()


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Docstrings of public functions say ``bu`` for the package."""
    doctest_namespace["bu"] = importlib.import_module("bringup")


@pytest.fixture(autouse=True, scope="module")
def _no_programs_of_other_modules() -> Iterator[None]:
    """Thousands of programs on devices that are gone make every search for garbage slow."""
    yield
    importlib.import_module("bringup").clear_caches()
    if next(_ended) % 4 == 0:
        _keep_what_is_there()
    # Tests count the plugins that were imported: none stays after the module that installed it.
    assert not [name for name in sys.modules if name.startswith("plugin_")]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled code for the interpreters of one run, whichever process starts them."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture
def python(tmp_path: Path, shared_cache: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new interpreter; it must exit with 0.

    It finds what other tests of this run have compiled; a test that needs an empty cache gives one.
    options: of the interpreter.  environment: on top of this process's; of the SDK's own variables
    only those that say how code is compiled are kept.
    """
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith("BRINGUP_") or k in _COMPILING
    }

    def run(
        code: str, *options: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**inherited, "XDG_CACHE_HOME": str(shared_cache), **environment}
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", *options, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run
