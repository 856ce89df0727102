"""Single elements as text, in both directions, bit for bit."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from bringup.dtypes import DType, bool_

_DOUBLE_NAN = 0x7FF8_0000_0000_0000
_QUIET_NAN = {
    "f8e4m3fn": 0x7F,
    "f8e5m2": 0x7E,
    "f16": 0x7E00,
    "bf16": 0x7FC0,
    "f32": 0x7FC0_0000,
    "f64": _DOUBLE_NAN,
}
# Decimal digits that tell all values apart: 8 significant bits need 4, 11 bits need 5.
_MOST_DIGITS = {"f8e4m3fn": 3, "f8e5m2": 2, "bf16": 4, "f16": 5}


def bits_of(element: Any) -> int:
    """The bit pattern of a numpy scalar.

    >>> hex(bits_of(np.float32(1.0)))
    '0x3f800000'
    """
    return int.from_bytes(np.asarray(element).tobytes(), "little")


def from_bits(bits: int, dtype: DType) -> Any:
    """The numpy scalar of that bit pattern.  Raises OverflowError if the pattern is too wide."""
    return np.frombuffer(bits.to_bytes(dtype.itemsize, "little"), dtype=dtype.numpy)[0]


def format_element(element: Any, dtype: DType) -> str:
    """The shortest text that `read_element` turns back into the same bits.

    NaNs other than the positive quiet one without payload print as their bits.

    >>> from bringup.dtypes import f32
    >>> format_element(np.float32(0.1), f32), format_element(-np.float32("nan"), f32)
    ('0.1', '0xffc00000')
    """
    if dtype is bool_:
        return "true" if element else "false"
    if not dtype.is_float:
        return str(int(element))
    bits = bits_of(element)
    if bits == _QUIET_NAN[dtype.name]:
        return "nan"
    if not math.isnan(float(element)):
        text = _shortest(element, dtype)
        if bits_of(read_element(text, dtype)) == bits:
            return text
    return f"0x{bits:0{dtype.itemsize * 2}x}"


def _shortest(element: Any, dtype: DType) -> str:
    if dtype.name not in _MOST_DIGITS:
        return str(element)
    # The text of ml_dtypes is not the shortest, and numpy writes an f16 of 2048 as 2.048e+03.
    value = float(element)
    near = [float(f"{value:.{digits}g}") for digits in range(1, _MOST_DIGITS[dtype.name] + 1)]
    with np.errstate(over="ignore"):
        back = np.array(near).astype(dtype.numpy).astype(np.float64)
    return repr(near[int(np.argmax(back == value))])


def read_element(text: str, dtype: DType) -> Any:
    """The numpy scalar that `format_element` printed.  Raises ValueError or OverflowError."""
    if dtype is bool_:
        if text not in ("true", "false"):
            raise ValueError(f"not a bool: {text}")
        return np.bool_(text == "true")
    if dtype.is_float:
        if text == "nan":
            return from_bits(_QUIET_NAN[dtype.name], dtype)
        if text.startswith("0x"):
            return from_bits(int(text, 16), dtype)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(float(text)).astype(dtype.numpy)[()]
    return np.asarray(int(text), dtype=dtype.numpy)[()]


def format_double(value: float) -> str:
    """A float attribute: Python's shortest text, or bits for the NaNs that have more to say.

    >>> format_double(-0.0), format_double(math.inf), format_double(math.nan)
    ('-0.0', 'inf', 'nan')
    """
    if value == value:  # noqa: PLR0124  (false for NaN alone)
        return repr(float(value))
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return "nan" if bits == _DOUBLE_NAN else f"0x{bits:016x}"


def read_double(text: str) -> float:
    """What `format_double` printed.  Raises ValueError."""
    if text == "nan":
        text = hex(_DOUBLE_NAN)
    if text.startswith("0x"):
        (value,) = struct.unpack("<d", struct.pack("<Q", int(text, 16)))
        return float(value)
    return float(text)
