"""The rules of canonicalise and simplify: one function each, whose docstring is its test.

Every rule is exact: the replacement has the bits of the original, on special values too (one NaN
counts as another).  So there is no ``x + 0.0 -> x`` (wrong for -0.0) and no float ``x * 0 -> 0``
(wrong for inf and NaN); sums of floats are never reordered by value.  Where a rule departs from
that, its docstring says by how much.
"""
