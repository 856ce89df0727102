"""Tensor types: a static shape and a dtype, printed ``f32[4,8]``."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

from bringup.dtypes import BY_NAME, DType, as_dtype
from bringup.errors import OpTypeError, ParseError

_TEXT = re.compile(r"([a-z][a-z0-9]*)\[([0-9, ]*)\]")


class TensorType:
    """Shape and dtype of a value.  Interned, so ``is`` and ``==`` agree; hashing is by identity.

    >>> TensorType((4, 8), as_dtype("f32"))
    f32[4,8]
    >>> TensorType.parse("f32[4,8]") is TensorType((4, 8), as_dtype("f32"))
    True
    """

    __slots__ = ("__weakref__", "dtype", "shape", "size")
    _interned: ClassVar[dict[tuple[tuple[int, ...], DType], TensorType]] = {}

    shape: tuple[int, ...]
    dtype: DType
    size: int

    def __new__(cls, shape: tuple[int, ...], dtype: DType) -> TensorType:
        """The one type of a shape and a dtype."""
        key = (tuple(shape), dtype)
        found = cls._interned.get(key)
        return found if found is not None else cls._intern(key)

    @classmethod
    def _intern(cls, key: tuple[tuple[int, ...], DType]) -> TensorType:
        shape, dtype = tuple(int(n) for n in key[0]), as_dtype(key[1])
        if any(n < 0 for n in shape):
            raise OpTypeError(f"a shape has no negative sizes: {shape}", fix="give sizes >= 0")
        self = super().__new__(cls)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "size", math.prod(shape))
        return cls._interned.setdefault((shape, dtype), self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("TensorType is immutable")

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense row-major array."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.append(step)
            step *= n
        return tuple(reversed(strides))

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same dtype with another shape."""
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another dtype."""
        return TensorType(self.shape, dtype)

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Read what `str` prints.  Raises ParseError."""
        match = _TEXT.fullmatch(text.strip())
        if match is None or match[1] not in BY_NAME:
            raise ParseError(f"not a tensor type: {text!r}", fix="write it like f32[4,8]")
        return cls(tuple(int(n) for n in match[2].split(",") if n.strip()), BY_NAME[match[1]])

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (TensorType, (self.shape, self.dtype))
