"""The processors that libraries are made for ahead of time, a row each."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.records import record
from bringup.target import Target
from bringup_cpu.target import X86_LEVELS


@record
class Processor:
    """A processor, as LLVM and the emitters know it.

    triple: of the machine and its system.  cpu, features: LLVM's names.
    architecture: as `platform.machine` calls it, for the control register of floats.
    row: what schedules are chosen by.  pointer_bits: of an address.
    relocatable: whether its libraries may be loaded anywhere.
    fuses: whether it has an instruction for multiply-adds.  wide: whether it computes in f64.
    attributes: more of LLVM's for every function.
    """

    triple: str
    cpu: str
    features: str
    architecture: str
    row: Target
    pointer_bits: int = 64
    relocatable: bool = True
    fuses: bool = True
    wide: bool = True
    attributes: str = ""


_V2, _V3, _V4 = (
    Processor("x86_64-linux-gnu", name, "", "x86_64", X86_LEVELS[name], fuses=name != "x86-64-v2")
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4")
)
#: Registers of 128 bits are what every AArch64 has, and what RISC-V's V extension promises.
_NEON = Target(vector_bits=128, registers=32)
#: Without vector registers: pairs keep two multiply-adds in flight.
_SCALAR = Target(vector_bits=64, registers=32)
_ARM, _RISCV = "aarch64-linux-gnu", "riscv64-linux-gnu"
#: Vectors of SVE have 1 to 16 times 128 bits.  LLVM uses registers of SVE for vectors of 256 bits
#: where it knows that there are twice 128.
_SVE, _SVE256 = (
    Processor(_ARM, "generic", "+neon,+sve", "aarch64", row, attributes=f"vscale_range({least},16)")
    for row, least in ((_NEON, 1), (Target(vector_bits=256, registers=32), 2))
)
#: Rows of a name are levels of one architecture: the code chooses among them when it runs.
_ROWS: dict[str, Sequence[Processor]] = {
    "x86_64-linux-gnu": (_V2, _V3, _V4),
    "x86-64-v2": (_V2,),
    "x86-64-v3": (_V3,),
    "x86-64-v4": (_V4,),
    "aarch64-linux-gnu": (Processor(_ARM, "generic", "+neon", "aarch64", _NEON),),
    "aarch64-linux-gnu+sve": (_SVE, _SVE256),
    "riscv64-linux-gnu": (
        Processor(_RISCV, "generic-rv64", "+m,+a,+f,+d,+c", "riscv64", _SCALAR),
    ),
    "riscv64-linux-gnu+v": (
        Processor(_RISCV, "generic-rv64", "+m,+a,+f,+d,+c,+v,+zvl128b", "riscv64", _NEON),
    ),
    "wasm32": (
        Processor("wasm32-unknown-unknown", "generic", "+simd128,+bulk-memory", "wasm32",
                  Target(vector_bits=128, registers=16), 32, relocatable=False, fuses=False),
    ),
    "thumbv7em-none-eabihf": (
        Processor("thumbv7em-unknown-none-eabihf", "cortex-m4", "", "thumbv7em",
                  Target(vector_bits=64, registers=16), 32, relocatable=False, wide=False),
    ),
}  # fmt: skip


def names() -> Sequence[str]:
    """What `processors` takes."""
    return tuple(_ROWS)


def processors(name: str) -> Sequence[Processor]:
    """The processors of a name, least first.  Raises UnsupportedError."""
    if name not in _ROWS:
        known = ", ".join(_ROWS)
        raise UnsupportedError(f"no library is made for {name!r}", fix=f"use one of: {known}")
    rows = _ROWS[name]
    is_x86 = rows[0].architecture == "x86_64"
    if len(rows) > 1 and is_x86 and platform.machine() not in ("x86_64", "AMD64"):
        # pragma: no cover - only other processors
        raise UnsupportedError(
            f"{name!r} asks the processor for its level by an instruction that LLVM assembles only "
            "on one of its kind",
            fix="make a library of one level, such as x86-64-v3",
        )
    return rows
