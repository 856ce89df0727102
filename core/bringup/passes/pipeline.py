"""The list of passes, in order."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.passes.base import Available, Maker, Pass, everything
from bringup.passes.dce import dce
from bringup.passes.decompose import decompose
from bringup.passes.fold import fold
from bringup.passes.simplify import canonicalise, cse, simplify

#: Every pass between the traced graph and fusion.  Simplification comes first because it knows
#: better than a decomposition what to make of ``pow(x, 2)``.  It also folds and merges what it
#: makes; fold, canonicalise and cse stand for themselves so that any of them can be left out.
PIPELINE: tuple[Maker, ...] = (simplify, decompose, fold, canonicalise, simplify, cse, dce)


def passes_for(
    available: Available, extra: Iterable[Pass] = (), *, without: Iterable[str] = ()
) -> tuple[Pass, ...]:
    """The passes for a device.

    extra: passes of its backend, run last, before fusion.
    without: names of passes to leave out, to find the one at fault.

    >>> [each.name for each in passes_for(lambda instr: True)]
    ['simplify', 'decompose', 'fold', 'canonicalise', 'simplify', 'cse', 'dce']
    """
    left_out = set(without)
    passes = (*(make(available) for make in PIPELINE), *extra)
    return tuple(each for each in passes if each.name not in left_out)


def freezing_passes(known: frozenset[int]) -> tuple[Pass, ...]:
    """The passes between a traced graph and the cut at what is known of it; see `known.split`.

    known: positions of the inputs whose values are known.

    >>> [each.name for each in freezing_passes(frozenset({0}))]
    ['simplify', 'dce', 'fold_scales', 'cse', 'dce']
    """
    from bringup.passes.fold_scales import fold_scales  # frozen functions alone need it

    # Simplified first, without what nobody reads any more: readers decide what may be folded.
    first = (simplify(everything), dce(everything))
    return (*first, fold_scales(known), cse(everything), dce(everything))
