"""The rules of numerics: how near every result has to be, special values aside."""

from __future__ import annotations

from bringup_conformance.rules.form import Rule

_SENTENCES = {
    "elementwise": "A result of an elementwise op is within the op's declared units in the last "
    "place of the exact one.",
    "sums": "Sums, products, dots and scans are within (L + log₂(n/L) + c)·u·Σ|x| of the exact "
    "ones, L being the longest chain that the device declares.",
    "precision": "Factors of f32 keep all their bits unless an op asks for less; with tf32 they "
    "may be rounded to nearest, to mantissas of 10 bits or more, and sums are as near as ever to "
    "those of the rounded factors.",
    "moves": "What an op moves keeps its bits, NaN payloads and signs of zero too.",
    "integers": "Integers, booleans and comparisons are exact; integers wrap.",
    "programs": "Results of whole programs are within the bound that the bounds of their ops give, "
    "propagated through the graph.",
    "exact-data": "Where every partial result is representable, results are bit-equal to the exact "
    "ones, in any order and any fusion.",
    "unfused": "A program run instruction by instruction is right as well.",
    "mapped": "A program mapped over examples gives for each example what it gives for that one "
    "alone.",
    "residuals": "Factors and solutions of matrices do what they are for within the bound of the "
    "op.",
}

NUMERICS: tuple[Rule, ...] = tuple(
    Rule(f"numerics.{slug}", says) for slug, says in _SENTENCES.items()
)
