"""Programs in LLVM IR by hand, so that these tests need no code generator."""

from __future__ import annotations

from bringup.dtypes import f32
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_cpu.codegen import NativeCode
from bringup_cpu.engine import engine
from bringup_cpu.executable import CpuExecutable
from bringup_cpu.memory import memory

#: Element by element: every output is the sum of all inputs plus its number plus one.
_SUM = """
define void @entry(ptr %buffers, ptr %arena) {{
start:
{pointers}
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %body ]
  %more = icmp slt i64 %i, {n}
  br i1 %more, label %body, label %done
body:
{body}
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}
"""


def sum_text(inputs: int, outputs: int, n: int) -> str:
    """The IR of a program that adds."""
    pointers, body, total = [], [], "0.0"
    for k in range(inputs + outputs):
        pointers.append(f"  %s{k} = getelementptr ptr, ptr %buffers, i64 {k}")
        pointers.append(f"  %p{k} = load ptr, ptr %s{k}")
        body.append(f"  %e{k} = getelementptr float, ptr %p{k}, i64 %i")
    for k in range(inputs):
        body.append(f"  %x{k} = load float, ptr %e{k}, align 4")
        body.append(f"  %t{k} = fadd float {total}, %x{k}")
        total = f"%t{k}"
    for k in range(outputs):
        body.append(f"  %y{k} = fadd float {total}, {k + 1}.0")
        body.append(f"  store float %y{k}, ptr %e{inputs + k}, align 4")
    return _SUM.format(pointers="\n".join(pointers), body="\n".join(body), n=n)


def sum_program(
    shape: tuple[int, ...] = (4,),
    inputs: int = 1,
    outputs: int = 1,
    *,
    text: str = "",
    arena: int = 0,
    **fields: object,
) -> CpuExecutable:
    """A loaded program on arrays of f32: the sum, or other code of the same signature."""
    type_: TensorType = f32[shape]
    program = Program("sum", (type_,) * inputs, (type_,) * outputs, (), **fields)  # type: ignore[arg-type]
    native = NativeCode(
        text=text or sum_text(inputs, outputs, type_.size),
        entry="entry",
        arena_bytes=arena,
        constants=program.constants,
        launches=(),
    )
    code = engine().compile_native(native.text, (native.entry,))
    return CpuExecutable(program, native, code, memory())
