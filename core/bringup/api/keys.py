"""Keys of random streams: values that are split and handed on, in place of hidden state.

The counters of one key fall into three parts that never meet: elements of arrays, numbers of
splits, and data folded in.

Keys whose words the host knows are split and folded in at once, on the host: a few words are no
work for a device, and ``key, sub = split(key)`` in a loop would otherwise be a longer expression at
each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.arguments import shape_of
from bringup.api.array import Array
from bringup.api.boundary import guarded_methods
from bringup.api.broadcasting import convert, spread
from bringup.api.creation import check_device, from_host, iota, zeros_like
from bringup.api.indexing import region
from bringup.api.manipulation import reshape, stack
from bringup.api.promotion import dtype_of, literal
from bringup.dtypes import u32, u64
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Literal
from bringup.ops.table import lookup
from bringup.runtime import transfer
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.context import current

Shape = int | Sequence[int]

#: The generators: rows of ops.
GENERATORS = ("threefry2x32", "philox4x32")
# The two top bits of a counter say what it is for; element numbers do not reach them.
_ELEMENTS, _SPLITS, _FOLDS = 0, 2, 3


#: The most keys made at once on the host.
_AT_ONCE = 1024

Words = np.ndarray[Any, Any]


class _HostWords:
    """State of a key that is not part of it as a container.

    words: on the host, of a key that was made there.
    """

    __slots__ = ("_words",)

    _words: Words


@guarded_methods
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Key(_HostWords):
    """A key of random streams, or an array of keys; made by `key`, `split` and `fold_in`.

    A key may be used once: for one array of random numbers or one split.  Used twice, it gives the
    same numbers twice.  Folding in different data any number of times is no use in this sense.
    Keys are containers: they go through `jit`, `grad` and `tree`.

    data: the words, ``u32[…, 2]``.
    impl: the name of the generator.
    Raises OpTypeError for other words, and for a generator that does not exist.

    >>> bu.random.split(bu.random.key(0), 3)[2].shape
    ()
    """

    data: Array
    impl: str = field(metadata={"static": True})

    def __init__(self, data: Array, impl: str = GENERATORS[0]) -> None:
        _check_impl(impl)
        _check_words(data)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "impl", impl)

    @property
    def shape(self) -> tuple[int, ...]:
        """``()`` for one key, sizes for an array of keys."""
        return self.data.shape[:-1]

    def __repr__(self) -> str:
        if self.shape:
            return f"Keys({self.shape}, {self.impl})"
        if self.data.is_traced:
            return f"Key(traced, {self.impl})"
        words: list[int] = self.data.tolist()
        return f"Key({words[0]:08x} {words[1]:08x}, {self.impl})"

    def __len__(self) -> int:
        if not self.shape:
            raise ConversionError("one key has no length", fix="split it into several first")
        return self.shape[0]

    def __iter__(self) -> Iterator[Key]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Key:
        if not self.shape:
            raise OpTypeError("one key cannot be indexed", fix="split it first")
        items = index if isinstance(index, tuple) else (index,)
        last = slice(None) if any(item is ... for item in items) else ...
        words = _host_words(self) if _is_static(items) else None
        if words is not None:
            picked = region(self.data.type, (*items, last))  # for its checks
            return _key_of_words(words[(*items, last)].reshape(picked.shape), self)
        return Key(self.data[(*items, last)], self.impl)


def _host_words(key: Key) -> Words | None:
    """The words of a key outside traces, if the host knows them or sees the memory they are in."""
    data = key.data
    if current() is not None or data.is_traced or data.is_deleted:
        return None
    words: Words | None = getattr(key, "_words", None)
    if words is None and data._buffer is not None and data.size <= 2 * _AT_ONCE:
        words = transfer.view(data.device.device, data._buffer, data.type)
    return words


def _key_of_words(words: Words, like: Key) -> Key:
    """A key, or an array of keys, made on the host: on the device of another and of its kind."""
    words = np.ascontiguousarray(words)
    result = Key(from_host(words, like.data._device), like.impl)
    object.__setattr__(result, "_words", words)
    return result


def _is_static(items: tuple[Any, ...]) -> bool:
    """Whether an index holds no arrays."""
    return all(item is None or item is ... or isinstance(item, int | slice) for item in items)


def _check_impl(impl: Any) -> None:
    if not isinstance(impl, str) or impl not in GENERATORS:
        raise OpTypeError(
            f"no generator is called {impl!r}", fix=f"use one of {', '.join(GENERATORS)}"
        )


def single_key(name: str, value: Any) -> Key:
    """A single key.  Raises OpTypeError, naming the function, for anything else."""
    if isinstance(value, Key) and not value.shape:
        return value
    if isinstance(value, Key):
        actual, fix = f"keys of shape {value.shape}", "index them, or map over them"
    else:
        actual = str(value.type) if isinstance(value, Array) else type(value).__name__
        fix = "make a key first: random.key(seed)"
    raise OpTypeError(f"{name}: needs a key, not {actual}", fix=fix)


def _check_words(data: object) -> None:
    if isinstance(data, Array) and data.dtype is u32 and data.shape[-1:] == (2,):
        return
    actual = data.type if isinstance(data, Array) else type(data).__name__
    raise OpTypeError(
        f"the words of a key are u32[…,2], not {actual}",
        fix="make keys with random.key(seed), and more of them with split",
    )


def key(seed: int | Array, *, impl: str = GENERATORS[0], device: DeviceSpec = None) -> Key:
    """A key made of a seed.

    seed: an int from -2**63 to 2**64 - 1, or a 0-d integer array.
    impl: the generator: "threefry2x32" or "philox4x32".

    >>> bu.random.key(42)
    Key(00000000 0000002a, threefry2x32)
    """
    _check_impl(impl)
    words = _words_of("key", "seed", seed)
    if isinstance(words, tuple):
        check_device(device)
        result = Key(from_host(np.array(words, np.uint32), device), impl)
        object.__setattr__(result, "_words", np.array(words, np.uint32))
        return result
    return Key(words if device is None else words.to(device), impl)


def _words_of(name: str, label: str, value: Any) -> tuple[int, int] | Array:
    """An integer as two words, the upper one first: Python ints, or ``u32[2]`` for an array."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise ConversionError(
                f"{name}: {label} {number} does not fit in 64 bits",
                fix=f"give an int from -2**63 to 2**64 - 1 as {label}",
            )
        return (number >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF
    if isinstance(value, Array) and value.dtype.is_integer and not value.shape:
        return stack([_upper_word(value), convert(value, u32)])
    actual = value.type if isinstance(value, Array) else type(value).__name__
    raise OpTypeError(
        f"{name}: {label} must be an integer, not {actual}",
        fix="give an int or a 0-d integer array",
    )


def _upper_word(x: Array) -> Array:
    """The upper word of an integer array extended to 64 bits."""
    if x.dtype.bits == 64:
        return convert(x >> 32, u32)
    if x.dtype.kind == "uint":
        return zeros_like(x, dtype=u32)
    return convert(x >> (x.dtype.bits - 1), u32)


def split(key: Key, num: Shape = 2) -> Key:
    """New keys, independent of each other; the old one must not be used any more.

    num: how many, or the shape of the array of them.

    >>> first, second = bu.random.split(bu.random.key(0))
    """
    key, shape = single_key("split", key), shape_of("split", num)
    words = _host_words(key) if 0 <= math.prod(shape) <= _AT_ONCE else None
    if words is not None:
        counters = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
        return _key_of_words(_host_blocks(key.impl, words, _SPLITS << 30, counters), key)
    return Key(stack(generate(key, shape, 2, part=_SPLITS), axis=-1), key.impl)


def fold_in(key: Key, data: int | Array) -> Key:
    """A new key made of a key and an integer, such as the number of a step.

    data: as the seed of `key`; different data give independent keys.

    >>> bu.random.fold_in(bu.random.key(0), 7).shape
    ()
    """
    key, data_words = single_key("fold_in", key), _words_of("fold_in", "data", data)
    words = _host_words(key) if isinstance(data_words, tuple) else None
    if words is not None and isinstance(data_words, tuple):
        inner_words = _host_blocks(key.impl, words, _FOLDS << 30, 0)
        return _key_of_words(_host_blocks(key.impl, inner_words, *data_words), key)
    inner = Key(stack(generate(key, (), 2, part=_FOLDS)), key.impl)
    if isinstance(data_words, tuple):
        data_words = from_host(np.array(data_words, np.uint32), key.data._device)
    return Key(stack(_blocks(inner, data_words[0], data_words[1])[:2]), key.impl)


def bits(key: Key, shape: Shape = (), dtype: object = u32) -> Array:
    """Random bits as unsigned integers.

    dtype: u8, u16, u32 or u64.

    >>> bu.random.bits(bu.random.key(0), 3, dtype=bu.uint8).shape
    (3,)
    """
    key, sizes, result_dtype = single_key("bits", key), shape_of("bits", shape), dtype_of(dtype)
    if result_dtype.kind != "uint":
        raise OpTypeError(
            f"bits: {result_dtype} is no unsigned integer",
            fix="use uint8, uint16, uint32 or uint64, and uniform or randint for other numbers",
        )
    if result_dtype is not u64:
        return convert(generate(key, sizes, 1)[0], result_dtype)
    high, low = generate(key, sizes, 2)
    return (convert(high, u64) << 32) | convert(low, u64)


def generate(key: Key, shape: tuple[int, ...], count: int, *, part: int = _ELEMENTS) -> list[Array]:
    """So many random words for every element of a shape, two at most.

    They are a function of the key and the element's number alone, so that a kernel makes them
    wherever it needs them.
    """
    low, high = _numbers(shape, key.data._device)
    if part:
        mark = part << 30
        high = literal(mark, u32[shape]) if isinstance(high, Literal) else high | mark
    return _blocks(key, high, low)[:count]


def _numbers(shape: tuple[int, ...], device: OpenDevice | None) -> tuple[Array, Array | Literal]:
    """The number of each element in its array, as a lower and an upper word."""
    size = math.prod(shape)
    if size < 1 << 32:
        return reshape(iota(u32[size], 0, device), shape), literal(0, u32[shape])
    wide = reshape(iota(u64[size], 0, device), shape)
    return convert(wide, u32), convert(wide >> 32, u32)


def _host_blocks(impl: str, words: Words, high: int, low: Words | int) -> Words:
    """`_blocks` of words on the host, by the row's own reference: the first two, in one array."""
    upper, lower = np.uint32(high), np.asarray(low, np.uint32)
    zero = np.uint32(0)
    counters = (upper, lower) if impl == "threefry2x32" else (lower, upper, zero, zero)
    reference = lookup(impl).reference
    assert reference is not None
    blocks = reference(words[0], words[1], *counters)[:2]
    return np.stack(np.broadcast_arrays(*blocks, lower)[:2], axis=-1)


def _blocks(key: Key, high: Array | Literal, low: Array) -> list[Array]:
    """The generator's words for counters of two words."""
    first, second = (spread(key.data[i], low.shape) for i in (0, 1))
    if key.impl == "threefry2x32":
        return apply_all(key.impl, (first, second, high, low))
    zero = literal(0, low.type)
    return apply_all(key.impl, (first, second, low, high, zero, zero))
