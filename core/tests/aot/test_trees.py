"""Containers are written as JSON and read back as the same definition."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest

import bringup as bu
from bringup.aot.trees import tree_of_json, tree_to_json
from bringup.errors import ConversionError, ParseError
from bringup.tracing.pytree import flatten

X = bu.ones((4, 4), dtype=bu.float32)
SCALE = bu.ones((), dtype=bu.float32)
TREES: dict[str, Any] = {
    "leaf": 1,
    "none": None,
    "containers": (1, [2, (), []], {"b": 1, "a": {}}, None),
    "keys": {"": 1, "*": 2},
    "numbers": {2: 1, 0.5: 2},
    "mixed": {None: 1, "a": 2, True: 3},
    "order": OrderedDict([("z", 1), ("a", 2)]),
    "ComplexArray": bu.asarray([1j]),
    "amp.AmaxHistory": bu.amp.AmaxHistory(4),
    "amp.LossScale": bu.amp.LossScale(),
    "amp.Quantized": bu.amp.Quantized(X, SCALE),
    "optim.State": bu.optim.adam(0.1).init({"w": X}),
    "prune.PruningState": bu.prune.PruningState(SCALE, (X,)),
    "quant.Int4Array": bu.quant.quantize_int4(X, group=2),
    "quant.Int8Array": bu.quant.quantize(X, axis=-1),
    "random.Key": bu.random.key(1),
}


@pytest.mark.parametrize("name", TREES)
def test_containers_are_read_back(name: str) -> None:
    leaves, tree = flatten(TREES[name])
    labels = [f"leaf{n}" for n in range(len(leaves))]
    written = json.loads(json.dumps(tree_to_json(tree, labels, "it")))
    if "." in name:
        assert list(written) == [name]
    read, texts = tree_of_json(written)
    assert (read, texts) == (tree, labels)
    assert list(read.paths()) == list(tree.paths())


def test_what_cannot_be_said_in_json_is_refused() -> None:
    block = bu.prune.BlockSparse(X, bu.prune.Pattern((4, 4), (0,), (0,)))
    for tree in ({(1,): 2}, {float("inf"): 2}, block):
        definition = flatten(tree)[1]
        with pytest.raises(ConversionError):
            tree_to_json(definition, ["leaf"] * definition.leaves, "it")


@pytest.mark.parametrize(
    "text",
    ['{"set": []}', '{"tuple": 1}', '{"tuple": [], "list": []}', '{"dict": [["a"]]}', "1", "[]"],
)
def test_other_json_is_no_container(text: str) -> None:
    with pytest.raises(ParseError, match="is no container that is known"):
        tree_of_json(json.loads(text))
