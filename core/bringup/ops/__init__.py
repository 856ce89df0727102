"""The ops: every row of the table under its name, and the table itself.

Rows whose name is a Python keyword or builtin are also here under the name with an underscore;
``ops.max`` and ``ops.max_`` are the same row, while ``and`` and ``or`` are only ``ops.and_`` and
``ops.or_``.  The rows are defined when one is first asked for, here or in the table: importing the
package does not need them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.ops.catalogue import *  # noqa: F403  (its __all__ is explicit)


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("bringup.ops.catalogue"), name)
