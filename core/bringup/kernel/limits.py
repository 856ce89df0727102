"""Sizes that bound what one kernel may be."""

from __future__ import annotations

from bringup.records import record


@record(kw_only=True)
class Limits:
    """Sizes a device cannot exceed; beyond them programs are split, or refused by the limit's name.

    rank: dimensions.
    elements: of one array.
    buffers: of one kernel.
    stages: with a loop, of one kernel; 1 means elementwise chains and single reductions only.
    row_elements: of a row that several stages may revisit (what stays in cache or scratchpad).
    tile_bytes: scratch of one grid point.
    memory_bytes: of the device, 0 if unknown.
    loop_runs: how often the bodies of a loop of known length may run, those of loops within it
    together, for a device of kernels or loops that runs step by step: its program then has the
    launches of each run.  0 for a device that claims the loops that it runs, or none.
    """

    rank: int = 32
    elements: int = 2**48
    buffers: int = 32
    stages: int = 16
    row_elements: int = 1 << 16
    tile_bytes: int = 1 << 18
    memory_bytes: int = 0
    loop_runs: int = 0
