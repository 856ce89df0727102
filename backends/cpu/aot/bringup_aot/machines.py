"""The machines that libraries are run on, a row each: how to link for one, and how to run there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.aot.library import Library
from bringup.aot.toolchain import tool
from bringup.backend import NoHardware
from bringup.errors import DeviceError
from bringup.records import record
from bringup_aot.running import Module, Process, Running

_HERE = Path(__file__).parent


@record
class Machine:
    """A machine.

    target: what libraries are made for.
    compiler: the usual one.  zig: what the wheel ``ziglang`` calls the target; None if programs are
    to be of that compiler.
    flags: of the compiler.  emulator: what runs a program, before its path; empty for itself.
    least: the first version of the emulator that does, with what is wrong before; None for any.
    """

    target: str
    compiler: str
    zig: str | None
    flags: tuple[str, ...] = ()
    emulator: tuple[str, ...] = ()
    least: tuple[int, str] | None = None

    @property
    def product(self) -> str:
        """The target, and which compiler reads its source."""
        return f"c11 by {self.compiler}" if self.target == "c11" else self.target

    def link(self, library: Library, folder: Path) -> Path:
        """A program of a library, in a folder.  Raises DeviceError."""
        library.write(folder)
        code = folder / next(name for name in library.files if name.endswith((".o", ".c")))
        runner, program = folder / "runner.o", folder / "program"
        runner.write_bytes(_runner(self))
        _call([*compiler(self), *self.flags, str(runner), str(code), "-lm", "-o", str(program)])
        return program

    def start(self, program: Path) -> Running:
        """A program, as a process of its own."""
        return Process((*self.emulator, str(program)))


class Browser(Machine):
    """A machine of WebAssembly, in this process."""

    def start(self, program: Path) -> Running:
        """A module."""
        return Module(program)


class Launcher(Machine):
    """A machine whose library launches on a device of OpenCL."""

    def link(self, library: Library, folder: Path) -> Path:
        """A program of a library, in a folder.  Raises DeviceError."""
        library.write(folder)
        sources, program = (folder / "model.c", _HERE / "opencl.c"), folder / "program"
        flags = (*self.flags, f"-I{folder}", f"-I{_HERE}")
        _call([*compiler(self), *flags, *map(str, sources), "-lOpenCL", "-o", str(program)])
        return program


_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-nostartfiles")
_BOARD = (*_M4, "--specs=nosys.specs", f"-T{_HERE / 'board.ld'}")
_C11 = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
_SANITIZED = (*_C11, "-fsanitize=address,undefined")
# Instead of -fno-sanitize-recover: with it clang 14 compiles some functions for many minutes.
_HALTS = ("env", "UBSAN_OPTIONS=halt_on_error=1")
_M4_RUN = (
    "qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-serial", "none",
    "-monitor", "none", "-semihosting", "-kernel",
)  # fmt: skip
_ISSUE = (
    "ends at an assertion of its own where a vector of floats becomes one of integers "
    "(https://gitlab.com/qemu-project/qemu/-/issues/1441)"
)
MACHINES: Sequence[Machine] = (
    Machine("x86_64-linux-gnu", "x86_64-linux-gnu-gcc", "x86_64-linux-musl"),
    Machine(
        "aarch64-linux-gnu", "aarch64-linux-gnu-gcc", "aarch64-linux-musl",
        ("-static",), ("qemu-aarch64",),
    ),
    Machine(
        "riscv64-linux-gnu", "riscv64-linux-gnu-gcc", "riscv64-linux-musl",
        ("-static",), ("qemu-riscv64",),
    ),
    Machine(
        "riscv64-linux-gnu+v", "riscv64-linux-gnu-gcc", "riscv64-linux-musl",
        ("-static",), ("qemu-riscv64", "-cpu", "rv64,v=true,vext_spec=v1.0,vlen=128"), (8, _ISSUE),
    ),
    Browser("wasm32", "", "wasm32-wasi", ("-msimd128",)),
    Machine("thumbv7em-none-eabihf", "arm-none-eabi-gcc", None, _BOARD, _M4_RUN),
    # C source, for this machine: warnings are errors, and sanitizers watch.
    Machine("c11", "gcc", None, _SANITIZED, _HALTS),
    Machine("c11", "clang", None, _SANITIZED, _HALTS),
    # And for others.
    Machine("c11", "aarch64-linux-gnu-gcc", None, (*_C11, "-static"), ("qemu-aarch64",)),
    Machine("c11", "arm-none-eabi-gcc", None, (*_C11, *_BOARD), _M4_RUN),
    Machine(
        "aarch64-linux-gnu+sve", "aarch64-linux-gnu-gcc", "aarch64-linux-musl",
        ("-static",), ("qemu-aarch64", "-cpu", "max,sve-max-vq=2,pauth=off"),
    ),
    Launcher("opencl-c", "gcc", None, _C11),
)  # fmt: skip


def compiler(machine: Machine) -> Sequence[str]:
    """The command that links for a machine.  Raises NoHardware."""
    if machine.emulator and not shutil.which(machine.emulator[0]):
        raise NoHardware(f"{machine.emulator[0]} is not installed")
    if machine.emulator and machine.least and _version(machine.emulator[0]) < machine.least[0]:
        name, (least, fault) = machine.emulator[0], machine.least
        raise NoHardware(
            f"{name} {_version(name)} {fault}; QEMU {least} or newer is needed, which Debian 12 "
            "has in bookworm-backports"
        )
    if isinstance(machine, Browser) and not find_spec("wasmtime"):
        raise NoHardware("the wheel wasmtime is not installed")
    found = tool((machine.compiler,), machine.zig)
    if found is None:
        raise NoHardware(
            f"neither {machine.compiler or 'a compiler'} nor the wheel ziglang is there"
        )
    if isinstance(machine, Launcher) and not _has_opencl(found):
        raise NoHardware("CL/cl.h, libOpenCL or a platform of OpenCL is not installed")
    return found


@cache
def _version(emulator: str) -> int:
    """The first number of an emulator's version; 0 where it does not say."""
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.", said.stdout)
    return int(found[1]) if found else 0


@cache
def _has_opencl(compiler: Sequence[str]) -> bool:
    """Whether a program finds a platform."""
    text = "#include <CL/cl.h>\nint main(void) { cl_uint n; return clGetPlatformIDs(0, 0, &n); }\n"
    with TemporaryDirectory(prefix="bringup-aot-") as folder:
        source, program = Path(folder) / "empty.c", Path(folder) / "empty"
        source.write_text(text)
        link = [*compiler, "-DCL_TARGET_OPENCL_VERSION=120", str(source), "-lOpenCL"]
        built = subprocess.run([*link, "-o", str(program)], capture_output=True, check=False)
        return not built.returncode and not subprocess.run([program], check=False).returncode


@cache
def _runner(machine: Machine) -> bytes:
    """The runner, compiled once."""
    with TemporaryDirectory(prefix="bringup-aot-") as folder:
        result = Path(folder) / "runner.o"
        flags = [flag for flag in machine.flags if not flag.startswith("-T")]
        _call([*compiler(machine), "-O1", *flags, "-c", str(_HERE / "runner.c"), "-o", str(result)])
        return result.read_bytes()


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError("linking failed", notes=(done.stderr[-1000:],))
