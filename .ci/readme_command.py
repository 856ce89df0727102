"""Print the command that stands in README.md under ``<!-- ci:NAME -->``."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def readme_command(text: str, name: str) -> str:
    """The single line of the fenced block right after the marker; anything else is an error."""
    mark = re.escape(f"<!-- ci:{name} -->")
    blocks = re.findall(rf"^{mark}\n+```sh\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)
    if len(blocks) != 1 or "\n" in blocks[0] or not blocks[0].strip():
        raise SystemExit(f"README.md must hold one one-line sh block after <!-- ci:{name} -->")
    return str(blocks[0])


if __name__ == "__main__":
    readme = Path(__file__).resolve().parents[1] / "README.md"
    print(readme_command(readme.read_text(encoding="utf-8"), sys.argv[1]))
