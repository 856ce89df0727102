"""Einstein summation: pairs of operands in the order of numpy's path, each one product."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, convert
from bringup.api.manipulation import permute_dims, reshape
from bringup.api.promotion import common
from bringup.dtypes import Precision
from bringup.errors import OpTypeError

#: An operand and a letter for each of its dimensions.
Labelled = tuple[Array, str]


def einsum(
    subscripts: str,
    /,
    *operands: Operand,
    optimize: str = "greedy",
    precision: Precision = "highest",
) -> Array:
    """Sums of products over the letters that the result lacks, as numpy's function of that name.

    subscripts: letters for the dimensions of each operand, parted by commas, then perhaps ``->``
    and those of the result; by default those that occur once, sorted. ``...`` stands for the
    dimensions before or between that have no letter, and broadcasts.
    optimize: how `numpy.einsum_path` orders the products: "greedy" or "optimal".
    precision: of sums of products, as in `bringup.matmul`.  f16 and bf16 accumulate in f32.

    >>> bu.einsum("ij,kj->ik", bu.asarray([[1, 2]]), bu.asarray([[1, 1], [2, 0]])).tolist()
    [[3, 2]]
    """
    arrays = [as_array(x) for x in operands]
    if not isinstance(subscripts, str):
        raise _wrong(subscripts, arrays, "it is no text", "name the dimensions, as in 'ij,jk->ik'")
    if not arrays:
        raise _wrong(subscripts, arrays, "no operand is given", "pass an array for each term")
    if optimize not in ("greedy", "optimal"):
        raise _wrong(subscripts, arrays, f"optimize={optimize!r}", 'use "greedy" or "optimal"')
    dtype, _ = common(arrays)
    if dtype.kind == "bool":
        raise _wrong(subscripts, arrays, "the operands are no numbers", "convert them first")
    terms, result = _parsed(subscripts, arrays)
    sizes = _sizes(subscripts, terms, arrays)
    todo = [_simple(convert(x, dtype), term, sizes) for x, term in zip(arrays, terms, strict=True)]
    for places in _path(todo, result, optimize):
        chosen = [todo[i] for i in places]
        rest = [one for i, one in enumerate(todo) if i not in places]
        wanted = {*result, *(letter for _, term in rest for letter in term)}
        first, *others = chosen
        for at, other in enumerate(others, 1):
            later = {letter for _, term in others[at:] for letter in term}
            first = _product(first, other, wanted | later, precision)
        todo = [*rest, _summed(first, wanted)]
    array, term = todo[0]
    return permute_dims(array, tuple(term.index(letter) for letter in result))


# -- letters ---------------------------------------------------------------------------------------


def _parsed(subscripts: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """A letter for every dimension of each operand, and those of the result."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        what = f"{len(terms)} terms for {len(arrays)} operands"
        raise _wrong(subscripts, arrays, what, "part the terms by commas, one per operand")
    free = [c for c in string.ascii_letters[::-1] if c not in text]
    extra = [x.ndim - len(t.replace("...", "")) for x, t in zip(arrays, terms, strict=True)]
    for x, term, count in zip(arrays, terms, extra, strict=True):
        if count < 0 or (count and "..." not in term):
            what = f"the term {term!r} does not fit {x.type}"
            raise _wrong(subscripts, arrays, what, "give each dimension a letter, or use ...")
    spare = max((n for n, t in zip(extra, terms, strict=True) if "..." in t), default=0)
    if spare > len(free):
        raise _wrong(subscripts, arrays, "the letters do not suffice", "reshape the operands")
    dots = "".join(free[:spare])
    terms = [t.replace("...", dots[spare - n :]) for n, t in zip(extra, terms, strict=True)]
    if arrow:
        result = right.replace("...", dots)
    else:
        once = Counter("".join(terms).translate(str.maketrans("", "", dots)))
        result = dots + "".join(sorted(c for c, n in once.items() if n == 1))
    known = set("".join(terms))
    if not all(map(str.isalpha, known | set(result))):
        raise _wrong(subscripts, arrays, "it has other signs than letters", "use a to z, A to Z")
    if len(set(result)) < len(result) or not known.issuperset(result):
        what = f"the result {right!r} repeats letters or has new ones"
        raise _wrong(subscripts, arrays, what, "name letters of the operands once each")
    return terms, result


def _sizes(subscripts: str, terms: Sequence[str], arrays: Sequence[Array]) -> dict[str, int]:
    """The size of each letter; 1 stretches."""
    sizes: dict[str, int] = {}
    for term, x in zip(terms, arrays, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            before = sizes.setdefault(letter, n)
            if 1 not in (before, n) and before != n:
                what = f"{letter!r} has sizes {before} and {n}"
                raise _wrong(subscripts, arrays, what, "make the sizes equal, or one of them 1")
            sizes[letter] = n if before == 1 else before
    return sizes


def _path(todo: Sequence[Labelled], result: str, optimize: str) -> Iterable[tuple[int, ...]]:
    if len(todo) == 1:
        return [(0,)]
    text = ",".join(term for _, term in todo) + "->" + result
    # Arrays of these shapes that take no memory: the path depends on sizes alone.
    shells = [np.broadcast_to(np.empty(()), x.shape) for x, _ in todo]
    kind: Any = optimize
    path: Iterable[tuple[int, ...]] = np.einsum_path(text, *shells, optimize=kind)[0][1:]
    return path


# -- products --------------------------------------------------------------------------------------


def _simple(x: Array, term: str, sizes: dict[str, int]) -> Labelled:
    """The operand without dimensions that stretch, and with each letter once: its diagonal."""
    kept = [d for d, letter in enumerate(term) if x.shape[d] == sizes[letter]]
    x, term = reshape(x, tuple(x.shape[d] for d in kept)), "".join(term[d] for d in kept)
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first = term.index(letter)
        second = term.index(letter, first + 1)
        others = [d for d in range(len(term)) if d not in (first, second)]
        x, term = (
            _diagonal(permute_dims(x, (*others, first, second))),
            "".join([*(term[d] for d in others), letter]),
        )
    return x, term


def _diagonal(x: Array) -> Array:
    """The elements whose last two indices are equal."""
    n = x.shape[-1]
    flat = reshape(x, (*x.shape[:-2], n * n))
    return flat[..., :: n + 1]


def _summed(one: Labelled, wanted: set[str]) -> Labelled:
    x, term = one
    dims = tuple(d for d, letter in enumerate(term) if letter not in wanted)
    if not dims:
        return one
    total = apply("reduce", (x,), {"kind": "add", "dims": dims})
    return total, "".join(letter for letter in term if letter in wanted)


def _product(a: Labelled, b: Labelled, wanted: set[str], precision: Precision) -> Labelled:
    """Both multiplied and summed over the letters nobody wants."""
    (x, left), (y, right) = _summed(a, wanted | set(b[1])), _summed(b, wanted | set(a[1]))
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in wanted]
    over = [letter for letter in shared if letter not in wanted]
    term = "".join([*batch, *(c for c in left + right if c not in shared)])
    if not over:
        return _spread(x, left, term) * _spread(y, right, term), term
    attrs = {
        "batch": (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
        "contract": (tuple(map(left.index, over)), tuple(map(right.index, over))),
        "precision": precision,
    }
    return apply("dot_general", (x, y), attrs), term


def _spread(x: Array, term: str, target: str) -> Array:
    """The operand in the order of `target`, with size 1 where it has no letter."""
    order = [term.index(letter) for letter in target if letter in term]
    sizes = dict(zip(term, x.shape, strict=True))
    return reshape(permute_dims(x, order), tuple(sizes.get(letter, 1) for letter in target))


def _wrong(subscripts: str, arrays: Sequence[Array], what: str, fix: str) -> OpTypeError:
    shown = " and ".join(str(x.type) for x in arrays)
    where = f" of {shown}" if shown else ""
    return OpTypeError(f"einsum: {subscripts!r}{where}: {what}", fix=fix)
