"""What a vendor says beforehand: read strictly, matched by op, dtype and feature, never stale."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toys
from planted import right, spoilt
from typer.testing import CliRunner, Result

from bringup.errors import BringupError
from bringup_conformance import Report, cli, run
from bringup_conformance.cases import Problem, Unsupported
from bringup_conformance.execution import unclaimed as trying
from bringup_conformance.execution.expectations import (
    Entry,
    Expectations,
    features_of,
    judged,
    load,
)
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import results
from bringup_selftest.corpus import OpCall


def written(folder: Path, text: str) -> Path:
    path = folder / "expected.toml"
    path.write_text(text, encoding="utf-8")
    return path


def entry(kind: str = "xfail", **patterns: str | tuple[str, ...]) -> Entry:
    every = {"op": ("*",), "dtype": ("*",), "feature": ("*",)}
    given = {n: (p,) if isinstance(p, str) else p for n, p in patterns.items()}
    return Entry(kind, 1, **{**every, **given}, reason="until B1")


def result(name: str, *, good: bool, rules: tuple[str, ...] = ()) -> results.Result:
    level, op, dtype = name.split("/")[:3]
    problem = None if good else Problem("wrong", "no")
    return results.Result(name, level, op, dtype, rules, Verdict(), problem)


def test_a_file_is_read(tmp_path: Path) -> None:
    found = load(
        written(
            tmp_path,
            """
            [[unsupported]]
            dtype = "f64"
            reason = "32 bits"
            [[xfail]]
            op = ["exp", "expm1"]
            feature = "special"
            reason = "B1"
            """,
        )
    )
    assert [e.kind for e in found.entries] == ["unsupported", "xfail"]
    assert found.entries[0] == Entry("unsupported", 1, ("*",), ("f64",), ("*",), "32 bits")
    assert str(found.entries[1]) == "xfail 1 (op exp|expm1, feature special: B1)"
    data = json.loads(json.dumps([e.to_json() for e in found.entries]))
    assert Expectations.from_json(data) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[xfail]]\nop = 'exp'", "xfail 1 has no reason"),
        ("[[xfail]]\nop = 'exp'\nreason = ' '", "xfail 1 has no reason"),
        ("[[xfail]]\nreason = 'all of it'", "xfail 1 fits everything"),
        ("[[xfail]]\nname = 'ops/exp/f32/0'\nreason = 'x'", "xfail 1 has 'name'"),
        ("[[xfail]]\nop = 3\nreason = 'x'", "xfail 1: op is 3"),
        ("[[xfail]]\nop = []\nreason = 'x'", r"xfail 1: op is \[\]"),
        ("[xfail]\nop = 'x'", "xfail is no list of tables"),
        ("xfail = ['exp']", "xfail 1 is no table"),
        ("[[skip]]\nop = 'exp'\nreason = 'x'", "nothing is expected by 'skip'"),
        ("[[xfail", "is no TOML"),
    ],
)
def test_what_is_not_meant_so_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BringupError, match=message):
        load(written(tmp_path, text))


def test_features_are_of_kinds_of_cases_and_never_of_one() -> None:
    assert features_of("fusion/programs/f32/17", "fusion", "programs") == ("fusion", "programs")
    assert features_of("fusion/programs//mapped-3", "fusion", "programs")[-1] == "mapped"
    assert "17" not in features_of("ops/exp/f32/17", "ops", "exp")


@pytest.mark.parametrize(
    ("patterns", "fits"),
    [
        ({"op": "exp"}, True),
        ({"op": "ex*"}, True),
        ({"op": ("log", "exp")}, True),
        ({"op": "log"}, False),
        ({"dtype": "f*"}, True),
        ({"op": "exp", "dtype": "bf16"}, False),
        ({"feature": "special"}, True),
        ({"feature": "elementwise"}, True),
        ({"feature": "exp.f16.*"}, True),
        ({"feature": "reduction"}, False),
        ({"op": "exp", "feature": "fusion"}, False),
    ],
)
def test_patterns(patterns: dict[str, str | tuple[str, ...]], fits: bool) -> None:
    failing = result("ops/exp/f16/special", good=False, rules=("exp.f16.of-inf",))
    found = Expectations((entry(**patterns),)).excuses(failing)
    assert (found is not None) == fits


def test_a_run_is_held_against_its_entries() -> None:
    met = [
        result("ops/exp/f16/special", good=False),
        result("ops/exp/f32/special", good=True),
        result("ops/log/f16/0", good=True),
        result("ops/add/i8/0", good=False),
    ]
    skips = [Unsupported("ops/sort/f64", "ops", "sort", "f64", "it claims no op for f64")]
    broken, mended = entry(op="exp"), entry(op="log", dtype="f16")
    nowhere, never = entry(op="telu"), entry("unsupported", op="sort", dtype="f64")
    claimed = entry("unsupported", op="log")
    expected = Expectations((broken, mended, nowhere, never, claimed))
    found = judged(expected, met, skips, whole=True)
    assert found.xfailed == {"ops/exp/f16/special": broken}
    assert found.failed == ["ops/add/i8/0"]
    assert found.xpassed == [mended]
    assert found.stale == [nowhere]
    assert found.claimed == [claimed]
    assert found.reasons == {"ops/sort/f64": "until B1"}
    assert not found.ok
    assert len(found.errors) == 2
    assert judged(expected, met, skips, whole=False).stale == []


def halved(call: OpCall) -> Array | None:
    """Far off in f32."""
    return call.right / 2 if call.dtype == np.float32 else None


def broken() -> Target:
    """Its negation is wrong."""
    return spoilt({"neg": halved}, "sample")


def test_programs_are_excused_for_an_instruction_they_hold() -> None:
    # The op, two programs that hold it and some that do not.
    numbers = ",".join(f"fusion/programs/{n}" for n in range(30, 40))
    only = f"neg/f32,fusion/differences,{numbers}"
    plain = run(broken(), "fusion", only=only, shrink_seconds=0)
    expected = Expectations((entry(op="neg", dtype="f32"),))
    found = run(broken(), "fusion", only=only, shrink_seconds=0, expect=expected)
    assert found.failed == plain.failed
    assert not plain.ok
    assert found.ok
    assert found.findings is not None
    programs = [name for name in found.findings.xfailed if "programs" in name]
    assert len(programs) == 2
    assert len(found.findings.xfailed) == found.failed
    assert all("neg" in f.document["case"]["ir"] for f in found.failures)


def test_expected_failures_are_not_looked_into() -> None:
    expected = Expectations((entry(op="neg"),))
    found = run(broken(), "ops", only="ops/neg/f32", expect=expected)
    assert found.failed
    assert all("reduced" not in failure.document for failure in found.failures)
    again = run(broken(), "ops", only="ops/neg/f32", shrink_seconds=3)
    assert any("reduced" in failure.document for failure in again.failures)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Devices "broken" and "whole" for the command; returns a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = {"broken": broken(), "whole": right("sample")}
    monkeypatch.setattr(DeviceTarget, "named", known.__getitem__)
    return tmp_path


def conformance(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["run", "-j0", "--level=ops", *arguments])


def test_the_command_ends_with_0_if_only_what_was_expected_fails(named: Path) -> None:
    only = "--only=ops/neg"
    assert conformance("--backend=broken", only).exit_code == 1
    file = written(named, "[[xfail]]\nop = 'neg'\ndtype = 'f32'\nreason = 'table'")
    done = conformance("--backend=broken", only, f"--expect={file}")
    assert done.exit_code == 0, done.output
    line = r"XFAIL \d+ as expected: xfail 1 \(op neg, dtype f32: table\)"
    assert re.search(line, done.stdout)
    assert "0 failed that were not expected to" in done.stdout
    done = conformance("--backend=whole", only, f"--expect={file}")
    assert done.exit_code == 0
    assert "XPASS nothing fails any more: xfail 1" in done.stdout
    file = written(named, "[[unsupported]]\nop = 'neg'\nreason = 'no table'")
    done = conformance("--backend=whole", only, f"--expect={file}")
    assert done.exit_code == 1
    assert "is declared by the device all the same" in done.stdout


def test_the_report_says_what_was_expected(named: Path) -> None:
    file = written(named, "[[xfail]]\nop = 'neg'\ndtype = 'f32'\nreason = 'table'")
    folder = named / "report"
    conformance("--backend=broken", "--only=ops/neg", f"--expect={file}", f"--report={folder}")
    data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert set(data["expected"]["xfailed"].values()) == {"xfail 1 (op neg, dtype f32: table)"}
    assert data["expected"]["failed"] == []


def test_no_certificate_of_a_lower_level_is_begun(named: Path) -> None:
    with pytest.raises(BringupError, match="level ops gives no certificate"):
        CliRunner().invoke(
            cli.app,
            ["run", "--backend=whole", "--level=ops", f"--certificate={named / 'c'}"],
            catch_exceptions=False,
        )
    (named / "cache" / "x").mkdir(parents=True)
    with pytest.raises(BringupError, match="is of no certificate"):
        CliRunner().invoke(
            cli.app,
            ["run", "--backend=whole", "--level=runtime", f"--certificate={named}"],
            catch_exceptions=False,
        )


def test_a_report_without_expectations_is_as_before() -> None:
    found = Report("x", "ops", 0)
    found.results.append(result("ops/exp/f16/0", good=True))
    assert found.ok
    assert found.whole()["expected"] is None
    assert not replace(
        found, findings=judged(Expectations((entry(op="t"),)), [], [], whole=True)
    ).ok


def test_what_passes_without_a_claim_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = "if name == 'exp' and operands[0].dtype == np.float64: os._exit(7)"
    wrong = "if name == 'floor' and operands[0].size: operands[0].reshape(-1)[0] = 77"
    toys.install(tmp_path / "toy", monkeypatch, f"{deadly}\n{wrong}")
    pairs = [("exp", "f16"), ("exp", "f64"), ("floor", "f16"), ("sqrt", "f64"), ("erf", "f16")]
    found = trying.unclaimed("toy", pairs)
    assert [(each.op, each.dtype) for each in found] == [("exp", "f16"), ("sqrt", "f64")]
    assert str(found[1]).startswith("sqrt f64 is not declared, and its ")
    report = run("toy", "ops", only="ops/sqrt", jobs=0, unclaimed=True)
    assert report.ok
    assert report.findings is not None
    told = [text.split(" is not declared")[0] for text in report.findings.unclaimed]
    assert told == ["sqrt f16", "sqrt bf16", "sqrt f64"]
