"""One part, in a process of its own: ``python -m gpu_checks.work PART[:ARGUMENT] --out FILE …``.

Rows are appended to the file, one JSON object to a line, as they are known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

#: What runs a part: ``module:function``, called with a `Task`.
WORKS = {
    "install": "gpu_checks.installing:work",
    "conformance": "gpu_checks.conforming:work",
    "programs": "gpu_checks.programs:work",
    "bench": "gpu_checks.benching:work",
    "training": "gpu_checks.training:work",
}


@dataclass(frozen=True, slots=True)
class Task:
    """What a part is asked to do.

    until: by `time.monotonic`, when it should have ended.
    """

    argument: str
    device: str
    until: float
    quick: bool
    out: Path
    packed: Path | None = None
    site: Path | None = None

    @property
    def left(self) -> float:
        """Seconds, negative when it is late."""
        return self.until - time.monotonic()

    def row(self, **fields: Any) -> None:
        """Write down one thing that was found."""
        with self.out.open("a") as file:
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def main() -> int:
    """Run a part; 1 if it found something wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--site", type=Path)
    asked = parser.parse_args()
    name, _, argument = asked.work.partition(":")
    task = Task(
        argument, asked.device, time.monotonic() + asked.seconds, asked.quick, asked.out,
        asked.packed, asked.site,
    )  # fmt: skip
    module, _, function = WORKS[name].partition(":")
    run: Callable[[Task], bool] = getattr(import_module(module), function)
    return 0 if run(task) else 1


if __name__ == "__main__":
    sys.exit(main())
