"""What the four devices share."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.backend import BufferView, Device, Handshake
from bringup.errors import OutOfMemoryError
from bringup.kernel import Kernel
from bringup.loops import evaluate_func, lower_kernel
from bringup.types import TensorType

Array = np.ndarray[Any, Any]

HANDSHAKE = Handshake(api=(1, 1), opset=(1, 1))
#: Of kernels; `gather` and `dynamic_slice` become loads.
SCALAR = """
    neg abs floor exp log sqrt sin cos tanh add sub mul div rem pow max min and or xor shl shr
    compare select convert bitcast reduce dot_general gather dynamic_slice
""".split()  # noqa: SIM905


def array(view: BufferView) -> Array:
    """What a view shows, flat."""
    data = view.handle[view.offset : view.offset + view.type.nbytes]
    elements: Array = data.view(view.type.dtype.numpy)
    return elements


def run_kernel(kernel: Kernel, views: list[BufferView]) -> None:
    """By core's interpreter of loops."""
    evaluate_func(lower_kernel(kernel), [array(view) for view in views])


class Memory(Device):
    """The six methods, and a look at the memory itself."""

    refcounted_handles = True

    def alloc(self, nbytes: int) -> Array:
        """An array of bytes."""
        try:
            return np.full(nbytes, 0xFF, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(f"{nbytes} bytes asked for") from None

    def free(self, handle: Array) -> None:
        """Python does it."""

    def upload(self, handle: Array, data: memoryview) -> None:
        """At once."""
        handle[: len(data)] = data

    def download(self, handle: Array, out: memoryview) -> None:
        """At once."""
        out[:] = handle[: len(out)].data

    def copy(self, target: Array, source: Array, nbytes: int) -> None:
        """At once."""
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def host_view(self, handle: Array, type_: TensorType) -> Array:
        """The memory itself."""
        return handle[: type_.nbytes].view(type_.dtype.numpy).reshape(type_.shape)
