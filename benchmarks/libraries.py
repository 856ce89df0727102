"""Sizes and times of libraries made ahead of time, beside ONNX Runtime and IREE where installed.

    pip install onnx onnxruntime iree-base-compiler iree-base-runtime
    python benchmarks/libraries.py [--rounds N] [--small]

One picture, one thread.  Code is what is in the file beyond the weights.  Times are medians of
rounds by turns: of a loop of C round the library, of `iree-benchmark-module`, and of a session of
ONNX Runtime in Python with its arrays bound, whose call costs some microseconds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import bringup as bu
from bringup.aot.toolchain import host_compiler

Arrays = dict[str, np.ndarray[Any, Any]]
_RNG = np.random.default_rng(0)


def _weights(**shapes: tuple[int, ...]) -> Arrays:
    return {n: (_RNG.standard_normal(s) * 0.1).astype(np.float32) for n, s in shapes.items()}


MLP = _weights(w1=(784, 128), b1=(128,), w2=(128, 10), b2=(10,))
LENET = _weights(
    c1=(6, 1, 5, 5), a=(6,), c2=(16, 6, 5, 5), b=(16,), f1=(400, 120), d=(120,), f2=(120, 84),
    e=(84,), f3=(84, 10), g=(10,),
)  # fmt: skip


def mlp(x: Any) -> Any:
    """Two dense layers and a softmax."""
    hidden = bu.nn.relu(x @ MLP["w1"] + MLP["b1"])
    return bu.nn.softmax(hidden @ MLP["w2"] + MLP["b2"], axis=-1)


def lenet(x: Any) -> Any:
    """Two convolutions with pooling, three dense layers."""
    p = LENET
    x = bu.nn.conv(x, p["c1"], padding=2) + p["a"][:, None, None]
    x = bu.nn.max_pool(bu.tanh(x), 2)
    x = bu.nn.conv(x, p["c2"]) + p["b"][:, None, None]
    x = bu.nn.max_pool(bu.tanh(x), 2)
    x = bu.tanh(bu.reshape(x, (1, 400)) @ p["f1"] + p["d"])
    return bu.tanh(x @ p["f2"] + p["e"]) @ p["f3"] + p["g"]


def _onnx(name: str) -> bytes:
    """The same network for the peers."""
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    if name == "mlp":
        nodes = [
            node("Gemm", ["x", "w1", "b1"], ["h"]), node("Relu", ["h"], ["r"]),
            node("Gemm", ["r", "w2", "b2"], ["s"]), node("Softmax", ["s"], ["y"], axis=-1),
        ]  # fmt: skip
        arrays, shape = MLP, [1, 784]
    else:
        pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes = [
            node("Conv", ["x", "c1", "a"], ["h1"], pads=[2, 2, 2, 2]), node("Tanh", ["h1"], ["h2"]),
            node("MaxPool", ["h2"], ["h3"], **pool), node("Conv", ["h3", "c2", "b"], ["h4"]),
            node("Tanh", ["h4"], ["h5"]), node("MaxPool", ["h5"], ["h6"], **pool),
            node("Flatten", ["h6"], ["h7"]), node("Gemm", ["h7", "f1", "d"], ["h8"]),
            node("Tanh", ["h8"], ["h9"]), node("Gemm", ["h9", "f2", "e"], ["h10"]),
            node("Tanh", ["h10"], ["h11"]), node("Gemm", ["h11", "f3", "g"], ["y"]),
        ]  # fmt: skip
        arrays, shape = LENET, [1, 1, 28, 28]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", shape), ("y", [1, 10]))
    ]
    held = [numpy_helper.from_array(array, n) for n, array in arrays.items()]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    content: bytes = model.SerializeToString()
    return content


_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "model.h"
static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES + 1];
static float x[MODEL_X_SIZE], y[MODEL_RESULT_SIZE];
int main(int count, char **words) {
  const model_args args = {x};
  const model_results results = {y};
  const int calls = count > 1 ? atoi(words[1]) : 1;
  struct timespec start, end;
  for (int n = 0; n < MODEL_X_SIZE; n++) x[n] = (float)n / MODEL_X_SIZE;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int n = 0; n < calls; n++) model_run(&args, &results, arena);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%g\\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / calls);
  return 0;
}
"""


def _own(name: str, target: str, folder: Path, *, small: bool) -> tuple[int, Callable[[], float]]:
    """Bytes of code of our library, and what times a call in microseconds."""
    fn, arrays, shape = (mlp, MLP, (1, 784)) if name == "mlp" else (lenet, LENET, (1, 1, 28, 28))
    start = time.perf_counter()
    library = bu.jit(fn).export("model", bu.float32[shape], target=target, small=small)
    print(f"{name}: {target} built in {time.perf_counter() - start:.2f} s")
    library.write(folder)
    (folder / "main.c").write_text(_MAIN)
    compiler = host_compiler()
    assert compiler is not None
    level = "-Os" if small else "-O3"
    source = "model.o" if "model.o" in library.files else "model.c"
    command = [*compiler, "-std=gnu11", level, "-march=native", "-fno-math-errno", "main.c", source]
    subprocess.run([*command, "-lm", "-o", "main"], cwd=folder, check=True)
    if source == "model.c":
        subprocess.run([*command[:-2], "-c", source, "-o", "model.o"], cwd=folder, check=True)
    text = subprocess.run(["size", folder / "model.o"], capture_output=True, text=True, check=True)
    code = int(text.stdout.split("\n")[1].split()[0]) - sum(a.nbytes for a in arrays.values())

    def timed() -> float:
        done = subprocess.run([folder / "main", "3000"], capture_output=True, text=True, check=True)
        return float(done.stdout) / 1e3

    return code, timed


def _peers(name: str, folder: Path) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """Each peer that is installed: its bytes of code beyond weights, and what times a call."""
    weights = sum(a.nbytes for a in (MLP if name == "mlp" else LENET).values())
    x = _RNG.standard_normal((1, 784) if name == "mlp" else (1, 1, 28, 28)).astype(np.float32)
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(_onnx(name), options)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")

        def timed() -> float:
            start = time.perf_counter()
            for _ in range(1000):
                session.run_with_iobinding(binding)
            return (time.perf_counter() - start) * 1e3

        library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
        yield "ONNX Runtime", library.stat().st_size, timed
    except ImportError:
        print("ONNX Runtime is not installed")
    tools = Path(sys.executable).parent
    if not (tools / "iree-compile").exists():
        print("IREE is not installed")
        return
    (folder / "model.onnx").write_bytes(_onnx(name))
    steps = [
        ["iree-import-onnx", "model.onnx", "-o", "model.mlir"],
        ["iree-compile", "model.mlir", "--iree-hal-target-backends=llvm-cpu", "-o", "model.vmfb",
         "--iree-llvmcpu-target-cpu=host"],
    ]  # fmt: skip
    for command in steps:
        command[0] = str(tools / command[0])
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    shape = "x".join(map(str, x.shape))
    run = [str(tools / "iree-benchmark-module"), "--module=model.vmfb", "--device=local-sync"]
    run += [f"--function={name}", f"--input={shape}xf32"]

    def timed_module() -> float:
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
        found = re.search(r"real_time\s+([\d.]+) (us|ms)", done.stdout)
        assert found, done.stdout
        return float(found[1]) * (1e3 if found[2] == "ms" else 1)

    yield "IREE", (folder / "model.vmfb").stat().st_size - weights, timed_module


def main() -> None:
    """Print a row for each library."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--small", action="store_true", help="little code before speed")
    options.add_argument("--targets", nargs="*", default=["x86_64-linux-gnu", "x86-64-v3", "c11"])
    given = options.parse_args()
    for name in ("mlp", "lenet"):
        with TemporaryDirectory() as folder:
            rows: dict[str, tuple[int, Callable[[], float]]] = {}
            for target in given.targets:
                own = Path(folder) / target
                own.mkdir()
                rows[target] = _own(name, target, own, small=given.small)
            rows |= {peer: (size, run) for peer, size, run in _peers(name, Path(folder))}
            times: dict[str, list[float]] = {row: [] for row in rows}
            for _ in range(given.rounds):
                for row, (_, run) in rows.items():
                    times[row].append(run())
            for row, (size, _) in rows.items():
                print(f"{name:6} {row:18} {size:11,} bytes {statistics.median(times[row]):8.2f} µs")


if __name__ == "__main__":
    main()
