"""The README's program runs, and its recipe for a device of one's own makes one."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bringup as bu

HERE = Path(__file__).parent.parent
TEXT = (HERE / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_the_program() -> None:
    (program,) = blocks("python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    device, sums = printed.getvalue().split(maxsplit=1)
    assert device.endswith("-kernels")
    assert [round(float(x), 6) for x in re.findall(r"[\d.]+", sums)] == [1.0, 1.0]


def test_the_kernel_it_shows_is_what_is_rendered() -> None:
    (shown,) = blocks("text")
    softmax = bu.jit(lambda x: bu.nn.softmax(x, axis=-1))
    assert softmax.lower(bu.float32[40, 200], target="template-kernels").source == shown


def test_files_it_names_are_there() -> None:
    named = set(re.findall(r"[a-z_/]+\.py\b", TEXT)) - {"example.py"}
    assert len(named) > 5
    for name in named:
        assert any(path.exists() for path in (HERE / name, HERE / "bringup_template" / name)), name


def test_the_copy_is_a_package_of_its_own(tmp_path: Path) -> None:
    recipe = next(block for block in blocks("sh") if block.startswith("cp -r"))
    if re.search(r"^mv (\S+) \1$", recipe, re.MULTILINE):
        pytest.skip("this is such a copy")
    lines = [line for line in recipe.splitlines() if not line.startswith(("pip", "conformance"))]
    source = tmp_path / "backends" / "template"
    source.mkdir(parents=True)
    names = ["bringup_template", "README.md", "pyproject.toml", "tests"]
    subprocess.run(["cp", "-r", *(HERE / name for name in names), source], check=True)
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=tmp_path, check=True)
    copy = tmp_path / "mydevice"
    assert "template" not in (copy / "pyproject.toml").read_text("utf-8")
    program = (
        "import sys, bringup_mydevice.plugins.ops as plugin\n"
        "backend = plugin.bringup_backend()\n"
        "assert not [name for name in sys.modules if 'template' in name]\n"
        "print(backend.name, type(backend.open(0)).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["mydevice-ops", "bringup_mydevice.ops_device"]
    # Its tests run by themselves, whatever stands in the folders above it.
    (tmp_path / "conftest.py").write_text("raise ImportError('not of this package')\n", "utf-8")
    options = ["-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/test_budget.py"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
