"""`Array`: a value on a device, computed when it is looked at."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from bringup.api import engine
from bringup.api.boundary import guarded, guarded_methods, hide
from bringup.dtypes import DType
from bringup.errors import (
    ArrayIndexError,
    ConversionError,
    OpTypeError,
    TraceError,
)
from bringup.runtime import devices, transfer
from bringup.runtime.devices import DeviceSpec, OpenDevice
from bringup.tracing.context import Traced
from bringup.tracing.lazy import Leaf, Node
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api.promotion import Operand

F = TypeVar("F", bound=Callable[..., Any])
Host = np.ndarray[Any, Any]
Scalar = bool | int | float


def _binary(name: str) -> Callable[[Array, Operand], Array]:
    def method(self: Array, other: Any) -> Array:
        if not isinstance(other, _EITHER):
            return _foreign(name, other, self)  # type: ignore[no-any-return]
        try:
            result: Array = getattr(_elementwise, name)(self, other)
        except Exception as error:
            hide(error, name)
            raise
        return result

    return method


def _reflected(name: str) -> Callable[[Array, Operand], Array]:
    def method(self: Array, other: Any) -> Array:
        if not isinstance(other, _EITHER):
            return NotImplemented if name in ("add", "multiply") else _foreign(name, other, self)
        try:
            result: Array = getattr(_elementwise, name)(other, self)
        except Exception as error:
            hide(error, name)
            raise
        return result

    return method


class _Late:
    """A module of functions that is imported when one of them is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"bringup.api.{self._name}"), name)


class _Method:
    """A function as a method, looked up when it is first asked for."""

    def __init__(self, find: Callable[[], Callable[..., Any]]) -> None:
        self._find = find

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, x: Array | None, owner: type) -> Any:
        setattr(Array, self._name, guarded(self._find(), self._name))
        return getattr(owner if x is None else x, self._name)


def _method(find: Callable[[], F]) -> F:
    """A function as a method, with its signature."""
    method: Any = _Method(find)
    return method  # type: ignore[no-any-return]


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
            raise _names.missing_attribute(self, str(self.type), name)

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

    def _concrete(self, what: str, fix: str | None = None) -> Array:
        """The array with its buffer computed; a new array for a traced one of known value."""
        if self._buffer is not None:
            return self
        node = self._node
        if isinstance(node, Traced):
            return _known(node, what, fix)
        if not isinstance(node, Node):
            raise engine.deleted(f"an array of type {self._type}")
        if node.buffer is None:
            assert self._device is not None
            engine.evaluate([node], self._device)
        self._buffer = node.buffer
        return self

    def _host(self, what: str, fix: str | None = None) -> Host:
        """The elements as a numpy array: the device's own memory, read-only, or a new array."""
        concrete = self._concrete(what, fix)
        device = concrete.device.device
        seen = transfer.view(device, concrete._buffer, self._type)
        if seen is not None:
            return seen
        return transfer.download(device, concrete._buffer, self._type)

    def _shared(self, what: str) -> Any:
        """The buffer, for others that keep it: a later donation must not change what they see."""
        concrete = self._concrete(what)
        if self._buffer is not None:
            self._node = Leaf(self._type, self._buffer, shared=True)
        return concrete._buffer

    def _exported(self, what: str, fix: str | None = None) -> Host:
        """`_host` for arrays that users keep: a later donation must not change what they see.

        Raises TraceError for traced arrays, also of known value: no derivative would come back.
        """
        if isinstance(self._node, Traced):
            raise _outside(self._node, what, fix)
        host = self._host(what)
        if not host.flags.writeable and self._buffer is not None:
            self._node = Leaf(self._type, self._buffer, shared=True)
        return host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Host:
        """The elements for numpy: zero-copy and read-only where the host sees the device's memory.

        Raises ConversionError if ``copy=False`` cannot be had.
        """
        host = self._exported("a numpy array of", _NOT_NUMPY)
        wanted = host.dtype if dtype is None else np.dtype(dtype)
        zero_copy = not host.flags.writeable and wanted == host.dtype
        if copy is False and not zero_copy:
            raise ConversionError(
                f"{self._type} on {self.device} does not become numpy's {wanted} without a copy",
                fix="leave out copy=False",
            )
        return host.astype(wanted, copy=bool(copy) and not host.flags.writeable)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators with numpy's arrays on the left are ours; other ufuncs see the values."""
        return _ufuncs.answer(ufunc, method, inputs, options, _info.namespace(None))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Functions of numpy see the values, also where we have a method of that name."""
        return _ufuncs.called(function, args, options, _info.namespace(None))

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
        self._concrete("the values of").device.device.synchronize()
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

    def _zero_d(self, what: str, fix: str | None = None) -> Scalar:
        if self.shape:
            raise ConversionError(
                f"{what} {self._type} is ambiguous: it is not 0-d",
                fix="reduce it first with any, all, sum …, or index one element",
            )
        return _scalar(self._host(what, fix))

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
        return _manipulation.rows_of(self)

    def __contains__(self, value: Any) -> bool:
        return bool(_reductions.any(_elementwise.equal(self, value)))

    def __repr__(self) -> str:
        return _text.represent(self)

    def __str__(self) -> str:
        return _text.plain(self)

    def __format__(self, spec: str) -> str:
        if spec and self.shape:
            raise ConversionError(
                f"{self._type} has no format {spec!r}: it is not 0-d",
                fix="format each element of x.tolist(), or leave out the format",
            )
        return format(self.item(), spec) if spec else str(self)

    # ---- moving

    def to(self, device: DeviceSpec) -> Array:
        """The array on another device, through the host unless that device reaches the memory
        itself; the array itself if it is there already.

        Raises BackendError for an unknown device, TraceError inside a traced function.
        """
        return _creation.to_device(self, device)

    def to_device(self, device: DeviceSpec, /, *, stream: None = None) -> Array:
        """`to`, under the name of the array API standard; streams are not supported."""
        return _creation.to_device(self, device)

    def __copy__(self) -> Array:
        """The array itself: a second object with its memory would outlive a donation."""
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        """The values in memory of their own, which donating the array leaves alone."""
        return _creation.copy_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """The values alone: they come back on the default device."""
        return _creation.asarray, (self._host("a pickle of").copy(), self.dtype)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return _info.namespace(api_version)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return _dlpack.export(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self)

    # ---- shape and indices

    @property
    def T(self) -> Array:
        """The dimensions in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Array:
        """The last two dimensions swapped.  Raises OpTypeError if there are fewer."""
        return _linear.matrix_transpose(self)

    def reshape(self, *shape: Any) -> Array:
        """`bringup.reshape`, to sizes one by one or in a sequence.

        >>> bu.arange(6).reshape(2, -1).shape
        (2, 3)
        """
        return _manipulation.reshape(self, *_one_sequence(shape))

    def transpose(self, *axes: Any) -> Array:
        """`bringup.permute_dims`, by axes one by one or in a sequence; in reverse without any.

        >>> bu.zeros((2, 3, 4)).transpose(1, 0, 2).shape, bu.zeros((2, 3, 4)).transpose().shape
        ((3, 2, 4), (4, 3, 2))
        """
        given = _one_sequence(axes)
        reverse = not axes or given == (None,)
        return _manipulation.permute_dims(self, *((range(self.ndim)[::-1],) if reverse else given))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Two axes in each other's place.

        >>> bu.zeros((2, 3, 4)).swapaxes(0, -1).shape
        (4, 3, 2)
        """
        return _manipulation.swapaxes(self, axis1, axis2)

    def flatten(self) -> Array:
        """All elements in one dimension, row by row.

        >>> bu.asarray([[1, 2], [3, 4]]).flatten().tolist()
        [1, 2, 3, 4]
        """
        return _manipulation.reshape(self, -1)

    ravel = flatten

    def __getitem__(self, key: Any) -> Array:
        """Indexing as numpy's: by integers, slices, ``...``, None, integer arrays and masks.

        Negative indices count from the end.  Indices known here are checked; those in an array are
        data, and kept in range.  The elements that a mask selects are counted, so its values are
        looked at, which a traced function cannot do.

        >>> x = bu.asarray([[1, 2, 3], [4, 5, 6]])
        >>> x[:, bu.asarray([2, 0])].tolist(), x[x > 4].tolist()
        ([[3, 1], [6, 4]], [5, 6])
        """
        return _indexing.getitem(self, key)

    if not TYPE_CHECKING:  # a checker shall find assignments to elements

        def __setitem__(self, key: Any, value: Any) -> NoReturn:
            raise _indexing.immutable(self, key)

        def __delitem__(self, key: Any) -> NoReturn:
            raise _indexing.undeletable(self, key)

    @property
    def at(self) -> _indexing.At:
        """Functional updates: ``x.at[1:3].set(v)`` is a new array.

        >>> bu.zeros(3).at[1].set(5.0).tolist()
        [0.0, 5.0, 0.0]
        """
        return _indexing.At(self)

    def __hash__(self) -> int:
        raise OpTypeError(
            f"{self._type} is not hashable: == compares the elements",
            fix="use id(x) as the key, or x.tolist() for the values",
        )

    def __round__(self, ndigits: int | None = None) -> Array:
        return _elementwise.round(self, 0 if ndigits is None else ndigits)

    # ---- functions as methods

    all = _method(lambda: _reductions.all)
    any = _method(lambda: _reductions.any)
    argmax = _method(lambda: _reductions.argmax)
    argmin = _method(lambda: _reductions.argmin)
    argsort = _method(lambda: _sorting.argsort)
    astype = _method(lambda: _datatypes.astype)
    clip = _method(lambda: _elementwise.clip)
    conj = _method(lambda: _complex.conj)
    cumprod = _method(lambda: _prefixes.cumulative_prod)
    cumsum = _method(lambda: _prefixes.cumulative_sum)
    diagonal = _method(lambda: _solving.diagonal)
    dot = _method(lambda: _numeric.dot)
    max = _method(lambda: _reductions.max)
    mean = _method(lambda: _reductions.mean)
    min = _method(lambda: _reductions.min)
    nonzero = _method(lambda: _gathering.nonzero)
    prod = _method(lambda: _reductions.prod)
    repeat = _method(lambda: _manipulation.repeat)
    round = _method(lambda: _elementwise.round)
    searchsorted = _method(lambda: _sorting.searchsorted)
    sort = _method(lambda: _sorting.sort)
    squeeze = _method(lambda: _manipulation.squeeze)
    std = _method(lambda: _reductions.std)
    sum = _method(lambda: _reductions.sum)
    take = _method(lambda: _gathering.take)
    trace = _method(lambda: _solving.trace)
    var = _method(lambda: _reductions.var)

    # ---- operators

    def __pos__(self) -> Array:
        return _elementwise.positive(self)

    def __neg__(self) -> Array:
        return _elementwise.negative(self)

    def __abs__(self) -> Array:
        return _elementwise.abs(self)

    def __invert__(self) -> Array:
        return _elementwise.bitwise_invert(self)

    __add__ = _binary("add")
    __radd__ = _reflected("add")
    __sub__ = _binary("subtract")
    __rsub__ = _reflected("subtract")
    __mul__ = _binary("multiply")
    __rmul__ = _reflected("multiply")
    __truediv__ = _binary("divide")
    __rtruediv__ = _reflected("divide")
    __floordiv__ = _binary("floor_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __mod__ = _binary("remainder")
    __rmod__ = _reflected("remainder")
    __pow__ = _binary("pow")
    __rpow__ = _reflected("pow")
    __and__ = _binary("bitwise_and")
    __rand__ = _reflected("bitwise_and")
    __or__ = _binary("bitwise_or")
    __ror__ = _reflected("bitwise_or")
    __xor__ = _binary("bitwise_xor")
    __rxor__ = _reflected("bitwise_xor")
    __lshift__ = _binary("bitwise_left_shift")
    __rlshift__ = _reflected("bitwise_left_shift")
    __rshift__ = _binary("bitwise_right_shift")
    __rrshift__ = _reflected("bitwise_right_shift")
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _binary("greater")
    __ge__ = _binary("greater_equal")

    def __divmod__(self, other: Operand) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __matmul__(self, other: Operand) -> Array:
        if not isinstance(other, _EITHER):
            return _foreign("matmul", other, self)
        return _linear.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        if not isinstance(other, _EITHER):
            return _foreign("matmul", other, self)
        return _linear.matmul(other, self)


#: What to do instead of handing a traced array to numpy.
_NOT_NUMPY = (
    "use bringup's functions, and bringup.asarray(a)[i] to index an array of numpy's;"
    " or make the argument static"
)
_NO_OPERANDS = (list, tuple, str, bytes, dict, set, frozenset, type(None))
_EITHER = (Array, bool, int, float, complex, np.ndarray, np.generic)


def _foreign(name: str, other: Any, x: Array) -> Any:
    """NotImplemented, so that Python asks the other operand; an error for one that has no answer.

    Lists to be repeated, or to be extended by rows, are Python's own affair.
    """
    repeated = name == "multiply" and not x.shape and x.dtype.is_integer
    if name in ("equal", "not_equal") or repeated or not isinstance(other, _NO_OPERANDS):
        return NotImplemented
    raise OpTypeError(
        f"{name}: an array or a number is needed, not {type(other).__name__}",
        fix="make an array of it with asarray(…)" if isinstance(other, list | tuple) else None,
    )


def _scalar(host: Host) -> Scalar:
    value: Scalar = host.reshape(())[()].item()
    return value


def _known(node: Traced, what: str, fix: str | None) -> Array:
    """The value of a traced array that depends on existing values alone, else TraceError."""
    node.check_open()
    prefix = node.trace.prefix(node.value)
    if prefix is None:
        raise _refused(node, what, "before any value exists", fix)
    graph, outer = prefix
    inputs = [array._concrete(what, fix) for array in outer]
    device = node.trace.device or (inputs[0].device if inputs else devices.get())
    buffers = engine.run_graph(graph, [array._buffer for array in inputs], device)
    return Array(node.value.type, device, buffers[0])


def _outside(node: Traced, what: str, fix: str | None) -> TraceError:
    """The error for a traced array that goes where nothing is traced."""
    node.check_open()
    return _refused(node, what, "and nothing that is computed from it there would be traced", fix)


def _refused(node: Traced, what: str, why: str, fix: str | None) -> TraceError:
    return TraceError(
        f"{what} a {node.value.type} value is needed while {node.trace.name!r} is traced, {why}",
        notes=(f"the value was {made_at(node.value)}",),
        fix=fix or "return the array and look at it outside, or make the argument static",
    )


def _one_sequence(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes or axes given one by one as one sequence; what was given at once as it is."""
    return (given,) if all(isinstance(each, int) for each in given) and len(given) != 1 else given


# The functions stand on the class, and the operators on the functions.
from bringup.api import creation as _creation  # noqa: E402
from bringup.api import datatypes as _datatypes  # noqa: E402
from bringup.api import dlpack as _dlpack  # noqa: E402
from bringup.api import elementwise as _elementwise  # noqa: E402
from bringup.api import gathering as _gathering  # noqa: E402
from bringup.api import indexing as _indexing  # noqa: E402
from bringup.api import info as _info  # noqa: E402
from bringup.api import linear as _linear  # noqa: E402
from bringup.api import manipulation as _manipulation  # noqa: E402
from bringup.api import names as _names  # noqa: E402
from bringup.api import reductions as _reductions  # noqa: E402
from bringup.api import text as _text  # noqa: E402
from bringup.api import ufuncs as _ufuncs  # noqa: E402
from bringup.tracing.context import made_at  # noqa: E402

if TYPE_CHECKING:
    from bringup.api import complex as _complex
    from bringup.api import numeric as _numeric
    from bringup.api import prefixes as _prefixes
    from bringup.api import solving as _solving
    from bringup.api import sorting as _sorting
else:
    _complex, _numeric, _prefixes, _solving, _sorting = map(
        _Late, ("complex", "numeric", "prefixes", "solving", "sorting")
    )
