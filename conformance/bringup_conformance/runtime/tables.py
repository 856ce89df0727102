"""All promises, by area."""

from __future__ import annotations

from bringup_conformance.runtime import aliasing, memory, transfers
from bringup_conformance.runtime.bench import Promise

PROMISES: tuple[Promise, ...] = (*memory.PROMISES, *aliasing.PROMISES, *transfers.PROMISES)
