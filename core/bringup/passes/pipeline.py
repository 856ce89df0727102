"""The lists of passes, in order."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.errors import UnsupportedError
from bringup.passes.base import Available, Maker, Pass, everything
from bringup.passes.dce import dce
from bringup.passes.decompose import decompose
from bringup.passes.defer import defer
from bringup.passes.fold import fold
from bringup.passes.outputs import (
    forward_loop_invariants,
    materialize_outputs,
    split_concatenates,
)
from bringup.passes.simplify import canonicalise, cse, simplify

#: The passes that a backend's own come after.  Simplification comes first because it knows better
#: than a decomposition what to make of ``pow(x, 2)``.  It also folds and merges what it makes;
#: fold, canonicalise and cse stand for themselves so that any of them can be left out.  Functions
#: are deferred before they are decomposed.
PIPELINE: tuple[Maker, ...] = (
    simplify, defer, decompose, fold, canonicalise, simplify, cse, dce,
)  # fmt: skip


def passes_for(
    available: Available,
    extra: Iterable[Pass] = (),
    *,
    fuses: Available = everything,
    operands: int = 31,
    without: Iterable[str] = (),
) -> tuple[Pass, ...]:
    """Every pass between the traced graph and fusion, for a device.

    extra: passes of its backend.
    fuses: whether an instruction may stand in a kernel.  operands: the most that one kernel takes.
    without: names of passes to leave out, to find the one at fault.
    Raises UnsupportedError for the name of one that cannot be left out.

    >>> [each.name for each in passes_for(lambda instr: True)][:8]
    ['simplify', 'defer', 'decompose', 'fold', 'canonicalise', 'simplify', 'cse', 'dce']
    >>> [each.name for each in passes_for(lambda instr: True)][8:]
    ['forward_loop_invariants', 'materialize_outputs', 'split_concatenates']
    """
    passes = (
        *(make(available) for make in PIPELINE),
        *extra,
        forward_loop_invariants(),
        materialize_outputs(),
        split_concatenates(fuses, operands),
    )
    left_out = set(without)
    for each in passes:
        if each.required and each.name in left_out:
            raise UnsupportedError(
                f"pass {each.name} cannot be left out: fusion and planning need its result",
                fix=f"take {each.name!r} out of the passes to skip",
            )
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


def signature_passes(scalars: frozenset[int]) -> tuple[Pass, ...]:
    """The passes of a traced function that may change the types of its inputs.

    scalars: positions of the inputs that are numbers of Python.

    >>> [each.name for each in signature_passes(frozenset({0}))]
    ['cast_scalar_inputs']
    """
    from bringup.passes.scalar_inputs import cast_scalar_inputs

    return (cast_scalar_inputs(scalars),) if scalars else ()
