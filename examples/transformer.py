"""A character transformer that learns the source of a module of Python's library.

    python examples/transformer.py [--device NAME] [--steps N]

Two blocks of causal attention and a GELU network, trained by Adam on all but the last tenth of the
text, against a bigram model there. One step, drawing its batch included, is one program. Sampling
keeps keys and values of the characters so far in arrays of one size, so that it is one program too,
run once for each character.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bringup as bu

Params = dict[str, Any]
Cache = list[tuple[bu.Array, bu.Array]]
Host = np.ndarray[Any, Any]
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


def loss(params: Params, text: bu.Array) -> bu.Array:
    """The mean cross-entropy of the characters of windows after their first."""

    def attend(_: int, query: bu.Array, key: bu.Array, value: bu.Array) -> bu.Array:
        return bu.nn.attention(query, key, value, causal=True)

    found = scores(params, text[:, :-1], bu.arange(text.shape[1] - 1, dtype=bu.int32), attend)
    return bu.mean(bu.nn.cross_entropy(found, text[:, 1:]))


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


def sample(params: Params, prompt: list[int], key: bu.random.Key, length: int) -> list[int]:
    """The prompt continued to a length, each character drawn with the probability it is given."""

    @partial(bu.jit, donate_argnums=1)
    def step(
        params: Params, cache: Cache, character: bu.Array, place: bu.Array, key: bu.random.Key
    ) -> Any:
        found, cache = follow(params, cache, character, place)
        return bu.random.categorical(bu.random.fold_in(key, place), found), cache

    text, cache = list(prompt), empty_cache()
    for place in range(length - 1):
        drawn, cache = step(params, cache, np.int32(text[place]), np.int32(place), key)
        if place + 1 == len(text):
            text.append(int(drawn))
    return text


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
    return sum(float(measure(params, part)) * len(part) for part in parts) / len(pieces)


def train(text: Host, characters: int, steps: int, batch: int) -> Params:
    """The trained parameters; prints the loss now and then."""
    first, rest = bu.random.split(bu.random.key(0))
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

    params = init(first, characters)
    state, held = optimizer.init(params), bu.asarray(text)
    print(f"{step.lower(params, state, held, rest).cost().kernels} kernels a step")
    begin = time.perf_counter()
    for number in range(1, steps + 1):
        params, state, value = step(params, state, held, rest)
        if number in (1, steps) or number % 100 == 0:
            passed = time.perf_counter() - begin
            print(f"step {number:4}: loss {float(value):.6f} after {passed:5.1f} s")
    return params


def main() -> None:
    """Read the options, train, compare, and write a few lines."""
    parser = argparse.ArgumentParser(description="Learn to write like a module of Python.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--batch", type=int, default=16, help="windows of text in a step")
    options = parser.parse_args()

    source = inspect.getsource(argparse)
    alphabet = sorted(set(source))
    text = np.array([alphabet.index(c) for c in source], np.int32)
    cut = len(text) * 9 // 10
    pieces = windows(text[cut:])
    with bu.device(options.device) as device:
        print(f"{cut} characters to learn, {len(text) - cut} to test, on {device}")
        params = train(text[:cut], len(alphabet), options.steps, options.batch)
        held_out = held_out_loss(params, pieces, options.batch)
        baseline = bigram_loss(text[:cut], pieces, len(alphabet))
        print(f"held-out loss: bigrams {baseline:.4f}, transformer {held_out:.4f}")
        prompt = [alphabet.index(c) for c in "    def "]
        written = sample(params, prompt, bu.random.key(1), CONTEXT)
    print("".join(alphabet[c] for c in written))


if __name__ == "__main__":
    main()
