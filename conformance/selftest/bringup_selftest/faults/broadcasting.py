"""Faults of broadcasting and strides.

Devices see dense row-major arrays: what hosts hold with other strides is laid out before an
upload, so that faults of strided inputs (BR04, BR05, BR09) have no place behind the seam.
"""

from __future__ import annotations

import numpy as np

from bringup.backend import BufferView
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Broadcasting and strides"


def as_column(call: OpCall) -> Array | None:
    """A vector goes down the columns of a square."""
    (x,) = call.operands
    shape = call.right.shape
    if x.ndim != 1 or len(shape) != 2 or shape[0] != shape[1]:
        return None
    return np.broadcast_to(x[None, :] if call.attrs["dims"] == (0,) else x[:, None], shape)


def narrow_only(call: OpCall) -> Array | None:
    """A last dimension of 1 is spread up to the width of a vector, and not beyond."""
    (x,) = call.operands
    wide = call.right.shape[-1] if call.right.ndim else 0
    spread = x.ndim and x.shape[-1] == 1 and call.attrs["dims"][-1] == call.right.ndim - 1
    if not spread or wide < 8:
        return None
    wrong = call.right
    wrong[..., 8:] = 0
    return wrong


def zero_stride_written(call: OpCall) -> Array | None:
    """The result is written with the operand's strides of 0, so that the last one stands alone."""
    (x,) = call.operands
    if x.size >= call.right.size or not x.size:
        return None
    wrong = call.before[0].copy()
    wrong.reshape(-1)[: x.size] = x.reshape(-1)
    return wrong


def offset_dropped(call: OpCall) -> Array | None:
    """An operand is read from the start of its block."""
    moved = []
    for view, array in zip(call.views, call.operands, strict=True):
        whole = call.device.dense(BufferView(view.handle, 0, view.type))
        moved.append(whole.copy() if view.offset else array)
    return call.reference(*moved)


def operand_strides(call: OpCall) -> Array | None:
    """The result has the strides of the operand."""
    return call.operands[0].reshape(call.right.shape)


def other_scalar(call: OpCall) -> Array | None:
    """The value to pad with is element 0 of what is padded."""
    x, value = call.operands
    return call.reference(x, x.reshape(-1)[0] if x.size else value)


def scalar_bounds(call: OpCall) -> Array | None:
    """The upper bound of a clamp is read where the lower one lies."""
    low, x, _ = call.operands
    return call.reference(low, x, low)


def first_dimension(call: OpCall) -> Array | None:
    """What has the size of another dimension is spread along that one."""
    (x,) = call.operands
    shape, dims = call.right.shape, call.attrs["dims"]
    if x.ndim != 1 or len(shape) != 3 or shape[0] != shape[-1] or dims == (0,):
        return None
    return np.broadcast_to(x[:, None, None], shape)


FAULTS: tuple[Fault, ...] = (
    op_fault("BR01", GROUP, "vectors spread over columns", "broadcast_in_dim", as_column),
    op_fault("BR03", GROUP, "spread up to the vector only", "broadcast_in_dim", narrow_only),
    op_fault("BR06", GROUP, "a stride of 0 is written through", "broadcast_in_dim",
             zero_stride_written),
    op_fault("BR07", GROUP, "offsets of views are dropped", ("add", "mul", "sub"), offset_dropped),
    op_fault("BR08", GROUP, "results have operands' strides", "transpose", operand_strides),
    op_fault("BR11", GROUP, "a scalar is read elsewhere", "pad", other_scalar),
    op_fault("BR11b", GROUP, "both bounds are the lower one", "clamp", scalar_bounds),
    op_fault("BR20a", GROUP, "spread along the first dimension", "broadcast_in_dim",
             first_dimension),
)  # fmt: skip
