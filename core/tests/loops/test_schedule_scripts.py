"""Whole schedules of five kernels, as scripts: what a machine with vectors of 8 would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from schedules import assert_equal_values

import bringup as bu
from bringup import nn
from bringup.dtypes import f32
from bringup.loops import Func, Load, lower_kernel, parse_func, statements, verify_func
from bringup.loops.form import For
from bringup.loops.schedule import Schedule, apply

#: sum(x + y*z): four vectors of partial sums, in chains of 8 and then of 8 again.
SUM = """
split s0_0 b i 32 tail=peel
split i u l 8
split b b.o b.i 8
rfactor b.o r0 u l
rfactor b.i r0.b.o u l
vectorize l
"""

#: Softmax of rows: each of its three loops over a row as four vectors, two of them with registers.
SOFTMAX = """
split s0_0 s0_0.o s0_0.i 32 tail=peel
split s0_0.i s0_0.u s0_0.l 8
rfactor s0_0.o r0 s0_0.u s0_0.l
split s1_0 s1_0.o s1_0.i 32 tail=peel
split s1_0.i s1_0.u s1_0.l 8
rfactor s1_0.o r1 s1_0.u s1_0.l
split s2_0 s2_0.o s2_0.i 32 tail=peel
split s2_0.i s2_0.u s2_0.l 8
unroll s2_0.u
vectorize s0_0.l s1_0.l s2_0.l
"""

#: Softmax of rows by a block of threads each, which fold together through shared memory.
SOFTMAX_THREADS = """
split s0_0 s0_0.o s0_0.t 32
reorder s0_0.t s0_0.o
split s1_0 s1_0.o s1_0.t 32
reorder s1_0.t s1_0.o
split s2_0 s2_0.o s2_0.t 32
reorder s2_0.t s2_0.o
bind g0 block
replicate g0 t s0_0.t s1_0.t s2_0.t tiles=shared
"""

#: The same, whose threads exchange registers before they fold through shared memory.
SOFTMAX_WARPS = SOFTMAX_THREADS.replace("32", "64").replace("tiles", "lanes=32 tiles")

#: A product: tiles of 6×16 in registers, both factors packed as panels first.
PRODUCT = """
split g0 g0.o g0.i 6
split g1 g1.o g1.i 16
reorder g1.o g0.o g0.i g1.i
distribute g0.i g1.i
reorder s0_0 g0.i g1.i
pad g0.i g1.i
precompute %1 . columns g1.o,s0_0,g1.i
precompute %2 . rows g0.o,s0_0,g0.i
hoist g1.i
split g1.i g1.u g1.l 8
split columns.2 c.u c.l 8
vectorize g1.l c.l
parallelize columns.0 rows.0
"""

#: A quarter of the sum of four neighbours on a torus: no mask is left between the seams.
STENCIL = """
peel g0 1 1
peel g1 1 1
split g1 g1.o g1.i 8 tail=overlap
vectorize g1.i
hoist g1.i g1.o
"""

#: A transposition by tiles: rows are read and written whole.
TRANSPOSE = """
split g0 g0.o g0.i 8
split g1 g1.o g1.i 8
reorder g0.o g1.o g0.i g1.i
precompute %0 g1.o tile g1.i,g0.i
vectorize tile.1 g1.i
"""


def quarter(x: Any) -> Any:
    rolled = bu.roll(x, 1, 0) + bu.roll(x, -1, 0) + bu.roll(x, 1, 1) + bu.roll(x, -1, 1)
    return rolled * 0.25


def product(x: Any, y: Any) -> Any:
    return x @ y


#: A transposition by threads, through tiles that their block shares.
TILES = """
split g0 g0.o p 8
split g1 g1.o q 16
reorder g0.o g1.o p q
bind g0.o block
bind g1.o block
share q p %0 pad=1
bind p.in thread
bind q.in thread
bind q thread
bind p thread
"""

#: What each script is for, at sizes that no block divides and at sizes that all do.
SCRIPTS: dict[str, tuple[str, Callable[..., Any], list[tuple[Any, ...]]]] = {
    "sum": (SUM, lambda x, y, z: (x + y * z).sum(), [(f32[1000],) * 3, (f32[512],) * 3]),
    "softmax": (SOFTMAX, nn.softmax, [(f32[4, 100],), (f32[3, 64],)]),
    "softmax of threads": (SOFTMAX_THREADS, nn.softmax, [(f32[4, 100],), (f32[3, 64],)]),
    "softmax of threads in warps": (SOFTMAX_WARPS, nn.softmax, [(f32[4, 100],), (f32[3, 64],)]),
    "product": (
        PRODUCT,
        product,
        [(f32[13, 20], f32[20, 35]), (f32[12, 7], f32[7, 32]), (f32[5, 2], f32[2, 3])],
    ),
    "stencil": (STENCIL, quarter, [(f32[8, 21],), (f32[3, 18],)]),
    "tiles": (TILES, lambda x: -x.T, [(f32[20, 35],), (f32[16, 24],)]),
    "transpose": (TRANSPOSE, lambda x: -x.T, [(f32[20, 35],), (f32[16, 24],)]),
}
CASES = [(name, types) for name, (*_, all_types) in SCRIPTS.items() for types in all_types]


def lowered(function: Callable[..., Any], types: tuple[Any, ...]) -> Func:
    (kernel,) = bu.jit(function, device="cpu").lower(*types).kernels
    return lower_kernel(kernel)


@pytest.mark.parametrize(("name", "types"), CASES, ids=lambda part: str(part))
def test_values(name: str, types: tuple[Any, ...]) -> None:
    text, function, _ = SCRIPTS[name]
    before = lowered(function, types)
    after = apply(before, Schedule.parse(text))
    # Sums of n numbers of one sign, and a division: each rounds by half a unit at most.
    bound = 2 * (types[0].shape[-1] + 1) * 2.0**-24 if "softmax" in name else 0.0
    assert_equal_values(before, after, bound=bound)


@pytest.mark.parametrize(("name", "types"), CASES, ids=lambda part: str(part))
def test_each_step_is_right(name: str, types: tuple[Any, ...]) -> None:
    text, function, _ = SCRIPTS[name]
    func = lowered(function, types)
    for step in Schedule.parse(text).steps:
        func = step(func)
        verify_func(func)
        assert str(parse_func(str(func))) == str(func)


def test_a_stencil_has_no_masks() -> None:
    after = apply(lowered(quarter, (f32[8, 21],)), Schedule.parse(STENCIL))
    assert not any(load.mask for load in loads(after))
    assert "select" not in str(after)


def test_a_product_asks_where_it_packs_and_stores_alone() -> None:
    after = apply(lowered(product, (f32[13, 20], f32[20, 35])), Schedule.parse(PRODUCT))
    assert {load.buffer.name for load in loads(after) if load.mask} == {"b0", "b1"}
    (folding,) = [s for s in statements(after.body) if isinstance(s, For) and s.name == "s0_0"]
    loops = [s for s in statements((folding,)) if isinstance(s, For)]
    assert [(loop.name, loop.kind, loop.end) for loop in loops] == [
        ("s0_0", "serial", None),
        ("g0.i", "unroll", None),
        ("g1.u", "unroll", None),
        ("g1.l", "vector", None),
    ]


def loads(func: Func) -> list[Load]:
    return [stmt for stmt in statements(func.body) if isinstance(stmt, Load)]
