"""Pruning: which weights go, when, and that smaller parameters compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

RNG = np.random.default_rng(3)
W = RNG.normal(size=(8, 12)).astype(np.float32)
W += np.sign(W) / 16


def kept(mask: Any) -> Any:
    return np.asarray(mask)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_the_least_weights_go(share: float) -> None:
    mask = kept(bu.prune.masks(bu.asarray(W), share))
    gone = round(W.size * share)
    assert (~mask).sum() == gone
    limit = np.sort(np.abs(W).reshape(-1))
    assert (np.abs(W)[~mask] <= (limit[gone - 1] if gone else 0)).all()


def test_equal_weights_go_as_often_as_asked_for() -> None:
    assert kept(bu.prune.masks(bu.ones((4, 4)), 0.5)).sum() == 8


def test_all_layers_together_lose_the_least_of_all() -> None:
    params = {"big": bu.asarray(W * 100), "small": bu.asarray(W), "b": bu.ones(3)}
    found = bu.prune.masks(params, 0.5, scope="global")
    assert kept(found["big"]).all()
    assert not kept(found["small"]).any()
    assert kept(found["b"]).all()
    layers = bu.prune.masks(params, 0.5)
    assert kept(layers["big"]).sum() == kept(layers["small"]).sum() == W.size // 2


@pytest.mark.parametrize("block", [(2, 3), (1, None), (None, 1), (4, 4)])
def test_blocks_go_as_one(block: Any) -> None:
    mask = kept(bu.prune.masks(bu.asarray(W), 0.5, block=block))
    rows, columns = block[0] or 8, block[1] or 12
    parts = mask.reshape(8 // rows, rows, 12 // columns, columns).swapaxes(1, 2)
    sums = parts.sum(axis=(2, 3))
    assert set(sums.reshape(-1)) <= {0, rows * columns}
    assert (sums > 0).sum() == sums.size - round(sums.size * 0.5)
    means = np.abs(W).reshape(8 // rows, rows, 12 // columns, columns).mean(axis=(1, 3))
    assert means[sums > 0].min() >= means[sums == 0].max()


@pytest.mark.parametrize("axis", [-2, 0, 1])
def test_some_of_every_four_stay(axis: int) -> None:
    mask = kept(bu.prune.n_of_m_masks(bu.asarray(W), 2, 4, axis=axis))
    groups = np.moveaxis(mask, axis, -1).reshape(-1, 4)
    values = np.moveaxis(np.abs(W), axis, -1).reshape(-1, 4)
    assert (groups.sum(axis=1) == 2).all()
    assert (values.max(axis=1) == np.where(groups, values, 0).max(axis=1)).all()
    least = np.where(groups, values, np.inf).min(axis=1)
    assert (least >= np.where(groups, 0, values).max(axis=1)).all()


def test_masks_are_made_in_compiled_steps_by_their_schedule() -> None:
    rise = bu.prune.polynomial(0.0, 0.75, 6, begin=2)
    pruning = bu.prune.gradual(rise, every=2, until=8)
    optimizer = bu.optim.sgd(0.01)
    target = bu.asarray(RNG.normal(size=(12,)).astype(np.float32))
    x = bu.asarray(RNG.normal(size=(32, 8)).astype(np.float32))

    @bu.jit
    def step(params: Any, state: Any, pruned: Any) -> Any:
        slopes = bu.grad(lambda p: bu.mean(bu.square(x @ p["w"] - target)))(params)
        params, state = optimizer.update(slopes, state, params)
        return (*pruning.update(params, pruned)[::-1], state)

    params: Any = {"w": bu.asarray(W), "b": bu.zeros(2, dtype=bu.float32)}
    state, pruned = optimizer.init(params), pruning.init(params)
    shares = []
    for _ in range(12):
        pruned, params, state = step(params, state, pruned)
        shares.append(bu.prune.sparsity(params))
    made = [0, 0, 0, 4, 4, 6, 6, 8, 8, 8, 8, 8]  # the step of the masks that hold after each step
    assert shares == [round(96 * float(rise(n))) / 96 for n in made]
    assert shares[-1] == 0.75


def test_the_polynomial_is_the_papers() -> None:
    rise = bu.prune.polynomial(0.5, 0.9, 10, begin=5)
    for n in range(5, 16):
        exact = 0.9 + (0.5 - 0.9) * (1 - (n - 5) / 10) ** 3
        assert float(rise(n)) == pytest.approx(exact, abs=1e-6)
    assert float(rise(4)) == 0
    assert float(rise(99)) == pytest.approx(0.9)


def network(params: Any, x: Any) -> Any:
    """A convolution, its channels flattened, a hidden layer and an output."""
    maps = bu.nn.relu(bu.nn.conv(x, params["k"]) + params["c"][:, None, None])
    flat = bu.reshape(maps, (x.shape[0], -1))
    return bu.nn.relu(flat @ params["w"][0] + params["b"]) @ params["w"][1]


def test_without_dead_units_the_same_is_computed_by_less() -> None:
    def drawn(*shape: int) -> Any:
        return RNG.normal(size=shape).astype(np.float32)

    params = {"k": drawn(6, 1, 3, 3), "c": drawn(6), "w": [drawn(6 * 16, 10), drawn(10, 4)],
              "b": drawn(10)}  # fmt: skip
    params["k"][[1, 4]], params["c"][[1, 4]] = 0, 0
    params["w"][0][:, 3], params["b"][3] = 0, 0
    params["w"][1][7] = 0
    x = bu.asarray(drawn(2, 1, 6, 6))
    paths = [
        bu.prune.Units(made={"['k']": 0, "['c']": 0}, read={"['w'][0]": 0}),
        bu.prune.Units(made={"['w'][0]": 1, "['b']": 0}, read={"['w'][1]": 0}),
    ]
    small = bu.prune.without_units(params, paths)
    assert small["k"].shape == (4, 1, 3, 3)
    assert [w.shape for w in small["w"]] == [(64, 8), (8, 4)]
    assert small["b"].shape == (8,)
    expected = np.asarray(bu.jit(network)(params, x))
    assert np.abs(np.asarray(bu.jit(network)(small, x)) - expected).max() < 1e-5
    costs = [bu.jit(network).lower(p, x).cost() for p in (params, small)]
    assert costs[1].flops < 0.7 * costs[0].flops


def test_of_a_layer_that_names_no_readers_only_what_makes_units_decides() -> None:
    params = {"w": bu.asarray([[0.0, 2.0, 3.0]])}
    small = bu.prune.without_units(params, [bu.prune.Units(made={"['w']": 1}, read={})])
    assert small["w"].tolist() == [[2.0, 3.0]]


def test_misuse_is_explained() -> None:
    w = bu.asarray(W)
    with pytest.raises(OpTypeError, match=r"blocks of 3 x 1 in f32\[8,12\]"):
        bu.prune.masks(w, 0.5, block=(3, 1))
    with pytest.raises(OpTypeError, match="scope='all'"):
        bu.prune.masks(w, 0.5, scope="all")  # type: ignore[arg-type]
    with pytest.raises(OpTypeError, match="2 of 5 along axis -2"):
        bu.prune.n_of_m_masks(w, 2, 5)
    units = bu.prune.Units
    with pytest.raises(OpTypeError, match=r"no parameter is named \['u'\]"):
        bu.prune.without_units({"w": w}, [units({"['u']": 0}, {})])
    with pytest.raises(OpTypeError, match=r"axis 1 of \['w'\]"):
        bu.prune.without_units({"w": w, "v": w}, [units({"['w']": 1}, {"['v']": 0})])
