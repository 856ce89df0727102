"""Depth 1: one function for each of the names every device must have.

Core decomposes all else to them, plans the memory and calls them in order.  The functions stand for
your op library: they run on the chip, on views of its memory, when the queue gets to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bringup.backend import BufferView, Capabilities, Numerics, OpsDevice, claims, current_step
from bringup.dtypes import ALL, DType
from bringup.types import TensorType
from bringup_template.driver import Chip, reported
from bringup_template.simulator import ALU, Accelerator, Operand

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]


def _alu(name: str) -> Callable[..., Array]:
    return lambda *operands: ALU[name].compute(*operands, str(operands[-1].dtype))
