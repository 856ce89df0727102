"""One far size for each row and dtype: the longest dimension of an instance stretched to a power of
two, or one beside it, past blocks, chunks and narrow counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bringup.graph import Graph
from bringup.ops.table import Kind, OpDef, Trait
from bringup.types import TensorType
from bringup_conformance.cases import Instance
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.sizes import far_size
from bringup_conformance.generate.twins import results_of

if TYPE_CHECKING:
    from bringup_conformance.generate.instances import Drawing

#: Longest dimensions, as exponents of two, of rows that take long over more, or whose bounds do.
_MOST = {
    "cholesky": 8, "lu": 8, "qr": 8, "triangular_solve": 8, "eigh": 6, "svd": 6, "fft": 13,
    "softmax": 16, "log_softmax": 16, "layer_norm": 16, "batch_norm": 16, "group_norm": 16,
    "rms_norm": 16, "var": 16, "scan": 14, "while": 14, "reduce_window": 14,
}  # fmt: skip
#: Rows that return positions: narrow ones end at 256 and 65,536, and extremes lie at the ends.
_POSITIONS = ("argmax", "argmin")
_COUNTERS = (8, 17)
_AT_ENDS = ("ramp", "falling", "signed")
#: Rows with far sizes of their own, and those whose weights program with the square of a size.
_OTHERS = (
    "dot_general", "convolution", "attention", "block_sparse_dot", "resize", "gather", "scatter",
    "dynamic_slice", "dynamic_update_slice",
)  # fmt: skip
#: Sizes below are dimension numbers and windows as often as sizes.
_LEAST = 9
#: Elements of all other dimensions together, and of any operand or result.
_BESIDE, _MOST_ELEMENTS = 16, 1 << 21
#: Bytes of all operands and results together: devices of some megabytes are to run them too.
_MOST_BYTES = 1 << 24


def stretched(row: OpDef, draw: Drawing, found: Sequence[Instance]) -> Iterator[Instance]:
    """Far instances made of those at hand."""
    pointwise = row.kind is Kind.ELEMENTWISE or Trait.POINTWISE in row.traits
    if pointwise or row.name in _OTHERS:
        return
    fitting = [each for each in found if _fits(each)]
    if not fitting:
        return
    choices, most = draw.choices, _MOST.get(row.name, 20 if draw.far else 17)
    sizes = [far_size(choices, min(8, most - 2), most)]
    if row.name in _POSITIONS:
        sizes += [far_size(choices, k, k) for k in _COUNTERS]
    for size in sizes:
        longer = [_longer(each, size) for each in fitting]
        small = [each for each in longer if _affordable(row, each)]
        if small:
            chosen = pick(choices, small)
            yield replace(chosen, kinds=_AT_ENDS) if row.name in _POSITIONS else chosen


def _fits(instance: Instance) -> bool:
    """Whether one size alone is long, along which the row works if its attributes say along which;
    and no product of many numbers or sub-graph is asked for.
    """
    attrs: dict[str, Any] = dict(instance.attrs)
    longest = _longest(instance)
    if longest < _LEAST or attrs.get("kind") == "mul":
        return False
    if any(isinstance(value, Graph) for value in attrs.values()):
        return False
    shape, named = instance.operands[0].shape, attrs.get("dims", (attrs.get("dim"),))
    along = [shape[d] for d in named if isinstance(d, int) and d < len(shape)]
    if along and longest not in along:
        return False
    return all(t.size <= _BESIDE * longest ** t.shape.count(longest) for t in instance.operands)


def _affordable(row: OpDef, instance: Instance) -> bool:
    """Whether the row takes an instance whose operands and results are not too large."""
    results = results_of(row, instance)
    if results is None:
        return False
    types = (*instance.operands, *(value.type for value in results))
    fits = sum(type_.nbytes for type_ in types) <= _MOST_BYTES
    return fits and all(type_.size <= _MOST_ELEMENTS for type_ in types)


def _longest(instance: Instance) -> int:
    return max((n for t in instance.operands for n in t.shape), default=0)


def _longer(instance: Instance, size: int) -> Instance:
    """The instance with another size in the place of its longest one, wherever that stands."""
    longest = _longest(instance)

    def swapped(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(swapped, value))
        return size if value == longest and type(value) is int else value

    operands = tuple(
        TensorType(tuple(size if n == longest else n for n in t.shape), t.dtype)
        for t in instance.operands
    )
    attrs = tuple((name, swapped(value)) for name, value in instance.attrs)
    return replace(instance, operands=operands, attrs=attrs, far=True)
