"""`ComplexArray`: a pair of real arrays that behaves as one complex array.

Ops know real numbers only.  What an op applied to a complex array does to the parts is looked up in
`bringup.api.complex_rules`; so every function made of such ops takes complex arrays.
"""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array, Host, Operand
from bringup.api.boundary import guarded_methods
from bringup.api.broadcasting import aligned, as_array, as_float, convert
from bringup.dtypes import COMPLEX_OF, PART_OF, DType, bf16, f16, f32
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Literal
from bringup.runtime.devices import DeviceSpec
from bringup.tracing import pytree
from bringup.tracing.context import Traced


@guarded_methods
class ComplexArray(Array):
    """A complex array: two real arrays of one shape, f32 for complex64 and f64 for complex128.

    Made by `complex`, by `asarray` of complex numbers, and by operations.  It is a container of its
    parts for `jit` and `grad`: the gradient of a real value by ``z`` is complex, its parts being
    the derivatives by ``z.real`` and ``z.imag``.

    >>> z = bu.asarray([1 + 2j, 3 - 1j])
    >>> (z * z).tolist(), bu.abs(z * 2j).dtype
    ([(-3+4j), (8-6j)], f64)
    """

    __slots__ = ("_imag", "_real")

    _real: Array
    _imag: Array

    def __init__(self, real: Array, imag: Array) -> None:
        assert real.type is imag.type, f"parts of types {real.type} and {imag.type}"
        self._real = real
        self._imag = imag
        node = real._node if isinstance(real._node, Traced) else None
        type_ = real.type.with_dtype(COMPLEX_OF[real.dtype])
        super().__init__(type_, real._device, None, node)

    @property
    def real(self) -> Array:
        """The real part."""
        return self._real

    @property
    def imag(self) -> Array:
        """The imaginary part."""
        return self._imag

    @property
    def is_deleted(self) -> bool:
        """Whether the parts were donated to a call."""
        return self._real.is_deleted or self._imag.is_deleted

    def _concrete(self, purpose: str, fix: str | None = None) -> Array:
        return ComplexArray(self._real._concrete(purpose, fix), self._imag._concrete(purpose, fix))

    def _host(self, purpose: str, fix: str | None = None) -> Host:
        host = np.empty(self.shape, self.dtype.numpy)
        host.real = self._real._host(purpose, fix)
        host.imag = self._imag._host(purpose, fix)
        return host

    def __getitem__(self, key: Any) -> ComplexArray:
        return ComplexArray(self._real[key], self._imag[key])

    def __iter__(self) -> Iterator[Array]:
        return map(ComplexArray, self._real, self._imag)

    def __float__(self) -> NoReturn:
        raise self._not_real("float()")

    def __int__(self) -> NoReturn:
        raise self._not_real("int()")

    def _not_real(self, conversion: str) -> ConversionError:
        return ConversionError(
            f"{conversion} of {self.type}, which is complex",
            fix="take a part first: x.real, x.imag or abs(x)",
        )

    def to(self, device: DeviceSpec) -> ComplexArray:
        """The array on another device; see `Array.to`."""
        return ComplexArray(self._real.to(device), self._imag.to(device))

    def to_device(self, device: DeviceSpec, /, *, stream: None = None) -> ComplexArray:
        """`to`, under the name of the array API standard."""
        return self.to(device)

    def __repr__(self) -> str:
        if not hasattr(self, "_type"):
            return f"ComplexArray(real={self._real!r}, imag={self._imag!r})"
        return super().__repr__()


def complex(real: Operand, imag: Operand = 0.0, /) -> ComplexArray:
    """The complex array of two real parts, broadcast and promoted.

    f64 parts make complex128, integers too; f32, f16 and bf16 make complex64.
    Raises OpTypeError for complex parts.

    >>> bu.complex(bu.asarray([1.0, 2.0]), bu.asarray([0.5, -1.0])).tolist()
    [(1+0.5j), (2-1j)]
    """
    first = as_float(real)
    (a, b), _ = aligned("complex", (first, imag))
    if a.type.dtype.is_complex:
        raise OpTypeError(
            f"complex: the parts meet in {a.type}, which is complex already", fix="pass real arrays"
        )
    return ComplexArray(*(_part(x, first) for x in (a, b)))


def _part(x: Array | Literal, beside: Array) -> Array:
    if isinstance(x, Literal):
        x = apply("reshape", (x,), {"shape": x.type.shape}, device=beside._device)
    return convert(x, f32 if x.dtype in (f16, bf16) else x.dtype)


def real(x: Operand) -> Array:
    """The real part; a real array itself.

    >>> bu.real(bu.asarray([1 + 2j])).tolist()
    [1.0]
    """
    x = as_array(x)
    return x._real if isinstance(x, ComplexArray) else x


def imag(x: Operand) -> Array:
    """The imaginary part; zeros for a real array.

    >>> bu.imag(bu.asarray([1 + 2j])).tolist()
    [2.0]
    """
    x = as_array(x)
    return x._imag if isinstance(x, ComplexArray) else _zeros(x)


def conj(x: Operand) -> Array:
    """The complex conjugate; a real array itself.

    >>> bu.conj(bu.asarray([1 + 2j])).tolist()
    [(1-2j)]
    """
    x = as_array(x)
    return ComplexArray(x._real, -x._imag) if isinstance(x, ComplexArray) else x


def angle(x: Operand) -> Array:
    """The angle of complex numbers in radians, in [−π, π]; 0 or π for real ones.

    >>> bu.angle(bu.asarray([1j, -2.0])).tolist() == [bu.pi / 2, bu.pi]
    True
    """
    x = as_float(x)
    parts = (x._real, x._imag) if isinstance(x, ComplexArray) else (x, _zeros(x))
    return apply("atan2", (parts[1], parts[0]))


def from_real(x: Array, dtype: DType) -> ComplexArray:
    """A real array as the complex dtype."""
    part = convert(x, PART_OF[dtype])
    return ComplexArray(part, _zeros(part))


def from_literal(x: Literal, device: Any) -> ComplexArray:
    """A complex constant as an array: one operation on each of its scalars, not a constant."""
    type_ = x.type.with_dtype(PART_OF[x.type.dtype])
    attrs = {"shape": type_.shape}
    result = [
        apply("reshape", (Literal.splat(part, type_),), attrs, device=device)
        for part in (x.scalar.real, x.scalar.imag)
    ]
    return ComplexArray(*result)


def _zeros(x: Array) -> Array:
    zero = Literal.splat(0, x.type)
    return apply("reshape", (zero,), {"shape": x.shape}, device=x._device)


def of_parts(real: Any, imag: Any) -> ComplexArray:
    """The container of two parts that stand for arrays: data of the host, types, paths."""
    result = object.__new__(ComplexArray)
    result._real, result._imag = real, imag
    return result


def _split(x: ComplexArray) -> tuple[Sequence[Any], Sequence[str], Hashable]:
    return (x._real, x._imag), (".real", ".imag"), None


def _join(_rest: Hashable, children: Sequence[Any]) -> Any:
    real, imag = children
    if isinstance(real, ComplexArray) or isinstance(imag, ComplexArray):
        raise OpTypeError(
            "the parts of a complex array would be complex, as in a Jacobian of f(z) by z",
            fix="differentiate real(f(z)) and imag(f(z)) apart; keep what maps over parts real",
        )
    if isinstance(real, Array) and isinstance(imag, Array):
        return ComplexArray(real, imag)
    if type(real) is type(imag) is float:
        return builtins.complex(real, imag)
    if isinstance(real, _HOST) and isinstance(imag, _HOST) and real.shape == imag.shape:
        joined = np.empty(real.shape, np.result_type(real, imag, np.complex64))
        joined.real, joined.imag = real, imag
        return joined if isinstance(real, np.ndarray) else joined[()]
    return of_parts(real, imag)


#: What the parts of complex numbers of the host are.
_HOST = (np.ndarray, np.floating)
pytree.register(ComplexArray, _split, _join)
__all__ = ["ComplexArray", "angle", "complex", "conj", "imag", "real"]
