"""Public functions as programs."""

from __future__ import annotations

from bringup.ops.evaluate import evaluate
from bringup_conformance.cases import Case
from bringup_conformance.execution.support import Support
from bringup_conformance.generate import public
from bringup_conformance.generate.recipes import Recipe
from bringup_selftest.control import target_of
from bringup_selftest.device import Reference


def test_nearly_every_function_that_computes_is_traced() -> None:
    found = {name for name in public.names() if public.graphs_of(name)}
    modules = {name.rpartition(".")[0] for name in found}
    assert modules == set(public.MODULES)
    assert len(found) > 0.75 * len(public.names())
    missing = {name for name in public.names() if "." in name} - found
    # What makes no program of its argument, or the functions that examples of these call.
    schedules = {
        f"optim.{kind}_schedule" for kind in ("cosine", "exponential", "linear", "piecewise")
    }
    assert missing <= {"nn.identity", *schedules}


def test_functions_of_several_names_are_traced_once() -> None:
    found = public.names()
    assert {"concat", "matmul", "special.digamma"} <= {*found}
    assert {"concatenate", "linalg.matmul", "special.psi"}.isdisjoint(found)


def test_programs_hold_what_only_functions_put_together() -> None:
    found = {name for module in public.MODULES for four in public.programs(module) for name in four}
    assert {"linalg.solve", "fft.irfft", "nn.cross_entropy", "optim.adam", "random.normal"} <= found
    assert "exp" not in found, "one row"
    assert "random.beta" not in found, "too large"
    assert "while_loop" not in found, "without an end on some data"


def test_cases_are_programs_of_four_functions_that_run() -> None:
    target = target_of(Reference(1))
    found = list(public.cases(Support(target.missing), "nn", 0))
    assert all(isinstance(case, Case) for case in found)
    assert len({case.name for case in found}) == len(found) >= 2
    first = found[0]
    assert isinstance(first, Case)
    assert first.tags[0] == "public"
    inputs = [Recipe("small", i).make(v.type) for i, v in enumerate(first.graph.inputs)]
    assert len(evaluate(first.graph, inputs)) == len(first.graph.outputs)
