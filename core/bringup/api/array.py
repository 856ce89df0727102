"""`Array`: a value on a device, computed when it is looked at.

Operators and most methods are in `bringup.api.operators`: they are made of functions, which stand
on this class.
"""
# ruff: noqa: D102  (methods that are only declared here)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from bringup.api import deferred
from bringup.api.boundary import guarded_methods, missing_attribute
from bringup.dtypes import DType, f32
from bringup.errors import (
    ArrayIndexError,
    ConversionError,
    OpTypeError,
    TraceError,
)
from bringup.runtime import devices, transfer
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.context import Traced, made_at
from bringup.tracing.lazy import Leaf, Node
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api.indexing import At

Host = np.ndarray[Any, Any]
Scalar = bool | int | float


@guarded_methods
class Array:
    """An immutable n-dimensional array on one device, made by `asarray` and by operations.

    Operations are recorded and run, fused, when a value is looked at: printed, converted, iterated
    over or moved. Types, shapes and devices are checked at once.  Operators broadcast and promote
    as `result_type` says.

    >>> x = bu.asarray([1.0, 2.0, 3.0], dtype=bu.float32)
    >>> y = x * x + 1
    >>> y.shape, y.dtype, float(bu.sum(y))
    ((3,), f32, 17.0)
    """

    # A native dispatcher makes arrays without calling `__init__`; it relies on these slots.
    #   concrete: _buffer is set.  _node is None, or the leaf that recorded operations read.
    #   deferred: _buffer is None, _node is a Node.    traced: _node is a Traced.    deleted: both
    # are None.
    __slots__ = ("__weakref__", "_buffer", "_device", "_node", "_type")

    _type: TensorType
    _device: OpenDevice | None
    _buffer: Any
    _node: Leaf | Node | Traced | None

    def __init__(
        self,
        type_: TensorType,
        device: OpenDevice | None,
        buffer: Any,
        node: Leaf | Node | Traced | None = None,
    ) -> None:
        self._type = type_
        self._device = device
        self._buffer = buffer
        self._node = node

    if not TYPE_CHECKING:  # a checker shall go on finding misspelt attributes

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # probes by protocols, and slots not filled yet
                raise AttributeError(f"Array has no attribute {name!r}")
            raise missing_attribute(self, str(self.type), name)

    # ---- what is known without looking

    @property
    def type(self) -> TensorType:
        """Shape and dtype as one object that prints ``f32[4,8]``."""
        return self._type

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes by dimension."""
        return self._type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._type.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self._type.nbytes

    @property
    def device(self) -> OpenDevice:
        """Where the array is or will be.  Raises BackendError if there is no default device."""
        return self._device if self._device is not None else devices.get()

    @property
    def is_traced(self) -> bool:
        """Whether the array stands for a value of a function being traced."""
        return isinstance(self._node, Traced)

    @property
    def is_deleted(self) -> bool:
        """Whether the array was donated to a call, so that it cannot be used any more."""
        return self._buffer is None and self._node is None

    # ---- looking at values

    def _concrete(self, purpose: str, fix: str | None = None) -> Array:
        """The array with its buffer computed; a new array for a traced one of known value."""
        if self._buffer is not None:
            return self
        node = self._node
        if isinstance(node, Traced):
            return _known(node, purpose, fix)
        if not isinstance(node, Node):
            raise deferred.deleted(f"an array of type {self._type}")
        if node.buffer is None:
            assert self._device is not None
            deferred.evaluate([node], self._device)
        self._buffer = node.buffer
        return self

    def _host(self, purpose: str, fix: str | None = None) -> Host:
        """The elements as a numpy array: the device's own memory, read-only, or a new array."""
        concrete = self._concrete(purpose, fix)
        device = concrete.device.device
        seen = transfer.view(device, concrete._buffer, self._type)
        if seen is not None:
            return seen
        return transfer.download(device, concrete._buffer, self._type)

    def _shared(self, purpose: str) -> Any:
        """The buffer, for others that keep it: a later donation must not change what they see."""
        concrete = self._concrete(purpose)
        if self._buffer is not None:
            self._node = Leaf(self._type, self._buffer, shared=True)
        return concrete._buffer

    def _exported(self, purpose: str, fix: str | None = None) -> Host:
        """`_host` for arrays that users keep: a later donation must not change what they see.

        Raises TraceError for traced arrays, even of known value: derivatives would be lost.
        """
        if isinstance(self._node, Traced):
            raise _outside(self._node, purpose, fix)
        host = self._host(purpose)
        if not host.flags.writeable and self._buffer is not None:
            self._node = Leaf(self._type, self._buffer, shared=True)
        return host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Host:
        """The elements for numpy: zero-copy and read-only where the host sees the device's memory.

        Raises ConversionError if ``copy=False`` cannot be had.
        """
        host = self._exported("a numpy array of", _NOT_NUMPY)
        target = host.dtype if dtype is None else np.dtype(dtype)
        zero_copy = not host.flags.writeable and target == host.dtype
        if copy is False and not zero_copy:
            raise ConversionError(
                f"{self._type} on {self.device} does not become numpy's {target} without a copy",
                fix="leave out copy=False",
            )
        return host.astype(target, copy=bool(copy) and not host.flags.writeable)

    def item(self) -> Scalar:
        """The only element as a Python scalar.  Raises ConversionError for other sizes.

        >>> bu.asarray([2.5]).item()
        2.5
        """
        if self.size != 1:
            raise ConversionError(
                f"{self._type} has {self.size} elements, not one", fix="index or reduce it first"
            )
        return _scalar(self._host("the element of"))

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars; a scalar for a 0-d array.

        >>> bu.asarray([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return self._host("the elements of").tolist()

    def block_until_ready(self) -> Array:
        """The array itself, when its values are computed.

        >>> bu.zeros(3).block_until_ready().shape
        (3,)
        """
        concrete = self._concrete("the values of")
        transfer.wait(concrete.device.device, concrete._buffer)
        return self

    def __bool__(self) -> bool:
        fix = "use where, cond or while_loop, or make the argument static (static_argnums)"
        return bool(self._zero_d("the truth of", fix))

    def __float__(self) -> float:
        return float(self._zero_d("float() of"))

    def __int__(self) -> int:
        return int(self._zero_d("int() of"))

    def __complex__(self) -> complex:
        return complex(self._zero_d("complex() of"))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise ArrayIndexError(f"only integers index, not {self._type}", fix="convert it to int")
        fix = "for a window use dynamic_slice(x, starts, sizes), or make the argument static"
        return int(self._zero_d("the integer of", fix))

    def _zero_d(self, purpose: str, fix: str | None = None) -> Scalar:
        if self.shape:
            raise ConversionError(
                f"{purpose} {self._type} is ambiguous: it is not 0-d",
                fix="reduce it first with any, all, sum …, or index one element",
            )
        return _scalar(self._host(purpose, fix))

    def __len__(self) -> int:
        if not self.shape:
            raise OpTypeError(f"{self._type} is 0-d and has no length", fix="use x.size")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        """The entries of the first dimension."""
        if not self.shape:
            raise OpTypeError(
                f"{self._type} is 0-d and cannot be iterated over", fix="use x.item()"
            )
        return self._rows()

    def __repr__(self) -> str:
        """``Array([1., 2.], dtype=float32, device=name)``; no values of traced and deleted ones."""
        hidden = self._hidden()
        if hidden is not None:
            return hidden
        values = self._text(separator=", ", prefix="Array(")
        shape = f", shape={self.shape}" if not self.size and self.ndim > 1 else ""  # as numpy does
        return f"Array({values}{shape}, dtype={self.dtype.long_name}, device={self.device})"

    def __str__(self) -> str:
        return self._hidden() or self._text(separator=" ", prefix="")

    def _repr_html_(self) -> str:
        """A table of values, for notebooks; no values of traced and deleted ones."""
        from bringup.html.arrays import array_table
        from bringup.html.markup import tag

        hidden = self._hidden()
        if hidden is not None:
            return tag("code", hidden)
        return array_table(self._printable(), f"{self._type} on {self.device}")

    def _printable(self) -> Any:
        """The values in a dtype that numpy lays out, which it does for none of ml_dtypes."""
        host = self._host("the text of")
        is_foreign = self.dtype.is_storage or (self.dtype.is_float and host.dtype.kind == "V")
        return host.astype(f32.numpy) if is_foreign else host

    def _text(self, *, separator: str, prefix: str) -> str:
        """The values, laid out by numpy."""
        host = self._printable()
        if not host.ndim and separator == " ":
            return str(host[()])
        return np.array2string(host, separator=separator, prefix=prefix)

    def _hidden(self) -> str | None:
        """The text of an array without values; None if it has some."""
        if self.is_deleted:
            return f"Array<{self.type}, deleted: it was donated>"
        if isinstance(self._node, Traced):
            try:
                self._concrete("the text of")
            except TraceError:
                return f"Array<{self.type}, traced in {self._node.trace.name!r}>"
        return None

    def __format__(self, spec: str) -> str:
        if spec and self.shape:
            raise ConversionError(
                f"{self._type} has no format {spec!r}: it is not 0-d",
                fix="format each element of x.tolist(), or leave out the format",
            )
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> Array:
        """The array itself: a second object with its memory would outlive a donation."""
        return self

    def __hash__(self) -> int:
        raise OpTypeError(
            f"{self._type} is not hashable: == compares the elements",
            fix="use id(x) as the key, or x.tolist() for the values",
        )

    if TYPE_CHECKING:  # operators and methods that `bringup.api.operators` installs

        @property
        def T(self) -> Array: ...
        @property
        def mT(self) -> Array: ...
        @property
        def at(self) -> At: ...
        def to(self, device: DeviceSpec) -> Array: ...
        def to_device(self, device: DeviceSpec, /, *, stream: None = None) -> Array: ...
        def reshape(self, *shape: Any) -> Array: ...
        def transpose(self, *axes: Any) -> Array: ...
        def swapaxes(self, axis1: int, axis2: int) -> Array: ...
        def flatten(self) -> Array: ...
        def ravel(self) -> Array: ...
        def _rows(self) -> Iterator[Array]: ...

        def astype(
            self, dtype: object, /, *, copy: bool = True, device: DeviceSpec = None
        ) -> Array: ...
        def clip(self, /, min: Operand | None = None, max: Operand | None = None) -> Array: ...
        def conj(self) -> Array: ...
        def diagonal(self, /, *, offset: int = 0) -> Array: ...
        def dot(self, x2: Operand, /) -> Array: ...
        def nonzero(self, /, *, size: int | None = None, fill: int = 0) -> tuple[Array, ...]: ...
        def repeat(self, /, repeats: Any, axis: int | None = None) -> Array: ...
        def round(self, decimals: int = 0) -> Array: ...
        def searchsorted(
            self, x2: Operand, /, side: str = "left", sorter: Operand | None = None
        ) -> Array: ...
        def squeeze(self, /, axis: int | Sequence[int] | None = None) -> Array: ...
        def take(self, /, indices: Operand, axis: int | None = None) -> Array: ...
        def trace(self, /, *, offset: int = 0, dtype: object = None) -> Array: ...

        def sum(
            self, /, axis: Axis = None, dtype: object = None, *, keepdims: bool = False
        ) -> Array: ...

        prod = sum

        def mean(self, /, axis: Axis = None, *, keepdims: bool = False) -> Array: ...

        all = any = max = min = mean

        def std(
            self,
            /,
            axis: Axis = None,
            *,
            correction: float = 0.0,
            keepdims: bool = False,
            ddof: float | None = None,
        ) -> Array: ...

        var = std

        def argmax(self, /, axis: int | None = None, *, keepdims: bool = False) -> Array: ...

        argmin = argmax

        def argsort(
            self, /, axis: int = -1, *, descending: bool = False, stable: bool = True
        ) -> Array: ...

        sort = argsort

        def cumsum(
            self,
            /,
            axis: int | None = None,
            dtype: object = None,
            *,
            include_initial: bool = False,
        ) -> Array: ...

        cumprod = cumsum

        def __getitem__(self, key: Any) -> Array: ...
        def __pos__(self) -> Array: ...

        __neg__ = __abs__ = __invert__ = __pos__

        def __add__(self, other: Operand) -> Array: ...

        __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __add__
        __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = __add__
        __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __add__
        __lt__ = __le__ = __gt__ = __ge__ = __add__

        def __eq__(self, other: Operand) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: Operand) -> Array: ...  # type: ignore[override]
        def __divmod__(self, other: Operand) -> tuple[Array, Array]: ...
        def __rdivmod__(self, other: Operand) -> tuple[Array, Array]: ...
        def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...
        def __dlpack__(
            self,
            *,
            stream: Any = None,
            max_version: tuple[int, int] | None = None,
            dl_device: tuple[int, int] | None = None,
            copy: bool | None = None,
        ) -> Any: ...


#: An operand: an array, a Python scalar, or a numpy array or scalar.
Operand = Array | bool | int | float | complex | np.generic | np.ndarray[Any, Any]
#: What reductions reduce: one axis, several, or all for None.
Axis = int | Sequence[int] | None

#: What to do instead of handing a traced array to numpy.
_NOT_NUMPY = (
    "use bringup's functions, and bringup.asarray(a)[i] to index an array of numpy's;"
    " or make the argument static"
)


def _scalar(host: Host) -> Scalar:
    value: Scalar = host.reshape(())[()].item()
    return value


def _known(node: Traced, purpose: str, fix: str | None) -> Array:
    """The value of a traced array that depends on existing values alone, else TraceError."""
    node.check_open()
    prefix = node.trace.prefix(node.value)
    if prefix is None:
        raise _refused(node, purpose, "before any value exists", fix)
    graph, outer = prefix
    inputs = [array._concrete(purpose, fix) for array in outer]
    device = node.trace.device or (inputs[0].device if inputs else devices.get())
    buffers = deferred.run_graph(graph, [array._buffer for array in inputs], device)
    return Array(node.value.type, device, buffers[0])


def _outside(node: Traced, purpose: str, fix: str | None) -> TraceError:
    """The error for a traced array handed to code that is not traced."""
    node.check_open()
    return _refused(
        node, purpose, "and nothing that is computed from it there would be traced", fix
    )


def _refused(node: Traced, purpose: str, why: str, fix: str | None) -> TraceError:
    return TraceError(
        f"{purpose} a {node.value.type} value is needed while {node.trace.name!r} is traced, {why}",
        notes=(f"the value was {made_at(node.value)}",),
        fix=fix or "return the array and look at it outside, or make the argument static",
    )
