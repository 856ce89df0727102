"""Keys: made, split, folded, shown, passed through transformations, and refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import bringup as bu
from bringup.errors import ArrayIndexError, ConversionError, OpTypeError

IMPLS = ("threefry2x32", "philox4x32")


def words(key: bu.random.Key) -> list[int]:
    return key.data.tolist()


def test_a_seed_is_two_words() -> None:
    assert words(bu.random.key(42)) == [0, 42]
    assert words(bu.random.key(-1)) == [0xFFFFFFFF, 0xFFFFFFFF]
    assert words(bu.random.key(2**64 - 1)) == words(bu.random.key(-1))
    assert words(bu.random.key(np.int64(7 << 33))) == [14, 0]


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 127])
@pytest.mark.parametrize("dtype", [bu.int32, bu.int64, bu.uint32, bu.uint64])
def test_arrays_are_seeds_too(seed: int, dtype) -> None:
    wanted = words(bu.random.key(seed))
    assert words(bu.random.key(bu.asarray(seed, dtype=dtype))) == wanted
    assert words(bu.jit(bu.random.key)(bu.asarray(seed, dtype=dtype))) == wanted


def test_negative_arrays_are_the_same_seeds_as_ints() -> None:
    for dtype in (bu.int8, bu.int16, bu.int32, bu.int64):
        assert words(bu.random.key(bu.asarray(-3, dtype=dtype))) == words(bu.random.key(-3))


@pytest.mark.parametrize("impl", IMPLS)
def test_keys_show_themselves(impl: str) -> None:
    key = bu.random.key(255, impl=impl)
    assert repr(key) == f"Key(00000000 000000ff, {impl})"
    assert repr(bu.random.split(key, (2, 3))) == f"Keys((2, 3), {impl})"
    seen = []
    bu.jit(lambda k: seen.append(repr(k)) or k.data)(key)
    assert seen == [f"Key(traced, {impl})"]


@pytest.mark.parametrize("impl", IMPLS)
def test_split_gives_different_keys_of_the_same_kind(impl: str) -> None:
    key = bu.random.key(0, impl=impl)
    first, second = bu.random.split(key)
    many = bu.random.split(key, (3, 2))
    assert many.shape == (3, 2)
    assert len(many) == 3
    assert {k.impl for k in (first, second, many)} == {impl}
    assert words(many[0, 0]) == words(first), "the number of a key in its array decides"
    assert words(many[..., 1][2]) == words(many[2][1]) == words(bu.random.split(key, 6)[5])
    found = {tuple(words(k)) for row in many for k in row}
    assert len(found | {tuple(words(key))}) == 7


def test_fold_in_takes_ints_and_arrays() -> None:
    key = bu.random.key(3)
    wanted = words(bu.random.fold_in(key, 10))
    assert words(bu.random.fold_in(key, bu.asarray(10))) == wanted
    assert words(bu.jit(bu.random.fold_in)(key, bu.asarray(10, dtype=bu.uint32))) == wanted
    assert words(bu.jit(lambda k: bu.random.fold_in(k, 10))(key)) == wanted
    assert words(bu.random.fold_in(key, 10 + 2**32)) != wanted


SEEDS = (0, 1, 42, 2**32 - 1, 2**63 + 5, -1, -(2**63))


@pytest.mark.parametrize("impl", IMPLS)
def test_keys_made_on_the_host_have_the_bits_of_those_made_by_programs(impl: str) -> None:
    split = bu.jit(lambda k: bu.random.split(k, (2, 3)))
    fold = {data: bu.jit(lambda k, d=data: bu.random.fold_in(k, d)) for data in (0, 7, 2**40 + 3)}
    for seed in SEEDS:
        key = bu.random.key(seed, impl=impl)
        assert words(bu.random.split(key, (2, 3))) == words(split(key))
        assert words(bu.random.split(key, 6)[4]) == words(split(key)[1, 1])
        for data, made in fold.items():
            assert words(bu.random.fold_in(key, data)) == words(made(key))
            assert words(bu.random.fold_in(key, data)) == words(
                bu.random.fold_in(key, bu.asarray(data))
            )


def test_a_chain_of_splits_has_the_bits_of_one_program() -> None:
    def last(key: bu.random.Key) -> bu.Array:
        for _ in range(20):
            key, sub = bu.random.split(key)
        return sub.data

    key = bu.random.key(5)
    assert last(key).tolist() == bu.jit(last)(key).tolist()


def test_keys_on_the_host_stay_in_step_with_their_arrays() -> None:
    keys = bu.random.split(bu.random.key(9), (3, 2))
    for index in (0, -1, (1, 0), (slice(1), 1), (..., 0), slice(None, None, -1), (None, 2)):
        picked = keys[index]
        last = index if isinstance(index, tuple) else (index,)
        assert (
            words(picked)
            == keys.data[(*last, slice(None)) if ... in last else (*last, ...)].tolist()
        )
        if not picked.shape:
            assert words(bu.random.split(picked)) == words(
                bu.random.split(bu.random.Key(bu.asarray(np.asarray(picked.data))))
            )
    moved = bu.tree.tree_map(lambda data: data + 1, keys[0, 0])
    assert words(bu.random.split(moved)) != words(bu.random.split(keys[0, 0]))
    with pytest.raises(ArrayIndexError):
        keys[3]
    with pytest.raises(OpTypeError, match="one key cannot be indexed"):
        keys[0, 0][0]


def test_keys_are_values() -> None:
    key = bu.random.key(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        key.impl = "philox4x32"
    assert words(copy.deepcopy(key)) == words(pickle.loads(pickle.dumps(key))) == words(key)


def test_keys_are_containers() -> None:
    key = bu.random.key(1, impl="philox4x32")
    leaves, treedef = bu.tree.flatten({"k": key})
    assert leaves == [key.data]
    assert bu.tree.unflatten(treedef, leaves)["k"].impl == "philox4x32"

    def loss(w: bu.Array, k: bu.random.Key) -> bu.Array:
        return bu.sum(w * bu.random.normal(k, w.shape, dtype=bu.float32))

    w = bu.ones(5, dtype=bu.float32)
    slope = bu.jit(bu.grad(loss))(w, key)
    assert np.array_equal(slope, bu.random.normal(key, 5, dtype=bu.float32))


def test_keys_map_over_examples() -> None:
    keys = bu.random.split(bu.random.key(1), 4)
    mapped = bu.vmap(lambda k: bu.random.normal(k, 3))(keys)
    assert np.array_equal(mapped, bu.stack([bu.random.normal(k, 3) for k in keys]))


def test_calls_of_one_jit_take_keys_of_either_kind() -> None:
    draw = bu.jit(lambda k: bu.random.bits(k, 2))
    for impl in (*IMPLS, *IMPLS):
        key = bu.random.key(9, impl=impl)
        assert np.array_equal(draw(key), bu.random.bits(key, 2))


MISUSES = [
    (lambda: bu.random.uniform(0, 3), "uniform: needs a key, not int", "random.key"),
    (lambda: bu.random.normal(bu.ones(2)), r"normal: needs a key, not f64\[2\]", "random.key"),
    (
        lambda: bu.random.bits(bu.random.split(bu.random.key(0))),
        r"bits: needs a key, not keys of shape \(2,\)",
        "index them",
    ),
    (lambda: bu.random.split(7), "split: needs a key, not int", "random.key"),
    (lambda: bu.random.key(0.5), "seed must be an integer, not float", "int"),
    (lambda: bu.random.key(True), "seed must be an integer, not bool", "int"),
    (lambda: bu.random.key(bu.asarray([1])), r"seed must be an integer, not i64\[1\]", "0-d"),
    (lambda: bu.random.key(0, impl="mt19937"), "no generator is called 'mt19937'", "threefry2x32"),
    (lambda: bu.random.fold_in(bu.random.key(0), "a"), "data must be an integer, not str", "int"),
    (lambda: bu.random.key(0)[0], "one key cannot be indexed", "split"),
    (lambda: bu.random.Key(bu.zeros(2)), r"the words of a key are u32\[…,2\], not f64\[2\]", "key"),
    (lambda: bu.random.Key(3), r"the words of a key are u32\[…,2\], not int", "key"),
]


@pytest.mark.parametrize(("use", "what", "fix"), MISUSES, ids=[m[1] for m in MISUSES])
def test_misuse_is_explained(use, what: str, fix: str) -> None:
    with pytest.raises(OpTypeError, match=what) as caught:
        use()
    assert fix in str(caught.value.fix)
    assert caught.value.location.file == __file__


def test_a_seed_too_large_is_refused() -> None:
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ConversionError, match="does not fit in 64 bits"):
            bu.random.key(seed)
    with pytest.raises(ConversionError, match="one key has no length"):
        len(bu.random.key(0))
