"""The conformance suite: fused results of random programs against numpy, within derived bounds.

>>> from bringup_conformance import run
>>> run("mydevice", level="smoke").ok                       # doctest: +SKIP
True
"""

from __future__ import annotations

from bringup_conformance.reports import Failure, Report
from bringup_conformance.runner import LEVELS, Progress, replay, run
from bringup_conformance.targets import DeviceTarget, Target

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
