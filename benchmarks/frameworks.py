"""What `networks.py` calls, in each framework's own terms, and a step of training in it.

A framework is imported when its class is instantiated, so that a process holds one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from networks import Host, Model, Params

#: ``() -> result``: starts a step, or a call, and returns its result, which `numpy.asarray` awaits.
Advance = Callable[[], Any]
#: ``(parameters, arrays) -> advance``, from the beginning.
Begin = Callable[[Params, tuple[Host, ...]], Advance]

RATE, MOMENTUM = 1e-3, 0.9
#: What all three take by default.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def _lstm_cell(f: Any, state: Any, line: Any, weights: Any, own: Any, bias: Any) -> Any:
    """What is shown and kept after a line."""
    shown, kept = state
    gates = line @ weights + shown @ own + bias
    width = own.shape[0]
    take, keep, value, show = (gates[:, i * width : (i + 1) * width] for i in range(4))
    kept = f.nn.sigmoid(keep) * kept + f.nn.sigmoid(take) * f.xp.tanh(value)
    return f.nn.sigmoid(show) * f.xp.tanh(kept), kept


class _Functional:
    """What bringup and jax share: names of numpy, functions of parameters, compiled by `jit`."""

    xp: Any
    jit: Callable[..., Any]
    value_and_grad: Callable[..., Any]
    tree_map: Callable[..., Any]
    checkpoint: Callable[..., Any]
    scan: Callable[..., Any]
    #: Makes an array where the model runs.
    place: Callable[..., Any]
    #: By name, those of `bringup.optim` or what looks like them.
    optimizers: dict[str, Any]
    donate = True

    def begin(self, model: Model) -> Begin:
        """The whole step is one program, which has the new parameters in the old ones' memory."""
        run = partial(model.run, self)
        if model.optimizer is None:
            call = self.jit(run)

            def infer(params: Params, data: tuple[Host, ...]) -> Advance:
                held, x = self.tree_map(self.place, (params, data))
                return lambda: call(held, *x)

            return infer
        optimizer = self.optimizers[model.optimizer]

        @partial(self.jit, donate_argnums=(0, 1) if self.donate else ())
        def step(params: Any, state: Any, *data: Any) -> Any:
            value, gradients = self.value_and_grad(run)(params, *data)
            return *optimizer.update(gradients, state, params), value

        def train(params: Params, data: tuple[Host, ...]) -> Advance:
            held, x = self.tree_map(self.place, (params, data))
            state = optimizer.init(held)
            if hasattr(step, "lower"):
                self.lowered = partial(step.lower, held, state, *x)

            def advance() -> Any:
                nonlocal held, state
                held, state, value = step(held, state, *x)
                return value

            return advance

        return train

    def permute(self, x: Any, dims: tuple[int, ...]) -> Any:
        return self.xp.permute_dims(x, dims)

    def rows(self, table: Any, index: Any) -> Any:
        return self.xp.take(table, index, axis=0)

    def dense(self, x: Any, weights: Any, bias: Any = None) -> Any:
        return x @ weights if bias is None else x @ weights + bias

    def lstm(self, lines: Any, *held: Any) -> Any:
        def step(state: Any, line: Any) -> Any:
            return _lstm_cell(self, state, line, *held), None

        start = self.xp.zeros((lines.shape[1], held[1].shape[0]), dtype=self.xp.float32)
        return self.scan(step, (start, start), lines)[0][0]


class Bringup(_Functional):
    """fuse: else op by op.  checkpoint: compute blocks again for the gradient.  device: by name."""

    def __init__(
        self,
        fuse: bool = True,
        donate: bool = True,
        checkpoint: bool = False,
        device: str | None = None,
    ) -> None:
        import bringup as bu

        self.xp, self.nn, self.donate, self.scan = bu, bu.nn, donate, bu.scan
        self.jit = partial(bu.jit, fuse=fuse, device=device)
        self.place = partial(bu.asarray, device=device)
        self.value_and_grad, self.tree_map = bu.value_and_grad, bu.tree.tree_map
        self.checkpoint = bu.checkpoint if checkpoint else lambda fn: fn
        descent = bu.optim.sgd(RATE, momentum=MOMENTUM)
        self.optimizers = {"sgd": descent, "adam": bu.optim.adam(RATE)}
        self.gelu = partial(bu.nn.gelu, approximate=True)
        self.max_pool, self.layer_norm = bu.nn.max_pool, bu.nn.layer_norm

    def conv(self, x: Any, kernel: Any, bias: Any = None, **options: Any) -> Any:
        y = self.nn.conv(x, kernel, **options)
        return y if bias is None else y + bias[:, None, None]

    def batch_norm(self, x: Any, gain: Any, bias: Any, mean: Any = None, var: Any = None) -> Any:
        if mean is not None:
            return self.nn.batch_norm(x, gain, bias, mean=mean, var=var)
        return self.nn.batch_norm_train(x, gain, bias, mean=0 * gain, var=0 * gain)[0]

    def attention(self, split: Any, causal: bool) -> Any:
        query, key, value = self.xp.unstack(self.xp.permute_dims(split, (2, 0, 3, 1, 4)))
        y = self.nn.attention(query, key, value, causal=causal)
        return self.xp.permute_dims(y, (0, 2, 1, 3))

    def cross_entropy(self, scores: Any, label: Any) -> Any:
        return self.xp.mean(self.nn.cross_entropy(scores, label))


class _Optimizer(NamedTuple):
    """``init(params) -> state``; ``update(gradients, state, params) -> (params, state)``."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]


class Jax(_Functional):
    """jax.numpy, jax.nn and jax.lax; XLA takes as many threads as there are CPUs."""

    def __init__(self) -> None:
        import jax

        self.xp, self.nn, self.lax = jax.numpy, jax.nn, jax.lax
        self.jit, self.scan = jax.jit, jax.lax.scan
        self.place = jax.numpy.asarray
        self.value_and_grad, self.tree_map = jax.value_and_grad, jax.tree.map
        self.checkpoint = lambda fn: fn
        self.optimizers = self._optimizers()
        self.gelu = jax.nn.gelu  # the approximation, by default

    def _optimizers(self) -> dict[str, Any]:
        xp, over = self.xp, self.tree_map
        zeros = partial(over, xp.zeros_like)

        def sgd(gradients: Any, speed: Any, params: Any) -> Any:
            speed = over(lambda v, g: MOMENTUM * v + g, speed, gradients)
            return over(lambda p, v: p - RATE * v, params, speed), speed

        def adam(gradients: Any, state: Any, params: Any) -> Any:
            count, mean, square = state
            count = count + 1
            mean = over(lambda m, g: BETA1 * m + (1 - BETA1) * g, mean, gradients)
            square = over(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, square, gradients)
            first, second = 1 - BETA1**count, 1 - BETA2**count

            def moved(p: Any, m: Any, s: Any) -> Any:
                return p - RATE * (m / first) / (xp.sqrt(s / second) + EPSILON)

            return over(moved, params, mean, square), (count, mean, square)

        def init(params: Any) -> Any:
            return xp.float32(0), zeros(params), zeros(params)

        return {"sgd": _Optimizer(zeros, sgd), "adam": _Optimizer(init, adam)}

    def conv(self, x: Any, kernel: Any, bias: Any = None, **sizes: int) -> Any:
        strides, sides = (sizes.get("stride", 1),) * 2, [(sizes.get("padding", 0),) * 2] * 2
        y = self.lax.conv_general_dilated(
            x, kernel, strides, sides, feature_group_count=sizes.get("groups", 1)
        )
        return y if bias is None else y + bias[:, None, None]

    def batch_norm(self, x: Any, gain: Any, bias: Any, mean: Any = None, var: Any = None) -> Any:
        if mean is None:
            mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        scale = gain * self.lax.rsqrt(var + 1e-5)
        mean, scale, bias = (a[:, None, None] for a in (mean, scale, bias))
        return (x - mean) * scale + bias

    def layer_norm(self, x: Any, gain: Any, bias: Any) -> Any:
        mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) * self.lax.rsqrt(var + 1e-5) * gain + bias

    def max_pool(self, x: Any, window: int, *, stride: int, padding: int = 0) -> Any:
        sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        shape, strides = (1, 1, window, window), (1, 1, stride, stride)
        return self.lax.reduce_window(x, -self.xp.inf, self.lax.max, shape, strides, sides)

    def attention(self, split: Any, causal: bool) -> Any:
        query, key, value = (split[:, :, i] for i in range(3))
        return self.nn.dot_product_attention(query, key, value, is_causal=causal)

    def cross_entropy(self, scores: Any, label: Any) -> Any:
        likely = self.nn.log_softmax(scores)
        return -self.xp.take_along_axis(likely, label[..., None], axis=-1).mean()


class Torch:
    """torch.nn.functional on so many threads; optimisers update all parameters in one call.

    compiled: the loss, whose gradient is compiled with it, by `torch.compile`.
    """

    def __init__(self, compiled: bool = False) -> None:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.xp, self.nn, self.compiled = torch, torch.nn.functional, compiled
        self.conv, self.max_pool, self.permute = self.nn.conv2d, self.nn.max_pool2d, torch.permute
        self.gelu = partial(self.nn.gelu, approximate="tanh")
        self.checkpoint = lambda fn: fn

    def begin(self, model: Model) -> Begin:
        """What training holds is updated in place."""
        torch, tree = self.xp, self.xp.utils._pytree
        run = partial(model.run, self)
        call = torch.compile(run) if self.compiled else run

        def place(x: Host) -> Any:
            found = torch.from_numpy(x.copy())
            return found.long() if x.dtype.kind == "i" else found

        if model.optimizer is None:

            def infer(params: Params, data: tuple[Host, ...]) -> Advance:
                held, x = tree.tree_map(place, (params, data))
                advance: Advance = torch.no_grad()(lambda: call(held, *x))
                return advance

            return infer
        kinds = {"sgd": partial(torch.optim.SGD, momentum=MOMENTUM), "adam": torch.optim.Adam}
        optimizing = partial(kinds[model.optimizer], lr=RATE, fused=True)

        def train(params: Params, data: tuple[Host, ...]) -> Advance:
            held, x = tree.tree_map(place, (params, data))
            leaves = [leaf.requires_grad_() for leaf in tree.tree_leaves(held)]
            optimizer = optimizing(leaves)

            def advance() -> Any:
                optimizer.zero_grad()
                value = call(held, *x)
                value.backward()
                optimizer.step()
                return value.detach()

            return advance

        return train

    def rows(self, table: Any, index: Any) -> Any:
        return self.nn.embedding(index, table)

    def dense(self, x: Any, weights: Any, bias: Any = None) -> Any:
        return self.nn.linear(x, weights.mT, bias)

    def batch_norm(self, x: Any, gain: Any, bias: Any, mean: Any = None, var: Any = None) -> Any:
        return self.nn.batch_norm(x, mean, var, gain, bias, training=mean is None)

    def layer_norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return self.nn.layer_norm(x, gain.shape, gain, bias)

    def attention(self, split: Any, causal: bool) -> Any:
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        y = self.nn.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return y.permute(0, 2, 1, 3)

    def cross_entropy(self, scores: Any, label: Any) -> Any:
        return self.nn.cross_entropy(scores.flatten(0, -2), label.flatten())

    def lstm(self, lines: Any, weights: Any, own: Any, bias: Any) -> Any:
        start = lines.new_zeros((lines.shape[1], own.shape[0]))
        if self.compiled:  # torch 2.13 compiles its own lstm to a call that fails
            state = start, start
            for line in lines:
                state = _lstm_cell(self, state, line, weights, own, bias)
            return state[0]
        held = [weights.mT, own.mT, bias, self.xp.zeros_like(bias)]
        state = start[None], start[None]
        return self.xp.lstm(lines, state, held, True, 1, 0.0, True, False, False)[1][0]
