"""Faults that show where operands are neighbours or lie at the ends of their dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall, kind, of

FAULTS = Faults("Dtype and promotion")
Edit = Callable[[OpCall], Array | None]


def through(leading: Any, narrow: Any) -> Edit:
    """The op decides by operands of a narrower dtype, and gives what belongs to its decision."""

    def edit(call: OpCall) -> Array | None:
        operands = [x.astype(narrow) if x.dtype == leading else x for x in call.operands]
        if call.operands[0].dtype != leading or not call.operands[0].size:
            return None
        made = call.reference(*operands)
        return made.astype(call.dtype) if call.dtype == leading else made

    return edit


@FAULTS.op("DT32a", "doubles are equal if they nearly are", "compare")
def nearly_equal(call: OpCall) -> Array | None:
    a, b = call.operands
    if a.dtype != np.float64 or call.attrs["direction"] not in ("eq", "ne"):
        return None
    close = np.isfinite(a) & (np.abs(a - b) <= np.abs(a) * 2.0**-50)
    return np.where(close, call.attrs["direction"] == "eq", call.right)


def sorted_through(narrow: Any) -> Edit:
    """Keys of 64 bits are compared in a narrower dtype; equal ones stay where they were."""

    def edit(call: OpCall) -> Array | None:
        (x, *rest) = call.operands
        if rest or x.dtype != np.int64 or call.attrs["descending"]:
            return None
        dim = call.attrs["dim"]
        order = np.argsort(x.astype(narrow), axis=dim, kind="stable")
        return np.take_along_axis(x, order, axis=dim)

    return edit


@FAULTS.op("DT34a", "the greatest i64 is found in f64", "reduce", when=kind("max"))
def fold_through(call: OpCall) -> Array | None:
    """The greatest i64 of a row is the first that is greatest in doubles."""
    (x,) = call.operands
    if x.dtype != np.int64 or len(call.attrs["dims"]) != 1:
        return None
    (dim,) = call.attrs["dims"]
    if not x.size:
        return None
    place = np.expand_dims(np.argmax(x.astype(np.float64), axis=dim), dim)
    return np.take_along_axis(x, place, axis=dim).squeeze(dim)


@FAULTS.op("DT33a", "the greater double is chosen in f32", "max", when=of(np.float64))
def chosen_by_single(call: OpCall) -> Array | None:
    """The greater of two doubles is the one that is greater in single precision."""
    a, b = call.operands
    first, second = a.astype(np.float32), b.astype(np.float32)
    usable = np.isfinite(first) & (first != 0)
    return np.where((first == second) & usable, a, call.right)


@FAULTS.op("DT35a", "the place of the greatest f64 is found in f32", "argmax")
def position_through(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype != np.float64 or not x.size:
        return None
    return call.reference(x.astype(np.float32))


FAULTS.op("DT30a", "i64 is compared in f64", "compare")(through(np.int64, np.float64))
FAULTS.op("DT31a", "i32 is compared in f32", "compare")(through(np.int32, np.float32))
FAULTS.op("DT36a", "keys of i64 are compared in f64", "sort")(sorted_through(np.float64))
