"""An array as a table, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.html.markup import Markup, join, tag

#: Rows and columns that are shown at each end of a longer dimension.
_ENDS = 5


def array_table(values: np.ndarray[Any, Any], caption: str) -> Markup:
    """The values of the first matrix of an array; of long dimensions only both ends.

    caption: what stands above.
    """
    leading = values.shape[:-2]
    first = values[(0,) * len(leading)] if values.size else values
    where = f"[{', '.join('0' * len(leading))}, :, :] of " if leading and values.size else ""
    head = tag("div", tag("code", where + caption))
    if not values.size:
        return head
    rows = np.atleast_2d(first)
    down, across = _shown(rows.shape[0]), _shown(rows.shape[1])
    body = [
        tag("tr", [tag("td", "…" if n is None or m is None else _text(rows[n, m])) for m in across])
        for n in down
    ]
    return join((head, tag("table", tag("tbody", body))))


def _shown(size: int) -> Sequence[int | None]:
    """The numbers that are shown of so many, None for those between."""
    if size <= 2 * _ENDS:
        return range(size)
    return [*range(_ENDS), None, *range(size - _ENDS, size)]


def _text(value: Any) -> str:
    return np.array2string(np.asarray(value))
