"""C from loops: a renderer, a scalar library, and dialects that are tables."""

from bringup.c.claims import c_claims
from bringup.c.dialect import C11, CUDA, DIALECTS, HIP, METAL, OPENCL, Dialect
from bringup.c.geometry import Geometry, geometry, units
from bringup.c.render import render_all, render_c, scratch_bytes, symbol

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
