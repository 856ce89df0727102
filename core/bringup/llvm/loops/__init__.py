"""Kernels as loops over explicit vectors, for processors that loop (CPUs)."""
