"""``conformance coverage``: which lines of a backend's code no case enters."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import toys
from typer.testing import CliRunner, Result

from bringup_conformance import cli
from bringup_conformance.execution import code_coverage
from bringup_conformance.reporting import code_coverage as reporting

#: What the toy does before each op: a branch that is taken one way, a line that nothing enters,
#: excuses with and without a reason, and an end that nobody is told of.
LINES = """
if name == "nothing":
    never = 1
if name == "nothing":  # pragma: no branch - no op is called so
    excused = 1  # pragma: no cover - no op is called so
if name == "nothing":  # pragma: no branch
    told = 1  # pragma: no cover
if name == "nothing":  # pragma: no cover on toy - nor here
    here = 1
if name == "nothing":
    there = 1  # pragma: no cover on other - nor there
if name == "nothing":
    import absent_toy
if name == "mul":
    entered = 1
    import used_toy
if name == "sqrt": os.kill(os.getpid(), signal.SIGKILL)
"""


def conformance(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "toy"
    toys.install(folder, monkeypatch, LINES)
    # What other devices use of core, and this backend does not, is not its own.
    (folder / "used_toy.py").write_text("import runpy\nrunpy.run_module('bringup.llvm.division')\n")
    (folder / "absent_toy.py").write_text("x = 1\ny = 1\n")
    (folder / "stray_toy.py").write_text("x = 1\n")
    return folder


def rows(found: Mapping[str, Any]) -> dict[str, Any]:
    return {each["module"]: each for each in found["sources"]}


def test_a_run_tells_what_nothing_entered_although_its_workers_are_killed(tmp_path: Path) -> None:
    packages = [f"--package={name}_toy" for name in ("plugin", "used", "absent", "stray")]
    done = conformance(
        "coverage", "--backend=toy", "--level=smoke", "--only=mul,sqrt,floor", "-j1", "--json",
        "--report=report", *packages,
    )  # fmt: skip
    assert done.exit_code == 1, done.output  # a case fails
    found = json.loads(done.stdout)
    assert (found["runs"][0]["passed"], found["runs"][0]["failed"]) == (2, 1)
    plugin = rows(found)["plugin_toy"]
    sources = [gap["source"] for gap in plugin["gaps"]]
    assert "never = 1" in sources
    assert "import absent_toy" in sources
    assert "told = 1  # pragma: no cover" in sources
    # Excused on the one backend that was run, and on another.
    assert "here = 1" not in sources
    assert "there = 1  # pragma: no cover on other - nor there" in sources
    # Entered by a worker that ended at once, in the case after it.
    assert not {"entered = 1", "excused = 1"} & set(sources)
    reasons = [each["reason"] for each in plugin["excuses"]]
    assert reasons == [*["no op is called so"] * 2, "", "", "nor here"]
    assert rows(found)["used_toy"]["share"] == 100.0
    # What nobody imported counts if something that runs may import it.
    assert rows(found)["absent_toy"]["lines_entered"] == 0
    assert found["not_imported"] == ["stray_toy"]
    assert any("1 cases ended their process" in note for note in found["notes"])
    assert json.loads((tmp_path / "report/coverage.json").read_text()) == found
    assert (tmp_path / "report/index.html").is_file()
    assert (tmp_path / "report/toy/report.json").is_file()


def test_less_than_is_asked_for_ends_with_1() -> None:
    done = conformance(
        "coverage", "--backend=toy", "--level=smoke", "--only=mul", "-j0", "--fail-under=99"
    )
    assert done.exit_code == 1, done.output
    assert "LINE" in done.output
    assert "an excuse without a reason" in done.output
    assert "% of lines and branches were entered" in done.output
    assert "below 99 %" in done.output
    assert "bringup.llvm" not in done.output


def test_without_the_library_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "coverage", None)
    monkeypatch.setattr(sys, "argv", ["conformance", "coverage", "--backend=toy"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert 'pip install "bringup[coverage]"' in capsys.readouterr().err


def test_what_only_backends_use_of_core_is_found() -> None:
    packages = ("bringup.aot", "bringup.c", "bringup.llvm", "bringup.loops", "bringup.maths")
    assert code_coverage.packages_of_backends() == packages
    assert code_coverage.packages_of("toy:1") == ("plugin_toy",)
    assert "bringup.llvm.math.elementary" in code_coverage.modules_of("bringup.llvm")


def test_modules_of_core_count_as_far_as_the_backend_leads_to_them() -> None:
    modules = code_coverage.modules_of("bringup.llvm")
    native = set(reporting._named(["bringup.llvm.loops.library"], modules))
    # By a table, by what that module imports, and by none.
    assert {"bringup.llvm.func.schedules.attention", "bringup.llvm.func.render"} <= native
    assert "bringup.llvm.simt" not in native
    gpus = set(reporting._named(["bringup.llvm.simt"], modules))
    assert "bringup.llvm.math.elementary" in gpus
    assert gpus.isdisjoint(
        {"bringup.llvm.func.schedules.attention", "bringup.llvm.func.schedules.packed"}
    )
