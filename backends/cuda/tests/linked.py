"""Libraries for CUDA made ahead of time, run on the emulator: a process of its own.

``linked.py FOLDER TARGET CASE…`` exports functions, compiles the C file with warnings as errors and
links it to the stand-in for ``libcuda.so.1``, whose kernels the emulator runs.  It calls each
function twice, with other contents of the arena and of the results, and writes what it gave, and
the codes of calls that are wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [
    str(HERE),
    str(HERE / "with_pycuda"),
    str(HERE.parent),
    str(HERE.parent / "emulator"),
]
sys.path.append(str(ROOT / "core" / "tests" / "aot"))

WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
#: More than the struct of any library here.
DEVICE_BYTES = 1 << 14
Array = np.ndarray[Any, Any]


def include() -> Path | None:
    """The folder with cuda.h, of a toolkit or of a wheel; None if there is none."""
    named = [Path(path) for path in os.environ.get("CPATH", "").split(os.pathsep) if path]
    homes = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    homes += sorted(Path("/usr/local").glob("cuda-*"))
    homes += [home for path in sys.path for home in sorted(Path(path).glob("nvidia/cu*"))]
    found = (path for path in (*named, *(home / "include" for home in homes)))
    return next((path for path in found if (path / "cuda.h").is_file()), None)


def compile_shared(sources: Sequence[Path], target: Path, driver: Path, cuda: Path) -> Path:
    """C files as a shared library that needs the driver's."""
    from bringup.aot.toolchain import host_compiler

    compiler = host_compiler()
    assert compiler is not None
    flags = (*WARNINGS, "-O1", "-shared", "-fPIC", f"-I{cuda}", f"-I{target.parent}")
    subprocess.run(
        [*compiler, *flags, *map(str, sources), str(driver), "-o", str(target)], check=True
    )
    return target


class Driver:
    """The stand-in in this process, with a context of the emulated GPU."""

    def __init__(self, path: Path) -> None:
        import standin_hooks

        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        standin_hooks.install(remembers=False)
        self.texts = standin_hooks.emulation.texts
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *args: Any) -> None:
        """Call a function, which succeeds."""
        status = getattr(self.library, name)(*args)
        assert status == 0, f"{name} returned {status}"

    def alloc(self, nbytes: int) -> int:
        """New memory; 0 for nothing."""
        address = ctypes.c_uint64()
        if nbytes:
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def upload(self, address: int, data: Array) -> None:
        """Copy to the device."""
        if data.nbytes:
            memory, size = ctypes.c_uint64(address), ctypes.c_size_t(data.nbytes)
            self.call(
                "cuMemcpyHtoDAsync_v2", memory, data.ctypes.data_as(ctypes.c_void_p), size, None
            )

    def download(self, address: int, like: Array) -> Array:
        """Copy from the device, after all work."""
        found = np.empty_like(like)
        if like.nbytes:
            size = ctypes.c_size_t(like.nbytes)
            target = found.ctypes.data_as(ctypes.c_void_p)
            self.call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(address), size, None)
        return found


class Linked:
    """A compiled library."""

    def __init__(self, driver: Driver, path: Path, name: str) -> None:
        self.driver, self.name = driver, name
        self.library = ctypes.CDLL(str(path))
        self.device = ctypes.create_string_buffer(DEVICE_BYTES)

    def __call__(self, symbol: str, *args: Any) -> int:
        """The code that a function returns."""
        status: int = getattr(self.library, symbol)(*args)
        return status

    def load(self, weights_bytes: int, *file: bytes) -> int:
        """Load the code and upload the weights; where these are."""
        assert self(f"{self.name}_load", self.device) == 0
        weights = self.driver.alloc(weights_bytes)
        if weights:
            assert self(f"{self.name}_upload", *file, ctypes.c_uint64(weights), None) == 0
        return weights

    def run(
        self,
        symbol: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        arena: int,
        weights: int,
    ) -> list[Array]:
        """What a function gives, twice the same."""
        driver = self.driver
        given = [driver.alloc(x.nbytes) for x in inputs]
        made = [driver.alloc(y.nbytes) for y in outputs]
        scratch = driver.alloc(arena)
        for address, x in zip(given, inputs, strict=True):
            driver.upload(address, x)
        args = (ctypes.c_uint64 * (len(given) + 1))(*given, weights)
        results = (ctypes.c_uint64 * max(len(made), 1))(*made)
        found: list[list[Array]] = []
        for fill in (0, 255):
            driver.upload(scratch, np.full(arena, fill, np.uint8))
            for address, y in zip(made, outputs, strict=True):
                driver.upload(address, np.full(y.nbytes, 255 - fill, np.uint8))
            status = self(symbol, self.device, args, results, ctypes.c_uint64(scratch), None)
            assert status == 0, f"{symbol} returned {status}"
            found.append([driver.download(a, y) for a, y in zip(made, outputs, strict=True)])
        for address, x in zip(given, inputs, strict=True):
            assert driver.download(address, x).tobytes() == x.tobytes(), "an argument changed"
        for one, other in zip(*found, strict=True):
            assert one.tobytes() == other.tobytes(), "results depend on what memory holds"
        return found[0]


def constant(header: str, name: str) -> int:
    """A number that a header defines."""
    line = next(line for line in header.splitlines() if line.startswith(f"#define {name} "))
    return int(line.split()[2])


def exported(driver: Driver, export: Any) -> Any:
    """The library of a call, whose LLVM IR the emulator runs in place of the PTX."""
    from bringup_cuda import link

    to_ptx = link.to_ptx

    def remembered(text: str, architecture: str) -> str:
        ptx = to_ptx(text, architecture)
        driver.texts[ptx] = text
        return ptx

    link.to_ptx = remembered
    try:
        return export()
    finally:
        link.to_ptx = to_ptx


def own_cases() -> dict[str, Any]:
    """Many short blocks, and a product whose blocks have more shared memory than without asking."""
    from c_cases import Case

    import bringup as bu

    wide = np.arange(1 << 19, dtype=np.float32)
    random = np.random.default_rng(2)
    x, y = (random.integers(-4, 5, s).astype(bu.bfloat16.numpy) for s in ((768, 256), (256, 768)))
    product = (x.astype(np.float32) @ y.astype(np.float32)).astype(x.dtype)
    return {
        "wide": Case(lambda x: x * 2 + 1, (wide,), (wide * 2 + 1,)),
        "product": Case(lambda x, y: x @ y, (x, y), (product,)),
    }


def wrong_calls(driver: Driver, linked: Linked, arena: int, weights: int) -> dict[str, int]:
    """The codes of calls of ``suite_mlp`` that something is wrong with."""
    from standin import LAUNCH_FAILED, StandIn

    x, y = driver.alloc(784 * 4), driver.alloc(10 * 4)
    scratch = driver.alloc(arena)

    def run(x: int = x, y: int = y, scratch: int = scratch, device: Any = linked.device) -> int:
        args, results = (ctypes.c_uint64 * 2)(x, weights), (ctypes.c_uint64 * 1)(y)
        return linked("suite_mlp", device, args, results, ctypes.c_uint64(scratch), None)

    codes = {
        "right": run(),
        "no argument": run(x=0),
        "no result": run(y=0),
        "no arena": run(scratch=0),
        "no device": run(device=None),
        "misaligned": run(x=x + 4),
        "no struct": linked("suite_mlp", linked.device, None, None, ctypes.c_uint64(scratch), None),
        "nowhere to load": linked("suite_load", None),
        "nowhere to unload": linked("suite_unload", None),
    }
    standin = StandIn()
    for call in ("cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction"):
        standin.fail(call, LAUNCH_FAILED)
        codes[call] = run() if call == "cuLaunchKernel" else linked("suite_load", linked.device)
        standin.library.standin_heal()
    assert linked("suite_load", linked.device) == 0
    return codes


def example(driver: Driver, folder: Path, cuda: Path, path: Path) -> str:
    """What the program of examples/without_python/cuda.c prints of two batches, the second of which
    is not full: on how many digits both networks say what they say by bringup.
    """
    sys.path.append(str(ROOT / "examples"))
    import digits
    import lenet
    import without_python_gpu as gpu

    import bringup as bu

    mlp, convolutions = digits.init(digits.MODELS["64-64-10 network"][0]), lenet.init()
    made = exported(driver, lambda: gpu.library(mlp, convolutions, "cuda:sm_80"))
    made.write(folder)
    pictures = np.random.default_rng(5).integers(0, 17, (70, 64), np.uint8)
    (folder / "pictures").write_bytes(pictures.tobytes())
    sources = [folder / "digits.c", ROOT / "examples" / "without_python" / "cuda.c"]
    program = compile_shared(sources, folder / "digits.so", path, cuda)
    words = (ctypes.c_char_p * 2)(b"digits", str(folder / "pictures").encode())
    log = os.open(folder / "printed", os.O_CREAT | os.O_WRONLY)
    kept = os.dup(1)
    os.dup2(log, 1)
    status = ctypes.CDLL(str(program)).main(2, words)
    ctypes.CDLL(None).fflush(None)
    os.dup2(kept, 1)
    assert status == 0, f"the program ended with {status}"
    x = pictures.astype(np.float32) / 16
    one = bu.argmax(digits.scores(mlp, x), axis=1)
    other = bu.argmax(lenet.scores(convolutions, x.reshape(-1, 1, 8, 8)), axis=1)
    wanted = [f"{a} {b}" for a, b in zip(np.asarray(one), np.asarray(other), strict=True)]
    printed = (folder / "printed").read_text().splitlines()
    agreed = sum(a == b for a, b in zip(printed, wanted, strict=True))
    return f"{agreed} of {len(wanted)}"


CPP = """\
#include "maths.hpp"
extern "C" int called(CUdeviceptr x, CUdeviceptr weights, CUdeviceptr y, const void *file) {
  (void)file;
  maths::device device;
  int status = device.status();
  if (status == MATHS_OK) status = device.upload(FILEweights, nullptr);
  return status == MATHS_OK ? device.run({x, weights}, {y}, 0, nullptr) : status;
}
"""
RUST = """\
mod maths;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn called(x: maths::Memory, weights: maths::Memory, result: maths::Memory,
    file: *const core::ffi::c_void) -> i32 {
    let _ = file;
    let all = || unsafe {
        let device = maths::Device::load()?;
        device.upload(FILEweights, core::ptr::null_mut())?;
        let args = maths::RunArgs { x, weights };
        device.run(&args, &maths::RunResults { result }, 0, core::ptr::null_mut())
    };
    match all() { Ok(()) => 0, Err(code) => code }
}
"""


def called(
    driver: Driver, folder: Path, cuda: Path, path: Path, target: str, weights: Any
) -> dict[str, list[float] | None]:
    """What a library gives, and the codes of two calls, through its modules of C++ and Rust."""
    from c_program import rust_compiler

    import bringup as bu
    from bringup.aot.toolchain import host_compiler

    held = np.arange(1, 5, dtype=np.float32)
    function = bu.jit(lambda x: x * held)
    made = exported(
        driver,
        lambda: function.export("maths", bu.float32[4], target=target, weights=weights),
    )
    made.write(folder)
    file = "file, " if weights == "external" else ""
    (folder / "called.cpp").write_text(CPP.replace("FILE", file))
    (folder / "called.rs").write_text(RUST.replace("FILE", file))
    compiler = host_compiler()
    assert compiler is not None
    subprocess.run(
        [*compiler, *WARNINGS, "-fPIC", f"-I{cuda}", "-c", "maths.c"], cwd=folder, check=True
    )
    cpp = [*compiler, "-x", "c++", "-std=c++11", *WARNINGS[1:], "-fPIC", "-fno-exceptions"]
    subprocess.run([*cpp, f"-I{cuda}", "-c", "called.cpp"], cwd=folder, check=True)
    link = ["-shared", "called.o", "maths.o", str(path), "-o", "C++.so"]
    subprocess.run([*compiler, *link], cwd=folder, check=True)
    languages = ["C++"]
    if rust := rust_compiler():
        flags = ["--edition", "2021", "-D", "warnings", "--crate-type", "cdylib", "-o", "Rust.so"]
        flags += [word for file in ("maths.o", str(path)) for word in ("-C", f"link-arg={file}")]
        subprocess.run([*rust, *flags, "called.rs"], cwd=folder, check=True)
        languages.append("Rust")
    x, y, place = driver.alloc(16), driver.alloc(16), driver.alloc(256)
    driver.upload(x, held)
    found: dict[str, list[float] | None] = {"called by Rust": None}
    for language in languages:
        function = ctypes.CDLL(str(folder / f"{language}.so")).called
        function.argtypes = [ctypes.c_uint64] * 3 + [ctypes.c_char_p]
        content = made.files.get("maths.safetensors")
        codes = [function(x, place, memory, content) for memory in (y, 0)]
        found[f"called by {language}"] = [*codes, *driver.download(y, held).tolist()]
    return found


def main(folder: Path, target: str, weights: Any, names: Sequence[str]) -> None:
    from c_cases import CASES
    from c_program import flat
    from distributions import write_metadata

    sys.path.append(str(write_metadata(folder / "site")))
    import standin

    import bringup as bu

    cuda = include()
    assert cuda is not None
    path = standin.build(folder, [cuda])
    driver = Driver(path)
    every = {**CASES, **own_cases()}
    cases = {name: every[name] for name in names}
    functions = {name: (case.function, *case.arguments) for name, case in cases.items()}
    library = exported(
        driver, lambda: bu.export("suite", functions, target=target, weights=weights)
    )
    library.write(folder)
    shared = compile_shared([folder / "suite.c"], folder / "suite.so", path, cuda)
    linked = Linked(driver, shared, "suite")
    header = library.files["suite.h"].decode()
    file = [library.files["suite.safetensors"]] if weights == "external" else []
    place = linked.load(constant(header, "SUITE_WEIGHTS_BYTES"), *file)
    results: dict[str, Array] = {}
    facts: dict[str, Any] = {}
    for name, case in cases.items():
        symbol = f"suite_{name}"
        outputs, arena = flat(case.results), library.arena_bytes[symbol]
        found = linked.run(symbol, flat(case.arguments), outputs, arena, place)
        results.update({f"{name}.{n}": array for n, array in enumerate(found)})
        facts[f"blocks of {name}"] = standin.StandIn().last().grid[0]
    if "mlp" in names:
        facts |= wrong_calls(driver, linked, library.arena_bytes["suite_mlp"], place)
    if file:
        memory = ctypes.c_uint64(place)
        facts["other weights"] = linked("suite_upload", b"?" * len(file[0]), memory, None)
        facts["no file"] = linked("suite_upload", None, memory, None)
        facts["nowhere to put weights"] = linked("suite_upload", *file, ctypes.c_uint64(0), None)
    if "wide" in names:
        facts["digits as bringup says them"] = example(driver, folder, cuda, path)
    facts |= called(driver, folder, cuda, path, target, weights)
    np.savez(folder / "results.npz", **results)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
