"""The NVPTX target: core's SIMT emitters on it, and its instructions as LLVM intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.math.exponential import exp_by_branch
from bringup.llvm.math.remainder import remainder
from bringup.llvm.simt import Copies, GroupUnit, MatrixUnit, SimtDialect
from bringup.llvm.text import Builder, Val, const, i64_const, struct_type, vec
from bringup_cuda.targets import REGISTERS, TARGETS, WARP

TRIPLE = "nvptx64-nvidia-cuda"


def _shuffle(b: Builder, word: Val, mask: int) -> Val:
    everyone, last_lane = const(ir.i32, -1), const(ir.i32, WARP - 1)
    args = (everyone, word, const(ir.i32, mask), last_lane)
    return b.intrinsic("llvm.nvvm.shfl.sync.bfly.i32", ir.i32, args, ())


def _attributes(threads: int, registers: int) -> str:
    """Tell the assembler how many blocks must fit on a multiprocessor: that limits registers.

    It chooses by itself if ``registers`` is 0.
    """
    threads_ = f'"nvvm.reqntid"="{threads}"'
    if not registers:
        return threads_
    blocks = max(1, REGISTERS // (threads * registers))
    return f'{threads_} "nvvm.minctasm"="{blocks}"'


def _start_copy(b: Builder, to: Val, source: Val, nbytes: int, amount: Val) -> None:
    cache = "cg" if nbytes == 16 else "ca"
    name = f"llvm.nvvm.cp.async.{cache}.shared.global.{nbytes}.s"
    b.intrinsic(name, ir.void, (to, source, amount), ())


def _commit_copies(b: Builder) -> None:
    b.intrinsic("llvm.nvvm.cp.async.commit.group", ir.void, (), ())


def _wait_for_copies(b: Builder, pending: int) -> None:
    b.intrinsic("llvm.nvvm.cp.async.wait.group", ir.void, (const(ir.i32, pending),), ())


#: By dtype: the instruction, the type of a register of elements, and the type of sums.
_MMA = {
    "f16": ("m16n8k16.row.col.f32.f32", vec(ir.f16, 2), ir.f32),
    "bf16": ("m16n8k16.row.col.bf16", ir.i32, ir.f32),
    "f32": ("m16n8k8.row.col.tf32", ir.i32, ir.f32),
    "i8": ("m16n8k32.row.col.s8", ir.i32, ir.i32),
    "u8": ("m16n8k32.row.col.u8", ir.i32, ir.i32),
}


def _multiply_tiles(
    b: Builder, dtype: str, left: Sequence[Val], right: Sequence[Val], sums: Sequence[Val]
) -> list[Val]:
    """Emit one product: 4 registers of rows times 2 of columns, added to 4 sums of this lane."""
    name, element, total = _MMA[dtype]
    operands = [v if element is ir.i32 else b.bitcast(v, element) for v in (*left, *right)]
    result = struct_type(*[total] * 4)
    products = b.intrinsic(f"llvm.nvvm.mma.{name}", result, (*operands, *sums), ())
    return [b.extractvalue(products, n) for n in range(4)]


def _load_matrices(b: Builder, address: Val, transposed: bool) -> list[Val]:
    """Emit the load of four matrices of eight rows of 16 bytes; each lane has a row's address."""
    form = "m8n8.x4.trans.b16" if transposed else "m8n8.x4.b16"
    matrices = b.intrinsic(
        f"llvm.nvvm.ldmatrix.sync.aligned.{form}",
        struct_type(*[ir.i32] * 4),
        (address,),
        (address.type,),
    )
    return [b.extractvalue(matrices, n) for n in range(4)]


def _round_to_tf32(b: Builder, value: Val) -> Val:
    """A number of f32 as tf32, in a register."""
    return b.intrinsic("llvm.nvvm.f2tf32.rna", ir.i32, (value,), ())


_SUMS = {
    "f16": ("f32",),
    "bf16": ("f32",),
    "f32": ("f32",),
    "i8": ("i32", "u32"),
    "u8": ("i32", "u32"),
}

# -- warpgroups ------------------------------------------------------------------------------------

#: Of a descriptor: chunks of 16 bytes are swizzled in pieces of 128 bytes, of which eight are 1024
#: bytes from the next eight.
_SWIZZLED = 1 << 62 | 1024 >> 4 << 32
_CHUNK = 16


def _describe(b: Builder, address: Val, beside: int) -> Val:
    """The descriptor of a matrix at an address, as the PTX manual draws it."""
    chunk = b.and_(b.udiv(address, i64_const(_CHUNK)), i64_const((1 << 14) - 1))
    # The stride between pieces only counts where rows or columns continue in another one.
    return b.or_(chunk, i64_const(_SWIZZLED | (beside or _CHUNK) // _CHUNK << 16))


def _moved(b: Builder, descriptor: Val, nbytes: int) -> Val:
    return b.add(descriptor, i64_const(nbytes // _CHUNK))


def _ask(
    b: Builder,
    dtype: str,
    sums: Sequence[Val],
    factors: tuple[Val, Val],
    along: tuple[bool, bool],
) -> list[Val]:
    """Request one product.  LLVM has no intrinsic for it."""
    count = len(sums)
    registers = ", ".join(f"${n}" for n in range(count))
    ptx = (
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{dtype}.{dtype} "
        f"{{{registers}}}, ${2 * count}, ${2 * count + 1}, p, 1, 1, {int(along[0])}, "
        f"{int(along[1])}; }}"
    )
    return _in_place(b, ptx, sums, factors)


def _in_place(b: Builder, ptx: str, sums: Sequence[Val], others: Sequence[Val] = ()) -> list[Val]:
    """PTX that changes the registers of sums in place, and reads others of 64 bits."""
    count = len(sums)
    kind = struct_type(*[ir.f32] * count)
    ties = map(str, range(count))
    constraints = ",".join([*["=f"] * count, *ties, *["l"] * len(others), "~{memory}"])
    operands = ", ".join(map(str, (*sums, *others)))
    call = f'call {kind.text} asm sideeffect "{ptx}", "{constraints}"({operands}) convergent'
    registers = b.emit(kind, call)
    return [b.extractvalue(registers, n) for n in range(count)]


def _fence(b: Builder, sums: Sequence[Val]) -> list[Val]:
    # LLVM must not write to these registers after the fence.
    return _in_place(b, "wgmma.fence.sync.aligned;", sums)


def _commit_products(b: Builder) -> None:
    b.intrinsic("llvm.nvvm.wgmma.commit_group.sync.aligned", ir.void, (), ())


def _wait_for_products(b: Builder, pending: int, sums: Sequence[Val]) -> list[Val]:
    if sums:
        return _in_place(b, f"wgmma.wait_group.sync.aligned {pending};", sums)
    b.intrinsic("llvm.nvvm.wgmma.wait_group.sync.aligned", ir.void, (i64_const(pending),), ())
    return []


def _show(b: Builder) -> None:
    b.intrinsic("llvm.nvvm.fence.proxy.async.shared_cta", ir.void, (), ())


def _uniform(b: Builder, value: Val) -> Val:
    """A number equal in all lanes of a warp, in a form that tells the assembler so."""
    word = b.trunc(value, ir.i32)
    operands = const(ir.i32, -1), word, const(ir.i32, 0), const(ir.i32, WARP - 1)
    return b.zext(b.intrinsic("llvm.nvvm.shfl.sync.idx.i32", ir.i32, operands, ()), value.type)


WARPGROUPS = GroupUnit(
    {"f16": ("f32",), "bf16": ("f32",)}, "wgmma", 256, _describe, _moved, _ask, _fence,
    _commit_products, _wait_for_products, _show, _uniform,
)  # fmt: skip

SIMT = SimtDialect(
    calling_convention="ptx_kernel",
    thread="llvm.nvvm.read.ptx.sreg.tid.x",
    block_index="llvm.nvvm.read.ptx.sreg.ctaid.x",
    grid_size="llvm.nvvm.read.ptx.sreg.nctaid.x",
    barrier="llvm.nvvm.barrier0",
    shuffle=_shuffle,
    attributes=_attributes,
    matrices=MatrixUnit(_SUMS, _load_matrices, _multiply_tiles, _round_to_tf32),
    groups=WARPGROUPS,
    copies=Copies((4, 8, 16), _start_copy, _commit_copies, _wait_for_copies),
)


def native_functions(target: str) -> dict[str, Callable[..., Val]]:
    """`bringup.llvm.text.Module.native` of an architecture such as ``sm_90``."""
    # For ``frem`` LLVM's NVPTX target divides, truncates and subtracts, which rounds twice.
    functions: dict[str, Callable[..., Val]] = {"rem": remainder, "exp": exp_by_branch}
    native: dict[str, Callable[..., Val]]
    native = {"maximum": _maximum, "minimum": _minimum, "f32_to_bf16": _to_bf16}
    has = TARGETS[target].instructions
    return {**functions, **{name: emit for name, emit in native.items() if name in has}}


def _maximum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.maximum", x.type, (x, y))


def _minimum(b: Builder, x: Val, y: Val) -> Val:
    return b.intrinsic("llvm.minimum", x.type, (x, y))


def _to_bf16(b: Builder, x: Val) -> Val:
    """Convert two at a time; LLVM's ``fptrunc`` does not round alike on all that run the IR."""
    lanes = x.type.lanes
    if lanes == 1:
        return b.intrinsic("llvm.nvvm.f2bf16.rn", ir.bf16, (x,), ())
    pair = vec(ir.bf16, 2)
    result = ir.poison(vec(ir.bf16, lanes))
    for low in range(0, lanes, 2):
        operands = [b.extractelement(x, low + n) for n in (1, 0)]
        both = b.intrinsic("llvm.nvvm.ff2bf16x2.rn", pair, operands, ())
        for n in (0, 1):
            result = b.insertelement(result, b.extractelement(both, n), low + n)
    return result
