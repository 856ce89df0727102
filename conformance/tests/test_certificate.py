"""A certificate is given for whole runs that fail nothing, and holds until something is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import AtHand, declaring
from typer.testing import CliRunner, Result

from bringup.backend import Capabilities
from bringup.dtypes import bool_, f32, i32
from bringup.errors import BringupError
from bringup_conformance import Report, cli, run
from bringup_conformance.cases import Check, NotOffered, Problem
from bringup_conformance.execution import levels, plan
from bringup_conformance.execution.expectations import Entry, Expectations
from bringup_conformance.execution.plan import Plan, Unit
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.reporting import certificate, verifying
from bringup_selftest.corpus import OpCall, OpEdit

OPS = ("exp", "add", "sub", "sort", "gelu", "reduce", "reshape")
Data = Any


def passes(_target: object) -> Problem | None:
    return None


def is_not_there(_target: object) -> Problem | None:
    raise NotOffered("it has no streams")


def checks(_plan: Plan) -> list[Unit]:
    made = [
        Check(f"runtime/{area}/{name}", "runtime", area, (f"{area}.{name}",), found)
        for area, name, found in (("memory", "kept", passes), ("stream", "ordered", is_not_there))
    ]
    return [Unit("runtime", c.op, "", "", c.op, partial(iter, [c])) for c in made]


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    """Levels of a few cases each, so that planning them again is quick."""
    with pytest.MonkeyPatch.context() as patch:
        made = {**levels.MADE}

        def some(level: str, given: Plan) -> list[Unit]:
            return [u for u in made[level](given) if u.op in OPS or u.number in {"0", "1", "2"}]

        for level in ("smoke", "ops", "fusion"):
            patch.setitem(levels.MADE, level, partial(some, level))
        patch.setitem(levels.MADE, "runtime", checks)
        patch.setattr(plan, "SIMULATED", replace(plan.SIMULATED, programs=6, data=1))
        yield


def few(given: Capabilities) -> Capabilities:
    """Half of the ops' dtypes, so that something is not declared."""
    return replace(given, ops=dict.fromkeys(given.ops, frozenset({f32, i32, bool_})))


def device(edits: Mapping[str, OpEdit] | None = None) -> Target:
    return AtHand(declaring(few, edits))


@pytest.fixture(scope="module")
def report() -> Report:
    found = run(device(), "runtime")
    assert [f.problem for f in found.failures] == []
    assert found.unsupported
    return found


@pytest.fixture
def folder(report: Report, tmp_path: Path) -> Path:
    certificate.write(report, tmp_path / "certificate")
    return tmp_path / "certificate"


def conformance(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    """Devices by names for this test."""
    known = {"reference": device()}
    monkeypatch.setattr(DeviceTarget, "named", known.__getitem__)
    return known


def test_a_certificate_holds_and_says_what_was_run(folder: Path, report: Report) -> None:
    problems, statement = verifying.problems(folder)
    assert problems == []
    assert statement["product"] == "reference"
    counts = statement["counts"]
    assert isinstance(counts, dict)
    assert counts["cases"] == counts["passed"] == report.passed == sum(counts["levels"].values())
    assert counts["levels"]["runtime"] == 1
    assert counts["skipped"] == len(report.unsupported)
    assert 0 < counts["largest_share_of_a_bound"] <= 1
    text = (folder / "statement.md").read_text(encoding="utf-8")
    assert text.startswith("# Conformance of reference\n")
    assert "stream: it has no streams" in text
    bounds = {
        (t["op"], t["dtype"]): t
        for t in json.loads((folder / "tolerances.json").read_text(encoding="utf-8"))
    }
    assert bounds["exp", "f32"]["bound"] == "2 ULP"
    assert bounds["reshape", "i32"]["bound"] == "exact"
    assert 0 < max(each["share"] for each in bounds.values()) <= 1
    assert "n/L" in bounds["reduce", "f32"]["bound"]


def test_equal_runs_give_equal_results(folder: Path, report: Report) -> None:
    again = run(device(), "runtime")
    files = certificate.contents(again, Expectations())
    kept = ("results.json", "capabilities.json", "tolerances.json", "skips.json")
    assert all(files[n] == (folder / n).read_text(encoding="utf-8") for n in kept)


def changed(folder: Path, name: str, edit: Callable[[Data], Data | None]) -> None:
    """Change a file, and every hash with it, as somebody who knows how would do."""
    data = json.loads((folder / name).read_text(encoding="utf-8"))
    made = edit(data)
    text = certificate.dumped(data if made is None else made)
    (folder / name).write_text(text, encoding="utf-8")
    files = {n: (folder / n).read_bytes() for n in certificate.FILES}
    made = certificate.manifest(files)
    (folder / certificate.MANIFEST).write_text(certificate.dumped(made), encoding="utf-8")


def counted(folder: Path) -> None:
    """Make the counts those of the results again."""
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["cases"]
    skips = json.loads((folder / "skips.json").read_text(encoding="utf-8"))
    names = levels.ladder("runtime")
    changed(
        folder,
        "statement.json",
        lambda s: s.update(counts=certificate.counts(rows, len(skips), names)),
    )


@pytest.mark.parametrize("name", [*certificate.FILES])
def test_a_file_that_was_altered_is_named(folder: Path, name: str) -> None:
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write(" ")
    assert verifying.problems(folder)[0] == [f"{name} was altered"]


def test_files_that_are_missing_or_more_are_named(folder: Path) -> None:
    (folder / "skips.json").unlink()
    (folder / "note.txt").write_text("", encoding="utf-8")
    assert verifying.problems(folder)[0] == [
        "skips.json is missing",
        "note.txt is no file of a certificate",
    ]


def test_a_root_that_is_not_the_files_own_is_refused(folder: Path) -> None:
    path = folder / certificate.MANIFEST
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "root": "0" * 64}), encoding="utf-8")
    assert verifying.problems(folder)[0] == ["manifest.json was altered"]
    path.write_text("{}", encoding="utf-8")
    assert verifying.problems(folder)[0] == ["manifest.json is none"]


def drop_a_case(data: Data) -> None:
    del data["cases"][7]


def drop_an_op(data: Data) -> None:
    data["cases"] = [row for row in data["cases"] if row["op"] != "exp"]


def repeat_a_case(data: Data) -> None:
    data["cases"].append(data["cases"][0])


def invent_a_case(data: Data) -> None:
    data["cases"].append({**data["cases"][0], "name": "ops/exp/f32/99"})


THINNED = [
    (drop_a_case, "planned cases are not in it: 1, such as "),
    (drop_an_op, ", such as ops/exp/f32/0"),
    (repeat_a_case, "a case stands in it twice"),
    (invent_a_case, "cases in it are not planned: 1, such as ops/exp/f32/99"),
]


@pytest.mark.parametrize(("edit", "message"), THINNED, ids=[f.__name__ for f, _ in THINNED])
def test_a_thinned_run_is_refused_even_with_right_hashes_and_counts(
    folder: Path, edit: Callable[[Data], None], message: str
) -> None:
    changed(folder, "results.json", edit)
    counted(folder)
    problems, _ = verifying.problems(folder)
    assert any(message in each for each in problems), problems


def test_a_case_made_a_skip_is_refused(folder: Path) -> None:
    rows: list[Data] = []
    changed(folder, "results.json", lambda data: rows.append(data["cases"].pop(3)))
    skip = {key: rows[0][key] for key in ("name", "level", "op", "dtype")}
    changed(folder, "skips.json", lambda d: d.append({**skip, "reason": "none", "vendor": ""}))
    counted(folder)
    assert verifying.problems(folder)[0][0].endswith(
        "skipped for a reason that the declaration does not give"
    )


def fail_a_case(data: Data) -> None:
    data["cases"][3]["status"] = "fail"


def praise_a_case(data: Data) -> None:
    row = next(row for row in data["cases"] if row["ratio"])
    for each in (r for r in data["cases"] if r["op"] == row["op"] and r["dtype"] == row["dtype"]):
        each["ratio"] = 0.0


def lower_the_seed(data: Data) -> None:
    data["seed"] += 1


OTHERS: list[tuple[str, Callable[[Data], Data | None], str]] = [
    ("results.json", fail_a_case, "no entry expects it"),
    ("results.json", praise_a_case, "the tolerances do not follow"),
    ("statement.json", lambda s: s["counts"].update(cases=9999), "counts do not follow"),
    ("statement.json", lambda s: s.update(level="fusion"), "level fusion gives no certificate"),
    ("statement.json", lambda s: s.update(level="exhaustive"), "planned cases are not in it"),
    ("statement.json", lambda s: s.update(suite="0.0.1"), "by suite 0.0.1"),
    ("statement.json", lambda s: s.update(sources="0"), "sources of this suite are not"),
    ("statement.json", lambda s: s["budget"].update(programs=1), "budget is not the one"),
    ("statement.json", lambda s: s.clear(), "not those of a certificate"),
    ("capabilities.json", lambda c: c["ops"].pop("exp"), "is not declared, and it does not say so"),
    ("capabilities.json", lambda c: c.clear(), "not those of a certificate"),
    (
        "skips.json",
        lambda s: s[0].update(reason="none"),
        "for a reason that the declaration does not",
    ),
]


@pytest.mark.parametrize(("name", "edit", "message"), OTHERS, ids=[m for _, _, m in OTHERS])
def test_what_does_not_follow_from_the_rest_is_refused(
    folder: Path, name: str, edit: Callable[[Data], Data | None], message: str
) -> None:
    def apply(data: Data) -> None:
        edit(data)

    changed(folder, name, apply)
    problems, _ = verifying.problems(folder)
    assert any(message in each for each in problems), problems


def test_the_device_at_hand_must_be_the_one_certified(
    folder: Path, devices: dict[str, Target]
) -> None:
    assert verifying.problems(folder, "reference")[0] == []
    devices["another"] = AtHand(
        declaring(
            lambda given: replace(few(given), deterministic=False, donation=False), name="another"
        )
    )
    assert verifying.problems(folder, "another")[0] == [
        "product is 'another' here, and 'reference' in it",
        "the device declares other deterministic than the certificate's",
        "the device declares other donation than the certificate's",
    ]


def is_a_little_off(call: OpCall) -> Array | None:
    """Within the bound, and yet another result."""
    right = call.right
    if call.dtype != np.float32:
        return None
    return np.where(np.isfinite(right) & (right > 1), np.nextafter(right, right * 2), right)


def test_a_rerun_finds_results_that_were_never_had(
    folder: Path, devices: dict[str, Target]
) -> None:
    assert verifying.problems(folder, rerun=True, sample=20)[0] == []
    devices["reference"] = device({"gelu": adds_one})
    failing = verifying.problems(folder, rerun=True, sample=0)[0]
    assert failing
    assert all("is a fail now, and a pass in it" in each for each in failing)
    devices["reference"] = device({"exp": is_a_little_off})
    other = verifying.problems(folder, rerun=True, sample=0)[0]
    assert other
    assert all("gives another verdict now" in each for each in other)


def test_a_rerun_finds_what_is_offered_after_all(
    folder: Path, devices: dict[str, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered(given: Plan) -> list[Unit]:
        made = [replace(c, run=passes) for u in checks(given) for c in u.make()]  # type: ignore[type-var]
        return [Unit("runtime", c.op, "", "", c.op, partial(iter, [c])) for c in made]

    monkeypatch.setitem(levels.MADE, "runtime", offered)
    problems = verifying.problems(folder, rerun=True, sample=1)[0]
    assert problems == ["runtime/stream/ordered was skipped as not offered, and it is"]


def test_the_command_refuses_with_status_1_and_a_sentence_each(
    folder: Path, tmp_path: Path, devices: dict[str, Target]
) -> None:
    done = conformance("verify", str(folder), "--backend=reference", "--rerun", "--sample=5")
    assert done.exit_code == 0, done.output
    assert "holds: reference, level runtime, seed 0" in done.stdout
    (folder / "results.json").write_text("{}", encoding="utf-8")
    done = conformance("verify", str(folder))
    assert done.exit_code == 1
    assert done.stdout == "refused: results.json was altered\n"
    found = json.loads(conformance("verify", str(folder), "--json").stdout)
    assert found == {"holds": False, "problems": ["results.json was altered"], "statement": {}}
    with pytest.raises(BringupError, match="holds no certificate"):
        verifying.problems(tmp_path / "nowhere")


def test_no_certificate_for_what_is_not_whole_or_fails(tmp_path: Path) -> None:
    for found, message in (
        (run(device(), "ops", only="exp"), "the run is not whole: only 'exp' was asked for"),
        (run(device(), "ops"), "level ops gives no certificate"),
        (run(device({"gelu": adds_one}), "runtime", shrink_seconds=0), "failed, the first"),
    ):
        with pytest.raises(BringupError, match="no certificate") as caught:
            certificate.write(found, tmp_path / "none")
        assert message in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_things_is_left_alone(report: Report, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("42", encoding="utf-8")
    with pytest.raises(BringupError, match=r"thesis.tex, which is of no certificate"):
        certificate.write(report, tmp_path)
    (tmp_path / "thesis.tex").unlink()
    assert certificate.write(report, tmp_path) == certificate.write(report, tmp_path)
    shutil.rmtree(tmp_path)


def adds_one(call: OpCall) -> Array:
    """An op that is broken throughout."""
    return call.right + 1


def test_known_failures_stand_in_a_certificate_and_stale_ones_refuse_it(tmp_path: Path) -> None:
    found = run(device({"gelu": adds_one}), "runtime", shrink_seconds=0)
    assert found.failed
    known = Entry("xfail", 1, ("gelu",), ("*",), ("*",), "until stepping B1")
    certificate.write(found, tmp_path, Expectations((known,)))
    problems, statement = verifying.problems(tmp_path)
    assert problems == []
    assert statement["counts"]["known_failures"] == found.failed  # type: ignore[index]
    assert "until stepping B1" in (tmp_path / "statement.md").read_text(encoding="utf-8")

    never = replace(known, number=2, op=("tanh", "exp"))
    with pytest.raises(BringupError, match=r"xfail 2 .* passes now: take it out"):
        certificate.write(found, tmp_path, Expectations((known, never)))
    stale = replace(known, number=2, op=("telu",))
    with pytest.raises(BringupError, match=r"xfail 2 .* fits no case of the run"):
        certificate.write(found, tmp_path, Expectations((known, stale)))
    entries = [e.to_json() for e in (known, never)]
    changed(tmp_path, "expectations.json", lambda data: data.update(entries=entries))
    assert "xfail 2" in verifying.problems(tmp_path)[0][0]
