"""Arrays as text, laid out by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.dtypes import f32
from bringup.errors import TraceError
from bringup.tracing.context import Traced


def represent(x: Array) -> str:
    """``Array([1., 2.], dtype=float32, device=name)``; no values for traced and deleted arrays."""
    hidden = _hidden(x)
    if hidden is not None:
        return hidden
    head = "Array("
    body = _values(x, separator=", ", prefix=head)
    shape = f", shape={x.shape}" if not x.size and x.ndim > 1 else ""  # as numpy does
    return f"{head}{body}{shape}, dtype={x.dtype.long_name}, device={x.device})"


def plain(x: Array) -> str:
    """The values as numpy prints them."""
    return _hidden(x) or _values(x, separator=" ", prefix="")


def _values(x: Array, *, separator: str, prefix: str) -> str:
    host: np.ndarray[Any, Any] = x._host("the text of")
    if x.dtype.is_storage or (x.dtype.is_float and host.dtype.kind == "V"):
        host = host.astype(f32.numpy)  # numpy lays out none of ml_dtypes
    if not host.ndim and separator == " ":
        return str(host[()])
    return np.array2string(host, separator=separator, prefix=prefix)


def _hidden(x: Array) -> str | None:
    if x.is_deleted:
        return f"Array<{x.type}, deleted: it was donated>"
    if isinstance(x._node, Traced):
        try:
            x._concrete("the text of")
        except TraceError:
            return f"Array<{x.type}, traced in {x._node.trace.name!r}>"
    return None
