"""A character transformer that learns the source of a module of Python's library.

    python examples/transformer.py [--device NAME] [--steps N] [--plot FILE]

Two blocks of causal attention and a GELU network, trained by Adam on all but the last tenth of the
text, against a bigram model there. One step, drawing its batch included, is one program. Sampling
keeps keys and values of the characters so far in arrays of one size, so that it is one program too,
run once for each character; the same characters are drawn from the scores of the whole window,
computed anew for each, to see what the cache saves.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from common import Bars, Host, Training, parser, plot, seconds, step_times, trained

import bringup as bu

Params = dict[str, Any]
Cache = list[tuple[bu.Array, bu.Array]]
#: ``(number of the block, query, key, value) -> what is attended to``.
Attend = Callable[[int, bu.Array, bu.Array, bu.Array], bu.Array]

BLOCKS, WIDTH, HEADS, CONTEXT = 2, 64, 4, 128
RATE = 3e-3


def init(key: bu.random.Key, characters: int) -> Params:
    """Matrices spread by their inputs, everything else ones and zeros."""
    keys = iter(bu.random.split(key, 2 + 4 * BLOCKS))

    def matrix(inputs: int, outputs: int, scale: float = 1.0) -> bu.Array:
        drawn = bu.nn.init.lecun_normal(next(keys), (inputs, outputs), dtype=bu.float32)
        return drawn * scale

    def norm() -> dict[str, bu.Array]:
        return {"gain": bu.ones(WIDTH, dtype=bu.float32), "bias": bu.zeros(WIDTH, dtype=bu.float32)}

    def block() -> dict[str, Any]:
        return {
            "before": norm(),
            "heads": matrix(WIDTH, 3 * WIDTH),
            "joined": matrix(WIDTH, WIDTH, (2 * BLOCKS) ** -0.5),
            "between": norm(),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH, (2 * BLOCKS) ** -0.5),
        }

    return {
        "character": matrix(characters, WIDTH, 0.2 * characters**0.5),
        "place": matrix(CONTEXT, WIDTH, 0.2 * CONTEXT**0.5),
        "blocks": [block() for _ in range(BLOCKS)],
        "after": norm(),
    }


def scores(params: Params, text: bu.Array, places: bu.Array, attend: Attend) -> bu.Array:
    """For each character of ``text[batch, n]`` at its place, a score of each that may follow."""
    x = bu.take(params["character"], text, axis=0) + bu.take(params["place"], places, axis=0)
    for number, block in enumerate(params["blocks"]):
        parts = bu.nn.layer_norm(x, **block["before"]) @ block["heads"]
        split = bu.reshape(parts, (*text.shape, 3, HEADS, WIDTH // HEADS))
        query, key, value = bu.unstack(bu.permute_dims(split, (2, 0, 3, 1, 4)))
        found = bu.permute_dims(attend(number, query, key, value), (0, 2, 1, 3))
        x = x + bu.reshape(found, x.shape) @ block["joined"]
        hidden = bu.nn.gelu(bu.nn.layer_norm(x, **block["between"]) @ block["up"], approximate=True)
        x = x + hidden @ block["down"]
    x = bu.nn.layer_norm(x, **params["after"])
    return bu.matmul(x, bu.matrix_transpose(params["character"]))


def window_scores(params: Params, text: bu.Array) -> bu.Array:
    """The scores of whole windows of text, from their first character."""

    def attend(_: int, query: bu.Array, key: bu.Array, value: bu.Array) -> bu.Array:
        return bu.nn.attention(query, key, value, causal=True)

    return scores(params, text, bu.arange(text.shape[1], dtype=bu.int32), attend)


def loss(params: Params, text: bu.Array) -> bu.Array:
    """The mean cross-entropy of the characters of windows after their first."""
    return bu.mean(bu.nn.cross_entropy(window_scores(params, text[:, :-1]), text[:, 1:]))


def follow(
    params: Params, cache: Cache, character: bu.Array, place: bu.Array
) -> tuple[bu.Array, Cache]:
    """The scores of the character after one at a place, and the cache with that one in it."""
    known = bu.arange(CONTEXT, dtype=bu.int32) <= place
    grown = list(cache)

    def attend(number: int, query: bu.Array, key: bu.Array, value: bu.Array) -> bu.Array:
        keys, values = cache[number]
        start: tuple[Any, ...] = (0, 0, place, 0)
        grown[number] = (
            bu.dynamic_update_slice(keys, key, start),
            bu.dynamic_update_slice(values, value, start),
        )
        return bu.nn.attention(query, *grown[number], mask=known)

    found = scores(params, bu.reshape(character, (1, 1)), bu.reshape(place, (1,)), attend)
    return found[0, 0], grown


def empty_cache() -> Cache:
    """Room for the keys and values of a whole context."""
    shape = (1, HEADS, CONTEXT, WIDTH // HEADS)
    return [
        (bu.zeros(shape, dtype=bu.float32), bu.zeros(shape, dtype=bu.float32))
        for _ in range(BLOCKS)
    ]


@partial(bu.jit, donate_argnums=1, static_argnames="cached")
def next_character(
    params: Params, cache: Cache, text: bu.Array, place: bu.Array, key: bu.random.Key, cached: bool
) -> tuple[bu.Array, Cache]:
    """The character after one at a place, drawn with the probability it is given, and the cache."""
    if cached:
        found, cache = follow(params, cache, text[place], place)
    else:
        found = window_scores(params, text[None])[0, place]
    return bu.random.categorical(bu.random.fold_in(key, place), found), cache


def sample(
    params: Params, prompt: list[int], key: bu.random.Key, length: int, cached: bool = True
) -> list[int]:
    """The prompt continued to a length.

    cached: keep keys and values; without, those of the whole context are computed each time.
    """
    text, cache = np.zeros(CONTEXT, np.int32), empty_cache()
    text[: len(prompt)] = prompt
    for place in range(length - 1):
        drawn, cache = next_character(
            params, cache, bu.asarray(text), bu.asarray(np.int32(place)), key, cached=cached
        )
        if place + 1 >= len(prompt):
            text[place + 1] = int(drawn)
    return [int(character) for character in text[:length]]


def windows(text: Host) -> Host:
    """The text in pieces of a context and the character after it."""
    starts = np.arange(0, len(text) - CONTEXT, CONTEXT)
    return np.asarray(text[starts[:, None] + np.arange(CONTEXT + 1)])


def bigram_loss(text: Host, pieces: Host, characters: int) -> float:
    """The held-out cross-entropy of counted pairs, each counted once more than it occurs."""
    counts = np.ones((characters, characters))
    np.add.at(counts, (text[:-1], text[1:]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(-np.log(shares[pieces[:, :-1], pieces[:, 1:]]).mean())


def held_out_loss(params: Params, pieces: Host, batch: int) -> float:
    """The mean loss of windows, a batch at a time."""
    parts = [pieces[at : at + batch] for at in range(0, len(pieces), batch)]
    measure = bu.jit(loss)
    total = sum(float(measure(params, bu.asarray(part))) * len(part) for part in parts)
    return total / len(pieces)


def train(params: Params, training: Training, text: Host, batch: int, key: bu.random.Key) -> Params:
    """The parameters after a training."""
    steps = training.steps
    rate = bu.optim.cosine_schedule(RATE, steps, warmup=min(50, steps // 2))
    optimizer = bu.optim.adam(rate, beta2=0.99)

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, text: bu.Array, key: bu.random.Key) -> Any:
        drawing = bu.random.fold_in(key, state.step)
        last = text.shape[0] - CONTEXT
        starts = bu.random.randint(drawing, (batch, 1), 0, last, dtype=bu.int32)
        drawn = bu.take(text, starts + bu.arange(CONTEXT + 1, dtype=bu.int32))
        value, gradients = bu.value_and_grad(loss)(params, drawn)
        gradients = bu.optim.clip_by_global_norm(gradients, 1.0)
        return *optimizer.update(gradients, state, params), value

    feed = repeat((bu.asarray(text), key), steps)
    params, _ = training.run(feed, step, params, optimizer.init(params))
    return params


def main() -> None:
    """Read the options, train, compare, and write a few lines."""
    reader = parser("Learn to write like a module of Python.", steps=600)
    reader.add_argument("--batch", type=int, default=16, help="windows of text in a step")
    options = reader.parse_args()

    source = inspect.getsource(argparse)
    alphabet = sorted(set(source))
    text = np.array([alphabet.index(c) for c in source], np.int32)
    cut = len(text) * 9 // 10
    pieces, training = windows(text[cut:]), Training(options.steps)
    with bu.device(options.device) as device:
        print(f"{cut} characters to learn, {len(text) - cut} to test, on {device}")
        first, rest = bu.random.split(bu.random.key(0))
        params = trained(
            options, init(first, len(alphabet)),
            lambda p: train(p, training, text[:cut], options.batch, rest),
        )  # fmt: skip
        print(f"transformer: {training.said()}")
        held_out = held_out_loss(params, pieces, options.batch)
        baseline = bigram_loss(text[:cut], pieces, len(alphabet))
        print(f"held-out loss: bigrams {baseline:.4f}, transformer {held_out:.4f}")
        prompt = [alphabet.index(c) for c in "    def "]
        write = partial(sample, params, prompt, bu.random.key(1), CONTEXT)
        times = seconds(write, partial(write, cached=False), rounds=5)
        written = write()
    names = "with a cache", "without one"
    speeds = [(name, (CONTEXT - 1) / each) for name, each in zip(names, times, strict=True)]
    print("sampling:", ", ".join(f"{name} {speed:,.0f} tokens a second" for name, speed in speeds))
    print("".join(alphabet[c] for c in written))
    bars = [step_times(("transformer", training)), Bars("sampling", "tokens a second", speeds)]
    plot(options.plot, "characters, transformer", ("transformer", training), bars=bars)


if __name__ == "__main__":
    main()
