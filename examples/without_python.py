"""Digits without Python: a trained network as a C program, and as a page for a browser.

    python examples/without_python.py [--out FOLDER] [--steps N]

Trains the small network of digits.py, then makes two libraries of it.  `native/` gets an object for
this machine with its header, and a program of C that classifies the digits of a file.  `page/` gets
a module of WebAssembly and a page on which a digit can be drawn: serve the folder, for example by
`python -m http.server`, and open it.  The wheel ziglang links a module.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
from common import Training, digits, parser
from digits import MODELS, Params, init, scores, train

import bringup as bu
from bringup.aot.toolchain import host_compiler, linked

HERE = Path(__file__).parent / "without_python"
FILE = bu.float32[1, 64]


def native(model: Params, folder: Path) -> Path:
    """The program of C for this machine."""
    target = f"{platform.machine()}-linux-gnu"
    bu.freeze(scores, model).export("digits", x=FILE, target=target).write(folder)
    shutil.copy(HERE / "main.c", folder)
    compiler = host_compiler()
    if compiler is None:
        raise SystemExit("no compiler is here: pip install ziglang")
    subprocess.run([*compiler, "-O2", "main.c", "digits.o", "-o", "digits"], cwd=folder, check=True)
    return folder / "digits"


def page(model: Params, folder: Path) -> Path:
    """The page, with the module that it loads."""
    library = bu.freeze(scores, model).export("digits", x=FILE, target="wasm32")
    library.write(folder)
    module = linked("shared", "digits", library.files["digits.o"], ["digits_run"], "wasm32")
    (folder / "digits.wasm").write_bytes(module)
    for name in ("index.html", "drawing.mjs"):
        shutil.copy(HERE / name, folder)
    return folder / "index.html"


def main() -> None:
    """Train, make both, and try the program on digits that the network has not seen."""
    options = parser("Digits without Python.", steps=1000)
    options.add_argument("--out", type=Path, default=Path("digits"), help="where the files go")
    given = options.parse_args()
    learned, (x, label) = ((x.reshape(len(x), -1), y) for x, y in digits())
    with bu.device(given.device):
        sizes, rate = MODELS["64-64-10 network"]
        model = train(init(sizes), Training(given.steps), learned, rate)
        program = native(model, given.out / "native")
        shown = page(model, given.out / "page")
    pictures = given.out / "native" / "pictures"
    pictures.write_bytes(np.round(x * 16).astype(np.uint8).tobytes())
    done = subprocess.run([program, pictures], capture_output=True, text=True, check=True)
    found = np.array(done.stdout.split(), np.int32)
    print(f"{program}: {program.stat().st_size:,} bytes, {np.mean(found == label):.1%} right")
    print(f"{shown}: {(shown.parent / 'digits.wasm').stat().st_size:,} bytes of WebAssembly")


if __name__ == "__main__":
    main()
