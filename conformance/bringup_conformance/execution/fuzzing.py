"""Level soak as one test of Hypothesis, for whatever runs such tests: pytest, or HypoFuzz, which
goes on for ever, watches what code programs reach, and keeps them in Hypothesis's database.

Programs run in the process of the test, where coverage can be watched: a device that takes down its
process is for `conformance run --level=soak`.
"""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase

from bringup_conformance.cases import Outcome, instructions
from bringup_conformance.execution.running import run_case
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.soak import FUSED, LEVEL, SHARE, costs_of, settings_of
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate.drawn import programs
from bringup_conformance.generate.programs import Program

#: Raises what the test shall fail with.
Fail = Callable[[Outcome], None]


def soaked(target: Target, fail: Fail, seed: int = 0) -> Callable[[], None]:
    """A test that draws programs, and climbs as level soak does.

    fail: is given what failed.  seed: of the data of programs, and of the plan.
    """
    plan, costs = plan_of(target, seed), costs_of(target)

    @hypothesis.settings(
        deadline=None,
        # What fails is written down, and `conformance explain` makes it smaller.
        phases=(Phase.reuse, Phase.generate, Phase.target),
        suppress_health_check=[
            HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example
        ],
        print_blob=False,
    )  # fmt: skip
    @hypothesis.given(programs(settings_of(plan), large=plan.budget.large))
    def soak(made: tuple[Program, bool]) -> None:
        """A random program is right, whatever it scores."""
        program, exact = made
        case = program.case(LEVEL, exact, seed)
        outcome = run_case(target, case)
        if outcome.problem is not None:
            fail(outcome)
            return
        for name, score in costs(case.graph).items():
            hypothesis.target(score, label=name)
        if instructions(case.graph) >= FUSED:
            hypothesis.target(outcome.verdict.ratio, label=SHARE)

    made: Callable[[], None] = soak
    return made
