"""C from loops: a renderer, a scalar library, and dialects that are tables."""

from bringup.c.claims import c_claims
from bringup.c.dialect import C11, CUDA, DIALECTS, HIP, METAL, OPENCL, Dialect
from bringup.c.render import (
    Geometry,
    geometry,
    render_all,
    render_c,
    scratch_bytes,
    symbol,
    units,
)

__all__ = [
    "C11",
    "CUDA",
    "DIALECTS",
    "HIP",
    "METAL",
    "OPENCL",
    "Dialect",
    "Geometry",
    "c_claims",
    "geometry",
    "render_all",
    "render_c",
    "scratch_bytes",
    "symbol",
    "units",
]
