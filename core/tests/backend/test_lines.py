"""The lines of programs that run inside one another."""

from __future__ import annotations

from bringup.backend.adapters_run import located, running_at
from bringup.errors import Location
from bringup.ops.table import lookup
from bringup.program.program import OpStep


def test_a_program_run_inside_another_leaves_its_lines_alone() -> None:
    outer, inner = Location("outer.py", 1, "f"), Location("inner.py", 2, "g")
    step = OpStep(lookup("neg"), {}, (), ())
    with running_at(lambda _: outer):
        with running_at(lambda _: inner):
            assert located(step).location is inner
        assert located(step).location is outer
    assert located(step).location is None
