"""What a fresh process reads before its first result: each module is time that a user waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIRST = """
import json, sys
import numpy as np
import bringup as bu
x = np.ones(1000, np.float32)
assert float(bu.jit(lambda x, y, z: bu.sum(x + y * z))(x, x, x)) == 2000
print(json.dumps([name for name in sys.modules if name.startswith("bringup")]))
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Modules of ours in a process that has made one result."""
    folder: Path = tmp_path_factory.mktemp("cache")
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        check=True,
        env={"XDG_CACHE_HOME": str(folder), "PATH": ""},
    )
    return set(json.loads(done.stdout))


def test_no_rows_are_defined_but_those_of_the_program_and_their_neighbours(read: set[str]) -> None:
    topics = {"arithmetic", "reduction", "source"}  # accumulators start with constants
    helpers = {
        "batching", "build", "catalogue", "evaluate", "monoids", "special_values", "subgraphs",
        "table",
    }  # fmt: skip
    found = {name.split(".")[2] for name in read if name.startswith("bringup.ops.")}
    assert {name for name in found if not name.startswith("_")} == topics | helpers


def test_no_function_or_step_is_read_that_the_program_does_not_call(read: set[str]) -> None:
    assert {n for n in read if n.startswith("bringup.llvm.math.")} == {
        "bringup.llvm.math._lanes",
        "bringup.llvm.math.convert",
    }


def test_no_primitive_of_schedules_is_read_that_the_program_does_not_take(read: set[str]) -> None:
    own = "bringup.loops.schedule."
    taken = {"dependences", "folds", "iteration", "rewrite", "steps"}
    assert {n.removeprefix(own) for n in read if n.startswith(own)} == taken
    own = "bringup.llvm.func.schedules."
    assert {n.removeprefix(own) for n in read if n.startswith(own)} == {"parts", "rows"}


def test_what_a_product_would_be_blocked_by_is_not_read(read: set[str]) -> None:
    assert {n for n in read if n.startswith("bringup.llvm.loops.")} == {
        "bringup.llvm.loops.heuristics",
        "bringup.llvm.loops.kernel",
        "bringup.llvm.loops.schedule",
    }
    assert "bringup.kernel.contraction" not in read
