"""Elementary functions that have one definition for every way to compute them.

A definition is written over `arithmetic.Arithmetic`.  It becomes LLVM instructions through
``llvm/math`` and a graph of ops, which any device can run, through ``ops/graph_arithmetic.py``.
"""
