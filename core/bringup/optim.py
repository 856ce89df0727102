"""Optimisers as pairs of functions, as ``bringup.optim``.

``state = optimizer.init(params)`` once, then ``params, state = optimizer.update(gradients, state,
params)`` in every step.  Parameters, gradients and states are containers of arrays, so a step is a
function that `jit` compiles whole; donate parameters and state, and the new ones take their memory.

f16 and bf16 parameters are updated in f32, which their states keep, and rounded once.

>>> optimizer = bu.optim.adam(0.1)
>>> params = {"w": bu.asarray([1.0, -2.0])}
>>> state = optimizer.init(params)
>>> for _ in range(100):
...     slopes = bu.grad(lambda p: bu.sum(bu.square(p["w"])))(params)
...     params, state = optimizer.update(slopes, state, params)
>>> float(bu.max(bu.abs(params["w"]))) < 0.1
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.api.array import Array
from bringup.api.boundary import guarded, publish
from bringup.api.broadcasting import as_array, convert
from bringup.api.creation import zeros
from bringup.api.elementwise import clip, cos, exp, expm1, sign, sqrt, square, where
from bringup.api.reductions import sum as total
from bringup.dtypes import DType, f32, i32
from bringup.errors import OpTypeError
from bringup.tracing.pytree import TreeDef, flatten, tree_map, unflatten

#: The rate of each step: a number, or a function of the steps made so far, an i32 array.
Rate = float | Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A way to update parameters by gradients.

    init: ``params -> state``.
    update: ``(gradients, state, params) -> (params, state)``; the gradients are a container like
    the parameters.  Raises ConversionError if they are not.
    """

    init: Callable[[Any], State]
    update: Callable[[Any, State, Any], tuple[Any, State]]


@dataclass(frozen=True, slots=True)
class State:
    """What an optimiser remembers; a container.

    step: how many were made, i32.
    slots: containers like the parameters: momentum, or first and second moments.
    """

    step: Array
    slots: tuple[Any, ...]


#: ``(gradient, parameter, slots, rate, steps with this one) -> (parameter, slots)``, of one leaf.
_Leaf = Callable[[Array, Array, Sequence[Array], Any, Array], tuple[Array, Sequence[Array]]]


def _optimizer(count: int, leaf: _Leaf, rate: Rate) -> Optimizer:
    """An optimiser that treats every leaf alike and keeps `count` numbers for each element."""

    @guarded
    def init(params: Any) -> State:
        leaves, treedef = _floats(params)
        kept = [[zeros(p.shape, dtype=_wide(p.dtype), device=p._device) for p in leaves]] * count
        device = leaves[0]._device if leaves else None
        return State(zeros((), dtype=i32, device=device), _trees(treedef, kept))

    @guarded
    def update(gradients: Any, state: State, params: Any) -> tuple[Any, State]:
        leaves, treedef = _floats(params)
        slopes = _like(treedef, "gradients", gradients)
        slots = [_like(treedef, "slots", s) for s in state.slots]
        now, step = (rate(state.step) if callable(rate) else rate), state.step + 1
        result: list[Array] = []
        kept: list[Sequence[Array]] = []
        for i, p in enumerate(leaves):
            wide = _wide(p.dtype)
            pace = convert(now, wide) if isinstance(now, Array) else now
            slope, memory = convert(slopes[i], wide), [s[i] for s in slots]
            new, after = leaf(slope, convert(p, wide), memory, pace, convert(step, wide))
            result.append(convert(new, p.dtype))
            kept.append(after)
        columns = [[after[n] for after in kept] for n in range(count)]
        return unflatten(treedef, result), State(step, _trees(treedef, columns))

    return Optimizer(init, update)


def _floats(params: Any) -> tuple[list[Array], TreeDef]:
    """The leaves as arrays.  Raises OpTypeError, with its path, for one that is no float."""
    leaves, treedef = flatten(params)
    arrays = [as_array(x) for x in leaves]
    for array, path in zip(arrays, treedef.paths("params"), strict=True):
        if not array.dtype.is_float:
            raise OpTypeError(
                f"{path} is {array.type}, and only floats are optimised",
                fix="keep other arrays apart from the parameters",
            )
    return arrays, treedef


def _like(treedef: TreeDef, what: str, tree: Any) -> list[Array]:
    leaves, found = flatten(tree)
    if found != treedef:
        raise OpTypeError(
            f"the {what} are {found}, the parameters {treedef}",
            fix="give the gradients of these parameters, and the state made for them",
        )
    return [as_array(x) for x in leaves]


def _trees(treedef: TreeDef, columns: Sequence[Sequence[Array]]) -> tuple[Any, ...]:
    return tuple(unflatten(treedef, column) for column in columns)


def _wide(dtype: DType) -> DType:
    return f32 if dtype.bits < 32 else dtype


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Gradient descent: ``v = momentum * v + g``, ``p -= rate * v``.

    nesterov: take ``g + momentum * v`` instead of `v` for the step.

    >>> descent = bu.optim.sgd(0.5)
    >>> p = bu.asarray([1.0])
    >>> descent.update(p, descent.init(p), p)[0].tolist()
    [0.5]
    """

    def plain(
        g: Array, p: Array, _slots: Sequence[Array], pace: Any, _step: Array
    ) -> tuple[Array, Sequence[Array]]:
        return p - pace * g, ()

    def heavy(
        g: Array, p: Array, slots: Sequence[Array], pace: Any, _step: Array
    ) -> tuple[Array, Sequence[Array]]:
        speed = momentum * slots[0] + g
        return p - pace * (g + momentum * speed if nesterov else speed), (speed,)

    return _optimizer(1, heavy, rate) if momentum else _optimizer(0, plain, rate)


def adam(
    rate: Rate, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimizer:
    """Steps of the mean gradient over the root of its mean square (D. Kingma and J. Ba, 2015).

    Both means are exponential and corrected for starting at 0; epsilon is added to the root.

    >>> optimizer, p = bu.optim.adam(0.5), bu.asarray([1.0])
    >>> round(float(optimizer.update(p, optimizer.init(p), p)[0][0]), 6)
    0.5
    """
    return adamw(rate, beta1=beta1, beta2=beta2, epsilon=epsilon, decay=0.0)


def adamw(
    rate: Rate,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    decay: float = 1e-2,
    decays: Callable[[Array], bool] | None = None,
) -> Optimizer:
    """`adam` that also takes off ``rate * decay * p`` (I. Loshchilov and F. Hutter, 2019).

    decays: which parameters are decayed, all by default; ``lambda p: p.ndim > 1`` leaves out
    biases and gains.

    >>> optimizer, p = bu.optim.adamw(0.5, decay=0.1), bu.asarray([1.0])
    >>> round(float(optimizer.update(p, optimizer.init(p), p)[0][0]), 6)
    0.45
    """

    def leaf(
        g: Array, p: Array, slots: Sequence[Array], pace: Any, step: Array
    ) -> tuple[Array, Sequence[Array]]:
        mean = beta1 * slots[0] + (1 - beta1) * g
        spread = beta2 * slots[1] + (1 - beta2) * square(g)
        # 1 - beta ** step, without the cancellation.
        first, second = (-expm1(step * math.log(beta)) for beta in (beta1, beta2))
        move = (mean / first) / (sqrt(spread / second) + epsilon)
        return _decayed(p, move, pace, decay, decays), (mean, spread)

    return _optimizer(2, leaf, rate)


def _decayed(
    p: Array, move: Array, pace: Any, decay: float, decays: Callable[[Array], bool] | None
) -> Array:
    """A parameter after a step that takes off a share of it too."""
    taken = decay and (decays is None or decays(p))
    stepped: Array = p - pace * (move + decay * p if taken else move)
    return stepped


def rmsprop(
    rate: Rate, *, decay: float = 0.9, epsilon: float = 1e-8, momentum: float = 0.0
) -> Optimizer:
    """Steps of the gradient over the root of its mean square (T. Tieleman and G. Hinton, 2012).

    The mean is exponential, ``decay * mean + (1 - decay) * g ** 2``, and starts at 0; epsilon is
    added to the root.  momentum: of the steps, as of `sgd`.

    >>> optimizer, p = bu.optim.rmsprop(0.1, decay=0.75), bu.asarray([1.0])
    >>> round(float(optimizer.update(p, optimizer.init(p), p)[0][0]), 6)
    0.8
    """

    def leaf(
        g: Array, p: Array, slots: Sequence[Array], pace: Any, _step: Array
    ) -> tuple[Array, Sequence[Array]]:
        spread = decay * slots[0] + (1 - decay) * square(g)
        move = g / (sqrt(spread) + epsilon)
        if not momentum:
            return p - pace * move, (spread,)
        speed = momentum * slots[1] + move
        return p - pace * speed, (spread, speed)

    return _optimizer(2 if momentum else 1, leaf, rate)


def lion(
    rate: Rate,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    decay: float = 0.0,
    decays: Callable[[Array], bool] | None = None,
) -> Optimizer:
    """Steps of the sign of ``beta1 * mean + (1 - beta1) * g`` (X. Chen et al., 2023).

    The mean of the gradients is exponential by `beta2`.  It keeps half of what `adam` keeps; take
    a rate about a tenth of adam's.  decay, decays: as of `adamw`.

    >>> optimizer, p = bu.optim.lion(0.25), bu.asarray([1.0, -4.0])
    >>> optimizer.update(p, optimizer.init(p), p)[0].tolist()
    [0.75, -3.75]
    """

    def leaf(
        g: Array, p: Array, slots: Sequence[Array], pace: Any, _step: Array
    ) -> tuple[Array, Sequence[Array]]:
        move = sign(beta1 * slots[0] + (1 - beta1) * g)
        mean = beta2 * slots[0] + (1 - beta2) * g
        return _decayed(p, move, pace, decay, decays), (mean,)

    return _optimizer(1, leaf, rate)


def chain(*changes: Callable[[Any], Any], optimizer: Optimizer) -> Optimizer:
    """An optimiser that is given the gradients after all changes, in order.

    changes: functions of a container of gradients that return one like it.

    >>> from functools import partial
    >>> clip = partial(bu.optim.clip_by_global_norm, limit=1.0)
    >>> optimizer, p = bu.optim.chain(clip, optimizer=bu.optim.sgd(0.5)), bu.asarray([3.0, 4.0])
    >>> optimizer.update(p, optimizer.init(p), p)[0].tolist()
    [2.7, 3.6]
    """

    @guarded
    def update(gradients: Any, state: State, params: Any) -> tuple[Any, State]:
        for change in changes:
            gradients = change(gradients)
        return optimizer.update(gradients, state, params)

    return Optimizer(optimizer.init, update)


def ema(average: Any, params: Any, decay: float) -> Any:
    """The next exponential moving average: ``decay * average + (1 - decay) * params``.

    average: a container like the parameters; begin with the parameters themselves.

    >>> bu.optim.ema([bu.asarray([1.0])], [bu.asarray([2.0])], 0.75)[0].tolist()
    [1.25]
    """

    def mixed(a: Any, p: Any) -> Array:
        a, p = as_array(a), as_array(p)
        wide = _wide(a.dtype)
        return convert(decay * convert(a, wide) + (1 - decay) * convert(p, wide), a.dtype)

    return tree_map(mixed, average, params)


def global_norm(tree: Any) -> Array:
    """The root of the sum of the squares of every element of a container.

    >>> float(bu.optim.global_norm({"a": bu.asarray([3.0]), "b": bu.asarray([[4.0]])}))
    5.0
    """
    leaves, _ = _floats(tree)
    if not leaves:
        return zeros(())
    squares = [total(square(convert(x, _wide(x.dtype)))) for x in leaves]
    result = squares[0]
    for more in squares[1:]:
        result = result + more
    return sqrt(result)


def clip_by_global_norm(gradients: Any, limit: float) -> Any:
    """The gradients, scaled down together so that their `global_norm` is `limit` at most.

    >>> bu.optim.clip_by_global_norm([bu.asarray([3.0, 4.0])], 2.5)[0].tolist()
    [1.5, 2.0]
    """
    norm = global_norm(gradients)
    scale = where(norm > limit, limit / norm, 1.0)

    def scaled(x: Any) -> Array:
        x = as_array(x)
        wide = _wide(x.dtype)
        return convert(convert(x, wide) * convert(scale, wide), x.dtype)

    return tree_map(scaled, gradients)


def cosine_schedule(
    peak: float, steps: int, *, warmup: int = 0, final: float = 0.0
) -> Callable[[Any], Array]:
    """A rate that rises in a line to `peak` and falls along a cosine to `final`.

    steps: until it is there, the `warmup` steps of the rise included; it stays there then.
    Returns a function of the steps made so far, computed in f32.

    >>> rate = bu.optim.cosine_schedule(1.0, 110, warmup=10)
    >>> [round(float(rate(n)), 3) for n in (0, 5, 10, 60, 110, 500)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """
    if not 0 <= warmup < steps:
        raise OpTypeError(
            f"cosine_schedule: warmup={warmup} of steps={steps}", fix="give 0 <= warmup < steps"
        )

    @guarded
    def rate(step: Any) -> Array:
        result = _made(step)
        along = clip((result - float(warmup)) / float(steps - warmup), 0.0, 1.0)
        falling = final + (peak - final) * (0.5 + 0.5 * cos(math.pi * along))
        if not warmup:
            return falling
        return where(result < warmup, result * (peak / warmup), falling)

    return rate


def linear_schedule(first: float, last: float, steps: int) -> Callable[[Any], Array]:
    """A rate that goes in a line from `first` to `last` in so many steps, and stays there.

    Returns a function of the steps made so far, computed in f32.

    >>> rate = bu.optim.linear_schedule(1.0, 0.5, 10)
    >>> [float(rate(n)) for n in (0, 5, 10, 99)]
    [1.0, 0.75, 0.5, 0.5]
    """
    return guarded(lambda step: first + (last - first) * clip(_made(step) / float(steps), 0.0, 1.0))


def exponential_schedule(first: float, factor: float, every: int) -> Callable[[Any], Array]:
    """A rate that is multiplied by `factor` in every so many steps, smoothly.

    Returns a function of the steps made so far, computed in f32.

    >>> rate = bu.optim.exponential_schedule(1.0, 0.25, 10)
    >>> [float(rate(n)) for n in (0, 5, 10)]
    [1.0, 0.5, 0.25]
    """
    return guarded(lambda step: first * exp(_made(step) * (math.log(factor) / every)))


def piecewise_schedule(rates: Sequence[float], bounds: Sequence[int]) -> Callable[[Any], Array]:
    """A rate that is ``rates[0]`` before step ``bounds[0]``, ``rates[1]`` from there, and so on.

    Returns a function of the steps made so far.  Raises OpTypeError unless there is one bound less
    than there are rates, and they rise.

    >>> rate = bu.optim.piecewise_schedule([1.0, 0.5, 0.25], [10, 20])
    >>> [float(rate(n)) for n in (0, 9, 10, 20)]
    [1.0, 1.0, 0.5, 0.25]
    """
    if len(bounds) != len(rates) - 1 or list(bounds) != sorted(set(bounds)):
        raise OpTypeError(
            f"piecewise_schedule: {len(rates)} rates with the bounds {list(bounds)}",
            fix="give a bound between each two rates, in rising order",
        )

    @guarded
    def rate(step: Any) -> Array:
        made, result = _made(step), convert(as_array(rates[0]), f32)
        for bound, after in zip(bounds, rates[1:], strict=True):
            result = where(made < bound, result, after)
        return result

    return rate


def _made(step: Any) -> Array:
    """The steps made so far as f32."""
    return convert(as_array(step), f32)


__all__ = [
    "Optimizer", "State", "adam", "adamw", "chain", "clip_by_global_norm", "cosine_schedule", "ema",
    "exponential_schedule", "global_norm", "linear_schedule", "lion", "piecewise_schedule",
    "rmsprop", "sgd",
]  # fmt: skip

publish(globals(), "bringup.optim")
