"""Sizes past tiles, blocks and caches are drawn, and what fails there alone is found."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from planted import opened

from bringup.backend.capabilities import Capabilities, Numerics, Shapes
from bringup.dtypes import DType, bf16, f16, f32
from bringup.graph import Builder
from bringup.kernel.limits import Limits
from bringup.ops.table import lookup
from bringup_conformance.cases import Instance
from bringup_conformance.execution.runner import run
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.contractions import beyond, boundaries
from bringup_conformance.generate.families import many as cases
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle import bounds
from bringup_conformance.oracle.bounds import propagate
from bringup_conformance.oracle.control_and_order import prefixes
from bringup_conformance.oracle.span import Span
from bringup_conformance.reporting.environment import capabilities_of, plain
from bringup_selftest.device import Reference
from bringup_selftest.faults import dots, far

DECLARED = Shapes(contraction=(14, 16, 256), products=1 << 17)


def sizes(instance: Instance) -> tuple[int, int, int]:
    """Rows, columns and contracted indices of a product."""
    attrs: Mapping[str, object] = dict(instance.attrs)
    batch, contract = attrs["batch"], attrs["contract"]
    assert isinstance(batch, tuple)
    assert isinstance(contract, tuple)
    lhs, rhs = (t.shape for t in instance.operands)
    sides = [
        prod(n for d, n in enumerate(shape) if d not in batch[i] and d not in contract[i])
        for i, shape in enumerate((lhs, rhs))
    ]
    return sides[0], sides[1], prod(lhs[d] for d in contract[0])


@pytest.mark.parametrize("seed", range(4))
def test_every_declared_length_is_met_on_each_side_of_a_product(seed: int) -> None:
    found = boundaries(DECLARED, seed)
    wanted = {n + d for n in DECLARED.contraction for d in (-1, 0, 1)}
    for side in range(3):
        assert wanted <= {sizes[side] for sizes in found}
    counts = sorted(prod(sizes) for sizes in found[-3:])
    assert counts[0] < DECLARED.products <= counts[1] < counts[2]


@pytest.mark.parametrize("shapes", [Shapes(), DECLARED], ids=["nothing", "declared"])
def test_products_go_past_every_block(shapes: Shapes) -> None:
    row = lookup("dot_general")
    for seed in range(3):
        found = [sizes(i) for i in instances(row, f32, shapes, seed)]
        assert sum(min(s) > 32 and prod(s) > 1 << 20 for s in found) >= 7
        assert any(min(s) > 300 for s in found)
    others = [instances(row, dtype, shapes, 0) for dtype in row.dtypes]
    assert sum(any(prod(sizes(i)) > 1 << 20 for i in found) for found in others) >= 5


def test_few_sizes_are_small() -> None:
    found = instances(lookup("dot_general"), f32, Shapes(), 0, few=True)
    assert max(prod(sizes(i)) for i in found) < 1 << 17


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_few_sizes_hold_a_product_past_the_path_that_is_declared(dtype: DType) -> None:
    row, wanted = lookup("dot_general"), beyond(DECLARED)
    assert DECLARED.products <= prod(wanted) < 2 * DECLARED.products
    for shapes, count in ((DECLARED, 1), (Shapes(contraction=(14, 16, 256)), 0)):
        found = [i for i in instances(row, dtype, shapes, 0, few=True) if sizes(i) == wanted]
        assert len(found) == count
        assert all(i.far for i in found)


def test_what_is_declared_is_read_back() -> None:
    given = Capabilities(shapes=DECLARED)
    assert capabilities_of(plain(given)) == given


def test_products_that_fail_where_they_are_packed_are_found() -> None:
    (fault,) = (each for each in dots.FAULTS if each.id == "DO26a")
    target = opened(fault.inject(Reference()))
    report = run(target, "ops", only="ops/dot_general/f32", shrink_seconds=0)
    assert report.failures


@pytest.mark.parametrize(
    "name", ["mean", "softmax", "layer_norm", "cumulative", "sort", "cholesky", "eigh", "fft"]
)
def test_every_dtype_has_a_size_of_its_own_past_the_others(name: str) -> None:
    row = lookup(name)
    found = {
        dtype.name: {
            t.shape for i in instances(row, dtype, Shapes(), 3) if i.far for t in i.operands
        }
        for dtype in row.dtypes
    }
    assert all(found.values())
    assert len({frozenset(shapes) for shapes in found.values()}) > 1


@pytest.mark.parametrize("seed", range(3))
def test_positions_are_met_that_8_and_16_bits_do_not_hold(seed: int) -> None:
    for name in ("argmax", "argmin"):
        longest = [
            max(n for n in i.operands[0].shape)
            for i in instances(lookup(name), f32, Shapes(), seed)
            if i.far
        ]
        assert any(255 <= n <= 257 for n in longest)
        assert any(n > 1 << 16 for n in longest)


@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("data", ["signed", "special"])
def test_running_folds_are_bound_as_the_fold_of_each_beginning(
    kind: str, reverse: bool, exclusive: bool, data: str
) -> None:
    with Builder() as builder:
        x = builder.input(f32[40])
        made = lookup("cumulative")(x, kind=kind, dim=0, reverse=reverse, exclusive=exclusive)
    (instr,) = builder.build([made]).instrs
    numerics = Numerics(longest_chain=8)
    span = Span.exactly(Recipe(data).make(f32[40]), f32)
    with np.errstate(all="ignore"):
        (quick,) = propagate(instr, [span], numerics)
        (slow,) = bounds.run(prefixes(instr), [span], numerics)
        widths = [np.nan_to_num(s.high.astype(float) - s.low.astype(float)) for s in (quick, slow)]
    np.testing.assert_array_equal(quick.unlimited(), slow.unlimited())
    np.testing.assert_array_equal(np.isnan(quick.low), np.isnan(slow.low))
    assert (widths[0] <= widths[1] * 1.001 + 1e-12).all()
    last = 0 if reverse else -1
    np.testing.assert_allclose(widths[0][last], widths[1][last], rtol=1e-3)


@pytest.mark.parametrize(("name", "most"), [("rank", 32), ("inputs", 257), ("trips", 257)])
def test_ladders_reach_past_a_byte(name: str, most: int) -> None:
    names: set[str] = set()
    for seed in range(12):
        support = Support(lambda _graph: None)
        names |= {case.name for case in cases(support, Limits(), name, seed, few=False)}
    counts = {int(each.rpartition("-")[2]) for each in names}
    assert most == max(counts)
    assert {5, 9, 17} & counts


@pytest.mark.parametrize(("id", "name"), [("FA13", "rows"), ("FA11", "rank")])
def test_counts_that_end_early_are_found(id: str, name: str) -> None:
    (fault,) = (each for each in far.FAULTS if each.id == id)
    target = opened(fault.inject(Reference(fault.depth)))
    assert run(target, "fusion", only=f"fusion/many-{name}", shrink_seconds=0).failures
