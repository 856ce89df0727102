"""What Template can do: what core makes programs for, and what the suite holds it to."""

from __future__ import annotations

from bringup.backend import Capabilities, Limits, claims
from bringup.dtypes import STORED

#: What may stand in a kernel, by the names of the op table; core decomposes the rest.  Ops that
#: move elements need no claim: they become indices of loads.
KERNELS = """
    neg abs floor exp log sqrt sin cos tanh add sub mul div rem pow max min and or xor shl shr
    compare select convert bitcast reduce dot_general
""".split()  # noqa: SIM905

CAPABILITIES = Capabilities(
    # With every dtype; ["bool", "i32", "u32", "f32"] do for a beginning.
    kernels=claims(KERNELS, STORED),
    # Up to so many runs of a loop are launches of one program.  What a kernel may hold:
    # tile_bytes=1 << 16, buffers=16.
    limits=Limits(loop_runs=512),
    # Sizes at which your code changes path: shapes=Shapes(vector=8, block=256).
    # Offsets of views are multiples of 64 bytes; if the driver needs more: alignment=128.
    # Take this away when nothing is simulated any more.
    simulated=True,
)
