"""The conformance suite: fused results of random programs against numpy, within derived bounds.

>>> from bringup_conformance import run
>>> run("mydevice", level="smoke").ok                       # doctest: +SKIP
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup_conformance.diagnosis.cause import Cause
    from bringup_conformance.diagnosis.reproduce import explain, shrink
    from bringup_conformance.execution.levels import LEVELS
    from bringup_conformance.execution.replay import replay
    from bringup_conformance.execution.runner import Progress, run
    from bringup_conformance.execution.targets import DeviceTarget, Target
    from bringup_conformance.reporting.reports import Failure, Report

# Imported when asked for: pytest loads the plugin in this package in every run of it, anybody's.
_HOMES = {
    "LEVELS": "execution.levels",
    "Cause": "diagnosis.cause",
    "DeviceTarget": "execution.targets",
    "Failure": "reporting.reports",
    "Progress": "execution.runner",
    "Report": "reporting.reports",
    "Target": "execution.targets",
    "explain": "diagnosis.reproduce",
    "replay": "execution.replay",
    "run": "execution.runner",
    "shrink": "diagnosis.reproduce",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "LEVELS",
    "Cause",
    "DeviceTarget",
    "Failure",
    "Progress",
    "Report",
    "Target",
    "explain",
    "replay",
    "run",
    "shrink",
]
