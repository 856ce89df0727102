"""Contractions on NVIDIA GPUs: products of matrices, convolutions and attention."""
