"""Resampling, as ``bringup.nn`` names it."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.axes import axis_of, choice_of, flag_of, items_of, shape_of
from bringup.api.broadcasting import as_array, as_float
from bringup.api.promotion import Operand
from bringup.errors import OpTypeError
from bringup.graph import user_location


def resize(
    x: Operand,
    shape: Sequence[int],
    method: str = "linear",
    antialias: bool = False,
    *,
    axis: Sequence[int] | None = None,
) -> Array:
    """`x` resampled to a shape, at half-pixel centres.

    shape: the sizes of all axes, or of those in `axis`.
    method: "nearest", any dtype; "linear" or "cubic", floats.
    antialias: where an axis shrinks, weigh all it had, not only the nearest.

    >>> bu.nn.resize(bu.asarray([0.0, 4.0]), (4,)).tolist()
    [0.0, 1.0, 3.0, 4.0]
    >>> bu.nn.resize(bu.asarray([[1, 2]]), (4,), axis=(1,), method="nearest").tolist()
    [[1, 1, 2, 2]]
    """
    choice_of("resize", "method", method, ("nearest", "linear", "cubic"))
    x = as_array(x) if method == "nearest" else as_float(x)
    sizes = shape_of("resize", shape)
    axes = (
        range(x.ndim)
        if axis is None
        else [axis_of("resize", a, x.ndim) for a in items_of("resize", "axis", axis)]
    )
    if len(sizes) != len(axes) or len(set(axes)) != len(axes):
        raise OpTypeError(
            f"resize: sizes {sizes} are given for axes {tuple(axes)} of {x.type}",
            location=user_location(),
            fix="give one size for each axis, or name the axes",
        )
    table = dict(zip(axes, sizes, strict=True))
    full = tuple(table.get(d, n) for d, n in enumerate(x.shape))
    attrs = {
        "shape": full,
        "method": method,
        "antialias": flag_of("resize", "antialias", antialias),
    }
    return apply("resize", (x,), attrs)
