"""Op steps as native functions for CPUs: what is no loop nest over affine indices."""
