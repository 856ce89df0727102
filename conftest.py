"""Settings of every test run from this checkout."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Two runs of one commit must generate the same cases; deadlines measure the machine, not the code.
settings.register_profile(
    "bringup",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bringup")
