"""Capabilities of each NVIDIA architecture, as data."""

from __future__ import annotations

from bringup.backend import Capabilities, Limits, Shapes
from bringup.backend.capabilities import RowClaims
from bringup.dtypes import STORED
from bringup.errors import UnsupportedError
from bringup.llvm.claims import emitter_claims

# Shared memory one thread block may opt in to, KiB: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
SHARED_KIB = {
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_90": 227,
    "sm_90a": 227,
    "sm_100": 227,
    "sm_120": 99,
}
#: The PTX version that knows all of them.
PTX_FEATURE = "+ptx87"
#: What "no target" means: the oldest architecture that current toolkits compile for.
BASELINE = "sm_75"

#: Shared memory for tiles, KiB; the remainder is for partial results of a block.
TILE_KIB = {name: kib - 4 for name, kib in SHARED_KIB.items()}

#: Bytes of shared memory that CUDA itself takes in each block, from compute capability 8.0 on.
SHARED_RESERVED = 1 << 10

WARP = 32
BLOCK = 256
#: Sides of the tiles of contractions (`codegen.contraction.tiles`); sums are cut at the last.
TILE_SIDES = (8, 16, 32, 64, 128, 256)
#: Multiplications from which a matrix product is large enough for warpgroups, which only code for
#: exactly this architecture has.
WARPGROUP_PRODUCTS = {"sm_90a": 768 * 768 * 256}
#: The emitter of each op that is an op step, as ``module:function`` in `bringup_cuda.codegen`.
STEP_EMITTERS = {
    "attention": "contraction.attention:emit_attention_step",
    "cholesky": "steps.factorization:emit_cholesky",
    "cumulative": "steps.library:emit_library",
    "dynamic_update_slice": "steps.library:emit_library",
    "lu": "steps.factorization:emit_lu",
    "qr": "steps.factorization:emit_qr",
    "scatter": "steps.scatter:emit_scatter",
    "sort": "steps.library:emit_library",
    "triangular_solve": "steps.factorization:emit_triangular_solve",
}
# cuMemAlloc returns memory aligned to 256 bytes; arena slots keep that.
ALIGNMENT = 256
# Kernel parameters fill at most 4 KiB, 8 bytes a pointer; half of that leaves room for sizes.
MAX_BUFFERS = 256


def number_of(architecture: str) -> int:
    """The number of an architecture: 90 for ``sm_90`` and for ``sm_90a``.

    Code for ``sm_90a`` runs on GPUs of exactly this capability, and may use what only they have.
    """
    return int(architecture.removeprefix("sm_").rstrip("a"))


def capabilities_of(target: str) -> Capabilities:
    """Capabilities of an architecture such as ``sm_90``; of `BASELINE` if ``target`` is empty.

    Raises UnsupportedError for an architecture that is not in the table.
    """
    name = target or BASELINE
    if name not in SHARED_KIB:
        known = ", ".join(SHARED_KIB)
        raise UnsupportedError(f"no architecture {name!r}", fix=f"use one of {known}")
    shared = TILE_KIB[name] * 1024
    return Capabilities(
        ops=RowClaims(dict.fromkeys(STEP_EMITTERS, frozenset(STORED))),
        kernels=emitter_claims(),
        limits=Limits(buffers=MAX_BUFFERS, row_elements=shared // 4, tile_bytes=shared),
        shapes=Shapes(
            vector=WARP,
            block=BLOCK,
            contraction=TILE_SIDES,
            products=WARPGROUP_PRODUCTS.get(name, 0),
        ),
        alignment=ALIGNMENT,
        asynchronous=True,
        target=name,
    )
