"""Digits on a GPU without Python: two trained networks as a C program that calls the driver alone.

    python examples/without_python_gpu.py [--target NAME] [--out FOLDER] [--steps N]

Trains the small network of digits.py and the LeNet of lenet.py, and makes one library of both that
share a device: `opencl-c` for OpenCL of any vendor, or `cuda:sm_80` and the like for NVIDIA GPUs,
with the distribution bringup-cuda.  A program of C, with the library beside it, then classifies the
digits of a file.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import digits
import lenet
import numpy as np
from common import Training, parser
from common import digits as data

import bringup as bu
from bringup.aot.library import Library
from bringup.aot.toolchain import host_compiler

HERE = Path(__file__).parent / "without_python"
#: Pictures of a call.
BATCH = 64


def library(mlp: digits.Params, convolutions: lenet.Params, target: str) -> Library:
    """Both networks, for a batch of pictures."""
    functions = {
        "mlp": (bu.freeze(digits.scores, mlp), bu.float32[BATCH, 64]),
        "lenet": (bu.freeze(lenet.scores, convolutions), bu.float32[BATCH, 1, 8, 8]),
    }
    return bu.export("digits", functions, target=target)


def program(made: Library, folder: Path, driver: str) -> Path:
    """The program of C.  driver: ``opencl`` or ``cuda``."""
    made.write(folder)
    shutil.copy(HERE / f"{driver}.c", folder)
    compiler = host_compiler()
    if compiler is None:
        raise SystemExit("no compiler is here: pip install ziglang")
    link = "-lOpenCL" if driver == "opencl" else "-lcuda"
    command = [*compiler, "-O2", f"{driver}.c", "digits.c", link, "-o", "digits"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "digits"


def main() -> None:
    """Train, make the program, and try it on digits that the networks have not seen."""
    options = parser("Digits on a GPU without Python.", steps=1000)
    options.add_argument("--out", type=Path, default=Path("digits"), help="where the files go")
    options.add_argument("--target", default="opencl-c", help="opencl-c, or such as cuda:sm_80")
    given = options.parse_args()
    (pictures, right), (x, label) = data()
    with bu.device(given.device):
        sizes, rate = digits.MODELS["64-64-10 network"]
        learned = pictures.reshape(len(pictures), -1), right
        mlp = digits.train(digits.init(sizes), Training(given.steps), learned, rate)
        convolutions = lenet.train(lenet.init(), Training(given.steps), (pictures, right), 64)
        made = library(mlp, convolutions, given.target)
    written = program(made, given.out, "opencl" if given.target == "opencl-c" else "cuda")
    (given.out / "pictures").write_bytes(np.round(x * 16).astype(np.uint8).tobytes())
    command = [written, given.out / "pictures"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = np.array(done.stdout.split(), np.int32).reshape(-1, 2)
    for name, column in zip(("network", "LeNet"), found.T, strict=True):
        print(f"{name}: {np.mean(column == label):.1%} right")


if __name__ == "__main__":
    main()
