"""Element types: one row each, named as numpy names them and printed as the IR prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

from bringup.errors import OpTypeError
from bringup.records import record

if TYPE_CHECKING:
    from bringup.api.array import Array
    from bringup.types import TensorType

Kind = Literal["bool", "int", "uint", "float", "complex"]
#: How exact factors of products of f32 must be: all of their bits, or those that tf32 has: 8 of the
#: exponent and 10 of the mantissa.
Precision = Literal["highest", "tf32"]


@record(eq=False)
class DType:
    """An element type.  Interned: compare with ``is``, or with ``==``, which names, numpy's dtypes
    and Python's types fit too.  numpy takes it where it takes a dtype.  Called, it makes an array.

    name: the IR's and the docs' text (``f32``).
    long_name: numpy's (``float32``).
    kind: bool, int, uint, float or complex.
    bits: storage width.
    numpy: the equivalent `numpy.dtype`.

    >>> f32.long_name, f32.itemsize, str(f32[4, 8])
    ('float32', 4, 'f32[4,8]')
    >>> f32(0.5).type
    f32[]
    >>> f32 == "float32" == f32, f32 == np.float32, np.zeros(2, f32).dtype
    (True, True, dtype('float32'))
    """

    name: str
    long_name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The equivalent `numpy.dtype`, under the name by which numpy asks for it."""
        return self.numpy

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point dtype."""
        return self.kind == "float"

    @property
    def is_storage(self) -> bool:
        """Whether it is a float that ops only move, choose and convert."""
        return self.kind == "float" and self.bits == 8

    @property
    def is_complex(self) -> bool:
        """Whether it is a pair of floats, which arrays have and ops do not."""
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        """Float or complex."""
        return self.kind in ("float", "complex")

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is not an integer."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        """Whether it holds negative numbers."""
        return self.kind in ("int", "float")

    def __getitem__(self, shape: int | tuple[int, ...]) -> TensorType:
        """The type of arrays of this shape: ``f32[4, 8]``."""
        from bringup.types import TensorType  # the type level stands on this one

        return TensorType(shape if isinstance(shape, tuple) else (shape,), self)

    def __call__(self, obj: Any) -> Array:
        """An array of this dtype, as `bringup.asarray` makes it."""
        from bringup.api.creation import asarray  # arrays stand far above

        return asarray(obj, self)

    #: Types of arrays are items: without this, iteration would make one for each integer.
    __iter__ = None

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        # As numpy's dtypes: names and types equal them, but are other keys of a dict.
        return hash(self.numpy)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType) or not isinstance(other, str | type | np.dtype):
            return False
        try:
            return as_dtype(other) is self
        except OpTypeError:
            return False

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (_by_name, (self.name,))


def _by_name(name: str) -> DType:
    return as_dtype(name)


bool_ = DType("bool", "bool", "bool", 8, np.dtype(np.bool_))
i8 = DType("i8", "int8", "int", 8, np.dtype(np.int8))
i16 = DType("i16", "int16", "int", 16, np.dtype(np.int16))
i32 = DType("i32", "int32", "int", 32, np.dtype(np.int32))
i64 = DType("i64", "int64", "int", 64, np.dtype(np.int64))
u8 = DType("u8", "uint8", "uint", 8, np.dtype(np.uint8))
u16 = DType("u16", "uint16", "uint", 16, np.dtype(np.uint16))
u32 = DType("u32", "uint32", "uint", 32, np.dtype(np.uint32))
u64 = DType("u64", "uint64", "uint", 64, np.dtype(np.uint64))
f16 = DType("f16", "float16", "float", 16, np.dtype(np.float16))
bf16 = DType("bf16", "bfloat16", "float", 16, np.dtype(ml_dtypes.bfloat16))
f32 = DType("f32", "float32", "float", 32, np.dtype(np.float32))
f64 = DType("f64", "float64", "float", 64, np.dtype(np.float64))

# To keep numbers in, not to compute with: rows take them that move, choose and convert.
f8e4m3fn = DType("f8e4m3fn", "float8_e4m3fn", "float", 8, np.dtype(ml_dtypes.float8_e4m3fn))
f8e5m2 = DType("f8e5m2", "float8_e5m2", "float", 8, np.dtype(ml_dtypes.float8_e5m2))

# Of arrays alone: no op takes them; see `bringup.api.complex`.
c64 = DType("c64", "complex64", "complex", 64, np.dtype(np.complex64))
c128 = DType("c128", "complex128", "complex", 128, np.dtype(np.complex128))

#: What ops compute with; floats of 8 bits are only moved, chosen and converted: see `STORED`.
ALL: tuple[DType, ...] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
#: Those of integers, signed ones first.
INTS: tuple[DType, ...] = (i8, i16, i32, i64, u8, u16, u32, u64)
SIGNED_INTS: tuple[DType, ...] = (i8, i16, i32, i64)
#: Those of floats that ops compute with.
FLOATS: tuple[DType, ...] = (f16, bf16, f32, f64)
NUMERIC: tuple[DType, ...] = INTS + FLOATS
COMPLEX: tuple[DType, ...] = (c64, c128)
#: What the parts of a complex dtype are, and the other way round.
PART_OF: dict[DType, DType] = {c64: f32, c128: f64}
COMPLEX_OF: dict[DType, DType] = {f32: c64, f64: c128}
STORAGE: tuple[DType, ...] = (f8e4m3fn, f8e5m2)
#: What can be moved and converted: `ALL` and the floats of 8 bits.
STORED: tuple[DType, ...] = ALL + STORAGE
BY_NAME: dict[str, DType] = {d.name: d for d in STORED}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in STORED + COMPLEX}
_BY_TEXT: dict[str, DType] = {name: d for d in STORED + COMPLEX for name in (d.name, d.long_name)}


def as_dtype(spec: object) -> DType:
    """The `DType` that a name, a numpy dtype or Python's bool, int, float or complex means.

    Names are the IR's and numpy's: ``f32``, ``float32``.  Python's ``int`` is ``i64``, ``float`` is
    ``f64`` and ``complex`` is ``c128``, as in numpy on 64-bit hosts.
    Raises OpTypeError for anything else.

    >>> as_dtype("float32") is as_dtype(np.float32) is f32
    True
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str):
        found = _BY_TEXT.get(spec)
        if found is not None:
            return found
    try:
        # numpy reads None as float64, and an array as its dtype.
        if spec is None or (not isinstance(spec, np.dtype | type) and hasattr(spec, "shape")):
            raise TypeError
        return _BY_NUMPY[np.dtype(spec)]  # type: ignore[call-overload]
    except (TypeError, ValueError, KeyError, SyntaxError):  # numpy parses lists, dicts and texts
        fix = f"use one of {', '.join(d.name for d in STORED)}"
        if isinstance(spec, np.dtype) and not spec.isnative:
            fix = 'swap the bytes first: a.astype(a.dtype.newbyteorder("="))'
        raise OpTypeError(f"no dtype is meant by {spec!r}", fix=fix) from None


def accumulator(dtype: DType) -> DType:
    """The dtype in which sums and dots accumulate: f32 for narrower floats, else `dtype` itself."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype
