"""The conformance suite: fused results of random programs against numpy, within derived bounds.

>>> from bringup_conformance import run
>>> run("mydevice", level="smoke").ok                       # doctest: +SKIP
True
"""

from __future__ import annotations

from bringup_conformance.execution.replaying import replay
from bringup_conformance.execution.runner import LEVELS, Progress, run
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting.reports import Failure, Report

__all__ = [
    "LEVELS",
    "DeviceTarget",
    "Failure",
    "Progress",
    "Report",
    "Target",
    "replay",
    "run",
]
