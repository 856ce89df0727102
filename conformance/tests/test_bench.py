"""``conformance bench``: roofs, shares, what loses most, and its pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import conformance, status

from bringup.errors import BringupError
from bringup.runtime import devices
from bringup.runtime.timing import Timer
from bringup_conformance.bench.measure import Bench, bench
from bringup_conformance.bench.page import page
from bringup_conformance.bench.workloads import WORKLOADS, Workload

#: Seconds of a byte of arguments and results, in the tests that need no clock.
SLOW = 1e-9
SIZES = ("small",)


@pytest.fixture
def by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program takes as long as its arguments and results are, whatever it computes."""

    def init(self: Any, device: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.nbytes = sum(type_.nbytes for type_ in (*inputs, *outputs))

    monkeypatch.setattr(Timer, "__init__", init)
    monkeypatch.setattr(Timer, "seconds", lambda self, _, count=1: count * self.nbytes * SLOW)


def measured(*names: str, device: str = "cpu") -> Bench:
    with devices.use(device) as opened:
        return bench(opened, "today", SIZES, lambda each: each.name in names)


@pytest.mark.usefixtures("by_bytes")
def test_a_program_that_moves_its_bytes_once_reaches_the_roof_of_the_copy() -> None:
    found = measured("add", "loop of 16", "sum(x + y*z)")
    assert found.roofs.bandwidth["small"] == pytest.approx(1 / SLOW)
    rows = {row.name: row for row in found.rows}
    assert rows["add"].share == pytest.approx(1)
    # Sixteen launches move sixteen times what goes in and comes out.
    assert (rows["loop of 16"].launches, rows["loop of 16"].transfers) == (16, 0)
    assert rows["loop of 16"].share == pytest.approx(16)
    assert rows["add"].bytes == 3 * 4 * (1 << 14)
    assert rows["sum(x + y*z)"].flops == 3 * (1 << 14)


@pytest.mark.usefixtures("by_bytes")
def test_the_arithmetic_roof_is_the_fastest_of_its_programs() -> None:
    found = measured("product")
    # Eight sums of 32 products each, with what they begin and end with, of 12 bytes; the product of
    # 128 x 128 matrices has 21 operations a byte.
    assert found.roofs.arithmetic == pytest.approx((8 * 32 * 2 + 8 + 8) / 12 / SLOW)
    (row,) = found.rows
    assert row.roof == pytest.approx(max(row.bytes * SLOW, row.flops / found.roofs.arithmetic))


def test_the_launch_that_loses_most_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = Timer.seconds
    slow = 64 * 64 * 4

    def dawdling(self: Timer, executable: Any, count: int = 1) -> float:
        sizes = [type_.nbytes for type_ in self.outputs]
        return seconds(self, executable, count) + (count if sizes == [slow] else 0)

    monkeypatch.setattr(Timer, "seconds", dawdling)
    found = measured("sort", "add", "softmax")
    assert found.launches[0].workload == "sort"
    assert found.launches[0].lost > 0.9 > found.launches[1].lost


def test_a_bench_is_read_as_it_was_written() -> None:
    found = measured("add", "softmax")
    text = json.dumps(found.to_json())
    assert json.dumps(Bench.from_json(json.loads(text)).to_json()) == text
    for wrong in ({}, {"format": 2}, {"format": 1, "device": "x"}, {"format": 1, "rows": 3}):
        with pytest.raises(BringupError):
            Bench.from_json(wrong)


def test_every_workload_has_three_growing_sizes_and_a_name_of_its_own() -> None:
    def nbytes(workload: Workload, size: int) -> int:
        return sum(type_.nbytes for type_ in workload.make(size)[1])

    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS) >= 30
    for each in WORKLOADS:
        assert list(each.sizes) == sorted(set(each.sizes))
        assert nbytes(each, each.sizes[0]) <= nbytes(each, each.sizes[2])


class _Texts(HTMLParser):
    """Checks that tags are closed in order, and gathers text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_the_roofline_every_row_and_schedules() -> None:
    found = measured("add", "softmax", "product", "transpose")
    text = page(found, found)
    read = _Texts(text)
    assert not read.open
    words = "\n".join(read.texts)
    for row in found.rows:
        assert row.name in words
    assert any(each.schedule and each.schedule in words for each in found.launches)
    assert text.count("<circle") == sum(1 for row in found.rows if row.flops)
    assert "1.00" in words, "compared with itself"


def test_names_in_the_picture_cover_neither_each_other_nor_points() -> None:
    found = measured("add", "product")
    draws = np.random.default_rng(3)
    crowd = [
        replace(found.rows[0], name=f"program {n}", flops=int(f), bytes=int(b))
        for n, (f, b) in enumerate(draws.integers(10**6, 10**8, (40, 2)))
    ]
    text = page(replace(found, rows=tuple(crowd)), None)
    picture = text.partition('class="plot"')[2].partition("</svg>")[0]
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="label">([^<]+)', picture)
    assert len(names) == len(crowd)
    boxes = [(float(x), float(x) + 6.5 * len(name), float(y)) for x, y, name in names]
    for one, other in combinations(boxes, 2):
        assert one[1] < other[0] or other[1] < one[0] or abs(one[2] - other[2]) > 11
    for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture):
        inside = [b for b in boxes if b[0] < float(x) < b[1] and b[2] - 9 < float(y) < b[2] + 3]
        assert not inside


def test_the_command_writes_a_report_and_compares_with_it(tmp_path: Path) -> None:
    arguments = ("bench", "--backend", "cpu", "--only", "add,transpose", "--sizes", "small")
    folder = tmp_path / "first"
    first = conformance(*arguments, "--report", str(folder))
    assert first.exit_code == 0, first.output
    assert {each.name for each in folder.iterdir()} == {"bench.json", "report.html"}
    again = conformance(*arguments, "--against", str(folder))
    assert again.exit_code == 0, again.output
    assert "ratio" in again.output
    assert re.search(r"add +small .*\d\.\d\d", again.output)
    data = json.loads(conformance(*arguments, "--json").output)
    assert [row["name"] for row in data["rows"]] == ["add", "transpose"]


def test_tuning_keeps_what_it_finds_and_measures_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ("--only", "transpose", "--sizes", "small", "--tune", "2")
    done = conformance("bench", "--backend", "cpu", *arguments)
    assert done.exit_code == 0, done.output
    assert "ratio: time of cpu by that of cpu" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "cpu", "--only", "nonsense"),
        ("--backend", "cpu", "--sizes", "huge"),
        ("--backend", "nonsense"),
        ("--backend", "cpu", "--against", "nonsense"),
        (),
    ],
)
def test_wrong_words_say_what_to_do(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("bench", *arguments, monkeypatch=monkeypatch) == 2
    assert "fix:" in capsys.readouterr().err


@pytest.mark.usefixtures("by_bytes")
def test_a_bench_says_how_far_it_is_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = Timer.seconds

    def slowly(self: Any, executable: Any, count: int = 1) -> Any:
        time.sleep(0.02)
        return seconds(self, executable, count)

    monkeypatch.setattr(Timer, "seconds", slowly)
    monkeypatch.setattr("bringup_conformance.commands.bench.INTERVAL", 0.01)
    done = conformance("bench", "--backend", "cpu", "--only", "add", "--sizes", "small")
    lines = done.stderr.splitlines()
    assert (lines[0], lines[-1]) == ("cpu: the roofs", "cpu: 0 of 1, add, small")
