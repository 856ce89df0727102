"""The row print: text with values, for whoever debugs a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.dtypes import STORED, bool_
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import Attr, Attrs, Kind, Trait, Types, define
from bringup.types import TensorType


def show(arrays: Sequence[Array], *, text: str, names: str) -> None:
    """Print a text with values in the places of its braces, as `str.format` does.

    names: of the last arrays, a word each; the others go by position.  Arrays of no dimension are
    numpy scalars.  An empty text prints nothing.
    """
    if not text:
        return
    values = [x[()] if not x.shape else x for x in arrays]
    words = names.split()
    first = len(values) - len(words)
    named = dict(zip(words, values[first:], strict=True))
    print(text.format(*values[:first], **named), flush=True)  # noqa: T201


def _infer(operands: Types, attrs: Attrs) -> Types:
    words = attrs["names"].split()
    if len(words) > len(operands):
        raise OpTypeError(f"print: {len(words)} names for {len(operands)} operands", fix="one each")
    return (TensorType((), bool_),)


def _batch(
    operands: Sequence[Value], batched: Sequence[bool], size: int, /, *, text: str, names: str
) -> Value:
    """A line for each example, in order."""
    found = build.splat(False, TensorType((), bool_))
    for n in range(size):
        given = []
        for x, flag in zip(operands, batched, strict=True):
            one = build.slice_dim(x, 0, n, n + 1) if flag else x
            given.append(build.reshape(one, x.shape[1:]) if flag else x)
        found = rows.print(*given, text=text, names=names)
    return found


print_ = define(
    name="print",
    arity=None,
    kind=Kind.CONTROL,
    doc=(
        "Prints text with the operands in the places of its braces, once for each run of the "
        "graph that it stands in, after all prints before it. Core does it for every device, "
        "and runs the loops and branches that hold one. The result is false and says nothing."
    ),
    attrs=(
        Attr("text", "str", "as str.format takes it"),
        Attr("names", "str", "of the last operands, words between blanks", default=""),
    ),
    infer=_infer,
    reference=lambda *operands, text, names: np.False_,
    batch=_batch,
    dtypes=STORED,
    special=tuple(
        Special((x,), "unspecified", ("float",), (("text", "{}"), ("names", "")))
        for x in ("nan", "inf")
    ),
    traits=frozenset({Trait.EFFECT}),
)

__all__ = ["print_", "show"]
