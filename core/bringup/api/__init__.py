"""What users call: arrays, the functions of the array API standard, `jit` and `grad`."""

# First of all modules here: the functions need the class, and the class needs the functions when it
# is used.
from bringup.api.array import Array

__all__ = ["Array"]
