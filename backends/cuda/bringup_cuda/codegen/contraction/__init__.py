"""Contractions on NVIDIA GPUs: products of matrices, convolutions and attention."""

from __future__ import annotations
