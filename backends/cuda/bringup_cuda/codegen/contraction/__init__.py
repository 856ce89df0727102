"""Contractions on NVIDIA GPUs: products of matrices and convolutions."""

from __future__ import annotations
