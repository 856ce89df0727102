"""Random loops as steps, joined or not, have the bits that core gives when it runs their bodies."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from test_loop_launches import Joining, Steps, Without, opened

import bringup as bu

OPS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: bu.sin(x) - y,
    lambda x, y: x * 0.5 + bu.flip(y),
    lambda x, y: x.at[1].set(bu.sum(y) * 0.1),
    lambda x, y: bu.sort(bu.maximum(x, y)),
)


def loop(rng: random.Random, values: list[Any], depth: int = 0) -> list[Any]:
    """The results of a loop: its body gives parts of the state and of what is around it again,
    changed, in another order, and more than once.
    """
    parts, stacks, seed = rng.randint(1, 4), rng.randint(0, 2), rng.random()

    def body(state: Any, row: Any) -> Any:
        inner = random.Random(seed)
        seen = [*state, row, *inner.sample(values, 1)]
        for _ in range(inner.randrange(4)):
            seen.append(inner.choice(OPS)(inner.choice(seen), inner.choice(seen)))
        if depth < 2 and inner.random() < 0.2:
            seen += loop(inner, seen, depth + 1)
        chosen = inner.choices([*seen, bu.zeros(4, dtype=bu.float32)], k=parts + stacks)
        return tuple(chosen[:parts]), tuple(chosen[parts:])

    start = rng.choices([*values, bu.ones(4, dtype=bu.float32)], k=parts)
    rows = bu.stack(rng.choices(values, k=rng.randint(1, 4)))
    state, stacked = bu.scan(body, tuple(start), rows, reverse=rng.random() < 0.5)
    return [*state, *(bu.sum(each, axis=0) for each in stacked)]


# 64 joins a function that writes memory between two operands of which the second is that memory.
@pytest.mark.parametrize("seed", range(40, 80))
def test_random_loops_have_the_same_bits(seed: int) -> None:
    def function(*arrays: Any) -> Any:
        rng = random.Random(seed)
        values = list(arrays)
        for _ in range(2):
            values.append(rng.choice(OPS)(rng.choice(values), rng.choice(values)))
            values += loop(rng, values)
        return tuple(rng.choices(values[2:], k=4))

    arrays = np.random.default_rng(seed).normal(size=(2, 4)).astype(np.float32)
    results = []
    for chip in (Without(), Steps(), Joining()):
        device = opened(chip)
        donated = () if isinstance(chip, Without) or seed % 3 == 2 else seed % 3
        given = [bu.asarray(x, device=device) for x in arrays]
        jitted = bu.jit(function, device=device, donate_argnums=donated)
        results.append([np.asarray(x).tobytes() for x in jitted(*given)])
    assert results[0] == results[1] == results[2]
