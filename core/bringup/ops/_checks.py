"""What the infer columns share: checks whose messages carry the fix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from bringup.dtypes import DType, Precision, f32
from bringup.errors import OpTypeError
from bringup.ops.table import Attr, Attrs, Types
from bringup.types import TensorType


def listed(items: Sequence[object]) -> str:
    """``a``, ``a and b`` or ``a, b and c``."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Python writes it."""
    return str(tuple(shape))


def same_types(name: str, operands: Types, start: int = 0) -> TensorType:
    """The common type of operands, the first of them in position `start`.

    Raises OpTypeError if they differ.
    """
    first = operands[0]
    for position, other in enumerate(operands[1:], start + 1):
        if other is not first:
            raise OpTypeError(
                f"{name}: operand types differ: {listed(operands)}",
                fix=_make_equal(first, other, start, position),
            )
    return first


def _make_equal(first: TensorType, other: TensorType, start: int, position: int) -> str:
    if first.dtype is not other.dtype:
        fix = f"convert operand {position} to {first.dtype}"
        return fix if first.shape == other.shape else f"{fix}, and give it shape {_fit(first)}"
    for small, large, which in ((other, first, position), (first, other, start)):
        steps = _broadcast_steps(small.shape, large.shape)
        if steps:
            return steps.format(which)
    return "no broadcast makes these shapes equal; check how the operands were made"


def _fit(type_: TensorType) -> str:
    return shape_text(type_.shape)


def _broadcast_steps(small: tuple[int, ...], large: tuple[int, ...]) -> str:
    """How to broadcast one shape to the other, with ``{}`` for the operand; empty if not at all."""
    target = f"broadcast_to shape {large}"
    if len(small) <= len(large) and all(
        n in (1, m) for n, m in zip(small[::-1], large[::-1], strict=False)
    ):
        return f"{target} for operand {{}}"
    if len(small) > len(large):
        return ""
    spread, wanted = [1] * len(large), list(small)
    for i, n in enumerate(large):
        if wanted and wanted[0] in (1, n):
            spread[i] = wanted.pop(0)
    return "" if wanted else f"reshape operand {{}} to {tuple(spread)}, then {target}"


def one_of(name: str, type_: TensorType, dtypes: Sequence[DType], what: str = "operand") -> None:
    """Raise OpTypeError unless the dtype is one of `dtypes`."""
    if type_.dtype not in dtypes:
        raise OpTypeError(
            f"{name}: does not take {type_.dtype}: {what} is {type_}",
            fix=f"use one of {', '.join(d.name for d in dtypes)}",
        )


def precision_column(more: str = "as for dot_general") -> Attr:
    """The attribute ``precision`` of rows with products.  more: what the text says beside."""
    return Attr(
        "precision",
        "str",
        f"bits of factors of f32 that count; {more}",
        choices=get_args(Precision),
        default="highest",
    )


def precision_attr(name: str, operands: Types, attrs: Attrs) -> None:
    """Raise OpTypeError where ``precision`` asks for less than all bits of anything but f32."""
    wide = attrs.get("accumulate", operands[0].dtype)
    if attrs["precision"] == "highest" or all(d is f32 for d in (operands[0].dtype, wide)):
        return
    summed = "" if wide is operands[0].dtype else f" summed in {wide}"
    raise OpTypeError(
        f"{name}: precision {attrs['precision']!r} is for products of f32 summed in f32, and these "
        f"are of {listed(operands)}{summed}",
        fix="leave precision out, or convert the operands to f32",
    )


def is_int(value: object) -> bool:
    """A Python int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def ints(name: str, attrs: Attrs, key: str, length: int | None = None) -> tuple[int, ...]:
    """An attribute that must be a tuple of ints, of that length if given."""
    value = attrs[key]
    if not isinstance(value, tuple) or not all(map(is_int, value)):
        raise OpTypeError(
            f"{name}: attribute {key!r} must be a tuple of ints, got {value!r}",
            fix=f"pass {key}=(…) with Python ints",
        )
    if length is not None and len(value) != length:
        raise OpTypeError(
            f"{name}: attribute {key!r} has {len(value)} entries for {length} dimensions: {value}",
            fix=f"give one entry of {key} for each dimension",
        )
    return value


def dim_of(name: str, attrs: Attrs, rank: int, operand: TensorType) -> int:
    """The attribute ``dim``, checked against a rank; IR dims are never negative."""
    dim = attrs["dim"]
    if not is_int(dim) or not 0 <= dim < rank:
        fix = f"use 0 <= dim < {rank}" if rank else "give it a dimension with reshape first"
        raise OpTypeError(f"{name}: dim {dim!r} is out of range for {operand}", fix=fix)
    checked: int = dim
    return checked


def dims_of(name: str, dims: tuple[int, ...], operand: TensorType) -> tuple[int, ...]:
    """Dimensions of an operand: in range and strictly increasing."""
    if any(not 0 <= d < operand.rank for d in dims):
        raise OpTypeError(
            f"{name}: dims {dims} are out of range for {operand}",
            fix=f"use 0 <= dim < {operand.rank}; negative dims are normalised before the IR",
        )
    if any(a >= b for a, b in pairwise(dims)):
        raise OpTypeError(
            f"{name}: dims {dims} of {operand} are not strictly increasing",
            fix=f"pass dims={tuple(sorted(set(dims)))}",
        )
    return dims


def dtype_attr(name: str, attrs: Attrs, key: str) -> DType:
    """An attribute that must be a dtype."""
    value = attrs[key]
    if not isinstance(value, DType):
        raise OpTypeError(
            f"{name}: attribute {key!r} must be a dtype, got {value!r}", fix=f"pass {key}=f32 or so"
        )
    return value


def without(operand: TensorType, dims: Sequence[int]) -> TensorType:
    """The type with those dimensions removed."""
    return operand.with_shape(tuple(n for d, n in enumerate(operand.shape) if d not in dims))
