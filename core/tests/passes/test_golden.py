"""Each pass, before and after, as text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bringup.dtypes import f32
from bringup.errors import GraphError, UnsupportedError
from bringup.graph import Builder, Graph, Instr
from bringup.graph.verify import verify
from bringup.ops.build import rows
from bringup.ops.table import opdef
from bringup.passes.base import Maker, everything
from bringup.passes.check import check_values
from bringup.passes.dce import dce
from bringup.passes.decompose import decompose
from bringup.passes.defer import defer
from bringup.passes.fold import MAX_ELEMENTS, fold
from bringup.passes.simplify import canonicalise, cse, simplify

Parse = Callable[[str], Graph]

WINDOW = {"window": (3, 2), "strides": (2, 2), "lo": (1, 0), "hi": (1, 0), "dilation": (1, 1)}
POOL = ", ".join(['kind="max"', *(f"{name}={value}" for name, value in WINDOW.items())])
CASES: dict[str, tuple[Maker, str, str]] = {
    "dce keeps inputs and what outputs need": (
        dce,
        """
        graph f(%0: f32[4], %1: f32[4]) {
          %2: f32[4] = exp(%0)
          %3: f32[4] = neg(%2)
          %4: f32[4] = exp(%2)
          return %4
        }
        """,
        """
        graph f(%0: f32[4], %1: f32[4]) {
          %2: f32[4] = exp(%0)
          %3: f32[4] = exp(%2)
          return %3
        }
        """,
    ),
    "cse tells constants apart by bits": (
        cse,
        """
        graph f(%0: f32[4]) {
          %1: f32[4] = constant() {value=f32[4](0.0)}
          %2: f32[4] = constant() {value=f32[4](-0.0)}
          %3: f32[4] = constant() {value=f32[4](0.0)}
          %4: f32[4] = constant() {value=f32[4](nan)}
          %5: f32[4] = constant() {value=f32[4](nan)}
          %6: f32[4] = max(%1, %2)
          %7: f32[4] = max(%3, %2)
          %8: f32[4] = max(%4, %6)
          %9: f32[4] = max(%5, %7)
          return %8, %9
        }
        """,
        """
        graph f(%0: f32[4]) {
          %1: f32[4] = constant() {value=f32[4](0.0)}
          %2: f32[4] = constant() {value=f32[4](-0.0)}
          %3: f32[4] = constant() {value=f32[4](nan)}
          %4: f32[4] = max(%1, %2)
          %5: f32[4] = max(%3, %4)
          return %5, %5
        }
        """,
    ),
    "fold works in the instruction's own dtype": (
        fold,
        """
        graph f(%0: f16[2], %1: i8[2]) {
          %2: f16[2] = constant() {value=f16[2](2048.0)}
          %3: f16[2] = constant() {value=f16[2](1.0, 3.0)}
          %4: f16[2] = add(%2, %3)
          %5: i8[2] = constant() {value=i8[2](127)}
          %6: i8[2] = constant() {value=i8[2](1)}
          %7: i8[2] = add(%5, %6)
          %8: f16[2] = mul(%0, %4)
          %9: i8[2] = mul(%1, %7)
          return %8, %9
        }
        """,
        """
        graph f(%0: f16[2], %1: i8[2]) {
          %2: f16[2] = constant() {value=f16[2](2048.0)}
          %3: f16[2] = constant() {value=f16[2](1.0, 3.0)}
          %4: f16[2] = constant() {value=f16[2](2048.0, 2052.0)}
          %5: i8[2] = constant() {value=i8[2](127)}
          %6: i8[2] = constant() {value=i8[2](1)}
          %7: i8[2] = constant() {value=i8[2](-128)}
          %8: f16[2] = mul(%0, %4)
          %9: i8[2] = mul(%1, %7)
          return %8, %9
        }
        """,
    ),
    "fold keeps splats splats, whatever their size": (
        fold,
        """
        graph f() {
          %0: f32[] = constant() {value=f32[](4.0)}
          %1: f32[1000,1000] = broadcast_in_dim(%0) {shape=(1000, 1000), dims=()}
          %2: f32[1000,1000] = sqrt(%1)
          %3: f32[1000000] = reshape(%2) {shape=(1000000,)}
          return %3
        }
        """,
        """
        graph f() {
          %0: f32[] = constant() {value=f32[](4.0)}
          %1: f32[1000,1000] = constant() {value=f32[1000,1000](4.0)}
          %2: f32[1000,1000] = constant() {value=f32[1000,1000](2.0)}
          %3: f32[1000000] = constant() {value=f32[1000000](2.0)}
          return %3
        }
        """,
    ),
    "fold spreads no dense constant, and leaves ramps computed": (
        fold,
        """
        graph f() {
          %0: f32[2] = constant() {value=f32[2](1.0, 2.0)}
          %1: f32[3,2] = broadcast_in_dim(%0) {shape=(3, 2), dims=(1,)}
          %2: i32[4] = iota() {type=i32[4], dim=0}
          %3: i32[4] = neg(%2)
          return %1, %3
        }
        """,
        """
        graph f() {
          %0: f32[2] = constant() {value=f32[2](1.0, 2.0)}
          %1: f32[3,2] = broadcast_in_dim(%0) {shape=(3, 2), dims=(1,)}
          %2: i32[4] = iota() {type=i32[4], dim=0}
          %3: i32[4] = neg(%2)
          return %1, %3
        }
        """,
    ),
    "fold knows what comes of nothing": (
        fold,
        """
        graph f(%0: f32[0,2], %1: f32[3]) {
          %2: f32[2] = reduce(%0) {kind="max", dims=(0,)}
          %3: f32[0] = slice(%1) {start=(2,), limit=(2,), stride=(1,)}
          %4: f32[0,2] = exp(%0)
          return %2, %3, %4
        }
        """,
        """
        graph f(%0: f32[0,2], %1: f32[3]) {
          %2: f32[2] = constant() {value=f32[2](-inf)}
          %3: f32[0] = constant() {value=f32[0]()}
          %4: f32[0,2] = constant() {value=f32[0,2]()}
          return %2, %3, %4
        }
        """,
    ),
    "canonicalise: constants right, operands in order, less-than only, one move": (
        canonicalise,
        """
        graph f(%0: f32[2,3], %1: f32[2,3]) {
          %2: f32[2,3] = constant() {value=f32[2,3](3.0)}
          %3: f32[2,3] = mul(%2, %0)
          %4: f32[2,3] = add(%3, %1)
          %5: bool[2,3] = compare(%4, %0) {direction="gt"}
          %6: bool[6] = reshape(%5) {shape=(6,)}
          %7: bool[3,2] = reshape(%6) {shape=(3, 2)}
          %8: bool[2,3] = transpose(%7) {permutation=(1, 0)}
          %9: bool[3,2] = transpose(%8) {permutation=(1, 0)}
          return %9
        }
        """,
        """
        graph f(%0: f32[2,3], %1: f32[2,3]) {
          %2: f32[2,3] = constant() {value=f32[2,3](3.0)}
          %3: f32[2,3] = mul(%0, %2)
          %4: f32[2,3] = add(%1, %3)
          %5: bool[2,3] = compare(%0, %4) {direction="lt"}
          %6: bool[6] = reshape(%5) {shape=(6,)}
          %7: bool[3,2] = reshape(%5) {shape=(3, 2)}
          %8: bool[2,3] = transpose(%7) {permutation=(1, 0)}
          return %7
        }
        """,
    ),
    "simplify reaches the fixpoint": (
        simplify,
        """
        graph f(%0: i32[4], %1: i32[4]) {
          %2: i32[4] = constant() {value=i32[4](3)}
          %3: i32[4] = constant() {value=i32[4](-3)}
          %4: i32[4] = add(%2, %0)
          %5: i32[4] = add(%4, %3)
          %6: i32[4] = sub(%5, %0)
          %7: i32[4] = mul(%6, %1)
          %8: i32[4] = neg(%7)
          %9: i32[4] = max(%8, %1)
          return %9
        }
        """,
        """
        graph f(%0: i32[4], %1: i32[4]) {
          %2: i32[4] = constant() {value=i32[4](0)}
          %3: i32[4] = max(%1, %2)
          return %3
        }
        """,
    ),
    "defer: functions that nothing else reads, past padding too": (
        defer,
        """
        graph f(%0: f32[4,6]) {
          %1: f32[4,6] = neg(%0)
          %2: f32[4,6] = tanh(%1)
          %3: f32[4,6] = exp(%2)
          %4: f32[2,3] = reduce_window(%3) {POOL}
          %5: f32[2] = reduce(%4) {kind="min", dims=(1,)}
          %6: f32[2] = logistic(%5)
          return %6
        }
        """.replace("POOL", POOL),
        """
        graph f(%0: f32[4,6]) {
          %1: f32[4,6] = neg(%0)
          %2: f32[2,3] = reduce_window(%1) {POOL}
          %3: f32[2] = reduce(%2) {kind="min", dims=(1,)}
          %4: f32[2] = tanh(%3)
          %5: f32[2] = exp(%4)
          %6: f32[2] = logistic(%5)
          return %6
        }
        """.replace("POOL", POOL),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, parse: Parse) -> None:
    make, before, after = CASES[name]
    graph = parse(before)
    found = make(everything).run(graph)
    if make is simplify:  # leaves what it does without to dce
        found = dce(everything).run(found)
    assert str(found) == inspect.cleandoc(after)
    verify(found)
    assert str(graph) == inspect.cleandoc(before), "the pass changed its argument"
    check_values(make.__name__, graph, found)


@pytest.mark.parametrize(
    "make", [dce, cse, fold, canonicalise, simplify, defer], ids=lambda m: m.__name__
)
def test_a_second_run_changes_nothing(make: Maker, parse: Parse) -> None:
    for _, before, _ in CASES.values():
        once = dce(everything).run(make(everything).run(parse(before)))
        again = dce(everything).run(make(everything).run(once))
        assert str(again) == str(once)


KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "another reader": ("tanh", {}),
    "a function that costs little": ("relu", {}),
    "NaN where the function has no value": ("log", {}),
    "a function that falls, too": ("cosh", {}),
    "a sum": ("tanh", {"kind": "add"}),
    "as many results": ("tanh", {"strides": (1, 1), "hi": (1, 1)}),
    "windows of nothing but padding": ("tanh", {"lo": (3, 0)}),
    "windows whose gaps are over the elements": ("tanh", {"lo": (1, 0), "dilation": (4, 1)}),
}


@pytest.mark.parametrize("name", KEPT)
def test_defer_keeps(name: str) -> None:
    function, changes = KEPT[name]
    builder = Builder()
    x = builder.input(f32[4, 6])
    with builder:
        y = getattr(rows, function)(x)
        outputs = [rows.reduce_window(y, **{"kind": "max", **WINDOW, **changes})]
    outputs += [y] if name == "another reader" else []
    graph = builder.build(outputs)
    assert defer(everything).run(graph) is graph


def test_fold_stops_at_its_limit(parse: Parse) -> None:
    text = """
    graph f() {{
      %0: i32[{0}] = constant() {{value=i32[{0}](hex "{1}")}}
      %1: i32[{0}] = neg(%0)
      return %1
    }}
    """
    for size, folded in ((MAX_ELEMENTS, True), (MAX_ELEMENTS + 1, False)):
        raw = b"".join(i.to_bytes(4, "little") for i in range(size)).hex()
        found = fold(everything).run(parse(text.format(size, raw)))
        assert (found.instrs[-1].op.name == "constant") is folded


def test_fold_reads_no_huge_splat(parse: Parse) -> None:
    text = """
    graph f() {{
      %0: f32[{0}] = constant() {{value=f32[{0}](1.0)}}
      %1: f32[] = reduce(%0) {{kind="add", dims=(0,)}}
      return %1
    }}
    """
    for size, folded in ((1000, True), (10**15, False)):
        found = fold(everything).run(parse(text.format(size)))
        assert (found.instrs[-1].op.name == "constant") is folded


def test_a_constant_the_device_cannot_hold_stays_computed(parse: Parse) -> None:
    graph = parse(CASES["fold works in the instruction's own dtype"][1])
    no_i8 = fold(lambda instr: instr.results[0].dtype.name != "i8")
    found = dce(everything).run(no_i8.run(graph))
    assert [i.op.name for i in found].count("add") == 1


SUB = """
graph f(%0: f32[4], %1: f32[4]) {
  %2: f32[4] = sub(%0, %1)
  %3: f32[4] = sub(%1, %0)
  %4: f32[4] = sub(%0, %1)
  return %2, %3, %4
}
"""


def has_only(*claims: str) -> Callable[[Instr], bool]:
    return lambda instr: opdef(instr).claim(instr.attrs) in claims


def test_decompose_goes_down_until_the_device_has_everything(parse: Parse) -> None:
    tier0 = has_only("add", "bitcast", "xor", "constant")
    passed = decompose(tier0)
    found = passed.run(parse(SUB))
    assert all(map(tier0, found))
    assert str(cse(everything).run(found)) == inspect.cleandoc(
        """
        graph f(%0: f32[4], %1: f32[4]) {
          %2: u32[4] = bitcast(%1) {dtype=u32}
          %3: u32[4] = constant() {value=u32[4](2147483648)}
          %4: u32[4] = xor(%2, %3)
          %5: f32[4] = bitcast(%4) {dtype=f32}
          %6: f32[4] = add(%0, %5)
          %7: u32[4] = bitcast(%0) {dtype=u32}
          %8: u32[4] = xor(%7, %3)
          %9: f32[4] = bitcast(%8) {dtype=f32}
          %10: f32[4] = add(%1, %9)
          return %6, %10, %6
        }
        """
    )
    verify(found, passed.level)


def test_decompose_keeps_what_the_device_claims(parse: Parse) -> None:
    graph = parse(SUB)
    assert decompose(has_only("sub")).run(graph) is graph
    with pytest.raises(GraphError, match="the device does not have sub on f32"):
        verify(graph, decompose(has_only("add")).level)


def test_decompose_names_what_is_missing_and_for_what(parse: Parse) -> None:
    with pytest.raises(UnsupportedError) as caught:
        decompose(has_only("add", "bitcast", "constant")).run(parse(SUB))
    assert str(caught.value).splitlines() == [
        "xor on u32: not available on the device, and has no decomposition",
        "  needed by neg, which the device lacks too",
        "  needed by sub, which the device lacks too",
        "  in instruction: xor(%0, %1)",
        "  fix: claim 'xor' for u32 in the backend's capabilities and implement it, "
        'or name a device that may take over: jit(f, fallback="…")',
    ]
