"""Claims: what a device declares that it runs."""

from __future__ import annotations

import pytest

from bringup.backend import claims
from bringup.dtypes import f32, f64, i32
from bringup.errors import BackendError
from bringup.ops.table import lookup


def test_claims_expand_ops_with_variants() -> None:
    assert claims(["exp", "compare.lt"], ["f32", i32]) == {
        "exp": frozenset({f32, i32}),
        "compare.lt": frozenset({f32, i32}),
    }
    reduce = claims(["reduce"], [f64])
    assert set(reduce) == set(lookup("reduce").claims)
    assert {"reduce.add", "reduce.max"} <= set(reduce)


@pytest.mark.parametrize(
    ("name", "fix"), [("ad", "'add'"), ("reduce.ad", "'reduce.add'"), ("!?", "bringup ops")]
)
def test_a_claim_that_no_op_has_is_an_error(name: str, fix: str) -> None:
    with pytest.raises(BackendError) as caught:
        claims([name], ["f32"])
    assert f"a device claims {name!r}, and no op has that name" in str(caught.value)
    assert fix in str(caught.value.fix)
