"""Write ``format1.bringup`` and what its entries gave: done once, as tests read it for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import bringup as bu

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> bu.Array:
    return bu.asarray(RNG.normal(size=shape).astype(np.float32))


PARAMS: Any = {"layers": [(drawn(8, 16), drawn(16)), (drawn(16, 4), drawn(4))], "u": drawn(8, 8)}


def predict(x: Any, scale: Any) -> Any:
    for w, b in PARAMS["layers"]:
        x = bu.tanh(x @ w + b)
    return {"y": bu.nn.softmax(x) * scale, "top": bu.argmax(x, axis=-1), "none": (None, [])}


def recurrent(x: Any) -> Any:
    state = bu.zeros(8, dtype=bu.float32)
    return bu.scan(lambda h, row: (bu.tanh(h @ PARAMS["u"] + row), None), state, x)[0]


def draw(key: Any) -> Any:
    key, own = bu.random.split(key)
    return key, bu.random.uniform(own, (5,))


def main() -> None:
    """Write both files."""
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    entries = {
        "predict": (predict, bu.float32[3, 8], 1.0),
        "recurrent": (recurrent, bu.float32[3, 8]),
        "draw": (draw, bu.random.key(0)),
    }
    metadata = {"name": "first", "numbers": [1, 2.5, None, True]}
    bu.save(HERE / "format1.bringup", entries, metadata=metadata)
    got = predict(bu.asarray(x), scale=2.0)
    np.savez(
        HERE / "format1.npz",
        x=x,
        predict=np.asarray(got["y"]),
        top=np.asarray(got["top"]),
        recurrent=np.asarray(recurrent(bu.asarray(x))),
        drawn=np.asarray(draw(bu.random.key(7))[1]),
    )


if __name__ == "__main__":
    main()
