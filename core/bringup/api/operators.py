"""What arrays do by functions: operators, methods, and numpy's functions of them.

The functions stand on the class `Array`, so they are put on it here, when both are there.  Of
numpy's functions operators are ours; every other one is given what `Array.__array__` gives, so it
returns arrays of numpy's and takes no traced array.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from bringup.api import creation, dlpack, elementwise, indexing, manipulation, products, reductions
from bringup.api.array import Array, Operand
from bringup.api.boundary import guarded, guarded_methods, hide
from bringup.api.datatypes import astype
from bringup.api.foreign_names import standard
from bringup.api.gathering import nonzero, take
from bringup.api.info import namespace
from bringup.errors import ConversionError, OpTypeError
from bringup.records import record
from bringup.runtime.devices import DeviceSpec

#: Operators of two operands: the name in Python, the function, and numpy's ufunc if it is another.
_BINARY: tuple[tuple[str, Callable[[Any, Any], Array], str], ...] = (
    ("add", elementwise.add, ""),
    ("sub", elementwise.subtract, ""),
    ("mul", elementwise.multiply, ""),
    ("truediv", elementwise.divide, ""),
    ("floordiv", elementwise.floor_divide, ""),
    ("mod", elementwise.remainder, ""),
    ("pow", elementwise.pow, "power"),
    ("matmul", products.matmul, ""),
    ("and", elementwise.bitwise_and, ""),
    ("or", elementwise.bitwise_or, ""),
    ("xor", elementwise.bitwise_xor, ""),
    ("lshift", elementwise.bitwise_left_shift, "left_shift"),
    ("rshift", elementwise.bitwise_right_shift, "right_shift"),
)
#: Comparisons: the name in Python, the function, and the name with the sides exchanged.
_COMPARISONS = (
    ("eq", elementwise.equal, "eq"),
    ("ne", elementwise.not_equal, "ne"),
    ("lt", elementwise.less, "gt"),
    ("le", elementwise.less_equal, "ge"),
    ("gt", elementwise.greater, "lt"),
    ("ge", elementwise.greater_equal, "le"),
)
#: Functions of an array that are methods under their own names.
_METHODS: tuple[FunctionType, ...] = (
    *(reductions.all, reductions.any, reductions.argmax, reductions.argmin, reductions.max),
    *(reductions.mean, reductions.min, reductions.prod, reductions.std, reductions.sum),
    *(reductions.var, astype, elementwise.clip, elementwise.round, manipulation.repeat),
    *(manipulation.squeeze, nonzero, take),
)  # type: ignore[assignment]
#: Methods whose modules are imported when they are first asked for: the module, and the function.
_LATE = {
    "argsort": ("sorting", "argsort"),
    "conj": ("complex", "conj"),
    "cumprod": ("reductions", "cumulative_prod"),
    "cumsum": ("reductions", "cumulative_sum"),
    "diagonal": ("decompositions", "diagonal"),
    "dot": ("numeric", "dot"),
    "searchsorted": ("sorting", "searchsorted"),
    "sort": ("sorting", "sort"),
    "trace": ("decompositions", "trace"),
}

_OPERANDS = (Array, bool, int, float, complex, np.generic, np.ndarray)
_CONTAINERS = (list, tuple, str, bytes, dict, set, frozenset, type(None))


def _binary(function: Callable[[Any, Any], Array], *, reflected: bool) -> Callable[..., Any]:
    """The method of an operator.  reflected: with the array on its right."""
    name = function.__name__
    # Lists are repeated by Python, and extended by rows.
    listed = reflected and name in ("add", "multiply")

    def method(self: Array, other: Any) -> Any:
        try:
            if not isinstance(other, _OPERANDS):
                return NotImplemented if listed else _other_operand(name, other, self)
            return function(other, self) if reflected else function(self, other)
        except Exception as error:
            hide(error, name)
            raise

    return method


def _other_operand(name: str, other: Any, x: Array) -> Any:
    """NotImplemented, so that Python asks the other operand; an error for one that has no answer.

    Lists to be repeated, or to be extended by rows, are Python's own affair.
    """
    repeated = name == "multiply" and not x.shape and x.dtype.is_integer
    if name in ("equal", "not_equal") or repeated or not isinstance(other, _CONTAINERS):
        return NotImplemented
    raise OpTypeError(
        f"{name}: an array or a number is needed, not {type(other).__name__}",
        fix="make an array of it with asarray(…)" if isinstance(other, list | tuple) else None,
    )


class _LateMethod:
    """A method that is made when it is first asked for."""

    def __init__(self, name: str, module: str, function: str) -> None:
        self._name = name
        self._module = module
        self._function = function

    def __get__(self, x: Array | None, owner: type) -> Any:
        function = getattr(importlib.import_module(f"bringup.api.{self._module}"), self._function)
        setattr(Array, self._name, guarded(function, self._name))
        return getattr(owner if x is None else x, self._name)


@guarded_methods
class _Methods(Array):
    """Never instantiated: what is defined here is put on `Array`, which declares it."""

    __slots__ = ()

    @property
    def T(self) -> Array:
        """The dimensions in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Array:
        """The last two dimensions swapped.  Raises OpTypeError if there are fewer."""
        return products.matrix_transpose(self)

    @property
    def at(self) -> indexing.At:
        """Functional updates: ``x.at[1:3].set(v)`` is a new array.

        >>> bu.zeros(3).at[1].set(5.0).tolist()
        [0.0, 5.0, 0.0]
        """
        return indexing.At(self)

    def to(self, device: DeviceSpec) -> Array:
        """The array on another device, through the host unless that device reaches the memory
        itself; the array itself if it is there already.

        Raises BackendError for an unknown device, TraceError inside a traced function.
        """
        return creation.to_device(self, device)

    def to_device(self, device: DeviceSpec, /, *, stream: None = None) -> Array:
        """`to`, under the name of the array API standard; streams are not supported."""
        return creation.to_device(self, device)

    def reshape(self, *shape: Any) -> Array:
        """`bringup.reshape`, to sizes one by one or in a sequence.

        >>> bu.arange(6).reshape(2, -1).shape
        (2, 3)
        """
        return manipulation.reshape(self, *_one_sequence(shape))

    def transpose(self, *axes: Any) -> Array:
        """`bringup.permute_dims`, by axes one by one or in a sequence; in reverse without any.

        >>> bu.zeros((2, 3, 4)).transpose(1, 0, 2).shape, bu.zeros((2, 3, 4)).transpose().shape
        ((3, 2, 4), (4, 3, 2))
        """
        order = _one_sequence(axes)
        reverse = not axes or order == (None,)
        return manipulation.permute_dims(self, *((range(self.ndim)[::-1],) if reverse else order))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Two axes in each other's place.

        >>> bu.zeros((2, 3, 4)).swapaxes(0, -1).shape
        (4, 3, 2)
        """
        return manipulation.swapaxes(self, axis1, axis2)

    def flatten(self) -> Array:
        """All elements in one dimension, row by row.

        >>> bu.asarray([[1, 2], [3, 4]]).flatten().tolist()
        [1, 2, 3, 4]
        """
        return manipulation.reshape(self, -1)

    ravel = flatten

    def _rows(self) -> Iterator[Array]:
        return manipulation.rows_of(self)

    def __getitem__(self, key: Any) -> Array:
        """Indexing as numpy's: by integers, slices, ``...``, None, integer arrays and masks.

        Negative indices count from the end.  Indices known here are checked; those in an array are
        data, and kept in range.  The elements that a mask selects are counted, so its values are
        looked at, which a traced function cannot do.

        >>> x = bu.asarray([[1, 2, 3], [4, 5, 6]])
        >>> x[:, bu.asarray([2, 0])].tolist(), x[x > 4].tolist()
        ([[3, 1], [6, 4]], [5, 6])
        """
        return indexing.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise indexing.immutable(self, key)

    def __delitem__(self, key: Any) -> NoReturn:
        raise indexing.undeletable(self, key)

    def __contains__(self, value: Any) -> bool:
        return bool(reductions.any(elementwise.equal(self, value)))

    def __pos__(self) -> Array:
        return elementwise.positive(self)

    def __neg__(self) -> Array:
        return elementwise.negative(self)

    def __abs__(self) -> Array:
        return elementwise.abs(self)

    def __invert__(self) -> Array:
        return elementwise.bitwise_invert(self)

    def __round__(self, ndigits: int | None = None) -> Array:
        return elementwise.round(self, 0 if ndigits is None else ndigits)

    def __divmod__(self, other: Operand) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __deepcopy__(self, memo: Any) -> Array:
        """The values in memory of their own, which donating the array leaves alone."""
        return creation.copy_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """The values alone: they come back on the default device."""
        return creation.asarray, (self._host("a pickle of").copy(), self.dtype)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return namespace(api_version)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return dlpack.export(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators with numpy's arrays on the left are ours; other ufuncs see the values.

        Raises TraceError for traced arrays, ConversionError if one of ours is to be written.
        """
        name = ufunc.__name__
        if method == "__call__" and len(inputs) == 2 and not options:
            operator = _operator(name, isinstance(inputs[0], Array))
            if operator is not None:
                ours, operand = inputs if isinstance(inputs[0], Array) else reversed(inputs)
                return getattr(type(ours), operator)(ours, operand)
        if any(isinstance(x, Array) for x in options.get("out") or ()):
            raise ConversionError(
                f"arrays are immutable: numpy's {name} cannot write into one of ours",
                fix="leave out out= and keep the result",
            )
        call = name if method == "__call__" else f"{name}.{method}"
        seen = _Seen(f"numpy's {call} of", _instead(name, method))
        named = {key: seen(x) for key, x in options.items()}
        return getattr(ufunc, method)(*map(seen, inputs), **named)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Functions of numpy see the values, also where we have a method of that name."""
        name = function.__name__
        seen = _Seen(f"numpy's {name} of", _instead(name, "__call__"), inside=True)
        return function(*map(seen, args), **{key: seen(x) for key, x in options.items()})


def _one_sequence(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes or axes given one by one as one sequence; what was given at once as it is."""
    return (args,) if all(isinstance(item, int) for item in args) and len(args) != 1 else args


# -- numpy's functions of our arrays ---------------------------------------------------------------

#: The name of our operator by numpy's ufunc, which arrays of numpy's on the left call.
_UFUNCS = {ufunc or function.__name__: name for name, function, ufunc in _BINARY}
_REVERSED = {function.__name__: (name, other) for name, function, other in _COMPARISONS}
_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip


def _operator(ufunc: str, ours_first: bool) -> str | None:
    """The method of ours that is the operator, as its left or its right operand."""
    if ufunc in _REVERSED:
        return f"__{_REVERSED[ufunc][not ours_first]}__"
    name = _UFUNCS.get(ufunc)
    return name and f"__{'' if ours_first else 'r'}{name}__"


@record
class _Seen:
    """What numpy sees of an argument: the values of our arrays.

    what, fix: for the error of a traced array.  inside: look into lists and tuples, too.
    """

    what: str
    fix: str | None
    inside: bool = False

    def __call__(self, x: Any) -> Any:
        if self.inside and type(x) in (list, tuple):
            return type(x)(map(self, x))
        return x._exported(self.what, self.fix) if isinstance(x, Array) else x


def _instead(name: str, method: str) -> str | None:
    """What takes a traced array where numpy's function cannot."""
    ours = _REDUCTIONS.get(name) if method == "reduce" else standard(name) or name
    return (
        f"use bringup.{ours}" if ours and callable(getattr(namespace(None), ours, None)) else None
    )


def _install() -> None:
    """Put everything on `Array`."""
    for name, method in vars(_Methods).items():
        if name not in ("__module__", "__doc__", "__slots__"):
            if isinstance(method, FunctionType):
                method.__qualname__ = f"Array.{name}"
            setattr(Array, name, method)
    for name, function, _ in _BINARY:
        setattr(Array, f"__{name}__", _binary(function, reflected=False))
        setattr(Array, f"__r{name}__", _binary(function, reflected=True))
    for name, function, _ in _COMPARISONS:
        setattr(Array, f"__{name}__", _binary(function, reflected=False))
    for function in _METHODS:
        setattr(Array, function.__name__, guarded(function, function.__name__))
    for name, (module, function_name) in _LATE.items():
        setattr(Array, name, _LateMethod(name, module, function_name))


_install()
