"""`bringup new`: packages that pass their own tests and the suite at once, and say what is left."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from bringup.backend import API_LEVEL, OPSET
from bringup.cli import new
from bringup.cli.app import app
from bringup.cli.doctor import simulated_places
from bringup.cli.new import Names, generate
from bringup.errors import BringupError
from bringup.ops.table import all_ops
from bringup.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
NAMES = Names.of("Acme X1")
#: Every package that there is: a depth, and a language.
PACKAGES = [("ops", ""), ("kernels", ""), ("programs", ""), ("loops", "")]
PACKAGES += [("loops", language) for language in new.languages()]
#: Those whose code differs: of the dialects with threads, one.
DIFFERENT = [*PACKAGES[:4], ("loops", "c"), ("loops", "hip")]
LINES = 150
LAYOUT = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip


def package_of(folder: Path, depth: str, language: str) -> Path:
    """A package with the metadata that pip would write for it; returns its module's folder."""
    generate(folder, NAMES, depth, language)
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    metadata = folder / f"{NAMES.module}-{project['version']}.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(head, "utf-8")
    entries = project["entry-points"]["bringup.backends"].items()
    lines = ["[bringup.backends]", *(f"{name} = {value}" for name, value in entries)]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / NAMES.module


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is on the path, and nothing else of this checkout's tests."""
    path = os.pathsep.join([str(folder), *(entry for entry in sys.path if entry)])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BRINGUP_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": path, "BRINGUP_OPT": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_tidy(folder: Path) -> None:
    """A package is as ruff has it by the settings of its own, alone in its folder."""
    for arguments in (["check", "--no-cache"], ["format", "--no-cache", "--diff"]):
        done = run_in(folder, "-m", "ruff", *arguments, str(folder))
        assert done.returncode == 0, done.stdout + done.stderr


def command(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``bringup`` or ``conformance`` there."""
    module = {"bringup": "bringup", "conformance": "bringup_conformance"}[name]
    return run_in(folder, "-m", module, *arguments)


def code_lines(text: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize(
    ("product", "device", "module", "stem"),
    [
        ("Acme X1", "acme-x1", "bringup_acme_x1", "AcmeX1"),
        ("mydevice", "mydevice", "bringup_mydevice", "Mydevice"),
        ("NPU-3.5_b", "npu-3-5-b", "bringup_npu_3_5_b", "NPU35B"),
    ],
)
def test_names(product: str, device: str, module: str, stem: str) -> None:
    names = Names.of(product)
    assert (names.device, names.module, names.stem) == (device, module, stem)
    assert names.distribution == f"bringup-{device}"


@pytest.mark.parametrize("name", ["", " ", "3D", "größe", "a/b", "../x", "x:1", "a\nb", "$x", "x-"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(BringupError, match="cannot be the name of a device") as caught:
        Names.of(name)
    assert "Acme X1" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (("kernel", ""), "no depth is named 'kernel'", "did you mean kernels?"),
        (("loops", "openCL"), "no language is named 'openCL'", "did you mean opencl?"),
        (("", "fortran"), "no language is named 'fortran'", "use one of own, c,"),
        (("", "", "GPL"), "no licence is named 'GPL'", "use one of Apache-2.0,"),
        (("ops", "c"), "depth ops is in a language of the device's own, not in c", "--depth loops"),
    ],
)
def test_unknown_words(words: tuple[str, ...], message: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match=re.escape(message)) as caught:
        generate(tmp_path / "new", NAMES, *words)
    assert fix in str(caught.value.fix)
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    for place in (tmp_path, tmp_path / "mine"):
        with pytest.raises(BringupError, match="is there already") as caught:
            generate(place, NAMES)
        assert "--path" in str(caught.value.fix)
    (tmp_path / "empty").mkdir()
    assert generate(tmp_path / "empty", NAMES)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("CPU", "bringup brings a device 'cpu' already"),
        ("Conformance", "a package bringup_conformance is installed already"),
    ],
)
def test_a_name_that_is_in_use(name: str, what: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["new", name, "--path", str(tmp_path / "x")])
    assert isinstance(result.exception, BringupError)
    assert what in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_the_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "Acme X1", "--language", "c"])
    assert result.exit_code == 0
    assert (tmp_path / "bringup-acme-x1/bringup_acme_x1/device.py").is_file()
    for text in ('pip install -e "bringup-acme-x1[test]"', "bringup doctor acme-x1"):
        assert text in result.stdout


@pytest.mark.parametrize(("depth", "language"), PACKAGES)
def test_a_package_has_its_own_names_and_little_code(
    depth: str, language: str, tmp_path: Path
) -> None:
    files = generate(tmp_path / "x", NAMES, depth, language, author='A "B" \\ Ünï')
    texts = {str(file.relative_to(tmp_path / "x")): file.read_text("utf-8") for file in files}
    for name, text in texts.items():
        assert re.findall(r"(?<!\{)\$\w+|\$\{\w", text) == [], name
        assert "template" not in text.lower(), name
        assert "\n\n\n\n" not in text, name
        assert max((len(line) for line in text.splitlines()), default=0) <= (
            100 if name.endswith(".py") else 160
        ), name
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["authors"] == [{"name": 'A "B" \\ Ünï'}]
    assert project["entry-points"]["bringup.backends"] == {"acme-x1": "bringup_acme_x1.plugin"}
    assert VERSION in Requirement(project["dependencies"][0]).specifier
    assert (
        f"api=({API_LEVEL}, {API_LEVEL}), opset=({OPSET}, {OPSET})"
        in texts["bringup_acme_x1/plugin.py"]
    )
    for name in re.findall(r"`(\w+\.py)`", texts["README.md"]):
        assert f"bringup_acme_x1/{name}" in texts or name == "example.py"
    own = {name: text for name, text in texts.items() if name.startswith("bringup_acme_x1")}
    written = [text for name, text in own.items() if "simulated" not in name]
    count = sum(code_lines(text) for text in written if text)
    limit = 2 * LINES if "kernels" in new.DEPTHS[depth] else LINES
    assert 60 < count < limit
    stand_ins = sum(code_lines(text) for name, text in own.items() if "simulated" in name)
    assert stand_ins < LINES
    assert_tidy(tmp_path / "x")


def test_the_first_depth_claims_what_every_device_must_have(tmp_path: Path) -> None:
    generate(tmp_path / "x", NAMES, "ops")
    file = tmp_path / "x/bringup_acme_x1/capabilities.py"
    spec = importlib.util.spec_from_file_location("acme_capabilities", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    needed = {claim for op in all_ops() if op.tier == 0 for claim in op.tier0_claims}
    needed.remove("constant")  # core uploads it
    assert set(module.CAPABILITIES.ops) == needed


@pytest.mark.parametrize("licence", new.LICENCES)
def test_licences(licence: str, tmp_path: Path) -> None:
    generate(tmp_path / "x", NAMES, licence=licence, author="Acme Inc.")
    project = tomllib.loads((tmp_path / "x/pyproject.toml").read_text("utf-8"))["project"]
    text = (tmp_path / "x/LICENSE").read_text("utf-8")
    assert project["license"] == licence
    proprietary = "Private :: Do Not Upload" in project["classifiers"]
    assert proprietary == licence.startswith("LicenseRef")
    if licence == "Apache-2.0":
        assert text == (ROOT / "LICENSE").read_text("utf-8")
    else:
        assert re.search(r"\(c\) 20\d\d,? Acme Inc\.", text)


def test_the_package_of_the_repository_is_one_of_these(tmp_path: Path) -> None:
    """Else make it again, see CONTRIBUTING.md."""
    place = ROOT / "backends/template"
    author = "The bringup developers"
    files = generate(tmp_path / "x", Names.of("Template"), "kernels", author=author)
    made = {str(f.relative_to(tmp_path / "x")): f.read_text("utf-8") for f in files}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=place, capture_output=True, text=True, check=False
    ).stdout.split()
    assert {n: (place / n).read_text("utf-8") for n in tracked or made} == made


@pytest.mark.parametrize(("depth", "language"), DIFFERENT)
def test_the_suite_passes_at_once(depth: str, language: str, tmp_path: Path) -> None:
    package_of(tmp_path / "x", depth, language)
    done = command(
        tmp_path / "x", "conformance", "run", "--backend=acme-x1", "--level", "smoke", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["passed"] > 40
    assert counts["failed"] == 0


#: A plugin of pytest that tells which devices a run opens and closes.
COUNTING = """
from bringup.backend import Device, SimpleBackend

opened, closed, open_device = [], [], SimpleBackend.open
SimpleBackend.open = lambda backend, index: opened.append(open_device(backend, index)) or opened[-1]
Device.close = lambda device: closed.append(device)


def pytest_terminal_summary():
    print(f"opened {len(opened)}, closed {len(closed)}")
"""


@pytest.mark.parametrize(("depth", "language"), [("ops", ""), ("kernels", ""), ("loops", "c")])
def test_its_own_tests_pass_at_once_whatever_stands_round_it(
    depth: str, language: str, tmp_path: Path
) -> None:
    package_of(tmp_path / "x", depth, language)
    (tmp_path / "conftest.py").write_text("raise ImportError('not of this package')\n", "utf-8")
    (tmp_path / "x" / "counting.py").write_text(COUNTING, "utf-8")
    done = run_in(tmp_path / "x", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "counting")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"1\d passed", done.stdout)
    assert "opened 2, closed 1" in done.stdout  # the other one is core's own


@pytest.mark.parametrize("language", [*new.languages()])
def test_the_loops_of_a_dialect_run_as_core_chooses_them_for_the_row(
    language: str, tmp_path: Path
) -> None:
    package = package_of(tmp_path / "x", "loops", language)
    file = package / "capabilities.py"
    file.write_text(file.read_text("utf-8").replace("vector_bits=0", "vector_bits=256"), "utf-8")
    code = (
        "import bringup as bu\n"
        "from bringup.backend import load\n"
        "f = bu.jit(lambda x: bu.nn.softmax(x, axis=-1), device='acme-x1')\n"
        "lowered = f.lower(bu.float32[40, 200], target='acme-x1')\n"
        "print(*(schedule.steps for schedule in lowered.schedules), sep='\\n')\n"
        "print(load('acme-x1').target() == load('acme-x1').open(0).target)\n"
    )
    done = run_in(tmp_path / "x", "-c", code)
    assert done.returncode == 0, done.stderr
    assert ("vectorize" if language == "c" else "bind") in done.stdout
    assert done.stdout.endswith("True\n")


def test_what_is_still_simulated_says_so_where_memory_is_the_driver_s(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "loops", "opencl")
    file = package / "driver.py"
    text = file.read_text("utf-8").replace("simulated_memory", "own_memory")
    file.write_text(text, "utf-8")
    own = (package / "simulated_memory.py").read_text("utf-8")
    (package / "own_memory.py").write_text(own, "utf-8")
    done = run_in(
        tmp_path / "x", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "arithmetic"
    )
    assert done.returncode == 1
    assert "memory is the driver's, and what should run on it is still simulated" in done.stdout
    assert "bringup doctor acme-x1" in done.stdout
    done = run_in(
        tmp_path / "x", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "bytes or memory"
    )
    assert done.returncode == 0, done.stdout


def test_help_names_every_language() -> None:
    done = CliRunner().invoke(app, ["new", "--help"], env={"COLUMNS": "200"})
    for language in new.languages():
        assert re.search(rf"\b{language}\b", done.stdout)


@pytest.mark.parametrize(("depth", "language"), PACKAGES)
def test_each_place_to_fill_in_is_listed(depth: str, language: str, tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", depth, language)
    places = list(simulated_places(package))
    by_file: dict[str, set[str]] = {}
    for place in places:
        assert place.what.endswith((".", ";")), place
        text = (package / place.file).read_text("utf-8").splitlines()[place.line - 1]
        assert place.uses in text
        by_file.setdefault(place.file, set()).add(place.uses)
    moved = {"alloc", "free", "upload", "download", "copy", "wait", "DriverError", "OutOfMemory"}
    assert by_file["driver.py"] == {f"simulated_memory.{name}" for name in moved}
    assert by_file["plugin.py"] == {"simulated_memory.devices"}
    row = {'name="simulated"'} if language else set()
    assert by_file["capabilities.py"] == {"simulated=True", *row}
    if depth == "ops":
        assert len([place for place in places if place.file == "ops.py"]) == 28
    else:
        assert by_file["device.py"] == {"simulated_chip.load", "simulated_chip.launch"}


def test_the_tutorial_shows_what_doctor_says(tmp_path: Path) -> None:
    generate(tmp_path / "x", NAMES, "ops")
    text = (ROOT / "docs/tutorial/first-device.md").read_text("utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    _head, *rows, _more = block.splitlines()
    said = {
        f"{place.file}:{place.line} {place.function} {place.uses} {place.what}"
        for place in simulated_places(tmp_path / "x" / NAMES.module)
    }
    assert len(rows) == 3
    assert {re.sub(" {2,}", " ", row) for row in rows} <= said
    for depth in new.DEPTHS:
        assert f"`--depth {depth}`" in text
    for language in new.languages():
        assert f"`{language}`" in text or f"`--language {language}`" in text


def test_the_tutorial_fills_in_every_place(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("tutorial", ROOT / ".ci/tutorial_device.py")
    assert spec is not None
    assert spec.loader is not None
    tutorial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tutorial)
    module = tutorial.make(tmp_path / "x")
    assert list(simulated_places(module)) == []
    count = sum(code_lines(file.read_text("utf-8")) for file in module.glob("*.py"))
    assert 100 < count <= LINES
    assert_tidy(tmp_path / "x")


def test_doctor_says_what_is_left_until_nothing_is(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "loops", "c")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1")
    assert done.returncode == 1
    assert "13 places of " in done.stdout
    assert re.search(r"driver\.py:\d+ +AcmeX1Memory\.alloc +simulated_memory\.alloc", done.stdout)
    found = json.loads(command(tmp_path / "x", "bringup", "doctor", "acme-x1", "--json").stdout)
    assert found["backend"]["state"] == "ready"
    assert len(found["simulated"]) == 13
    # The driver is called by other names, as after its own module has taken the place.
    for file in package.glob("*.py"):
        text = file.read_text("utf-8").replace("simulated_", "own_")
        text = text.replace("simulated=True", "simulated=False")
        file.write_text(text.replace('"simulated"', '"x1"'), "utf-8")
    for name in ("chip", "memory"):
        (package / f"simulated_{name}.py").rename(package / f"own_{name}.py")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1")
    assert done.returncode == 0, done.stdout
    assert "Nothing is simulated." in done.stdout


def test_doctor_compares_claims_and_functions(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "ops", "")
    text = (package / "ops.py").read_text("utf-8")
    (package / "ops.py").write_text(re.sub(r' +"(exp|reduce\.add)":.*\n', "", text), "utf-8")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1", "--json")
    found = json.loads(done.stdout)["backend"]
    assert done.returncode == 1
    assert (found["state"], found["fix"]) == (
        "broken",
        "write the functions in the table of ops, or take them out of Capabilities.ops",
    )
    assert found["reason"] == "it claims exp, reduce.add and has no function for them"
    (package / "ops.py").write_text(text.replace('"exp"', '"tanh"'), "utf-8")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1", "--json")
    assert json.loads(done.stdout)["backend"]["reason"] == (
        "it claims exp and has no function for it"
    )
    claimed = (package / "capabilities.py").read_text("utf-8").replace(" exp ", " ")
    (package / "capabilities.py").write_text(claimed, "utf-8")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1", "--json")
    found = json.loads(done.stdout)["backend"]
    assert found["state"] == "ready"
    assert found["reason"] == "it has a function for tanh and does not claim it"


def test_doctor_of_a_device_that_does_not_open(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "ops", "")
    (package / "device.py").write_text("raise OSError('no such bus')\n", "utf-8")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1", "--json")
    found = json.loads(done.stdout)["backend"]
    assert (found["state"], found["reason"]) == ("broken", "open(0) raised OSError: no such bus")


def test_doctor_of_a_package_that_is_being_edited(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "ops", "")
    (package / "plugin.py").write_text("def (\n", "utf-8")
    done = command(tmp_path / "x", "bringup", "doctor", "acme-x1")
    assert done.returncode == 1
    assert "broken" in done.stdout
    assert "SyntaxError" in done.stdout
    assert "37 places of " in done.stdout  # those of the other files


def test_names_that_are_imported_one_by_one_are_places_too(tmp_path: Path) -> None:
    (tmp_path / "simulated_memory.py").write_text('def alloc():\n    """Get memory."""\n')
    (tmp_path / "driver.py").write_text("from package.simulated_memory import alloc\n")
    (place,) = simulated_places(tmp_path)
    assert (place.line, place.uses, place.what) == (1, "simulated_memory.alloc", "Get memory.")


def test_a_backend_without_its_driver_says_that_there_is_no_hardware(tmp_path: Path) -> None:
    package = package_of(tmp_path / "x", "loops", "c")
    (package / "simulated_memory.py").write_text("import no_such_driver\n", "utf-8")
    done = command(tmp_path / "x", "bringup", "devices")
    assert done.returncode == 0
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("acme-x1")]
    assert "no hardware" in row
    assert "the driver is not installed: No module named 'no_such_driver'" in row
    source = run_in(
        tmp_path / "x",
        "-c",
        "import bringup as bu\n"
        "print(bu.jit(lambda x: x + x).lower(bu.float32[4], target='acme-x1').source)",
    )
    assert "void k0_add(" in source.stdout


def test_doctor_of_an_unknown_backend() -> None:
    result = CliRunner().invoke(app, ["doctor", "no-such"])
    assert isinstance(result.exception, BringupError)
    assert "no backend is named 'no-such'" in str(result.exception)
