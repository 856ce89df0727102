"""A record is what the standard decorator makes of the same text, told apart only by its price."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.records import record


class _Plain:
    x: int
    y: int = 0
    z: tuple[int, ...] = field(default=(), compare=False)
    w: list[int] = field(default_factory=list, repr=False, compare=False)
    shared: ClassVar[dict[str, int]] = {}

    def total(self) -> int:
        """The sum of the two numbers."""
        return self.x + self.y


class _Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")


class _Empty:
    pass


Ours: Any = record(_Plain)
Keyword: Any = record(kw_only=True)(_Plain)
Same: Any = record(eq=False, repr=False)(_Plain)
# The standard decorator takes defaults away from the class it is given: it comes last.
Standard: Any = dataclass(frozen=True, slots=True)(_Plain)


@record(weakref=True)
class Pair:
    """Two numbers."""

    first: int
    second: int = 2


numbers = st.integers(-2, 2)
arguments = st.tuples(numbers, numbers, st.tuples(numbers))


@given(arguments, arguments)
def test_objects_compare_print_and_change_as_those_of_a_dataclass(
    a: tuple[Any, ...], b: tuple[Any, ...]
) -> None:
    makes: tuple[Callable[[Any], Any], ...] = (
        lambda kind: kind(*a),
        lambda kind: kind(a[0], z=a[2], y=a[1]),
        lambda kind: kind(a[0]),
        lambda kind: dataclasses.replace(kind(*a), y=5),
    )
    for make in makes:
        ours, standard = make(Ours), make(Standard)
        assert repr(ours) == repr(standard)
        assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
        assert (ours == Ours(*b)) == (standard == Standard(*b))
        assert ours.total() == standard.total()
    if a[:2] == b[:2]:
        assert hash(Ours(*a)) == hash(Ours(*b))


def test_lists_made_by_default_are_nobody_elses() -> None:
    assert Ours(1).w == []
    assert Ours(1).w is not Ours(1).w
    assert Ours(1, w=[3]).w == [3]


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4, 5)])
def test_wrong_arguments_are_a_type_error_of_the_classs_own(arguments: tuple[int, ...]) -> None:
    for kind in (Ours, Standard):
        with pytest.raises(TypeError, match=r"_Plain\.__init__\(\)"):
            kind(*arguments)


def test_it_is_frozen_and_slotted() -> None:
    for kind in (Ours, Standard):
        made = kind(1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.x = 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            del made.x
        assert not hasattr(made, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ours(1).nothing = 2


def test_tools_see_a_dataclass() -> None:
    assert str(inspect.signature(Ours)).startswith("(x: 'int', y: 'int' = 0")
    assert [f.name for f in dataclasses.fields(Ours)] == ["x", "y", "z", "w"]
    assert dataclasses.is_dataclass(Ours)
    match Pair(1):
        case Pair(first, second):
            assert (first, second) == (1, 2)
    methods = {n: m for n, m in vars(Pair).items() if inspect.isfunction(m)}
    assert {"__eq__", "__hash__", "__repr__", "__setattr__", "__getstate__"} <= set(methods)
    assert all(method.__name__ == name for name, method in methods.items())


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal(again: Callable[[Pair], Pair]) -> None:
    before = Pair(3)
    assert again(before) == before
    assert again(before) is not before


def test_options() -> None:
    assert weakref.ref(Pair(1)) is not None
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(Ours(1))
    assert Keyword(x=1, y=2).total() == 3
    with pytest.raises(TypeError):
        Keyword(1)
    assert Same(1) != Same(1)
    assert "object at" in repr(Same(1))
    nothing: Any = record(_Empty)
    assert nothing() == nothing()
    with pytest.raises(ValueError, match="negative"):
        record(_Checked)(-1)  # type: ignore[call-arg]


def test_a_class_compiles_nothing_before_its_first_object() -> None:
    kind: Any = record(_Empty)
    assert not inspect.isfunction(vars(kind)["__init__"])
    kind()
    assert inspect.isfunction(vars(kind)["__init__"])
