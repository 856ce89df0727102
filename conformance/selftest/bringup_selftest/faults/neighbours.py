"""Faults that show where operands are neighbours or lie at the ends of their dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Dtype and promotion"
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


def nearly_equal(call: OpCall) -> Array | None:
    """Doubles are equal if they agree to 50 bits."""
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


def fold_through(call: OpCall) -> Array | None:
    """The greatest i64 of a row is the first that is greatest in doubles."""
    (x,) = call.operands
    if call.attrs["kind"] != "max" or x.dtype != np.int64 or len(call.attrs["dims"]) != 1:
        return None
    (dim,) = call.attrs["dims"]
    if not x.size:
        return None
    place = np.expand_dims(np.argmax(x.astype(np.float64), axis=dim), dim)
    return np.take_along_axis(x, place, axis=dim).squeeze(dim)


def position_through(call: OpCall) -> Array | None:
    """The place of the greatest double is found in singles."""
    (x,) = call.operands
    if x.dtype != np.float64 or not x.size:
        return None
    return call.reference(x.astype(np.float32))


def chosen_by_single(call: OpCall) -> Array | None:
    """The greater of two doubles is the one that is greater in single precision."""
    a, b = call.operands
    if call.dtype != np.float64:
        return None
    first, second = a.astype(np.float32), b.astype(np.float32)
    usable = np.isfinite(first) & (first != 0)
    return np.where((first == second) & usable, a, call.right)


def _fault(id: str, title: str, names: str, edit: Edit) -> Fault:
    return op_fault(id, GROUP, title, names, edit)


FAULTS: tuple[Fault, ...] = (
    _fault("DT30a", "i64 is compared in f64", "compare", through(np.int64, np.float64)),
    _fault("DT31a", "i32 is compared in f32", "compare", through(np.int32, np.float32)),
    _fault("DT32a", "doubles are equal if they nearly are", "compare", nearly_equal),
    _fault("DT33a", "the greater double is chosen in f32", "max", chosen_by_single),
    _fault("DT34a", "the greatest i64 is found in f64", "reduce", fold_through),
    _fault("DT35a", "the place of the greatest f64 is found in f32", "argmax", position_through),
    _fault("DT36a", "keys of i64 are compared in f64", "sort", sorted_through(np.float64)),
)
