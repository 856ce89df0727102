"""How long a process takes to its first result: import, then the first call of ``sum(x + y*z)``.

Every figure is the median over fresh interpreters, the kinds taking turns: with an empty cache on
disk, with one that holds the SDK's own code but not the program, and with one that holds both.

    python benchmarks/starting.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 15
#: What a child runs; the factor makes programs differ.
CHILD = """
import time
start = time.perf_counter()
import bringup as bu
imported = time.perf_counter()
import numpy as np
x = np.ones(1000, np.float32)
f = bu.jit(lambda x, y, z: bu.sum(x + y * z * {factor}))
before = time.perf_counter()
float(f(x, x, x))
print(imported - start, time.perf_counter() - before)
"""


def child(factor: int, cache: Path) -> tuple[float, float]:
    """Milliseconds of the import and of the first call in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(factor=factor)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    imported, called = map(float, done.stdout.split())
    return imported * 1e3, called * 1e3


def main() -> None:
    """Measure and print."""
    times: dict[str, list[tuple[float, float]]] = {"empty cache": [], "new": [], "cached": []}
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "shared")
        child(1, shared)
        for turn in range(ROUNDS):
            times["empty cache"].append(child(1, Path(folder, str(turn))))
            times["new"].append(child(turn + 2, shared))
            times["cached"].append(child(1, shared))
    every = [imported for rows in times.values() for imported, _ in rows]
    print(f"{'import':30} {statistics.median(every):6.1f} ms")
    for name, rows in times.items():
        print(f"{f'first call, {name}':30} {statistics.median(c for _, c in rows):6.1f} ms")


if __name__ == "__main__":
    main()
