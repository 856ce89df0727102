"""Index expressions as LLVM integers: widths of what is loaded, of lanes and of addresses."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from bringup.graph.index import Dyn, Expr
from bringup.llvm import text as ir
from bringup.llvm.host.emit import define
from bringup.llvm.index import Indices
from bringup.llvm.text import Module, Type, vec
from bringup.loops.form import named_axis


@pytest.mark.parametrize("type_", [ir.i32, ir.i64], ids=str)
@pytest.mark.parametrize("loaded", [ir.i8, ir.i32, ir.i64], ids=str)
def test_loaded_numbers_of_any_width_are_part_of_an_index(type_: Type, loaded: Type) -> None:
    module = Module("x86_64-linux-gnu")
    b, (given, start) = define(
        module, "f", ir.void, [("given", vec(loaded, 2)), ("start", type_)], internal=False
    )
    indices = Indices(b, type_)
    outer, lane = named_axis("i", 8), named_axis("v", 2)
    indices.axes |= {outer: start, lane: indices.const(0)}
    indices.lane, indices.lanes = lane, 2
    expr = Expr(0, ((Dyn(0, 0, 5), 16),)) + Expr.of(outer) * 2 + Expr.of(lane)
    index = indices.vector(expr, [given])
    # Indices of memory have 64 bits where anything is, else all arithmetic is on 32.
    assert index.type.bits == (64 if type_ is loaded is ir.i64 else 32)
    b.ret()
    llvm.parse_assembly(str(module)).verify()
