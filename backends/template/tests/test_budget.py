"""What a vendor writes stays small, and depth 1 needs no more than the names every device has."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from pathlib import Path

import pytest

import bringup_template
from bringup.backend import Device, KernelsDevice, OpsDevice
from bringup.dtypes import STORED
from bringup.ops.table import all_ops
from bringup_template.driver import Chip
from bringup_template.kernels_device import KernelsTemplate
from bringup_template.ops_device import FUNCTIONS, OpsTemplate
from bringup_template.program_device import ProgramTemplate

ROOT = Path(bringup_template.__file__).parent
LINES = 150
# What each depth adds to the driver, which is written once.  A vendor who compiles whole programs
# needs no renderer of ours; this one uses depth 2's.
DEPTHS = {
    "ops": ("ops_device.py", "plugins/ops.py"),
    "kernels": ("kernels_device.py", "render.py", "plugins/kernels.py"),
    "program": ("program_device.py", "plugins/program.py"),
}
DRIVER = ("driver.py", "plugins/common.py")
_LAYOUT = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip


def code_lines(text: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_code_is_counted_without_comments_and_docstrings() -> None:
    text = '"""Two\nlines."""\n\n# why\nx = (\n    1\n)  # one\n\n'
    text += 'def f():\n    """Doc."""\n    return x\n'
    assert code_lines(text) == 5


def count(names: tuple[str, ...]) -> int:
    return sum(code_lines((ROOT / name).read_text("utf-8")) for name in names)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_depth_is_at_most_150_lines(depth: str) -> None:
    assert count(DEPTHS[depth]) <= LINES
    assert count(DRIVER) <= LINES // 2


def test_a_first_device_is_at_most_150_lines_with_everything() -> None:
    assert count((*DRIVER, *DEPTHS["ops"])) <= LINES


def test_a_first_device_is_at_most_150_lines_of_text_besides_its_plugin() -> None:
    files = [(ROOT / name).read_text("utf-8") for name in ("driver.py", "ops_device.py")]
    assert sum(len(text.splitlines()) for text in files) <= LINES


def test_there_is_nothing_else_to_write() -> None:
    counted = {*DRIVER, *(name for names in DEPTHS.values() for name in names)}
    written = set(ROOT.rglob("*.py"))
    packages = {ROOT / "__init__.py", ROOT / "plugins/__init__.py"}
    assert written == packages | {ROOT / name for name in counted}


def test_the_first_depth_claims_what_every_device_must_have() -> None:
    needed = {claim for op in all_ops() if op.tier == 0 for claim in op.tier0_claims}
    assert set(OpsTemplate.capabilities.ops) == needed
    assert set(FUNCTIONS) == needed - {"constant"}
    assert set(OpsTemplate.capabilities.ops.values()) == {frozenset(STORED)}
    assert not OpsTemplate.capabilities.kernels
    assert len({claim.partition(".")[0] for claim in needed}) == 26


@pytest.mark.parametrize("device", [OpsTemplate, KernelsTemplate, ProgramTemplate])
def test_a_device_is_six_byte_methods_and_those_of_its_depth(device: type[Device]) -> None:
    own = [kind for kind in device.__mro__ if kind.__module__.startswith("bringup_template")]
    names = {
        name
        for kind in own
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if name in kind.__dict__ and not name.startswith("_")
    }
    required = {name for name in Device.__abstractmethods__ if name != "compile"}
    extra = {OpsTemplate: set(), KernelsTemplate: {"render", "load", "launch"}}
    assert names == required | extra.get(device, {"compile"})
    assert len(required) == 6


def test_no_device_is_built_on_another() -> None:
    assert issubclass(OpsTemplate, (Chip, OpsDevice))
    assert not issubclass(KernelsTemplate, OpsDevice)
    assert not issubclass(ProgramTemplate, (OpsDevice, KernelsDevice))
