"""Kernels as text: what is printed parses, prints the same and does the same."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from growing import LIMITS, graphs, launches
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.errors import ParseError
from bringup.graph import Graph
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Fold, Kernel, Store
from bringup.kernel.limits import Limits
from bringup.kernel.parser import parse_kernel
from bringup.kernel.verify import verify_kernel

Array = np.ndarray[Any, Any]

TEXT = inspect.cleandoc(
    """
    kernel scale
      b0: in f32[6]
      b1: out f32[2]
      b2: tile f32[3]
      grid a0[2]
      stage 0 over a1[3]
        graph fill() {
          %0: f32[] = load() {buffer=0, dtype=f32, index=index<3*a0[2] + a1[3]>, mask=()}
          return %0, %0
        }
        store b2[a1[3]]
        fold.add f32
      stage 1 over ()
        graph last(%0: f32[]) {
          return %0
        }
        store b1[a0[2]] if 0 <= a0[2] < 2 and 0 <= a0[2] + 1 < 9
    """
)


@settings(max_examples=60)
@given(graph=graphs, limits=st.sampled_from(LIMITS), depth=st.booleans())
def test_printed_kernels_come_back(graph: Graph, limits: Limits, depth: bool) -> None:
    for launch in launches(graph, limits, depth=depth):
        kernel = launch.kernel
        assert kernel is not None
        again = parse_kernel(str(kernel))
        assert str(again) == str(kernel)
        assert (again.grid, again.buffers) == (kernel.grid, kernel.buffers)
        assert [(s.axes, s.sinks) for s in again.stages] == [
            (s.axes, s.sinks) for s in kernel.stages
        ]
        verify_kernel(again)
        assert [a.tobytes() for a in outputs(again)] == [a.tobytes() for a in outputs(kernel)]


def outputs(kernel: Kernel) -> Sequence[Array]:
    rng = np.random.default_rng(3)
    buffers = []
    for decl in kernel.buffers:
        if decl.role != "tile":
            bits = rng.integers(0, 3, decl.type.shape)
            buffers.append(np.ascontiguousarray(bits.astype(decl.type.dtype.numpy)))
    with np.errstate(all="ignore"):
        evaluate_kernel(kernel, buffers)
    return [buffers[i] for i in kernel.outputs]


def test_every_part_is_read() -> None:
    kernel = parse_kernel(TEXT)
    verify_kernel(kernel)
    assert str(kernel) == TEXT
    assert [b.role for b in kernel.buffers] == ["in", "out", "tile"]
    assert kernel.points == 2
    assert [s.trips for s in kernel.stages] == [3, 1]
    assert kernel.inputs == (0,)
    assert kernel.outputs == (1,)
    first, last = kernel.stages
    assert [type(s) for s in first.sinks] == [Store, Fold]
    assert first.folds == (Fold("add", first.body.outputs[1].dtype),)
    assert len(last.stores[0].mask) == 2
    assert [i.op.name for i in first.loads()] == ["load"]


def test_the_name_alone_stands_on_the_first_line() -> None:
    other = parse_kernel(TEXT.replace("kernel scale", "kernel other"))
    assert str(other).split("\n", 1)[1] == TEXT.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("line", "instead", "complaint"),
    [
        ("kernel scale", "kernels scale", "line 1: expected 'kernel'"),
        ("  b1: out f32[2]", "  b7: out f32[2]", "line 3: expected a buffer such as b1"),
        ("  b1: out f32[2]", "  b1: inout f32[2]", "line 3: 'inout' is no role: in, out, tile"),
        ("  b1: out f32[2]", "  b1: out f33[2]", "line 3: "),
        ("  grid a0[2]", "  a0[2]", "line 5: expected 'grid'"),
        ("  grid a0[2]", "  grid a0 a1", "line 5: expected axes such as a0[4]"),
        ("  stage 1 over ()", "  stage 2 over ()", "line 13: expected stage 1 over its axes"),
        ("  stage 0 over a1[3]", "  stage 0 over a1[3] if a1 < 2", "line 6: expected the limit of"),
        ("  stage 0 over a1[3]", "  stage 0 over a1[3] if a1[3] < +", "line 6: expected an axis"),
        ("    fold.add f32", "    fold.add f99", "line 12: expected fold.kind dtype"),
        ("    store b2[a1[3]]", "    store b2[a1]", "line 11: "),
        (" if 0 <= a0[2]", f" if 0 <= {'(' * 3000}", "line 17: brackets inside one another"),
        ("      return %0, %0", "      return %7", "line 9, column 14: %7"),
        (
            "      %0: f32[] = load()",
            "      %0: f32[] = lode()",
            "line 8, column 19: there is no op",
        ),
    ],
)
def test_a_wrong_line_is_named(line: str, instead: str, complaint: str) -> None:
    assert line in TEXT
    with pytest.raises(ParseError) as caught:
        parse_kernel(TEXT.replace(line, instead, 1))
    assert str(caught.value).startswith(complaint)
