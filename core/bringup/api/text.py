"""Arrays as text, laid out by numpy."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from bringup.api.array import Array
from bringup.dtypes import f32
from bringup.errors import MissingAttributeError, TraceError
from bringup.graph import user_location
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


# Methods and attributes of other libraries' arrays, and what stands for them here.
_INSTEAD = {
    "copy": "x itself: arrays are immutable",
    "dot": "x @ y",
    "flatten": "bringup.reshape(x, -1)",
    "numpy": "numpy.asarray(x)",
    "ravel": "bringup.reshape(x, -1)",
    "transpose": "x.T, or bringup.permute_dims(x, axes)",
}


def missing(x: Array, name: str, namespace: Any) -> MissingAttributeError:
    """The error for an attribute that arrays do not have.

    namespace: the public module, whose functions are the usual replacement.
    """
    own = [n for n in dir(type(x)) if not n.startswith("_")]
    close = difflib.get_close_matches(name, own, n=1)
    fix = _INSTEAD.get(name)
    if fix is None and callable(getattr(namespace, name, None)):
        fix = f"bringup.{name}(x, …)"
    if fix is None and close:
        fix = f"x.{close[0]}"
    fix = f"use {fix}" if fix is not None else f"arrays have {', '.join(own)}"
    return MissingAttributeError(
        f"{x.type} has no attribute {name!r}", location=user_location(), fix=fix
    )


#: Functions of numpy that the standard calls otherwise.
STANDARD = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "concatenate": "concat",
    "conjugate": "conj",
    "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum",
    "dot": "matmul",
    "fabs": "abs",
    "float_power": "pow",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "swapaxes": "moveaxis",
    "true_divide": "divide",
    "transpose": "permute_dims",
}


#: What stands for other functions of numpy.
_RECIPES = {
    "allclose": "bringup.all(bringup.abs(a - b) <= tolerance)",
    "argwhere": "bringup.nonzero",
    "average": "bringup.mean, or bringup.sum(w * x) / bringup.sum(w)",
    "bincount": "bringup.zeros(n).at[i].add(1)",
    "convolve": "bringup.nn.conv, whose windows are not reversed",
    "diag": "bringup.linalg.diagonal(x), or x[:, None] * bringup.eye(n)",
    "fft2": "bringup.fft.fftn(x, axes=(-2, -1))",
    "histogram": "bringup.searchsorted and bringup.zeros(n).at[i].add(1)",
    "hstack": "bringup.concat with axis=1",
    "identity": "bringup.eye",
    "inner": "bringup.vecdot",
    "isclose": "bringup.abs(a - b) <= tolerance",
    "lstsq": "bringup.linalg.pinv(a) @ b",
    "nan_to_num": "bringup.where(bringup.isnan(x), 0.0, x)",
    "pad": "bringup.zeros(shape).at[window].set(x)",
    "percentile": "bringup.quantile(x, q / 100)",
    "ravel": "bringup.reshape(x, -1)",
    "select": "bringup.where",
    "split": "slices of x, or bringup.unstack",
    "vstack": "bringup.concat",
}


def missing_function(
    name: str, names: Sequence[str], module: str = "bringup"
) -> MissingAttributeError:
    """The error for a name that a public module does not have.

    names: those it has.
    module: what users call it.
    """
    close = [n for n in names if n in (STANDARD.get(name), f"vector_{name}", f"matrix_{name}")]
    close = close or difflib.get_close_matches(name, names, n=3, cutoff=0.75)
    use = _RECIPES.get(name) or " or ".join(f"{module}.{n}" for n in close)
    return MissingAttributeError(
        f"{module} has no {name!r}",
        location=user_location(),
        fix=f"use {use}"
        if use
        else f"names are those of the Python array API standard; dir({module}) lists them",
    )


def explain_missing(module: ModuleType, called: str) -> None:
    """Let a public module answer for names that it does not have as `missing_function` does.

    called: what users call it.
    """
    own = vars(module)
    names = own.get("__all__") or [n for n in own if not n.startswith("_")]

    def missing(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"module {called!r} has no attribute {name!r}")
        raise missing_function(name, names, called)

    own.setdefault("__getattr__", missing)


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
