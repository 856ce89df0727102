"""``conformance mutants``: the mistakes that it makes, and what it says of them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import toys
from typer.testing import CliRunner, Result

from bringup.llvm import text as ir
from bringup.llvm.text.masked import masked_store
from bringup_conformance import cli
from bringup_selftest.mutants import emitted, source
from bringup_selftest.mutants.mutant import Mutant

SOURCE = '''
"""A module."""

from functools import cache

TABLE = {1: 2}


@cache
def cached(n: int = 7) -> int:
    """Twice n."""
    return 2 * n


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def add(self, values: list[int]) -> int:
        assert values != 3, f"{1 + 1}"
        for value in values:
            if value > 0 and not value == 5:
                self.total += value
        return self.total - len(values)


def third():
    def inner(x):
        return x // 3
    return inner
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mutated_toy", raising=False)
    file = tmp_path / "mutated_toy.py"
    file.write_text(SOURCE, encoding="utf-8")
    return file


def test_mistakes_are_made_in_what_functions_compute(module: Path) -> None:
    found = [(m.rule, m.line, m.change) for m in source.mutants("mutated_toy", module)]
    assert found == [
        ("operator", 12, "2 * n -> 2 + n"),
        ("off by one", 12, "2 -> 3"),
        ("off by one", 17, "0 -> 1"),
        ("condition", 22, "if value > 0 and (not value == 5): -> if True:"),
        ("condition", 22, "if value > 0 and (not value == 5): -> if False:"),
        ("condition", 22, "value > 0 and (not value == 5) -> value > 0 or not value == 5"),
        ("off by one", 22, "value > 0 -> value >= 0"),
        ("off by one", 22, "0 -> 1"),
        ("condition", 22, "not value == 5 -> value == 5"),
        ("comparison", 22, "value == 5 -> value != 5"),
        ("off by one", 22, "5 -> 6"),
        ("left out", 23, "self.total += value -> pass"),
        ("operator", 24, "self.total - len(values) -> self.total + len(values)"),
        ("swapped operands", 24, "self.total - len(values) -> len(values) - self.total"),
        ("operator", 29, "x // 3 -> x * 3"),
        ("swapped operands", 29, "x // 3 -> 3 // x"),
        ("off by one", 29, "3 -> 4"),
    ]


def test_whoever_holds_a_function_runs_its_mistake_while_it_is_planted(module: Path) -> None:
    by_change = {m.change: m for m in source.mutants("mutated_toy", module)}
    toy = importlib.import_module("mutated_toy")
    held, total = toy.cached, toy.Sum()
    with source.planted(by_change["2 * n -> 2 + n"]):
        assert held(5) == 7
    assert held(6) == 12
    with source.planted(by_change["value > 0 -> value >= 0"]):
        assert total.add([1, 0]) == -1
    with source.planted(by_change["self.total += value -> pass"]):
        assert toy.Sum().add([1, 2]) == -2
    assert toy.Sum().add([1, 2]) == 1
    with source.planted(by_change["3 -> 4"]):
        assert toy.third()(12) == 3
    assert toy.third()(12) == 4


Emit = Callable[[ir.Builder, ir.Val, ir.Val], object]
x4 = ir.vec(ir.f32, 4)


def lines(emit: Emit, type_: ir.Type) -> list[str]:
    """What is emitted for two arguments of a type."""
    function = ir.Module().function("f", ir.void, [("p", ir.ptr), ("a", type_), ("b", type_)])
    builder = ir.Builder(function.block("entry"))
    emit(builder, *function.args[1:])
    made = function.blocks[0]
    return [*(phi.render().strip() for phi in made.phis), *(each.strip() for each in made.lines)]


def pointer(b: ir.Builder) -> ir.Val:
    return b.function.args[0]


def back(b: ir.Builder, x: ir.Val, y: ir.Val) -> None:
    phi = b.phi(x.type)
    phi.add_incoming(y, b.block)


MISTAKES: list[tuple[Emit, ir.Type, str, str]] = [
    (lambda b, x, y: b.fsub(x, y), ir.f32, "operation", "%.1 = fadd float %a, %b"),
    (lambda b, x, y: b.fsub(x, y), ir.f32, "swapped operands", "%.1 = fsub float %b, %a"),
    (lambda b, x, y: b.shl(x, y, "nuw"), ir.i32, "operation", "%.1 = lshr i32 %a, %b"),
    (lambda b, x, _: b.add(x, ir.const(ir.i32, 3)), ir.i32, "off by one", "%.1 = add i32 %a, 4"),
    (lambda b, x, y: b.icmp("slt", x, y), ir.i64, "off by one", "%.1 = icmp sle i64 %a, %b"),
    (lambda b, x, y: b.icmp("slt", x, y), ir.i64, "predicate", "%.1 = icmp ult i64 %a, %b"),
    (
        lambda b, x, y: b.fcmp("olt", x, y, "nnan"), x4, "predicate",
        "%.1 = fcmp nnan ult <4 x float> %a, %b",
    ),
    (
        lambda b, x, y: b.select(ir.const(ir.vec(ir.i1, 4), 1), x, y), x4, "dropped mask",
        "%.1 = select <4 x i1> splat (i1 true), <4 x float> %a, <4 x float> %a",
    ),
    (
        lambda b, x, y: b.select(ir.const(ir.vec(ir.i1, 4), 1), x, y), x4, "swapped operands",
        "%.1 = select <4 x i1> splat (i1 true), <4 x float> %b, <4 x float> %a",
    ),
    (lambda b, x, _: b.zext(x, ir.i64, "nneg"), ir.i32, "cast", "%.1 = sext i32 %a to i64"),
    (lambda b, x, _: b.sitofp(x, ir.f32), ir.i32, "cast", "%.1 = uitofp i32 %a to float"),
    (
        lambda b, *_: b.load(ir.f32, pointer(b), 4, meta=", !x !0"), ir.f32, "alignment",
        "%.1 = load float, ptr %p, align 64, !x !0",
    ),
    (lambda b, x, _: b.store(x, pointer(b)), ir.f32, "left out", ""),
    (lambda b, x, _: b.store(x, pointer(b), 4), ir.f32, "alignment",
     "store float %a, ptr %p, align 64"),
    (
        lambda b, *_: b.intrinsic("llvm.nvvm.barrier0", ir.void, (), ()), ir.f32,
        "missing barrier", "",
    ),
    (
        lambda b, x, _: b.intrinsic("llvm.roundeven", ir.f32, (x,)), ir.f32, "rounding",
        "%.1 = call float @llvm.trunc.f32(float %a)",
    ),
    (lambda b, x, y: b.fma(x, y, x), ir.f32, "rounding",
     "%.1 = fmul float %a, %b\n%.2 = fadd float %.1, %a"),
    (
        lambda b, x, y: b.intrinsic("llvm.smax", ir.i32, (x, y)), ir.i32, "operation",
        "%.1 = call i32 @llvm.smin.i32(i32 %a, i32 %b)",
    ),
    (
        lambda b, x, _: masked_store(b, x, pointer(b), b.fcmp("oeq", x, x)), x4, "dropped mask",
        "%.1 = fcmp oeq <4 x float> %a, %a\n"
        "call void @llvm.masked.store.v4f32.p0(<4 x float> %a, ptr align 1 %p, "
        "<4 x i1> splat (i1 true))",
    ),
    (lambda b, x, _: b.gep(pointer(b), x, ir.f32), ir.i64, "off by one",
     "%.1 = add i64 %a, 1\n%.2 = getelementptr inbounds float, ptr %p, i64 %.1"),
    (lambda b, *_: b.gep(pointer(b), 3, ir.f32, flags=""), ir.i64, "off by one",
     "%.1 = getelementptr float, ptr %p, i64 4"),
    (
        lambda b, x, y: b.shufflevector(x, y, [0, 4, 1, 5]), x4, "lanes",
        "%.1 = shufflevector <4 x float> %a, <4 x float> %b, "
        "<4 x i32> <i32 4, i32 1, i32 5, i32 0>",
    ),
    (back, ir.f32, "stale carry", "%.1 = phi float [ %.1, %entry.1 ]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("emit", "type_", "rule", "wanted"), MISTAKES, ids=[str(n) for n in range(len(MISTAKES))]
)
def test_a_mistake_changes_what_one_line_emits(
    emit: Emit, type_: ir.Type, rule: str, wanted: str
) -> None:
    right = lines(emit, type_)
    with emitted.noted() as noted:
        assert lines(emit, type_) == right
    (mutant,) = [each for each in noted if each.rule == rule]
    with emitted.planted(mutant):
        assert "\n".join(lines(emit, type_)) == wanted
    with emitted.planted(Mutant("emitted", rule, mutant.module, 1, mutant.change)):
        assert lines(emit, type_) == right
    assert lines(emit, type_) == right


def test_every_rule_of_emitted_text_has_a_test() -> None:
    text = Path(emitted.__file__).read_text(encoding="utf-8")
    rules = {each.split('"')[1] for each in text.split("yield ")[1:] if each.startswith('"')}
    tables = {"rounding", "operation", "off by one", "predicate"}
    assert rules | tables == {rule for _, _, rule, _ in MISTAKES}


#: A loop that ends late is a mistake that no result shows, and one never ends.
LINES = """
if name == "mul":
    n = 0
    while n < 4:
        n += 1
    operands[0] = operands[0] * (n - 3)
if name == "tan":
    n = 1
"""


def conformance(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def test_what_lives_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup_selftest.mutants.trying._PATIENCE", 2.0)
    toys.install(tmp_path / "toy", monkeypatch, LINES)
    asked = (
        "mutants", "--backend=toy", "--level=smoke", "--only=mul", "--kind=source",
        "--package=plugin_toy", "--sample=0", "-j2",
    )  # fmt: skip
    done = conformance(*asked, f"--report={tmp_path}", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    rows = {row["title"].partition(": ")[2]: row for row in found["rows"]}
    assert rows["n < 4 -> n <= 4"]["problem"] == "wrong"
    assert rows["name == 'mul' -> name != 'mul'"]["killed"] is False  # the operand is as it was
    assert rows["n += 1 -> pass"]["problem"] == "hang"
    unmet = [each["change"] for each in found["unmet"]]
    assert "1 -> 2" in unmet
    assert found["of"] == found["tried"] + len(unmet)
    assert json.loads((tmp_path / "mutants.json").read_text()) == found
    few = conformance(*asked[:-2], "--sample=3", "-j1")
    assert few.exit_code == 0, few.output
    assert "mutants killed" in few.output
    assert f"there are {found['of']}" in few.output


def test_what_cannot_be_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    done = conformance("mutants", "--backend=cpu", "--kind=text")
    assert done.exit_code != 0
    assert "source or emitted" in str(done.exception)
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    done = conformance("mutants", "--backend=cpu")
    assert "forked processes" in str(done.exception)


def test_a_device_that_is_not_there_is_named() -> None:
    done = conformance("mutants", "--backend=nowhere", "--package=bringup")
    assert "nowhere" in str(done.exception)
