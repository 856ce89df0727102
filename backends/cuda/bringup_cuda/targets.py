"""Capabilities of each NVIDIA architecture, as data."""

from __future__ import annotations

from bringup.backend import Capabilities, Limits, Shapes
from bringup.backend.capabilities import RowClaims
from bringup.dtypes import STORED
from bringup.errors import UnsupportedError
from bringup.llvm.claims import emitter_claims
from bringup.target import Target

WARP = 32
#: Registers of 32 bits of a multiprocessor.
REGISTERS = 1 << 16
#: Bytes of shared memory that CUDA itself takes in each block, from compute capability 8.0 on.
SHARED_RESERVED = 1 << 10
#: The PTX version that knows all architectures of the table.
PTX_FEATURE = "+ptx87"
#: What "no target" means: the oldest architecture that current toolkits compile for.
BASELINE = "sm_75"
#: Instructions by the compute capability that brought them: minima and maxima that propagate NaN,
#: conversions to bf16, and copies to shared memory that do not wait, once by the name that the op
#: library has for them, as for products of tiles.
_BROUGHT = {
    "maximum": 80,
    "minimum": 80,
    "f32_to_bf16": 80,
    "cp.async": 80,
    "later": 80,
    "matrices": 80,
}


def _row(name: str, shared_kib: int, multiprocessors: int) -> Target:
    """A row of the table, with what is common to all of them.

    shared_kib: that one block may opt in to.  multiprocessors: of the largest product; how fast a
    tile is depends on them, but never what a sum is made of.
    """
    instructions = [each for each, first in _BROUGHT.items() if number_of(name) >= first]
    return Target(
        name,
        registers=REGISTERS,
        thread_registers=255,
        line_bytes=128,  # a warp that reads 32 words in a row makes one transaction
        threads=1 << 17,  # a hundred multiprocessors with about a thousand threads each
        warp=WARP,
        block=256,  # two to eight of them fit on a multiprocessor, whatever registers they take
        most_threads=1024,
        shared_bytes=shared_kib << 10,
        multiprocessors=multiprocessors,
        instructions=("atomic", *instructions, *(["wgmma"] if name == "sm_90a" else [])),
    )


def number_of(architecture: str) -> int:
    """The number of an architecture: 90 for ``sm_90`` and for ``sm_90a``.

    Code for ``sm_90a`` runs on GPUs of exactly this capability, and may use what only they have.
    """
    return int(architecture.removeprefix("sm_").rstrip("a"))


#: Every architecture that there is code for, oldest first.  Shared memory and registers are those
#: of "Technical Specifications per Compute Capability" in the CUDA C++ Programming Guide.
TARGETS = {
    row.name: row
    for row in (
        _row("sm_75", 64, 72),
        _row("sm_80", 163, 108),
        _row("sm_86", 99, 84),
        _row("sm_87", 163, 16),
        _row("sm_89", 99, 142),
        _row("sm_90", 227, 132),
        _row("sm_90a", 227, 132),
        _row("sm_100", 227, 148),
        _row("sm_120", 99, 188),
    )
}


#: Sides of the tiles of contractions (`codegen.contraction.tiles`); sums are cut at the last.
TILE_SIDES = (8, 16, 32, 64, 128, 256)
#: Multiplications from which a matrix product is large enough for warpgroups, which only code for
#: exactly this architecture has.
WARPGROUP_PRODUCTS = {"sm_90a": 768 * 768 * 256}
#: Ops on whole buffers that are no loop nest of a kernel.
OP_STEPS = (
    "attention",
    "cholesky",
    "cumulative",
    "dynamic_update_slice",
    "lu",
    "qr",
    "scatter",
    "sort",
    "triangular_solve",
)
# cuMemAlloc returns memory aligned to 256 bytes; arena slots keep that.
ALIGNMENT = 256
#: The alignment that the widest loads of kernels need at the start of a buffer.
ROW_ALIGNMENT = 16
# Kernel parameters fill at most 4 KiB, 8 bytes a pointer; half of that leaves room for sizes.
MAX_BUFFERS = 256


def target_of(name: str) -> Target:
    """The row of an architecture such as ``sm_90``; of `BASELINE` if ``name`` is empty.

    Raises UnsupportedError for an architecture that is not in the table.
    """
    row = TARGETS.get(name or BASELINE)
    if row is None:
        known = ", ".join(TARGETS)
        raise UnsupportedError(f"no architecture {name!r}", fix=f"use one of {known}")
    return row


def capabilities_of(target: str) -> Capabilities:
    """Capabilities of an architecture such as ``sm_90``; of `BASELINE` if ``target`` is empty.

    Raises UnsupportedError for an architecture that is not in the table.
    """
    row = target_of(target)
    tiles = row.tile_bytes
    return Capabilities(
        ops=RowClaims(dict.fromkeys(OP_STEPS, frozenset(STORED))),
        kernels=emitter_claims(),
        limits=Limits(buffers=MAX_BUFFERS, row_elements=tiles // 4, tile_bytes=tiles),
        shapes=Shapes(
            vector=row.warp,
            block=row.block,
            contraction=TILE_SIDES,
            products=WARPGROUP_PRODUCTS.get(row.name, 0),
        ),
        alignment=ALIGNMENT,
        asynchronous=True,
        target=row.name,
    )
