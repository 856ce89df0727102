"""What NVIDIA's assembler makes of op steps: it takes them all, and keeps all in registers."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from assembling import OLDEST, find_ptxas, release_of
from stepped import program_of

from bringup.dtypes import DType, bf16, f32, f64, i8, i32, i64
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_cuda.codegen.lower import to_ptx, translate

PTXAS = find_ptxas()
ROWS = {"offset": (1,), "collapsed": (0,), "index_map": (0,), "index_dim": 1}


def steps(dtype: DType) -> list[tuple[str, list[TensorType], dict[str, Any]]]:
    """A step of every form of kernel."""
    x = TensorType((99, 8), dtype)
    rows = [x, TensorType((600, 1), i32), TensorType((600, 8), dtype)]
    start = TensorType((), i32)
    scans = [((1 << 20,), 0), ((40, 600), 1), ((600, 40), 0)]
    lines = [TensorType((40, n), dtype) for n in (20, 600)]
    return [
        *(("cumulative", [TensorType(s, dtype)], {"kind": "add", "dim": d}) for s, d in scans),
        *(("sort", [line, line.with_dtype(i64)], {"dim": 1}) for line in lines),
        *(("scatter", rows, {"kind": kind, **ROWS}) for kind in ("set", "add", "max")),
        ("dynamic_update_slice", [x, TensorType((3, 8), dtype), start, start], {}),
    ]


def assembled(programs: list[Program], architecture: str, folder: Path) -> list[int]:
    """Bytes of registers that each kernel of some programs keeps in memory."""
    if PTXAS is None or release_of(PTXAS) < OLDEST:
        pytest.skip("no ptxas that reads what is written")
    whole = replace(programs[0], steps=tuple(s for program in programs for s in program.steps))
    made = translate(whole, architecture)
    source = folder / "steps.ptx"
    source.write_text(to_ptx(made.text, architecture))
    command = [PTXAS, "-v", f"-arch={architecture}", str(source), "-o", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(found) == len(made.kernels)
    return [int(n) for n in found]


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("sm_80", f32), ("sm_100", f64), *(("sm_90", d) for d in (i8, bf16, f32, i64))],
    ids=str,
)
def test_nothing_spills(architecture: str, dtype: DType, tmp_path: Path) -> None:
    programs = [program_of(name, types, attrs) for name, types, attrs in steps(dtype)]
    assert not any(assembled(programs, architecture, tmp_path))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_matrices_do_not_spill(dtype: DType, tmp_path: Path) -> None:
    """Small ones, those that fill the memory of a block, and those that do not fit there."""
    programs = [
        program_of(name, [TensorType((3, n, n), dtype)], {})
        for name in ("cholesky", "lu", "qr")
        for n in (8, 128, 512)
    ]
    form = {"left": True, "lower": True}
    programs += [
        program_of("triangular_solve", [TensorType((3, n, m), dtype) for m in (n, 9)], form)
        for n in (8, 128, 512)
    ]
    assert not any(assembled(programs, "sm_80", tmp_path))


@pytest.mark.parametrize("dtype", [i8, f32], ids=str)
def test_long_lines_do_not_spill(dtype: DType, tmp_path: Path) -> None:
    program = program_of("sort", [TensorType((1 << 20,), dtype)], {"dim": 0})
    assert not any(assembled([program], "sm_90", tmp_path))
