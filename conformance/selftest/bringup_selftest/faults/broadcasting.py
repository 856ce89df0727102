"""Faults of broadcasting and strides.

Devices see dense row-major arrays: what hosts hold with other strides is laid out before an
upload, so that faults of strided inputs (BR04, BR05, BR09) have no place behind the seam.
"""

from __future__ import annotations

import numpy as np

from bringup.backend import BufferView
from bringup_selftest.corpus import Array, Faults, OpCall

FAULTS = Faults("Broadcasting and strides")


@FAULTS.op("BR01", "vectors spread over columns", "broadcast_in_dim")
def as_column(call: OpCall) -> Array | None:
    (x,) = call.operands
    shape = call.right.shape
    if x.ndim != 1 or len(shape) != 2 or shape[0] != shape[1]:
        return None
    return np.broadcast_to(x[None, :] if call.attrs["dims"] == (0,) else x[:, None], shape)


@FAULTS.op("BR03", "spread up to the vector only", "broadcast_in_dim")
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


@FAULTS.op("BR06", "a stride of 0 is written through", "broadcast_in_dim")
def zero_stride_written(call: OpCall) -> Array | None:
    """The result is written with the operand's strides of 0, so that the last one stands alone."""
    (x,) = call.operands
    if x.size >= call.right.size or not x.size:
        return None
    wrong = call.before[0].copy()
    wrong.reshape(-1)[: x.size] = x.reshape(-1)
    return wrong


@FAULTS.op("BR07", "offsets of views are dropped", ("add", "mul", "sub"))
def offset_dropped(call: OpCall) -> Array | None:
    moved = []
    for view, array in zip(call.views, call.operands, strict=True):
        whole = call.device.dense(BufferView(view.handle, 0, view.type))
        moved.append(whole.copy() if view.offset else array)
    return call.reference(*moved)


@FAULTS.op("BR11b", "both bounds are the lower one", "clamp")
def scalar_bounds(call: OpCall) -> Array | None:
    """The upper bound of a clamp is read where the lower one lies."""
    low, x, _ = call.operands
    return call.reference(low, x, low)


@FAULTS.op("BR20a", "spread along the first dimension", "broadcast_in_dim")
def first_dimension(call: OpCall) -> Array | None:
    """What has the size of another dimension is spread along that one."""
    (x,) = call.operands
    shape, dims = call.right.shape, call.attrs["dims"]
    if x.ndim != 1 or len(shape) != 3 or shape[0] != shape[-1] or dims == (0,):
        return None
    return np.broadcast_to(x[:, None, None], shape)


FAULTS.op("BR08", "results have operands' strides", "transpose")(
    lambda c: c.operands[0].reshape(c.right.shape)
)
FAULTS.op("BR11", "a scalar is read elsewhere", "pad")(
    lambda c: c.reference(c.x, c.x.reshape(-1)[0] if c.x.size else c.y)
)
