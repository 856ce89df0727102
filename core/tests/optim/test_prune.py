"""Pruning: which weights go, when, and that smaller parameters compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import BringupError, OpTypeError

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


# -- blocks ----------------------------------------------------------------------------------------


def with_zero_blocks(shape: tuple[int, int], block: tuple[int, int], keeps: Any) -> Any:
    """A matrix of small whole numbers, products of which are exact, zero where `keeps` is false."""
    spread = np.kron(keeps, np.ones(block, bool))
    return np.where(spread, RNG.integers(1, 4, shape), 0).astype(np.float32)


def whole(*shape: int) -> Any:
    return RNG.integers(-3, 4, shape).astype(np.float32)


#: Shapes, blocks, and which blocks stay: some, with an empty row and column; none; all; one.
BLOCKS: dict[str, tuple[tuple[int, int], tuple[int, int], Any]] = {
    "some": ((12, 20), (3, 4), np.arange(20).reshape(4, 5) % 3 == 0),
    "empty lines": ((12, 20), (3, 4), np.outer([1, 0, 1, 1], [1, 1, 0, 1, 0]) > 0),
    "none": ((12, 20), (3, 4), np.zeros((4, 5), bool)),
    "all": ((6, 16), (2, 8), np.ones((3, 2), bool)),
    "single weights": ((5, 7), (1, 1), RNG.random((5, 7)) < 0.4),
    "whole": ((5, 7), (5, 7), np.ones((1, 1), bool)),
}


@pytest.mark.parametrize("form", BLOCKS)
def test_a_block_sparse_matrix_is_the_matrix(form: str) -> None:
    shape, block, keeps = BLOCKS[form]
    w = with_zero_blocks(shape, block, keeps)
    sparse = bu.prune.block_sparse(bu.asarray(w), block=block)
    assert sparse.shape == shape
    assert sparse.blocks.shape == (keeps.sum(), *block)
    assert sparse.nbytes == keeps.sum() * (block[0] * block[1] * 4 + 8)
    assert (np.asarray(sparse.dense()) == w).all()
    for lead in ((9,), (2, 3), ()):
        x = whole(*lead, shape[0])
        assert (np.asarray(bu.asarray(x) @ sparse) == x @ w).all()
        assert (np.asarray(x @ sparse) == x @ w).all()  # an array of numpy on the left
    assert (np.asarray(bu.jit(lambda s, x: x @ s)(sparse, x)) == x @ w).all()
    frozen = bu.freeze(lambda s, x: x @ s, sparse)
    assert (np.asarray(frozen(bu.asarray(x))) == x @ w).all()


@pytest.mark.parametrize("form", BLOCKS)
def test_gradients_are_those_of_the_matrix_where_it_has_blocks(form: str) -> None:
    shape, block, keeps = BLOCKS[form]
    w, x = with_zero_blocks(shape, block, keeps), whole(4, shape[0])
    slopes = whole(4, shape[1])
    sparse = bu.prune.block_sparse(bu.asarray(w), block=block)
    by_w, by_x = bu.grad(lambda s, x: bu.sum((x @ s) * slopes), argnums=(0, 1))(
        sparse, bu.asarray(x)
    )
    assert by_w.pattern is sparse.pattern
    spread = np.kron(keeps, np.ones(block, bool))
    assert (np.asarray(by_w.dense()) == np.where(spread, x.T @ slopes, 0)).all()
    assert (np.asarray(by_x) == slopes @ w.T).all()


def test_examples_and_networks_run_side_by_side() -> None:
    shape, block, keeps = BLOCKS["some"]
    w, x = with_zero_blocks(shape, block, keeps), whole(3, 12)
    sparse = bu.prune.block_sparse(bu.asarray(w), block=block)
    rows = bu.vmap(lambda row: row @ sparse)(bu.asarray(x))
    assert (np.asarray(rows) == x @ w).all()
    two = bu.tree.map(lambda a: bu.stack([a, 2 * a]), sparse)
    both = bu.vmap(lambda s, x: x @ s, in_axes=(0, None))(two, bu.asarray(x))
    assert (np.asarray(both) == np.stack([x @ w, 2 * x @ w])).all()


def test_fine_tuning_changes_blocks_alone() -> None:
    shape, block, keeps = BLOCKS["some"]
    params = {"w": bu.asarray(with_zero_blocks(shape, block, keeps)), "b": bu.zeros(20)}
    small = bu.prune.block_sparse_params(params, block=block)
    assert isinstance(small["w"], bu.prune.BlockSparse)
    x, y = bu.asarray(whole(32, 12)), bu.asarray(whole(32, 20))
    optimizer = bu.optim.adam(0.05)

    @bu.jit
    def step(params: Any, state: Any) -> Any:
        error, slopes = bu.value_and_grad(lambda p: bu.mean(bu.square(x @ p["w"] + p["b"] - y)))(
            params
        )
        return (*optimizer.update(slopes, state, params), error)

    state, errors = optimizer.init(small), []
    for _ in range(30):
        small, state, error = step(small, state)
        errors.append(float(error))
    assert errors[-1] < errors[0] / 2
    spread = np.kron(keeps, np.ones(block, bool))
    assert (np.asarray(small["w"].dense())[~spread] == 0).all()


def test_dtypes_meet_as_those_of_arrays() -> None:
    shape, block, keeps = BLOCKS["some"]
    w = bu.asarray(with_zero_blocks(shape, block, keeps))
    half = bu.prune.block_sparse(bu.astype(w, bu.float16), block=block)
    assert half.blocks.dtype is bu.float16
    assert (bu.ones((2, 12), dtype=bu.float16) @ half).dtype is bu.float16
    assert (bu.ones((2, 12), dtype=bu.float32) @ half).dtype is bu.float32


def test_of_a_container_only_matrices_with_many_zero_blocks_are_stored_so() -> None:
    params = {
        "sparse": bu.asarray(with_zero_blocks((8, 8), (4, 4), np.eye(2, dtype=bool))),
        "dense": bu.asarray(W),
        "odd": bu.zeros((8, 6), dtype=bu.float32),
        "bias": bu.zeros(8),
        "stack": bu.zeros((2, 8, 8)),
        "counts": bu.zeros((8, 8), dtype=bu.int32),
    }
    small = bu.prune.block_sparse_params(params, block=(4, 4))
    changed = [name for name in params if small[name] is not params[name]]
    assert changed == ["sparse"]
    assert bu.prune.block_sparse_params(params, block=(4, 4), least=0.51) == params
    with pytest.raises(OpTypeError, match=r"blocks of 4 x 4 in f32\[8,6\]"):
        bu.prune.block_sparse_params({"w": params["odd"]}, block=(4, 4), prunes=bu.prune.matrices)


def test_misuse_of_blocks_is_explained() -> None:
    w = bu.asarray(W)
    with pytest.raises(OpTypeError, match=r"block_sparse: blocks of 3 x 4 in f32\[8,12\]"):
        bu.prune.block_sparse(w, block=(3, 4))
    with pytest.raises(OpTypeError, match="is no matrix"):
        bu.prune.block_sparse(bu.zeros((2, 8, 8)))
    with pytest.raises(OpTypeError, match="no floats"):
        bu.prune.block_sparse(bu.zeros((8, 8), dtype=bu.int32))
    sparse = bu.prune.block_sparse(w, block=(4, 4))
    with pytest.raises(OpTypeError, match=r"f32\[3,12\] and a block-sparse matrix \(8, 12\)"):
        bu.asarray(W[:3]) @ sparse
    with pytest.raises(BringupError, match="value"):
        bu.jit(lambda w: bu.prune.block_sparse(w, block=(4, 4)).blocks)(w)


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
