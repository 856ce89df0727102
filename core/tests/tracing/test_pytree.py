from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from bringup.errors import ConversionError
from bringup.tracing.pytree import (
    LEAF,
    MAX_DEPTH,
    Static,
    TreeDef,
    flatten,
    register,
    tree_map,
    unflatten,
)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Model:
    weight: Any
    bias: Any = None
    name: str = field(default="m", metadata={"static": True})

    def __post_init__(self) -> None:
        if isinstance(self.weight, type):
            raise AssertionError("rebuilding must not validate leaves")


@dataclass(frozen=True, slots=True)
class Frozen:
    items: list[Any]


TREES = [
    1,
    None,
    (),
    [],
    {},
    (1, (2, [3, {"a": 4}])),
    {"b": 1, "a": (2, None)},
    OrderedDict([("z", 1), ("a", 2)]),
    Pair(1, [2, 3]),
    Model(1, {"x": 2}, "net"),
    Frozen([1, 2]),
    {1: 2, "mixed": 3},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_tree_survives_being_taken_apart(tree: Any) -> None:
    leaves, treedef = flatten(tree)
    rebuilt = unflatten(treedef, leaves)
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)
    assert treedef.leaves == len(leaves) == len(list(treedef.paths()))
    again = flatten(rebuilt)[1]
    assert again == treedef
    assert hash(again) == hash(treedef)


def test_different_containers_are_different_trees() -> None:
    definitions = {flatten(tree)[1] for tree in TREES}
    assert len(definitions) == len(TREES)
    assert flatten((1, 2))[1] != flatten([1, 2])[1]
    assert flatten({"a": 1})[1] != flatten({"b": 1})[1]
    assert flatten(Model(1, 2, "x"))[1] != flatten(Model(1, 2, "y"))[1]


def test_the_order_of_a_dict_does_not_matter_and_its_leaves_are_sorted() -> None:
    first, second = flatten({"b": 1, "a": 2}), flatten({"a": 2, "b": 1})
    assert first == second == ([2, 1], first[1])


def test_paths_name_every_leaf() -> None:
    tree = {"w": [1, Pair(2, 3)], "m": Model(4)}
    _, treedef = flatten(tree)
    assert list(treedef.paths("x")) == [
        "x['m'].weight",
        "x['w'][0]",
        "x['w'][1].left",
        "x['w'][1].right",
    ]


def test_static_fields_tell_apart_what_python_calls_equal() -> None:
    definitions = {flatten(Model(0, 0, v))[1] for v in (1, True, 1.0, 0.0, -0.0)}  # type: ignore[arg-type]
    assert len(definitions) == 5


def test_static_values_compare_by_type_and_bits() -> None:
    nan = float("nan")
    assert Static(nan) == Static(nan)
    assert Static(0.0) != Static(-0.0)
    assert Static(1) != Static(True)
    assert Static((1, 2.0)) == Static((1, 2.0))
    assert Static((1, 2)) != Static((1, 2.0))
    with pytest.raises(ConversionError, match="must be hashable, and list is not"):
        Static([1])


def test_a_registered_class_is_a_container() -> None:
    class Box:
        def __init__(self, content: Any) -> None:
            self.content = content

    register(Box, lambda b: ([b.content], [".content"], None), lambda _, c: Box(c[0]))
    leaves, treedef = flatten([Box(5)])
    assert leaves == [5]
    assert list(treedef.paths()) == ["[0].content"]
    assert unflatten(treedef, [6])[0].content == 6
    with pytest.raises(ValueError, match="Box is a container already"):
        register(Box, lambda b: ([], [], None), lambda _, c: None)


def test_a_subclass_of_a_container_is_a_leaf() -> None:
    class Mine(list[int]):
        pass

    assert flatten(Mine([1]))[1] == LEAF


def test_tree_map_walks_trees_together() -> None:
    assert tree_map(lambda a, b: a + b, {"x": [1, 2]}, {"x": [10, 20]}) == {"x": [11, 22]}
    with pytest.raises(ConversionError, match="trees differ"):
        tree_map(lambda a, b: a, [1], (1,))


def test_the_number_of_leaves_is_checked() -> None:
    _, treedef = flatten([1, 2])
    with pytest.raises(ConversionError, match="takes 2 leaves, got 1"):
        unflatten(treedef, [1])


def test_definitions_print_as_the_containers_do() -> None:
    _, treedef = flatten(({"w": 1}, [2, None], (3,), Pair(4, 5), Model(6)))
    assert repr(treedef) == (
        "({'w': *}, [*, None], (*,), Pair(left=*, right=*), Model(weight=*, bias=None))"
    )
    assert isinstance(treedef, TreeDef)


class Diagonal(Pair):
    """A namedtuple whose class takes other arguments than it has fields."""

    def __new__(cls, both: object) -> Diagonal:
        return super().__new__(cls, both, both)


def test_a_namedtuple_is_put_together_without_its_own_constructor() -> None:
    leaves, treedef = flatten(Diagonal(3))
    assert leaves == [3, 3]
    made = unflatten(treedef, [1, 2])
    assert type(made) is Diagonal
    assert (made.left, made.right) == (1, 2)


def test_a_class_met_as_a_leaf_may_become_a_container() -> None:
    class Couple:
        def __init__(self, first: object, second: object) -> None:
            self.first, self.second = first, second

    assert len(flatten(Couple(1, 2))[0]) == 1
    register(
        Couple,
        lambda p: ((p.first, p.second), (".first", ".second"), None),
        lambda _, c: Couple(*c),
    )
    assert flatten(Couple(1, 2))[0] == [1, 2]


def test_what_is_nested_too_deeply_is_refused() -> None:
    def nested(levels: int) -> list[Any]:
        tree: list[Any] = [1]
        for _ in range(levels - 1):
            tree = [tree]
        return tree

    for levels in (100, MAX_DEPTH - 1):
        (leaf,), treedef = flatten(nested(levels))
        assert leaf == 1
        assert treedef == flatten(nested(levels))[1]
        assert hash(treedef) == hash(flatten(nested(levels))[1])
        assert repr(treedef).count("[") == levels
    for levels in (MAX_DEPTH, 3000):
        with pytest.raises(ConversionError, match="more than 200 levels deep"):
            flatten(nested(levels))
    itself: list[Any] = [1.0]
    itself.append(itself)
    with pytest.raises(ConversionError, match="or holds itself"):
        tree_map(lambda v: v, itself)
