"""Sizes and times of libraries made ahead of time, beside other compilers where installed.

    pip install onnx onnxruntime iree-base-compiler iree-base-runtime apache-tvm emx-onnx-cgen
    python benchmarks/libraries.py [--rounds N] [--small]
    python benchmarks/libraries.py --sizes

One picture, one thread.  Code is what is in the file beyond the weights.  Times are of the
processor, medians of rounds by turns: of a loop of C round the library, of `iree-benchmark-module`,
and of calls from Python for TVM and a session of ONNX Runtime with its arrays bound, which cost
some microseconds.
"""

from __future__ import annotations

import argparse
import platform
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
from llvmlite.binding import ObjectFileRef

import bringup as bu
from bringup.aot.toolchain import host_compiler

PROCESSORS = (
    "x86_64-linux-gnu", "aarch64-linux-gnu", "aarch64-linux-gnu+sve", "riscv64-linux-gnu",
    "riscv64-linux-gnu+v", "wasm32", "thumbv7em-none-eabihf",
)  # fmt: skip
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
@HEAD@
int main(int count, char **words) {
  const int calls = count > 1 ? atoi(words[1]) : 1;
  struct timespec start, end;
  for (int n = 0; n < @INPUTS@; n++) x[n] = (float)n / @INPUTS@;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  for (int n = 0; n < calls; n++) @CALL@;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  printf("%g\\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / calls);
  return 0;
}
"""
_OWN = """
#include "model.h"
static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES + 1];
static float x[MODEL_X_SIZE], y[MODEL_RESULT_SIZE];
static const model_args args = {x};
static const model_results results = {y};
"""
#: Bytes of code beyond the weights, and what times a call in microseconds.
Row = tuple[int, Callable[[], float]]


def _sections(file: Path) -> int:
    """Bytes of code and constants in an object or library."""
    text = subprocess.run(["size", file], capture_output=True, text=True, check=True).stdout
    return sum(map(int, text.split("\n")[1].split()[:2]))


def _timed_c(folder: Path, source: str, head: str, call: str, inputs: int, level: str) -> int:
    """Make the program ``main`` of a source or object with its calls; the bytes of the latter."""
    main_c = _MAIN.replace("@HEAD@", head).replace("@CALL@", call)
    (folder / "main.c").write_text(main_c.replace("@INPUTS@", str(inputs)))
    compiler = host_compiler()
    assert compiler is not None
    command = [*compiler, "-std=gnu11", level, "-march=native", "-fno-math-errno"]
    if source != "model.o":
        subprocess.run([*command, "-c", source, "-o", "model.o"], cwd=folder, check=True)
    built = [*command, "main.c", "model.o", "-lm", "-o", "main"]
    subprocess.run(built, cwd=folder, check=True)
    return _sections(folder / "model.o")


def _program(folder: Path, calls: int = 3000) -> float:
    """Run ``main``: microseconds a call."""
    command: list[str | Path] = [folder / "main", str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout) / 1e3


def _own(name: str, target: str, folder: Path, *, small: bool) -> Row:
    """A library of ours."""
    fn, arrays, shape = (mlp, MLP, (1, 784)) if name == "mlp" else (lenet, LENET, (1, 1, 28, 28))
    start = time.perf_counter()
    library = bu.jit(fn).export("model", bu.float32[shape], target=target, small=small)
    print(f"{name}: {target} built in {time.perf_counter() - start:.2f} s")
    library.write(folder)
    source = "model.o" if "model.o" in library.files else "model.c"
    level = "-Os" if small else "-O3"
    call = "model_run(&args, &results, arena)"
    code = _timed_c(folder, source, _OWN, call, 784, level)
    return code - sum(a.nbytes for a in arrays.values()), lambda: _program(folder)


def _repeated(call: Callable[[], object], times: int = 1000) -> float:
    """Microseconds of one of many calls from Python."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) * 1e6 / times


def _onnxruntime(name: str, folder: Path, x: np.ndarray[Any, Any], weights: int) -> Row:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_onnx(name), options)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")

    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    return library.stat().st_size, lambda: _repeated(lambda: session.run_with_iobinding(binding))


def _tool(name: str) -> str:
    """The path of a program of this environment.  Raises ImportError."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ImportError(f"no {name} in {path.parent}")
    return str(path)


def _iree(name: str, folder: Path, x: np.ndarray[Any, Any], weights: int) -> Row:
    steps = [
        [_tool("iree-import-onnx"), "model.onnx", "-o", "model.mlir"],
        [_tool("iree-compile"), "model.mlir", "--iree-hal-target-backends=llvm-cpu",
         "-o", "model.vmfb", "--iree-llvmcpu-target-cpu=host"],
    ]  # fmt: skip
    for command in steps:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    shape = "x".join(map(str, x.shape))
    run = [_tool("iree-benchmark-module"), "--module=model.vmfb", "--device=local-sync"]
    run += [f"--function={name}", f"--input={shape}xf32"]

    def timed() -> float:
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
        found = re.search(r"real_time\s+[\d.]+ [um]s\s+([\d.]+) (us|ms)", done.stdout)
        assert found, done.stdout
        return float(found[1]) * (1e3 if found[2] == "ms" else 1)

    return (folder / "model.vmfb").stat().st_size - weights, timed


def _tvm(name: str, folder: Path, x: np.ndarray[Any, Any], weights: int) -> Row:
    """With the schedules that TVM has without measuring."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    has_v4 = "avx512vl" in Path("/proc/cpuinfo").read_text()
    target = {"kind": "llvm", "mcpu": "x86-64-v4" if has_v4 else "x86-64-v3", "num-cores": 1}
    module = from_onnx(onnx.load_from_string(_onnx(name)), keep_params_in_input=False)
    built = tvm.compile(module, target=tvm.target.Target(target))
    built.export_library(str(folder / "tvm.so"))
    machine, argument = relax.VirtualMachine(built, tvm.cpu()), tvm.runtime.tensor(x)
    run = machine["main"]
    return _sections(folder / "tvm.so") - weights, lambda: _repeated(lambda: run(argument))


def _emx(name: str, folder: Path, x: np.ndarray[Any, Any], weights: int) -> Row:
    """C source, as ours of the target c11, with weights and temporaries in place."""
    command = [_tool("emx-onnx-cgen"), "compile", "--model-name", "model", "model.onnx", "model.c"]
    command += ["--large-weight-threshold", "0", "--large-temp-threshold", "0"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    head = f"static float x[{x.size}], y[10];\nvoid model(const float *, float *);\n"
    code = _timed_c(folder, "model.c", head, "model(x, y)", x.size, "-O3")
    return code - weights, lambda: _program(folder)


PEERS = {
    "ONNX Runtime": _onnxruntime,
    "IREE": _iree,
    "TVM, not tuned": _tvm,
    "emx-onnx-cgen": _emx,
}


def _peers(name: str, folder: Path) -> Iterator[tuple[str, Row]]:
    """The peers that are installed."""
    weights = sum(a.nbytes for a in (MLP if name == "mlp" else LENET).values())
    x = _RNG.standard_normal((1, 784) if name == "mlp" else (1, 1, 28, 28)).astype(np.float32)
    for number, (peer, make) in enumerate(PEERS.items()):
        own = folder / str(number)
        own.mkdir()
        try:
            (own / "model.onnx").write_bytes(_onnx(name))
            yield peer, make(name, own, x, weights)
        except ImportError as reason:
            print(f"{peer} is not installed: {reason}")


def _call(folder: Path) -> None:
    """What is round the kernels: a call whose one kernel adds one number."""
    library = bu.jit(lambda x: x + 1).export(
        "model", bu.float32[1], target=f"{platform.machine()}-linux-gnu"
    )
    library.write(folder)
    _timed_c(folder, "model.o", _OWN, "model_run(&args, &results, arena)", 1, "-O3")
    times = [_program(folder, 1_000_000) * 1e3 for _ in range(9)]
    print(f"a call that adds one number: {statistics.median(times):.1f} ns")


def _transformer(folder: Path) -> None:
    """How long the network of an example takes to build, its parameters as constants."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import transformer

    params, window = transformer.init(bu.random.key(0), 96), bu.int32[1, transformer.CONTEXT]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        fn = bu.jit(lambda text: transformer.window_scores(params, text))
        fn.export("model", window, target="x86-64-v3").write(folder)
        times.append(time.perf_counter() - start)
    print(f"the transformer of the examples, x86-64-v3: built in {statistics.median(times):.2f} s")


def _print_sizes() -> None:
    """The code of LeNet for every processor: what of its object file a program loads."""
    fn, shape = bu.jit(lenet), (1, 1, 28, 28)
    for target in PROCESSORS:
        library = fn.export("model", bu.float32[shape], target=target, weights="external")
        data = library.files["model.o"]
        assert isinstance(data, bytes)
        size = len(data)  # a module of WebAssembly is loaded whole
        if not target.startswith("wasm"):
            sections = ObjectFileRef.from_data(data).sections()
            named = [(each.name() or b"", each.size()) for each in sections]
            loaded = (b".text", b".rodata", b".data.rel.ro")
            size = sum(n for name, n in named if name.startswith(loaded))
        print(f"{target:24} {size:8,} bytes")


def main() -> None:
    """Print a row for each library."""
    options = argparse.ArgumentParser()
    options.add_argument("--sizes", action="store_true", help="of every processor, and no more")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--small", action="store_true", help="little code before speed")
    options.add_argument("--targets", nargs="*", default=["x86_64-linux-gnu", "x86-64-v3", "c11"])
    given = options.parse_args()
    if given.sizes:
        _print_sizes()
        return
    for bar in (_call, _transformer):
        with TemporaryDirectory() as folder:
            bar(Path(folder))
    for name in ("mlp", "lenet"):
        with TemporaryDirectory() as folder:
            rows: dict[str, Row] = {}
            for target in given.targets:
                own = Path(folder) / target
                own.mkdir()
                rows[target] = _own(name, target, own, small=given.small)
            rows |= _peers(name, Path(folder))
            times: dict[str, list[float]] = {row: [] for row in rows}
            for _ in range(given.rounds):
                for row, (_, run) in rows.items():
                    times[row].append(run())
            for row, (size, _) in rows.items():
                print(f"{name:6} {row:18} {size:11,} bytes {statistics.median(times[row]):8.2f} µs")


if __name__ == "__main__":
    main()
