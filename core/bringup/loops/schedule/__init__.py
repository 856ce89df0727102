"""Schedules: how the loops of a function are run, as steps that keep what they compute.

Each primitive is a function ``Func -> Func``; `Schedule` is a list of them as text.
"""

from bringup.loops.schedule.folds import rfactor
from bringup.loops.schedule.iteration import (
    fuse,
    pad,
    parallelize,
    peel,
    serialize,
    split,
    unroll,
    vectorize,
)
from bringup.loops.schedule.order import distribute, hoist, reorder
from bringup.loops.schedule.staging import stage
from bringup.loops.schedule.steps import PRIMITIVES, Schedule, Scheduled, Step, apply
from bringup.loops.schedule.threads import bind, cross_lane, set_space, share

__all__ = [
    "PRIMITIVES",
    "Schedule",
    "Scheduled",
    "Step",
    "apply",
    "bind",
    "cross_lane",
    "distribute",
    "fuse",
    "hoist",
    "pad",
    "parallelize",
    "peel",
    "reorder",
    "rfactor",
    "serialize",
    "set_space",
    "share",
    "split",
    "stage",
    "unroll",
    "vectorize",
]
