"""Stands in for the compiler and the launches of Template: numpy runs what `render` gives.

The language is Python, for one point of the grid; all points run at once, as elements of arrays.
Every use of this module in another one is a place to fill in with your compiler and driver.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import numpy as np
from bringup.backend import BufferView
from bringup.dtypes import STORED, DType
from bringup.errors import CompileError
from bringup.ops.table import lookup

from bringup_template import simulated_memory

Array = np.ndarray[Any, Any]


def load(source: str, name: str) -> CodeType:
    """Compile a kernel, and load it into the device."""
    try:
        return compile(source, name, "exec")
    except SyntaxError as error:
        raise CompileError(f"{name}: {error.msg}", log=str(error), source=source) from error


def launch(loaded: CodeType, points: int, views: list[BufferView]) -> None:
    """Queue a run of a kernel at so many points."""
    point = np.arange(points)

    def reached(index: Any, conditions: tuple[Any, ...]) -> tuple[Array, Array]:
        index, live = np.broadcast_arrays(index, np.all(np.broadcast_arrays(True, *conditions), 0))
        return np.broadcast_to(index, points), np.broadcast_to(live, points)

    def read(buffer: Array, index: Any, *conditions: Any) -> Array:
        index, live = reached(index, conditions)
        result = np.zeros(points, buffer.dtype)
        place = index[live]
        result[live] = buffer[place] if buffer.ndim == 1 else buffer[point[live], place]
        return result

    def write(buffer: Array, index: Any, value: Any, *conditions: Any) -> None:
        index, live = reached(index, conditions)
        place = index[live] if buffer.ndim == 1 else (point[live], index[live])
        buffer[place] = np.broadcast_to(value, points)[live]

    def op(name: str, *operands: Any, **attributes: Any) -> Array:
        arrays = np.broadcast_arrays(*operands)
        return np.asarray(lookup(name).reference(*arrays, **attributes))

    words: dict[str, Any] = {f"b{n}": simulated_memory.array(v) for n, v in enumerate(views)}
    words |= {dtype.name: dtype for dtype in STORED} | {"inf": np.inf, "point": point}
    words |= {"load": read, "store": write, "op": op, "const": _constant, "inside": _inside}
    words["tile"] = lambda dtype, size: np.zeros((points, size), dtype.numpy)
    words["counter"] = lambda index, dtype: np.asarray(index).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        exec(loaded, words)


def _constant(value: float, dtype: DType) -> Array:
    return np.array(value).astype(dtype.numpy)


def _inside(index: Any, low: int, high: int) -> Any:
    return (np.asarray(index) >= low) & (np.asarray(index) < high)
