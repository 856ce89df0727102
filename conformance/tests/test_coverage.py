"""What is there for each op and dtype: everything, but for gaps whose reasons are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys

from bringup.ops.table import all_ops
from bringup_conformance.reporting.coverage import coverage

GRADIENT_GAPS = {
    "integers and booleans have none",
    "for storage alone: convert it first",
    "its results are no floats",
    "no operand is a float",
    "zero wherever it exists",
    "while has no derivative: how often it ran is known too late to keep what each run read",
}


@pytest.fixture(scope="module")
def facts() -> list[dict[str, str]]:
    return coverage()


def test_every_op_and_dtype_has_a_line(facts: list[dict[str, str]]) -> None:
    lines = [(each["op"], each["dtype"]) for each in facts]
    assert sorted(lines) == sorted((op.name, d.name) for op in all_ops() for d in op.dtypes)


@pytest.mark.parametrize("fact", ["reference", "device", "conformance"])
def test_there_are_no_gaps(facts: list[dict[str, str]], fact: str) -> None:
    assert [(each["op"], each["dtype"], each[fact]) for each in facts if each[fact]] == []


def test_gradients_lack_for_known_reasons_only(facts: list[dict[str, str]]) -> None:
    assert {each["gradient"] for each in facts if each["gradient"]} == GRADIENT_GAPS
    flowing = {each["op"] for each in facts if not each["gradient"]}
    assert {"exp", "dot_general", "gather", "scan", "select", "case", "sort"} <= flowing
    assert flowing.isdisjoint({"floor", "argmax", "compare", "while", "one_hot", "constant"})


def test_a_device_of_few_dtypes_has_conversions_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path, monkeypatch)
    device = {(each["op"], each["dtype"]): each["device"] for each in coverage("toy")}
    assert device["convert", "f32"].startswith("in part: it claims no op for ")
    assert device["constant", "f32"] == ""
    assert device["constant", "bool"] == "it claims no op for bool"
