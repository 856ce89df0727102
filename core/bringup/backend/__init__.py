"""The seam between core and devices: what a vendor implements, and how core finds it.

A plugin names a module in its metadata (`bringup.backend.plugin`), which makes a `Backend`, which
opens a `Device`: an `OpsDevice`, a `KernelsDevice`, or one that compiles whole programs itself.

The names come from `bringup.backend.seam`, imported when one is first asked for: `import bringup`
needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.backend.seam import *  # noqa: F403  (its __all__ is explicit)


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("bringup.backend.seam"), name)
