"""Sizes past tiles, blocks and caches are drawn, and what fails there alone is found."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import pytest
from planted import opened

from bringup.backend.capabilities import Capabilities, Shapes
from bringup.dtypes import f32
from bringup.ops.table import lookup
from bringup_conformance.cases import Instance
from bringup_conformance.execution.runner import run
from bringup_conformance.generate.contractions import boundaries
from bringup_conformance.generate.instances import instances
from bringup_conformance.reporting.declared import capabilities_of
from bringup_conformance.reporting.environment import plain
from bringup_conformance.selftest.corpus import OpEdit, with_ops
from bringup_conformance.selftest.device import Reference
from bringup_conformance.selftest.faults import dots

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


def test_what_is_declared_is_read_back() -> None:
    given = Capabilities(shapes=DECLARED)
    assert capabilities_of(plain(given)) == given


@pytest.mark.parametrize("edit", [dots.never_computed, dots.batch_packed_once])
def test_products_that_fail_where_they_are_packed_are_found(edit: OpEdit) -> None:
    target = opened(with_ops({"dot_general": edit})(Reference()))
    report = run(target, "ops", only="ops/dot_general/f32", shrink_seconds=0)
    assert report.failures
