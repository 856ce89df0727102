"""What a wrong application says: the types as printed, the instruction, the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import BY_NAME, bool_, f16, f32, i8, i16, i32
from bringup.errors import OpTypeError
from bringup.graph import Builder, Value
from bringup.ops.table import OpDef
from bringup.types import TensorType

Make = Callable[..., Any]


def v(text: str) -> TensorType:
    return TensorType.parse(text)


DOT = {"batch": ((), ()), "contract": ((1,), (0,))}

WRONG: dict[str, tuple[OpDef, tuple[TensorType, ...], dict[str, Any]]] = {
    "shapes": (ops.add, (v("f32[4,8]"), v("f32[4]")), {}),
    "trailing shape": (ops.mul, (v("f32[8]"), v("f32[4,8]")), {}),
    "no broadcast": (ops.sub, (v("f32[4,8]"), v("f32[3]")), {}),
    "dtypes": (ops.max, (v("f32[4]"), v("i32[4]")), {}),
    "dtypes and shapes": (ops.min, (v("f32[4,8]"), v("f16[8]")), {}),
    "leading dtype": (ops.exp, (v("i32[4]"),), {}),
    "composite dtype": (ops.softmax, (v("i32[4]"),), {"dims": (0,)}),
    "arity": (ops.add, (v("f32[4]"),), {}),
    "nothing to join": (ops.concatenate, (), {"dim": 0}),
    "filled without operands": (ops.slice, (), {"start": (0,), "limit": (1,)}),
    "select": (ops.select, (v("bool[4]"), v("f32[4,8]"), v("f32[4,8]")), {}),
    "select branches": (ops.select, (v("bool[4]"), v("f32[4]"), v("f64[4]")), {}),
    "bitcast width": (ops.bitcast, (v("f32[4]"),), {"dtype": BY_NAME["i64"]}),
    "bitcast to bool": (ops.bitcast, (v("u8[4]"),), {"dtype": bool_}),
    "convert to what": (ops.convert, (v("f32[4]"),), {"dtype": "f16"}),
    "reshape": (ops.reshape, (v("f32[4,8]"),), {"shape": (4, 9)}),
    "reshape with -1": (ops.reshape, (v("f32[4,8]"),), {"shape": (4, -1)}),
    "shape of floats": (ops.reshape, (v("f32[4]"),), {"shape": (4.0,)}),
    "transpose": (ops.transpose, (v("f32[4,8]"),), {"permutation": (0, 0)}),
    "transpose rank": (ops.transpose, (v("f32[4,8]"),), {"permutation": (0,)}),
    "broadcast": (ops.broadcast_in_dim, (v("f32[3]"),), {"shape": (4, 8), "dims": (1,)}),
    "broadcast order": (ops.broadcast_in_dim, (v("f32[4,8]"),), {"shape": (8, 4), "dims": (1, 0)}),
    "broadcast range": (ops.broadcast_in_dim, (v("f32[3]"),), {"shape": (3,), "dims": (-1,)}),
    "slice range": (ops.slice, (v("f32[4]"),), {"start": (1,), "limit": (5,)}),
    "slice backwards": (ops.slice, (v("f32[4]"),), {"start": (4,), "limit": (0,), "stride": (-1,)}),
    "slice stride": (ops.slice, (v("f32[4]"),), {"start": (0,), "limit": (4,), "stride": (0,)}),
    "pad value": (ops.pad, (v("f32[4]"), v("f32[1]")), {"lo": (1,), "hi": (0,)}),
    "pad too much": (ops.pad, (v("f32[4]"), v("f32[]")), {"lo": (-3,), "hi": (-3,)}),
    "pad interior": (
        ops.pad,
        (v("f32[4]"), v("f32[]")),
        {"lo": (0,), "hi": (0,), "interior": (-1,)},
    ),
    "concatenate": (ops.concatenate, (v("f32[4,8]"), v("f32[4,7]")), {"dim": 0}),
    "concatenate scalars": (ops.concatenate, (v("f32[]"), v("f32[]")), {"dim": 0}),
    "reduce dims": (ops.reduce, (v("f32[4]"),), {"kind": "add", "dims": (1,)}),
    "reduce order": (ops.reduce, (v("f32[4,8]"),), {"kind": "add", "dims": (1, 0)}),
    "reduce kind": (ops.reduce, (v("f32[4]"),), {"kind": "and", "dims": (0,)}),
    "reduce bool": (ops.reduce, (v("bool[4]"),), {"kind": "max", "dims": (0,)}),
    "dot sizes": (ops.dot_general, (v("f32[4,8]"), v("f32[7,2]")), DOT),
    "dot dims": (
        ops.dot_general,
        (v("f32[4,8]"), v("f32[8,2]")),
        {"batch": ((1,), (0,)), "contract": ((1,), (0,))},
    ),
    "dot pairs": (
        ops.dot_general,
        (v("f32[4,8]"), v("f32[8,2]")),
        {"batch": ((), ()), "contract": (1, 0)},
    ),
    "dot dtypes": (ops.dot_general, (v("f32[4,8]"), v("f16[8,2]")), DOT),
    "dot accumulate": (
        ops.dot_general,
        (v("f16[4,8]"), v("f16[8,2]")),
        {**DOT, "accumulate": f16},
    ),
    "dot result": (ops.dot_general, (v("i32[4,8]"), v("i32[8,2]")), {**DOT, "result": i8}),
    "layer_norm": (ops.layer_norm, (v("f32[4,8]"), v("f32[8]"), v("f32[4]")), {"dims": (1,)}),
    "group_norm groups": (
        ops.group_norm,
        (v("f32[2,6]"), v("f32[6]"), v("f32[6]")),
        {"dim": 1, "groups": 4},
    ),
    "group_norm of the batch": (
        ops.group_norm,
        (v("f32[2,6]"), v("f32[2]"), v("f32[2]")),
        {"dim": 0, "groups": 2},
    ),
    "batch_norm gain": (
        ops.batch_norm,
        (v("f32[2,6]"), v("f32[2]"), v("f32[6]")),
        {"dim": 1},
    ),
    "convolution features": (ops.convolution, (v("f32[2,4,9]"), v("f32[8,3,3]")), {}),
    "convolution groups": (ops.convolution, (v("f32[2,4,9]"), v("f32[8,4,3]")), {"groups": 3}),
    "convolution parts": (ops.convolution, (v("f32[2,4,9]"), v("f32[5,2,3]")), {"groups": 2}),
    "convolution ranks": (ops.convolution, (v("f32[2,4,9]"), v("f32[8,4]")), {}),
    "convolution dims": (
        ops.convolution,
        (v("f32[2,4,9]"), v("f32[8,4,3]")),
        {"lhs_dims": (0, 1, 1)},
    ),
    "convolution strides": (
        ops.convolution,
        (v("f32[2,4,9]"), v("f32[8,4,3]")),
        {"strides": (0,)},
    ),
    "convolution padding": (
        ops.convolution,
        (v("f32[2,4,9]"), v("f32[8,4,3]")),
        {"lo": (-5,), "hi": (-5,)},
    ),
    "convolution window": (ops.convolution, (v("f32[2,4,9]"), v("f32[8,4,0]")), {}),
    "convolution dtypes": (ops.convolution, (v("f32[2,4,9]"), v("f64[8,4,3]")), {}),
    "convolution result": (
        ops.convolution,
        (v("i32[2,4,9]"), v("i32[8,4,3]")),
        {"result": i8},
    ),
    "reduce_window window": (ops.reduce_window, (v("f32[9]"),), {"kind": "max", "window": (0,)}),
    "reduce_window rank": (ops.reduce_window, (v("f32[9]"),), {"kind": "max", "window": (2, 2)}),
    "reduce_window padding": (
        ops.reduce_window,
        (v("f32[4]"),),
        {"kind": "max", "window": (2,), "lo": (-5,)},
    ),
    "resize of nothing": (ops.resize, (v("f32[0]"),), {"shape": (3,), "method": "nearest"}),
    "resize of integers": (ops.resize, (v("i32[4]"),), {"shape": (3,), "method": "linear"}),
    "attention operands": (ops.attention, (v("f32[3,4]"), v("f32[3,4]")), {"scale": 1.0}),
    "attention shapes": (
        ops.attention,
        (v("f32[3,4]"), v("f32[5,4]"), v("f32[6,4]")),
        {"scale": 1.0},
    ),
    "attention dtypes": (
        ops.attention,
        (v("f32[3,4]"), v("f16[5,4]"), v("f32[5,4]")),
        {"scale": 1.0},
    ),
    "attention bias": (
        ops.attention,
        (v("f32[3,4]"), v("f32[5,4]"), v("f32[5,4]"), v("f32[2,5]")),
        {"scale": 1.0},
    ),
    "block_sparse_dot dtypes": (
        ops.block_sparse_dot,
        (v("f32[3,4]"), v("f32[5,2,2]"), v("i64[5]"), v("i64[5]")),
        {"features": 4},
    ),
    "block_sparse_dot shapes": (
        ops.block_sparse_dot,
        (v("f32[3,4]"), v("f32[5,2,2]"), v("i32[5]"), v("i32[4]")),
        {"features": 4},
    ),
    "block_sparse_dot blocks": (
        ops.block_sparse_dot,
        (v("f32[3,4]"), v("f32[5,3,2]"), v("i32[5]"), v("i32[5]")),
        {"features": 4},
    ),
    "block_sparse_dot empty blocks": (
        ops.block_sparse_dot,
        (v("f32[3,4]"), v("f32[5,0,2]"), v("i32[5]"), v("i32[5]")),
        {"features": 4},
    ),
    "block_sparse_dot promise": (
        ops.block_sparse_dot,
        (v("f32[3,4]"), v("f32[5,2,2]"), v("i32[5]"), v("i32[5]")),
        {"features": 4, "per_row": -1},
    ),
    "argmax empty": (ops.argmax, (v("f32[0]"),), {"dim": 0}),
    "argmax narrow": (ops.argmax, (v("f32[300]"),), {"dim": 0, "dtype": i8}),
    "argmax float": (ops.argmax, (v("f32[3]"),), {"dim": 0, "dtype": f32}),
    "one_hot size": (ops.one_hot, (v("i32[3]"),), {"size": -1, "dtype": f32}),
    "one_hot of floats": (ops.one_hot, (v("f32[3]"),), {"size": 3, "dtype": f32}),
    "iota of bool": (ops.iota, (), {"type": bool_[3], "dim": 0}),
    "iota scalar": (ops.iota, (), {"type": f32[()], "dim": 0}),
    "iota type": (ops.iota, (), {"type": (3,), "dim": 0}),
    "constant": (ops.constant, (), {"value": 3.0}),
}


def apply(row: OpDef, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> OpTypeError:
    with Builder(located=True) as b:
        operands = [b.input(t) for t in types]
        with pytest.raises(OpTypeError) as caught:
            row(*operands, **attrs)
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_the_message(name: str, snapshot) -> None:
    error = apply(*WRONG[name])
    error.location = None  # a line of this file, which other tests move
    assert str(error) == snapshot


@pytest.mark.parametrize("name", WRONG)
def test_the_four_facts(name: str) -> None:
    error = apply(*WRONG[name])
    row, types, _ = WRONG[name]
    assert error.what.startswith(row.name + ":")
    assert error.fix
    assert error.instruction.startswith(f"{row.name}(")
    assert error.location is not None
    assert error.location.file == __file__
    if types and "attribute" not in error.what and "takes" not in error.what:
        text = str(error)
        assert any(str(t) in text or str(t.dtype) in text for t in types)


def test_every_row_rejects_dtypes_it_does_not_take(kit, any_row: OpDef) -> None:
    if any_row.arity == 0:
        return
    for dtype in set(BY_NAME.values()) - set(any_row.dtypes):
        attrs: dict[str, Any] = {
            "dims": (0,), "dim": 0, "size": 3, "dtype": f32, "kind": "add",
            "batch": ((), ()), "contract": ((), ()), "approximate": "none", "epsilon": 0.1,
            "correction": 0.0, "direction": "eq", "branches": (), "window": (2,), "scale": 1.0,
            "groups": 1, "shape": (3,), "method": "nearest", "offset": (), "index_map": (0,),
            "index_dim": 1, "features": 3,
        }  # fmt: skip
        if any_row.name == "shr":
            attrs["kind"] = "logical"
        taken = {a.name: attrs[a.name] for a in any_row.attrs if a.name in attrs}
        error = apply(any_row, (dtype[3],) * (any_row.arity or 2), taken)
        assert f"does not take {dtype}" in error.what
        assert error.fix is not None


def test_the_suggested_steps_work() -> None:
    """The fix of the first message, followed to the letter."""
    with Builder() as b:
        x, y = b.input(f32[4, 8]), b.input(f32[4])
        with pytest.raises(OpTypeError) as caught:
            ops.add(x, y)
        assert caught.value.fix == "reshape operand 1 to (4, 1), then broadcast_to shape (4, 8)"
        spread = ops.broadcast_in_dim(ops.reshape(y, shape=(4, 1)), shape=(4, 8), dims=(0, 1))
        sum_: Value = ops.add(x, spread)
    assert sum_.type is f32[4, 8]


def test_numpy_integers_are_no_attributes() -> None:
    """Attributes are plain Python, so that they print and hash the same everywhere."""
    with Builder() as b, pytest.raises(OpTypeError, match="must be a tuple of ints"):
        ops.reshape(b.input(i16[4]), shape=(np.int64(4),))


def test_a_bool_is_no_dimension() -> None:
    with Builder() as b, pytest.raises(OpTypeError, match="out of range"):
        ops.argmax(b.input(i32[2, 2]), dim=True)
