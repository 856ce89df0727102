"""Handwritten digits: one network trained in f32, in bf16 and in f16, and run with weights in f8.

    python examples/mixed.py [--device NAME] [--steps N] [--plot FILE]

LeNet, the same batches and steps. `bu.amp.Policy` casts parameters and pictures to what the network
computes in; the parameters themselves, and what Adam remembers of them, stay in f32. In f16 small
gradients would become zero: a `LossScale` makes them larger, and steps that it made infinite are
skipped. Afterwards `bu.amp.quantize` keeps the weights of the first network in 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from common import Bars, Host, Training, batches, digits, measured, parser, seconds, table, trained
from lenet import Params, init, scores

import bringup as bu

BATCH, RATE = 64, 3e-3
FORMS = {"f32": bu.float32, "bf16": bu.bfloat16, "f16": bu.float16}


def begin(
    params: Params, dtype: object, steps: int
) -> tuple[bu.Jitted[..., Any], bu.optim.State, bu.amp.LossScale | None]:
    """A training step as one program, the optimiser's state, and in f16 the scale of the loss."""
    predict = bu.amp.Policy(compute=dtype).apply(scores)
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, steps))

    @partial(bu.jit, donate_argnums=(0, 1, 2))
    def step(
        params: Params,
        state: bu.optim.State,
        scale: bu.amp.LossScale | None,
        x: bu.Array,
        label: bu.Array,
    ) -> Any:
        def loss(params: Params) -> tuple[bu.Array, bu.Array]:
            value = bu.mean(bu.nn.cross_entropy(predict(params, x), label))
            return scale.scale_loss(value) if scale else value, value

        (_, value), slopes = bu.value_and_grad(loss, has_aux=True)(params)
        if scale is None:
            return *optimizer.update(slopes, state, params), None, value
        slopes = scale.unscale(slopes)
        good = bu.amp.all_finite(slopes)
        updated = optimizer.update(slopes, state, params)
        params, state = bu.amp.select(good, updated, (params, state))
        return params, state, scale.adjust(good), value

    scale = bu.amp.LossScale(2.0**15, period=100) if dtype == bu.float16 else None
    return step, optimizer.init(params), scale


class Costs(NamedTuple):
    """Bytes of scratch of a step, and of all it holds at once; and its median seconds."""

    scratch: int
    peak: int
    seconds: float


def costs(batch: tuple[Host, ...]) -> dict[str, Costs]:
    """Those of a step in each form."""
    runs: list[Callable[[], Any]] = []
    sizes: list[tuple[int, int]] = []
    for dtype in FORMS.values():
        step, *state = begin(init(), dtype, steps=100)
        cost = step.lower(init(), *state, *batch).cost()
        sizes.append((cost.arena_bytes, cost.peak_bytes))
        runs.append(partial(advance, step, [init(), *state], batch))
    times = seconds(*runs)
    return {n: Costs(*size, each) for n, size, each in zip(FORMS, sizes, times, strict=True)}


def advance(step: bu.Jitted[..., Any], state: list[Any], batch: tuple[Host, ...]) -> None:
    """Take a step, wait for it, and put the new state in place of the old."""
    *state[:], loss = step(*state, *batch)
    loss.block_until_ready()


def in_eight_bits(params: Params) -> dict[str, Any]:
    """Weights as f8 with a scale; biases as they are."""
    return {name: p if name.endswith("bias") else bu.amp.quantize(p) for name, p in params.items()}


def scores_of_eight_bits(params: dict[str, Any], x: bu.Array) -> bu.Array:
    """`scores`; weights become f32 where they are read, and are not stored so."""
    wide = {
        name: p.dequantize() if isinstance(p, bu.amp.Quantized) else p for name, p in params.items()
    }
    return scores(wide, x)


def main() -> None:
    """Read the options, train in each form, compare."""
    options = parser("Train LeNet in floats of 32 and 16 bits.", steps=1000).parse_args()
    learned, (x, label) = digits()
    trainings = {name: Training(options.steps) for name in FORMS}

    def train(models: dict[str, Params]) -> dict[str, Params]:
        after = {}
        for name, dtype in FORMS.items():
            step, *state = begin(models[name], dtype, options.steps)
            feed = batches(learned, BATCH, options.steps)
            after[name], adam, scale = trainings[name].run(feed, step, models[name], *state)
            skipped = f", {options.steps - int(adam.step)} steps skipped" if scale else ""
            print(f"{name}: {trainings[name].said()}{skipped}")
        return after

    with bu.device(options.device) as device:
        print(f"{len(learned[1])} digits to learn, {len(label)} to test, on {device}")
        models = trained(options, {name: init() for name in FORMS}, train)
        tested: dict[str, tuple[Callable[..., bu.Array], Any]] = {}
        for name, dtype in FORMS.items():
            policy = bu.amp.Policy(compute=dtype)
            tested[name] = policy.apply(scores), policy.cast_to_compute(models[name])
        tested["f8 weights"] = scores_of_eight_bits, in_eight_bits(models["f32"])
        rows = [measured(name, *tested[name], x, label) for name in tested]
        steps = costs(next(batches(learned, BATCH, 1)))
    losses = trainings.items()
    bars = [
        Bars("peak memory of a step", "KiB", [(n, step.peak / 1024) for n, step in steps.items()]),
        Bars("time of a step", "ms", [(n, step.seconds * 1e3) for n, step in steps.items()]),
    ]
    table(options.plot, "digits, LeNet in 32, 16 and 8 bits", len(label), rows, *losses, bars=bars)
    for name, step in steps.items():
        sizes = f"{step.scratch / 1024:,.0f} KiB of scratch, {step.peak / 1024:,.0f} KiB in all"
        print(f"a step in {name:4}: {sizes}, {step.seconds * 1e3:.2f} ms")
    # Of a difference of two counts, each binomial with the accuracy of f32.
    share = (rows[0].right + 1) / (len(label) + 2)
    noise = 2 * math.sqrt(2 * len(label) * share * (1 - share))
    apart = max(abs(row.right - rows[0].right) for row in rows)
    print(f"at most {apart} digits apart; two standard deviations of chance are {noise:.1f}")


if __name__ == "__main__":
    main()
