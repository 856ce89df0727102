"""The ops: every row of the table under its name, and the table itself.

Rows whose name is a Python keyword or builtin are also here under the name with an underscore;
``ops.max`` and ``ops.max_`` are the same row, while ``and`` and ``or`` are only ``ops.and_`` and
``ops.or_``.  A row is defined when it is first asked for, here or in the table: a process that adds
two numbers does not read how matrices are factored.
"""

from __future__ import annotations

import builtins
import keyword

from bringup.ops.catalogue import MODULE_OF
from bringup.ops.table import OpDef, all_ops, find, lookup


def __getattr__(name: str) -> OpDef:
    row = find(name.rstrip("_"))
    if row is None or not (name == row.name or name == f"{row.name}_" in __all__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return row


def _exported(name: str) -> list[str]:
    if keyword.iskeyword(name):
        return [f"{name}_"]
    return [name, f"{name}_"] if hasattr(builtins, name) else [name]


__all__ = ["OpDef", "all_ops", "find", "lookup"]
__all__ += [exported for name in MODULE_OF for exported in _exported(name)]
