"""Passes reach the sub-graphs that attributes hold."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from bringup.graph import Graph
from bringup.graph.parser import parse_graph
from bringup.graph.verify import subgraphs
from bringup.ops.table import Attr, Kind, OpDef, find, opdef
from bringup.passes import PassContext, everything, passes_for, run_pipeline
from bringup.passes.check import is_strict, terminates


def _no_reference(*_: Any, **__: Any) -> Any:
    raise AssertionError("control flow is not folded")


BOTH = OpDef(
    name="both",
    arity=1,
    kind=Kind.CONTROL,
    doc="Both branches of one operand.",
    attrs=(Attr("branches", "graph", "two graphs"), Attr("times", "int", "unused", default=1)),
    infer=lambda _, attrs: tuple(g.outputs[0].type for g in attrs["branches"]),
    reference=_no_reference,
)

TEXT = """
graph f() {
  %0: i32[2] = constant() {value=i32[2](5)}
  %1: i32[2], %2: i32[2] = both(%0) {
    branches=(graph a(%0: i32[2]) {
      %1: i32[2] = constant() {value=i32[2](0)}
      %2: i32[2] = add(%0, %1)
      %3: i32[2] = neg(%2)
      return %2
    }, graph b(%0: i32[2]) {
      %1: i32[2] = sub(%0, %0)
      return %1
    }),
    times=1
  }
  return %1, %2
}
"""

AFTER = """
graph f() {
  %0: i32[2] = constant() {value=i32[2](5)}
  %1: i32[2], %2: i32[2] = both(%0) {
    branches=(graph a(%0: i32[2]) {
      return %0
    }, graph b(%0: i32[2]) {
      %1: i32[2] = constant() {value=i32[2](0)}
      return %1
    }),
    times=1
  }
  return %1, %2
}
"""


def read(text: str) -> Graph:
    return parse_graph(text.strip(), lambda name: BOTH if name == "both" else find(name))


@pytest.fixture
def nested() -> Graph:
    return read(TEXT)


def test_the_pipeline_works_inside(nested: Graph) -> None:
    found = run_pipeline(nested, passes_for(everything), context=PassContext(check=1))
    assert str(found) == inspect.cleandoc(AFTER)


def test_what_the_device_lacks_is_decomposed_inside(nested: Graph) -> None:
    def available(instr: Any) -> bool:
        return instr.op.name not in ("sub", "neg")

    left_out = passes_for(available, without=["simplify", "fold", "canonicalise", "cse", "dce"])
    found = run_pipeline(nested, left_out, context=PassContext(check=1))
    names = {opdef(instr).name for inner in subgraphs(found) for instr in inner}
    assert names == {"constant", "add", "xor"}


def test_properties_look_inside(nested: Graph) -> None:
    assert is_strict(nested.instrs[1].attrs["branches"][0])
    floats = TEXT.replace("i32", "f32").replace("(5)", "(5.0)").replace("(0)}", "(0.0)}")
    graph = read(floats.replace("neg", "exp"))
    assert not is_strict(graph)
    assert terminates(graph)
