"""The conformance suite: fused results of random programs against numpy, within derived bounds.

>>> from bringup_conformance import run
>>> run("mydevice", level="smoke").ok                       # doctest: +SKIP
True
"""

from __future__ import annotations

from bringup_conformance.runner import LEVELS, Report, run, run_on

__all__ = ["LEVELS", "Report", "run", "run_on"]
