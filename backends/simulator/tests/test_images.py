"""Listing and static rules of kernel images; the assembler's own checks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bringup_simulator import (
    LANE,
    Accelerator,
    Affine,
    Assembler,
    BadImageError,
    Range,
    decode,
    encode,
    grid_axis,
    loop_counter,
)
from bringup_simulator.isa import Image, Instruction, Param, Tile, bits_of, value_of

F32 = Instruction("const", "f32", 0)


def image(*code: Instruction) -> Image:
    return Image("k", (Param("f32", 4), Param("f32", 4, True)), (Tile("i8", 4),), 3, code)


def access(op: str, space: str, **fields: object) -> Instruction:
    start = Instruction(op, "f32", 0 if op == "load" else -1, space=space, address=LANE)
    return replace(start, **fields)  # type: ignore[arg-type]


LOOP, END = Instruction("loop", trip=2), Instruction("end")
I64, BOOL = Instruction("const", "i64", 1), Instruction("const", "bool", 2)

BROKEN = {
    "unknown op": [Instruction("halt", "f32", 0)],
    "unknown dtype": [Instruction("const", "f33", 0)],
    "no register v3": [Instruction("const", "f32", 3)],
    "bits beyond": [Instruction("const", "i8", 0, bits=256)],
    "v0 is read before": [Instruction("neg", "f32", 1, (0,))],
    "takes 2 operands, not 1": [F32, Instruction("add", "f32", 1, (0,))],
    "operand types differ: f32, i64": [F32, I64, Instruction("add", "f32", 1, (0, 1))],
    "does not take f32": [F32, Instruction("xor", "f32", 1, (0, 0))],
    "must be declared bool": [F32, Instruction("eq", "f32", 1, (0, 0))],
    "must be declared f32": [F32, Instruction("neg", "f16", 1, (0,))],
    "condition of select": [F32, Instruction("select", "f32", 1, (0, 0, 0))],
    "cannot truncate": [I64, Instruction("truncate", "f32", 0, (1,))],
    "cannot bitcast": [F32, Instruction("bitcast", "i64", 1, (0,))],
    "no parameter or tile 'p9'": [access("load", "p9")],
    "no parameter or tile 'x0'": [access("load", "x0")],
    "no address": [access("load", "p0", address=None)],
    "p0 holds f32, not i8": [access("load", "p0", dtype="i8")],
    "index register holds i64": [F32, access("load", "p0", index=0)],
    "mask register holds bool": [F32, access("load", "p0", mask=0)],
    "p0 is read-only": [F32, access("store", "p0", srcs=(0,))],
    "stores one f32": [I64, access("store", "p1", srcs=(1,))],
    "l0 is not in scope": [Instruction("index", "i64", 0, address=loop_counter(0))],
    "g32 is not in scope": [Instruction("index", "i64", 0, address=grid_axis(32))],
    "index makes i64": [Instruction("index", "i32", 0, address=LANE)],
    "inside makes bool": [Instruction("inside", "i32", 0)],
    "loop without end": [LOOP],
    "end without loop": [END],
    "negative trip": [replace(LOOP, trip=-1), END],
    "v0 is read before it": [replace(LOOP, trip=0), F32, END, Instruction("neg", "f32", 1, (0,))],
    # The second round finds v0 retyped by the first.
    "read before it is written": [
        F32, LOOP, Instruction("neg", "f32", 1, (0,)), replace(I64, dst=0), END,
    ],
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_broken_code_is_refused_at_load(message: str) -> None:
    with pytest.raises(BadImageError, match=f"k: instruction .*{message}"):
        Accelerator().load(encode(image(*BROKEN[message])))


def test_bad_declarations_are_refused() -> None:
    for place in (Param("f33", 1), Param("f32", -1)):
        with pytest.raises(BadImageError, match="bad declaration"):
            Accelerator().load(encode(replace(image(), params=(place,))))


def test_a_value_made_in_a_loop_may_be_used_after_it() -> None:
    code = [LOOP, F32, END, access("store", "p1", srcs=(0,))]
    Accelerator().load(encode(image(*code)))


def test_a_symbol_from_elsewhere_is_refused() -> None:
    odd = Affine(0, (("rm -r", 1),))
    with pytest.raises(BadImageError, match="unknown symbol"):
        decode(encode(image(Instruction("index", "i64", 0, address=odd))))


def test_affine_arithmetic() -> None:
    expr = (grid_axis(0) * 4 + LANE - 3) - LANE * 1
    assert expr == Affine(-3, (("g0", 4),))
    assert 2 * LANE + 1 == LANE + LANE + 1
    assert Affine() == LANE * 0
    assert str(expr + LANE) == "4*g0 + lane + -3"
    assert str(Affine()) == "0"


@pytest.mark.parametrize(
    ("value", "dtype"), [(-0.0, "f32"), (np.nan, "bf16"), (-1, "i64"), (True, "bool")]
)
def test_constants_survive_as_bits(value: float, dtype: str) -> None:
    there = value_of(bits_of(value, dtype), dtype)
    assert bits_of(there, dtype) == bits_of(value, dtype)
    assert np.signbit(np.float64(there)) == np.signbit(np.float64(value))


def test_the_listing_shows_everything() -> None:
    asm = Assembler("shown")
    x, y = asm.param("f32", 8), asm.param("f32", 8, writable=True)
    tile = asm.tile("f32", 8)
    total = asm.const(1.0, "f32")
    with asm.loop(2) as i:
        mask = asm.alu("lt", total, total)
        at = asm.index(LANE)
        tail = [Range(LANE, 0, 4)]
        value = asm.load(x, i * 4 + LANE, ranges=tail, mask=mask, index=at, fill=2.0)
        asm.store(tile, LANE, value, ranges=tail)
        asm.alu("add", total, value, into=total)
    asm.store(y, LANE, asm.cast("convert", asm.lanes("add", total), "f32"))
    assert asm.finish().listing() == (
        "kernel shown, 3 registers\n"
        "  p0: in f32[8]\n"
        "  p1: inout f32[8]\n"
        "  t0: f32[8]\n"
        "  const.f32 v0, 0x3f800000\n"
        "  loop 2\n"
        "    lt.bool v1, v0, v0\n"
        "    index.i64 v2, [lane]\n"
        "    load.f32 v1, p0[4*l0 + lane + v2], 0x40000000 if v1 and 0 <= lane < 4\n"
        "    store.f32 t0[lane], v1 if 0 <= lane < 4\n"
        "    add.f32 v0, v0, v1\n"
        "  end\n"
        "  lanes_add.f32 v0, v0\n"
        "  convert.f32 v0, v0\n"
        "  store.f32 p1[lane], v0\n"
    )


def test_the_assembler_refuses_what_has_no_type() -> None:
    asm = Assembler("odd")
    value = asm.const(1, "f32")
    with pytest.raises(ValueError, match="no operation 'convert'"):
        asm.alu("convert", value)
    with pytest.raises(ValueError, match="no operation 'fma'"):
        asm.alu("fma", value)
    with pytest.raises(ValueError, match="const makes i8, not f32"):
        asm.const(1, "i8", into=value)
