"""Faults of sorts."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall

FAULTS = Faults("Sort and top-k")
#: Elements of a line that one block sorts, and of the longest line that is not sorted by digits.
_LINE, _LONG = 1024, 16 * 1024


def _sorted(call: OpCall, operands: list[Array]) -> list[Array]:
    from bringup.ops.table import lookup

    made = lookup("sort").reference(*operands, **call.attrs)
    return list(made) if isinstance(made, tuple) else [made]


@FAULTS.op("SO01", "ties are reversed from 17 on", "sort")
def unstable(call: OpCall) -> Array | None:
    d = call.attrs["dim"]
    if call.operands[0].shape[d] <= 16:
        return None
    wrong = _sorted(call, [np.flip(x, d) for x in call.operands])
    for memory, array in zip(call.results, wrong, strict=True):
        memory[...] = array
    return None


@FAULTS.op("SO02", "what ties carry is not moved", "sort")
def payload_left(call: OpCall) -> Array | None:
    """What is carried along is not moved where keys are equal to their neighbours."""
    keys = call.attrs["num_keys"]
    d = call.attrs["dim"]
    first = call.results[0]
    if len(call.operands) <= keys or first.shape[d] < 2:
        return None
    tied = np.zeros(first.shape, np.bool_)
    lines, flags = np.moveaxis(first, d, -1), np.moveaxis(tied, d, -1)
    flags[..., 1:] = lines[..., 1:] == lines[..., :-1]
    for memory, x in zip(call.results[keys:], call.operands[keys:], strict=True):
        memory[...] = np.where(tied, x, memory)
    return None


@FAULTS.op("SO04", "the padding of a network is a number", "sort")
def padded_network(call: OpCall) -> Array | None:
    """A network is filled up with the largest number, which pushes out what comes after it."""
    (x, *rest), d = call.operands, call.attrs["dim"]
    n = x.shape[d]
    if rest or x.dtype not in (np.float32, np.float64, np.int32) or n < 2 or n & (n - 1) == 0:
        return None
    largest = np.finfo(x.dtype).max if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    missing = (1 << n.bit_length()) - n
    shape = list(x.shape)
    shape[d] = missing
    whole = np.concatenate([x, np.full(shape, largest, x.dtype)], axis=d)
    return np.take(_sorted(call, [whole])[0], range(n), axis=d)


@FAULTS.op("SO05", "squares are sorted along the last axis", "sort")
def last_of_square(call: OpCall) -> Array | None:
    x = call.operands[0]
    if x.ndim != 2 or x.shape[0] != x.shape[1] or call.attrs["dim"] != 0:
        return None
    return call.reference(*call.operands, dim=1) if len(call.operands) == 1 else None


@FAULTS.op("SO05b", "the last of a line is lost", "sort")
def largest_lost(call: OpCall) -> Array | None:
    wrong, d = np.moveaxis(call.right, call.attrs["dim"], -1), call.attrs["dim"]
    if wrong.shape[-1] <= 16:
        return None
    wrong[..., -1] = wrong[..., -2]
    return np.moveaxis(wrong, -1, d)


@FAULTS.op("SO20a", "NaN comes first", "sort")
def nan_first(call: OpCall) -> Array | None:
    x, d = call.operands[0], call.attrs["dim"]
    if len(call.operands) > 1 or x.dtype.kind in "biu":
        return None
    lines = np.moveaxis(call.right, d, -1)
    order = np.argsort(~np.isnan(lines), axis=-1, kind="stable")
    return np.moveaxis(np.take_along_axis(lines, order, -1), -1, d)


@FAULTS.op("SO21a", "unsigned keys are signed", "sort")
def signed_order(call: OpCall) -> Array | None:
    x = call.operands[0]
    if x.dtype.kind != "u" or len(call.operands) > 1:
        return None
    signed = np.dtype(f"i{x.itemsize}")
    return _sorted(call, [x.view(signed)])[0].view(x.dtype)


@FAULTS.op("SO23a", "the second key is ignored", "sort")
def second_key_forgotten(call: OpCall) -> Array | None:
    if call.attrs["num_keys"] < 2:
        return None
    from bringup.ops.table import lookup

    made = lookup("sort").reference(*call.operands, **{**call.attrs, "num_keys": 1})
    for memory, array in zip(call.results, made, strict=True):
        memory[...] = array
    return None


@FAULTS.op("SO24a", "lines past a block are sorted in parts", "sort")
def in_blocks(call: OpCall) -> Array | None:
    x, d = call.operands[0], call.attrs["dim"]
    if len(call.operands) > 1 or x.shape[d] <= _LINE:
        return None
    cuts = range(_LINE, x.shape[d], _LINE)
    return np.concatenate([call.reference(part) for part in np.split(x, cuts, axis=d)], axis=d)


@FAULTS.op("SO24b", "long falling lines are filled up with -inf in each pass by digits", "sort")
def filled_in_each_pass(call: OpCall) -> Array | None:
    """Of a falling line -inf is the last, but not by each of its digits: what a pass fills up the
    last block of a line with pushes elements out.
    """
    (x, *rest), d = call.operands, call.attrs["dim"]
    n, bits = x.shape[d], 8 * x.itemsize
    if rest or x.dtype.kind in "biu" or bits == 8 or not call.attrs["descending"]:
        return None
    if n <= _LONG or n % _LINE == 0:
        return None
    lines = np.moveaxis(x, d, -1)
    filled = np.concatenate([lines, np.full((*lines.shape[:-1], 1), -np.inf, x.dtype)], -1)
    codes = _falling_codes(filled)
    whole, last = n - n % _LINE, _LINE - n % _LINE
    order = np.broadcast_to(np.arange(n), (*filled.shape[:-1], n))
    for shift in range(0, bits, 8):
        fill = np.full((*order.shape[:-1], last), n)
        block = _by_digit(np.concatenate([order[..., whole:], fill], -1), codes, shift)
        order = np.concatenate([order[..., :whole], block[..., : n - whole]], -1)
        order = _by_digit(order, codes, shift)
    return np.moveaxis(np.take_along_axis(filled, order, -1), -1, d)


def _falling_codes(x: Array) -> Array:
    """Whole numbers in the falling order of floats: NaN first, both zeros alike."""
    word = np.dtype(f"u{x.itemsize}")
    sign = word.type(1 << (8 * x.itemsize - 1))
    number = np.where(x == 0, x.dtype.type(0), x)
    bits = np.where(np.isnan(number), np.array(np.nan, x.dtype), number).view(word)
    bits = np.where(np.isnan(number), bits & ~sign, bits)
    return ~np.where(bits & sign, ~bits, bits | sign)


def _by_digit(order: Array, codes: Array, shift: int) -> Array:
    """Places in lines, by a digit of eight bits of what stands there."""
    digits = np.take_along_axis(codes, order, -1) >> codes.dtype.type(shift) & codes.dtype.type(255)
    return np.take_along_axis(order, np.argsort(digits, axis=-1, kind="stable"), -1)


FAULTS.op("SO22a", "descending is ignored", "sort")(
    lambda c: None if len(c.operands) > 1 else c.reference(*c.operands, descending=False)
)
