"""Frozen records: what ``@dataclass(frozen=True, slots=True)`` makes, at a tenth of its price.

The standard decorator writes and compiles six methods for every class, 0.3 ms each time a process
starts, used or not; some seventy classes stand between a program and its first result.  A `record`
shares its methods with all others; the one that must be its own, ``__init__``, is made with the
first object, of code that classes with as many fields share.  To everyone else it is a dataclass:
`dataclasses.replace`, `fields` and `asdict`, checkers, ``match`` and `inspect.signature` see one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from inspect import get_annotations
from itertools import compress
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import Any, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")
#: Slots that are no fields.
_HIDDEN = ("_hash", "_memo", "__weakref__")


@overload
def record(cls: type[_T], /) -> type[_T]: ...
@overload
def record(
    *,
    eq: bool = ...,
    repr: bool = ...,
    kw_only: bool = ...,
    weakref: bool = ...,
    keep_hash: bool = ...,
    memo: bool = ...,
) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(
    cls: type | None = None,
    /,
    *,
    eq: bool = True,
    repr: bool = True,
    kw_only: bool = False,
    weakref: bool = False,
    keep_hash: bool = False,
    memo: bool = False,
) -> Any:
    """Make a class with annotated fields a frozen, slotted record.

    eq, repr: False leaves `object`'s.  kw_only: no positional arguments.
    weakref: objects can be referred to weakly.
    keep_hash: compute the hash once, for objects made of many others.
    memo: there is a slot ``_memo`` for what somebody computes once from the fields.

    >>> @record
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1))
    (Point(x=1, y=0), True, True)
    """

    def make(cls: type) -> type:
        return _record_class(cls, eq, repr, kw_only, (keep_hash, memo, weakref))

    return make if cls is None else make(cls)


def _record_class(
    cls: type, eq: bool, repr: bool, kw_only: bool, hidden: tuple[bool, bool, bool]
) -> type:
    """hidden: which of `_HIDDEN` there are."""
    namespace = dict(cls.__dict__)
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    own = [name for name, kind in get_annotations(cls).items() if _is_field(kind)]
    defaults = {n: namespace.pop(n) for n in own if n in namespace}
    shown = tuple(n for n in own if _option(defaults, n, "repr"))
    compared = tuple(n for n in own if _option(defaults, n, "compare"))
    namespace |= {
        "__slots__": (*own, *compress(_HIDDEN, hidden)),
        "__match_args__": () if kw_only else tuple(own),
        "__init__": _Init(defaults, kw_only),
        **{name: vars(_Shared)[name] for name in _SHARED},
        "__dataclass_fields__": _Fields(defaults, kw_only),
    }
    if eq:
        namespace |= _comparison(compared, hidden[0])
    if repr and "__repr__" not in namespace:
        namespace["__repr__"] = _repr_of(shown)
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _is_field(annotation: object) -> bool:
    return "ClassVar" not in str(annotation)


def _option(defaults: Mapping[str, Any], name: str, option: str) -> bool:
    found = defaults.get(name)
    return not isinstance(found, Field) or bool(getattr(found, option))


class _Init:
    """Stands for ``__init__`` until it is asked for, and then puts the real one in its place."""

    def __init__(self, defaults: Mapping[str, Any], kw_only: bool) -> None:
        self._defaults = defaults
        self._kw_only = kw_only
        self._owner: type

    def __set_name__(self, owner: type, _name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, _type: type | None = None) -> Any:
        owner = self._owner
        if isinstance(owner.__dict__["__init__"], _Init):
            owner.__init__ = _init_of(owner, self._defaults, self._kw_only)  # type: ignore[misc]
        made = owner.__dict__["__init__"]
        return made if instance is None else made.__get__(instance)


def _init_of(owner: type, defaults: Mapping[str, Any], kw_only: bool) -> Callable[..., None]:
    """``__init__`` of a class: the code that classes of so many fields share, with its names."""
    scope: dict[str, Any] = {}
    values: dict[str, Any] = {}
    has_factory: list[bool] = []
    names = [name for name in owner.__slots__ if name not in _HIDDEN]  # type: ignore[attr-defined]
    for number, name in enumerate(names):
        # A slot's own setter is quicker than `object.__setattr__`.
        scope[f"set_{number}"] = owner.__dict__[name].__set__
        default: Any = defaults.get(name, MISSING)
        factory: Any = MISSING
        if isinstance(default, Field):
            default, factory = default.default, default.default_factory
        has_factory.append(factory is not MISSING)
        if factory is not MISSING:
            scope[f"make_{number}"] = factory
            scope[f"default_{number}"] = default = _Made(factory)
        if default is not MISSING:
            values[name] = default
    last = names[len(names) - len(values) :]
    assert kw_only or list(values) == last, (
        f"a field of {owner.__name__} follows one with a default"
    )
    code = _init_code(tuple(has_factory), kw_only, hasattr(owner, "__post_init__"))
    code = code.replace(co_varnames=("self", *names))
    made = FunctionType(code, scope, "__init__", None if kw_only else tuple(values.values()))
    made.__kwdefaults__ = values if kw_only else None
    made.__qualname__ = f"{owner.__qualname__}.__init__"
    made.__module__ = owner.__module__
    annotations = {n: owner.__annotations__[n] for n in names}
    made.__annotations__ = {**annotations, "return": None}
    return made


@cache
def _init_code(has_factory: tuple[bool, ...], kw_only: bool, has_post_init: bool) -> CodeType:
    """``__init__`` of so many fields.  Compiling it for each class would take most of the time that
    first results need for records.
    """
    arguments = ["self", "*"] if kw_only and has_factory else ["self"]
    lines = ["    pass"]
    for n, is_made in enumerate(has_factory):
        arguments.append(f"x{n}")
        value = f"make_{n}() if x{n} is default_{n} else x{n}" if is_made else f"x{n}"
        lines.append(f"    set_{n}(self, {value})")
    if has_post_init:
        lines.append("    self.__post_init__()")
    scope: dict[str, Any] = {}
    exec(f"def __init__({', '.join(arguments)}):\n" + "\n".join(lines), scope)
    code: CodeType = scope["__init__"].__code__
    return code


class _Made:
    """The default of a field that is made anew for each object; signatures show what makes it."""

    def __init__(self, factory: Callable[[], object]) -> None:
        self._name = getattr(factory, "__name__", "…")

    def __repr__(self) -> str:
        return f"{self._name}()"


class _Fields:
    """``__dataclass_fields__``, made when somebody asks whether the class is a dataclass."""

    def __init__(self, defaults: Mapping[str, Any], kw_only: bool) -> None:
        self._defaults = defaults
        self._kw_only = kw_only

    def __get__(self, _instance: object, owner: type) -> dict[str, Field[Any]]:
        annotations = {n: kind for n, kind in get_annotations(owner).items() if _is_field(kind)}
        # Without a docstring the decorator would put a signature together.
        held = {"__doc__": owner.__name__, "__annotations__": annotations, **self._defaults}
        twin = type(owner.__name__, (), held)
        plain = dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=self._kw_only)
        made = {f.name: f for f in fields(plain(twin))}
        owner.__dataclass_fields__ = made  # type: ignore[attr-defined]
        return made


def _comparison(names: tuple[str, ...], keep_hash: bool) -> dict[str, Any]:
    key = _key_of(names)

    def hashed(self: Any) -> int:
        return hash(key(self))

    def hashed_once(self: Any) -> int:
        try:
            found: int = self._hash
        except AttributeError:
            found = hash(key(self))
            object.__setattr__(self, "_hash", found)
        return found

    hashed = hashed_once if keep_hash else hashed
    hashed.__name__ = "__hash__"  # `help` shows a method by its own name.
    code = _equal_code(len(names))
    code = code.replace(co_names=("__class__", "NotImplemented", *names))
    return {"__eq__": FunctionType(code, {}), "__hash__": hashed}


@cache
def _equal_code(count: int) -> CodeType:
    """``__eq__`` of so many fields: each the same object or equal, as in tuples of them."""
    lines = ["def __eq__(self, other):", "    if other.__class__ is not self.__class__:"]
    lines += ["        return NotImplemented", "    if self is other:", "        return True"]
    for n in range(count):
        lines.append(f"    if self.x{n} is not other.x{n} and not self.x{n} == other.x{n}:")
        lines.append("        return False")
    scope: dict[str, Any] = {}
    exec("\n".join([*lines, "    return True"]), scope)
    code: CodeType = scope["__eq__"].__code__
    assert code.co_names[:2] == ("__class__", "NotImplemented")
    return code


def _key_of(names: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        single = attrgetter(*names)
        return lambda self: (single(self),)
    return lambda _self: ()


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr("...")
    def shown(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    shown.__name__ = "__repr__"
    return shown


class _Shared:
    """The methods that all records have in common."""

    __slots__: tuple[str, ...]

    def __setattr__(self, name: str, value: object) -> None:
        raise _frozen(self, name)

    def __delattr__(self, name: str) -> None:
        raise _frozen(self, name)

    def __getstate__(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__ if name not in _HIDDEN]

    def __setstate__(self, state: list[Any]) -> None:
        names = (name for name in self.__slots__ if name not in _HIDDEN)
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)


_SHARED = ("__setattr__", "__delattr__", "__getstate__", "__setstate__")


def _frozen(of: object, name: str) -> FrozenInstanceError:
    return FrozenInstanceError(f"{type(of).__name__}.{name} cannot change: the record is frozen")


__all__ = ["record"]
