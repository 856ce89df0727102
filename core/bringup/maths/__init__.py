"""Elementary functions that have one definition for every way to compute them.

A definition is written over `arithmetic.Arithmetic`.  It becomes LLVM instructions through
``llvm/math`` and a graph of ops, which any device can run, through ``ops/graph_arithmetic.py``.
"""

#: The ops that these definitions compute; they take floats alone.
ELEMENTARY = (
    "exp", "log", "sin", "cos", "tan", "tanh", "pow", "erf", "log1p", "expm1", "logistic", "atan",
    "atan2",
)  # fmt: skip

__all__ = ["ELEMENTARY"]
