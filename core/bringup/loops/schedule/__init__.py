"""Schedules: how the loops of a function are run, as steps that keep what they compute.

Each primitive is a function ``Func -> Func``; `Schedule` is a list of them as text.
"""

from bringup.loops.schedule.steps import PRIMITIVES, Schedule, Scheduled, Step, apply

__all__ = ["PRIMITIVES", "Schedule", "Scheduled", "Step", "apply"]
