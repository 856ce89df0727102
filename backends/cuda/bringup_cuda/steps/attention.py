"""Attention, whose kernel stands with the contractions."""

from __future__ import annotations

from bringup_cuda.contraction.render import render_attention as render

__all__ = ["render"]
