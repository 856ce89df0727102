"""What users call: arrays, the functions of the array API standard, `jit` and `grad`."""
