"""The lowest versions that pyproject.toml allows, as constraints for ``pip install -c FILE .``.

``python .ci/lowest.py`` prints one line for each dependency of the base distribution.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lowest(requirements: list[str]) -> list[str]:
    """``name==version`` for each ``name>=version``; ends the check for one without a bound."""
    constraints = []
    for requirement in requirements:
        found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)(?:,<[\w.]+)?", requirement)
        if found is None:
            sys.exit(f"{requirement!r} has no lowest version: write it as name>=version")
        constraints.append(f"{found[1]}=={found[2]}")
    return constraints


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(lowest(project["dependencies"])))
