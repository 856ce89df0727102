"""Sparse parameters, as ``bringup.prune``: which weights become zero, when, and what is left.

A mask is a container like the parameters, of bool arrays that broadcast to them: false where a
weight is zero.  While a network is trained, `gradual` makes masks by a schedule and keeps weights
zero.  Afterwards `without_units` removes the rows and columns that are zero altogether, so that the
same function of smaller arrays compiles to a smaller and faster program, and `block_sparse_params`
stores matrices that have many blocks of zeros without them: a `BlockSparse` stands on the right of
``@``, in the network as it is, and the product leaves out what is not stored.

>>> params = {"w": bu.asarray([[0.1, -3.0], [2.0, 0.2]]), "b": bu.asarray([0.01, 0.02])}
>>> masks = bu.prune.masks(params, 0.5)
>>> bu.prune.masked(params, masks)["w"].tolist()
[[0.0, -3.0], [2.0, 0.0]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.boundary import guarded, guarded_methods, publish
from bringup.api.broadcasting import as_array, convert, floats_of
from bringup.api.control import cond
from bringup.api.creation import asarray, ones, zeros
from bringup.api.elementwise import abs, clip, where
from bringup.api.elementwise import round as rounded
from bringup.api.gathering import take
from bringup.api.manipulation import broadcast_to, concat, permute_dims, reshape
from bringup.api.promotion import promote
from bringup.api.reductions import mean
from bringup.api.sorting import argsort
from bringup.dtypes import FLOATS, bool_, f32, i32
from bringup.errors import OpTypeError
from bringup.records import record
from bringup.tracing.pytree import flatten, tree_map, unflatten

#: Sparsity: the share of weights that are zero; a number, or a function of the steps made so far.
Sparsity = float | Callable[[Array], Array]
#: Rows and columns of the blocks that become zero as one; None for all of an axis.
Block = tuple[int | None, int | None]


def matrices(p: Array) -> bool:
    """Whether a parameter has two axes or more: what is pruned by default, not biases or gains.

    >>> bu.prune.matrices(bu.ones((2, 2))), bu.prune.matrices(bu.ones(2))
    (True, False)
    """
    return p.ndim > 1


def masks(
    params: Any,
    sparsity: float | Array,
    *,
    scope: Literal["layer", "global"] = "layer",
    block: Block = (1, 1),
    prunes: Callable[[Array], bool] | None = None,
) -> Any:
    """Masks that leave out the weights of least magnitude (S. Han et al., 2015).

    sparsity: the share of blocks that become zero, from 0 to 1, rounded to whole blocks.
    scope: "layer" takes that share of each parameter, "global" of all of them together.
    block: blocks of the last two axes become zero as one, by the mean magnitude of their weights;
    ``(None, 1)`` takes whole columns: the units of a layer ``x @ w``.
    prunes: which parameters, by default `matrices`; the others keep all their weights.
    Raises OpTypeError for blocks that do not divide the axes.

    >>> w = bu.asarray([[4.0, 1.0, 2.0], [3.0, 1.0, 0.0]])
    >>> bu.prune.masks(w, 0.67, block=(None, 1)).tolist()
    [[True, False, False], [True, False, False]]
    """
    leaves, treedef = flatten(params)
    arrays = [as_array(x) for x in leaves]
    pruned = [n for n, p in enumerate(arrays) if (prunes or matrices)(p)]
    blocks = [_blocks("masks", arrays[n], block) for n in pruned]
    scores = [
        reshape(mean(abs(convert(b, f32 if b.dtype.bits < 32 else b.dtype)), axis=(-3, -1)), (-1,))
        for b in blocks
    ]
    if scope == "global":
        together = _best(concat(scores), sparsity) if scores else None
        cuts = pairwise(accumulate((s.size for s in scores), initial=0))
        chosen = [] if together is None else [together[first:end] for first, end in cuts]
    elif scope == "layer":
        chosen = [_best(s, sparsity) for s in scores]
    else:
        raise OpTypeError(f"masks: scope={scope!r}", fix='give "layer" or "global"')
    result = [ones((), dtype=bool_) for _ in arrays]
    for n, keep, blocked in zip(pruned, chosen, blocks, strict=True):
        *outer, rows, height, columns, width = blocked.shape
        spread = reshape(keep, (*outer, rows, 1, columns, 1))
        full = broadcast_to(spread, (*outer, rows, height, columns, width))
        result[n] = reshape(full, arrays[n].shape)
    return unflatten(treedef, result)


def n_of_m_masks(
    params: Any, n: int, m: int, *, axis: int = -2, prunes: Callable[[Array], bool] | None = None
) -> Any:
    """Masks that keep the `n` largest of every `m` neighbours along an axis, 2 of 4 for instance.

    axis: the contracted one of the product that the parameter is used in; -2 for ``x @ w``.
    Raises OpTypeError where `m` does not divide the axis.

    >>> bu.prune.n_of_m_masks(bu.asarray([[1.0], [4.0], [3.0], [2.0]]), 2, 4).tolist()
    [[False], [True], [True], [False]]
    """

    def of(x: Any) -> Array:
        p = as_array(x)
        if not (prunes or matrices)(p):
            return ones((), dtype=bool_)
        dim = axis % p.ndim
        size = p.shape[dim]
        if not 0 < n <= m or size % m:
            raise OpTypeError(
                f"n_of_m_masks: {n} of {m} along axis {axis} of {p.type}",
                fix="give 0 < n <= m, and an m that divides the axis",
            )
        groups = reshape(abs(p), (*p.shape[:dim], size // m, m, *p.shape[dim + 1 :]))
        ranks = argsort(argsort(groups, axis=dim + 1), axis=dim + 1)
        return reshape(ranks >= m - n, p.shape)

    return tree_map(of, params)


def masked(params: Any, masks: Any) -> Any:
    """The parameters with zeros where a mask is false.

    >>> bu.prune.masked([bu.asarray([1.0, 2.0])], [bu.asarray([True, False])])[0].tolist()
    [1.0, 0.0]
    """

    def kept(x: Any, mask: Any) -> Array:
        p = as_array(x)
        return where(mask, p, zeros((), dtype=p.dtype))

    return tree_map(kept, params, masks)


def sparsity(params: Any, *, prunes: Callable[[Array], bool] | None = None) -> float:
    """The share of zeros in the parameters that are pruned; 0 if there are none.

    >>> bu.prune.sparsity({"w": bu.asarray([[0.0, 1.0]]), "b": bu.zeros(2)})
    0.5
    """
    arrays = [np.asarray(x) for x in flatten(params)[0] if (prunes or matrices)(as_array(x))]
    size = sum(a.size for a in arrays)
    return sum(int((a == 0).sum()) for a in arrays) / size if size else 0.0


def polynomial(
    first: float, last: float, steps: int, *, begin: int = 0, power: float = 3.0
) -> Callable[[Any], Array]:
    """A sparsity that rises from `first` to `last`, fast at first (M. Zhu and S. Gupta, 2017):
    ``last + (first - last) * (1 - t) ** power``, t going from 0 to 1 within `steps` after `begin`.

    Returns a function of the steps made so far, in f32; before `begin` it is 0.

    >>> rise = bu.prune.polynomial(0.0, 0.8, 100, begin=50)
    >>> [round(float(rise(n)), 3) for n in (0, 50, 100, 150, 999)]
    [0.0, 0.0, 0.7, 0.8, 0.8]
    """

    def share(step: Any) -> Array:
        result = convert(as_array(step), f32) - float(begin)
        left = 1.0 - clip(result / float(steps), 0.0, 1.0)
        return where(result < 0, 0.0, last + (first - last) * left**power)

    return share


@dataclass(frozen=True, slots=True)
class Gradual:
    """Pruning while a network is trained; made by `gradual`.

    init: ``params -> state``.
    update: ``(params, state) -> (params, state)``, after each step of the optimiser.
    """

    init: Callable[[Any], PruningState]
    update: Callable[[Any, PruningState], tuple[Any, PruningState]]


@dataclass(frozen=True, slots=True)
class PruningState:
    """What pruning remembers; a container.

    step: how many steps were made, i32.  masks: of the parameters, full arrays.
    """

    step: Array
    masks: Any


def gradual(share: Sparsity, *, every: int = 100, until: int | None = None, **how: Any) -> Gradual:
    """Prune as a schedule says, with new masks after every so many steps.

    share: the sparsity: a number, or a function of the steps made so far such as `polynomial`.
    until: the step from which masks stay as they are; weights that are zero then stay zero.
    how: as of `masks`.
    Compile ``update`` with the step of the optimiser; masks are made only in the steps that need
    them.

    >>> pruning = bu.prune.gradual(0.5, every=2)
    >>> params = bu.asarray([[1.0, -2.0]])
    >>> state = pruning.init(params)
    >>> for _ in range(2):
    ...     params, state = pruning.update(params, state)
    >>> params.tolist(), int(state.step)
    ([[0.0, -2.0]], 2)
    """

    @guarded
    def init(params: Any) -> PruningState:
        full = tree_map(lambda x: ones(as_array(x).shape, dtype=bool_), params)
        return PruningState(zeros((), dtype=i32), full)

    def compute_masks(params: Any, step: Array) -> Any:
        now = share(step) if callable(share) else share
        result = masks(params, now, **how)
        return tree_map(lambda x, m: broadcast_to(m, as_array(x).shape), params, result)

    @guarded
    def update(params: Any, state: PruningState) -> tuple[Any, PruningState]:
        step = state.step + 1
        due = step % every == 0
        if until is not None:
            due = due & (step <= until)
        new_masks = cond(due, lambda: compute_masks(params, step), lambda: state.masks)
        return masked(params, new_masks), PruningState(step, new_masks)

    return Gradual(init, update)


@dataclass(frozen=True, slots=True)
class Units:
    """A layer of units, and the parameters that hold something of each.

    made: what makes them, weights and biases; read: what reads them.  Each is a path, as ``paths``
    of the parameters' `TreeDef` tells it, and the axis that counts the units there.  An axis may be
    k times as long: each unit then has k neighbours, as channels have where they are flattened.
    """

    made: Mapping[str, int]
    read: Mapping[str, int]


def without_units(params: Any, layers: Sequence[Units]) -> Any:
    """Smaller parameters without the units that cannot matter, for use after training.

    A unit is removed if all that makes it is zero, given that its activation maps 0 to 0 as relu,
    gelu and tanh do, or if all that reads it is zero.
    Raises OpTypeError for a path that the parameters lack, and for axes that do not fit.

    >>> params = {"w1": bu.asarray([[0.0, 2.0]]), "b1": bu.zeros(2), "w2": bu.ones((2, 3))}
    >>> hidden = bu.prune.Units(made={"['w1']": 1, "['b1']": 0}, read={"['w2']": 0})
    >>> small = bu.prune.without_units(params, [hidden])
    >>> [small[name].shape for name in ("w1", "b1", "w2")]
    [(1, 1), (1,), (1, 3)]
    """
    leaves, treedef = flatten(params)
    arrays = dict(zip(treedef.paths(), map(as_array, leaves), strict=True))
    for layer in layers:
        axis_of = {**layer.made, **layer.read}
        count = _units(arrays, axis_of)
        is_made, is_read = (
            np.any([_nonzero(arrays[path], axis, count) for path, axis in axes.items()], axis=0)
            if axes
            else np.ones(count, bool)
            for axes in (layer.made, layer.read)
        )
        units = np.flatnonzero(is_made & is_read)
        for path, axis in axis_of.items():
            width = arrays[path].shape[axis] // count
            entries = (units[:, None] * width + np.arange(width)).reshape(-1)
            arrays[path] = take(arrays[path], entries, axis=axis)
    return unflatten(treedef, list(arrays.values()))


# -- blocks ----------------------------------------------------------------------------------------


@record(keep_hash=True, repr=False)
class Pattern:
    """Where the blocks of a matrix stand; not a parameter, but part of what is compiled.

    shape: of the matrix.  rows, columns: the block row and the block column of each block.
    """

    shape: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<pattern of {len(self.rows)} blocks in {self.shape[0]}×{self.shape[1]}>"


@guarded_methods
@dataclass(frozen=True, slots=True)
class BlockSparse:
    """A matrix without its blocks of zeros; a container that `block_sparse` makes.

    blocks: ``[n, height, width]``, in any order.  pattern: where each of them stands.

    ``x @ self`` takes floats of shape ``[…, k]`` and costs what the blocks that are stored cost; a
    device may do it as one operation, ``block_sparse_dot``.  Its gradients are those by `x` and by
    the blocks: blocks that are not stored stay zero.

    >>> w = bu.prune.block_sparse(bu.asarray([[0.0, 2.0], [0.0, 3.0]]), block=(1, 1))
    >>> w.blocks.shape, (bu.asarray([[1.0, 10.0]]) @ w).tolist()
    ((2, 1, 1), [[0.0, 32.0]])
    """

    blocks: Array
    pattern: Pattern = field(metadata={"static": True})
    #: numpy's arrays leave the product to us.
    __array_ufunc__: ClassVar[None] = None

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.pattern.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, and of two i32 for each that say where it stands."""
        return self.blocks.nbytes + 8 * len(self.pattern.rows)

    def dense(self) -> Array:
        """The matrix again.

        >>> bu.prune.block_sparse(bu.asarray([[0.0, 2.0]]), block=(1, 1)).dense().tolist()
        [[0.0, 2.0]]
        """
        _, height, width = self.blocks.shape
        rows, columns = self.shape
        full = zeros((rows // height, columns // width, height, width), dtype=self.blocks.dtype)
        full = full.at[self._block_indices()].set(self.blocks)
        return reshape(permute_dims(full, (0, 2, 1, 3)), self.shape)

    def __rmatmul__(self, x: Operand) -> Array:
        x = floats_of("matmul", x)
        if not x.ndim or x.shape[-1] != self.shape[0]:
            raise OpTypeError(
                f"matmul: {x.type} and a block-sparse matrix {self.shape}",
                fix=f"give x a last axis of size {self.shape[0]}",
            )
        dtype = promote(x.dtype, self.blocks.dtype)
        pattern = self.pattern
        attrs = {
            "features": self.shape[1],
            "per_row": max(Counter(pattern.rows).values(), default=0),
            "per_column": max(Counter(pattern.columns).values(), default=0),
        }
        operands = convert(x, dtype), convert(self.blocks, dtype), *self._block_indices()
        return apply("block_sparse_dot", operands, attrs)

    def _block_indices(self) -> tuple[Array, Array]:
        return asarray(self.pattern.rows, dtype=i32), asarray(self.pattern.columns, dtype=i32)


def block_sparse(w: Operand, *, block: Block = (32, 32)) -> BlockSparse:
    """A matrix of floats without its blocks of zeros, for use as ``x @ w`` after training.

    w: ``[k, n]``, whose values are known: not inside a function that is compiled.
    block: rows and columns of a block, which divide those of the matrix.  A width that is a
    multiple of the device's vector is fastest.
    Raises OpTypeError for what is no matrix of floats, and for blocks that do not divide it.

    >>> w = bu.concat([bu.zeros((32, 64)), bu.ones((32, 64))])
    >>> small = bu.prune.block_sparse(w)
    >>> small.blocks.shape, small.nbytes / w.nbytes < 0.51
    ((2, 32, 32), True)
    """
    array = floats_of("block_sparse", w)
    if array.ndim != 2:
        raise OpTypeError(
            f"block_sparse: {array.type} is no matrix",
            fix="give it two axes; a stack of matrices is a list of them",
        )
    split = permute_dims(_blocks("block_sparse", array, block), (0, 2, 1, 3))
    # Block columns first: a product sums over the blocks of a column.
    columns, rows = np.nonzero((np.asarray(split) != 0).any(axis=(2, 3)).T)
    block_index = (tuple(rows.tolist()), tuple(columns.tolist()))
    return BlockSparse(
        split[rows, columns], Pattern((array.shape[0], array.shape[1]), *block_index)
    )


def block_sparse_params(
    params: Any,
    *,
    block: Block = (32, 32),
    least: float = 0.5,
    prunes: Callable[[Array], bool] | None = None,
) -> Any:
    """A container with `block_sparse` matrices, for a network that uses them as ``x @ w``.

    least: the share of blocks that are zero from which on a matrix is stored so.
    prunes: which parameters, by default matrices of floats that the blocks divide.  The others stay
    as they are.  Leave out tables that are indexed and not multiplied.

    >>> params = {"w": bu.zeros((64, 32)), "full": bu.ones((64, 32)), "b": bu.zeros(32)}
    >>> small = bu.prune.block_sparse_params(params)
    >>> small["w"].nbytes, small["full"].shape, small["b"].shape
    (0, (64, 32), (32,))
    """

    def divided(p: Array) -> bool:
        if p.ndim != 2 or p.dtype not in FLOATS:
            return False
        return all(n and n % (size or n) == 0 for n, size in zip(p.shape, block, strict=True))

    def small(x: Any) -> Any:
        p = as_array(x)
        if not (prunes or divided)(p):
            return x
        sparse = block_sparse(p, block=block)
        stored = sparse.blocks.size / p.size if p.size else 1.0
        return sparse if 1 - stored >= least else x

    return tree_map(small, params)


def _units(arrays: Mapping[str, Array], axis_of: Mapping[str, int]) -> int:
    """How many units a layer has: the length of its shortest axis."""
    unknown = [path for path in axis_of if path not in arrays]
    if unknown or not axis_of:
        raise OpTypeError(
            f"without_units: no parameter is named {', '.join(unknown) or 'at all'}",
            fix=f"name some of {', '.join(arrays)}",
        )
    fits = {path: -arrays[path].ndim <= axis < arrays[path].ndim for path, axis in axis_of.items()}
    sizes = {path: arrays[path].shape[axis] for path, axis in axis_of.items() if fits[path]}
    count = min(sizes.values(), default=0)
    wrong = [path for path in axis_of if path not in sizes or (count and sizes[path] % count)]
    if wrong or not count:
        path = (wrong or list(axis_of))[0]
        raise OpTypeError(
            f"without_units: axis {axis_of[path]} of {path}, {arrays[path].type}, does not count"
            f" the {count} units of the layer",
            fix="name the axis of each parameter that has an entry for every unit",
        )
    return count


def _nonzero(array: Array, axis: int, count: int) -> Any:
    """For each unit whether one of its weights is not zero."""
    lines = np.moveaxis(np.asarray(array), axis, 0)
    return (lines.reshape(count, -1) != 0).any(axis=1)


def _blocks(name: str, p: Array, block: Block) -> Array:
    """A parameter as ``[…, blocks down, height, blocks across, width]``."""
    if p.ndim < 2:
        p = reshape(p, (1, -1))
    *outer, rows, columns = p.shape
    height, width = block[0] or rows, block[1] or columns
    if not height or not width or rows % height or columns % width:
        raise OpTypeError(
            f"{name}: blocks of {block[0]} x {block[1]} in {p.type}",
            fix="give blocks that divide the last two axes",
        )
    return reshape(p, (*outer, rows // height, height, columns // width, width))


def _best(scores: Array, share: float | Array) -> Array:
    """Which scores remain when the smallest ones, that share of all, are removed."""
    out = clip(rounded(convert(as_array(share), f32) * float(scores.size)), 0.0, float(scores.size))
    return argsort(argsort(scores)) >= convert(out, i32)


__all__ = [
    "BlockSparse", "Gradual", "Pattern", "PruningState", "Units", "block_sparse",
    "block_sparse_params", "gradual", "masked", "masks", "matrices", "n_of_m_masks", "polynomial",
    "sparsity", "without_units",
]  # fmt: skip

publish(globals(), "bringup.prune")
