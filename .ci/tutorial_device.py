"""Make the device of the tutorial "An OpenCL device" in a folder: ``tutorial_device.py FOLDER``.

The package is made by ``bringup new``, and changed by the pieces of the page as they stand there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bringup.cli.new import Names, generate

PAGE = Path(__file__).parents[1] / "docs/tutorial/opencl-device.md"


def make(folder: Path) -> Path:
    """Write the package; returns the folder of its module."""
    names = Names.of("Acme CL")
    generate(folder, names, "loops", "opencl")
    module = folder / names.module
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        file = module / section.partition(":")[0]
        for piece in re.findall(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            before, after = (_side(piece, sign) for sign in "-+")
            text = file.read_text("utf-8")
            if text.count(before) != 1:
                raise SystemExit(
                    f"{file.name} does not hold once what the page replaces:\n{before}"
                )
            file.write_text(text.replace(before, after), "utf-8")
    for stand_in in module.glob("simulated_*.py"):
        stand_in.unlink()
    return module


def _side(piece: str, sign: str) -> str:
    """The lines of a piece before, ``-``, or after the change, ``+``."""
    lines = piece.splitlines(keepends=True)
    return "".join(line[1:] for line in lines if line[0] in (" ", sign))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
