"""The kernel level: one launch as a grid of stages, and how graphs are cut into kernels."""
