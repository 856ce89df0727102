"""The text builder: every method gives IR that LLVM accepts, and the structured forms compute."""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Callable

import numpy as np
import pytest
from jit_helper import load, parse

from bringup.llvm.text import (
    Block,
    Builder,
    Module,
    Type,
    Val,
    array,
    bf16,
    const,
    const_bits,
    const_vector,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    integer,
    masked,
    pointer,
    poison,
    ptr,
    struct_type,
    undef,
    vec,
    void,
    zero,
)
from bringup.llvm.text.masked import (
    masked_gather,
    masked_load,
    masked_scatter,
    masked_store,
    prefetch,
    strided_load,
)


class Bench:
    """A function with one operand of each sort, of ``n`` lanes, and a builder in its entry."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.module = Module()
        sorts = {
            "x": vec(f32, n),
            "i": vec(i32, n),
            "m": vec(i1, n),
            "p": vec(ptr, n),
            "half": vec(f16, n),
        }
        params = [("base", ptr), ("s", i32), *sorts.items()]
        self.function = self.module.function("f", void, params, "nounwind")
        self.base, self.s, self.x, self.i, self.m, self.p, self.half = self.function.args
        self.b = Builder(self.function.block("entry"))

    def finish(self) -> None:
        self.b.ret()
        parse(self.module)


def _control(b: Builder, t: Bench, build: Callable[[Block], None]) -> None:
    after = t.function.block("after")
    build(after)
    b.position(after)


def _phi(b: Builder, t: Bench) -> None:
    entry, after = b.block, t.function.block("after")
    b.br(after)
    b.position(after)
    b.phi(i32).add_incoming(t.s, entry)


def _while(b: Builder, t: Bench) -> None:
    with b.while_loop([t.s], lambda v: b.icmp("sgt", v[0], const(i32, 0))) as loop:
        loop.next(b.sub(loop.carried[0], const(i32, 1)))


def _loop(b: Builder, t: Bench) -> None:
    meta = t.module.loop_hints("llvm.loop.unroll.disable", "llvm.loop.mustprogress")
    with b.loop(const(i32, 0), t.s, 2, [t.x], meta=meta) as loop:
        loop.next(b.fadd(loop.carried[0], t.x))


def _if_then(b: Builder, t: Bench) -> None:
    with b.if_then(b.icmp("eq", t.s, const(i32, 0)), likely=False):
        b.store(t.x, t.base, 4)


def _unreachable(b: Builder, t: Bench) -> None:
    side, after = t.function.block("side"), t.function.block("after")
    b.cond_br(b.icmp("eq", t.s, const(i32, 0)), side, after, b.branch_weights(likely=False))
    b.position(side)
    b.unreachable()
    b.position(after)


def _ret(b: Builder, t: Bench) -> None:
    other = t.module.function("other", i32, [])
    Builder(other.block("entry")).ret(const(i32, 3))


def _binary(name: str, operand: str) -> Callable[[Builder, Bench], object]:
    return lambda b, t: getattr(b, name)(getattr(t, operand), getattr(t, operand))


Use = Callable[[Builder, Bench], object]
USES: dict[str, Use] = {
    **{
        name: _binary(name, "i")
        for name in (
            "add",
            "sub",
            "mul",
            "udiv",
            "urem",
            "and_",
            "or_",
            "xor",
            "shl",
            "lshr",
            "ashr",
            "smin",
            "smax",
        )
    },
    **{name: _binary(name, "x") for name in ("fadd", "fsub", "fmul", "fdiv")},
    "not_": lambda b, t: (b.not_(t.i), b.not_(t.m)),
    "fneg": lambda b, t: b.fneg(t.x, "nnan"),
    "fma": lambda b, t: b.fma(t.x, t.x, const(t.x.type, 0.1)),
    "fabs": lambda b, t: b.fabs(t.x),
    "icmp": lambda b, t: (b.icmp("ult", t.i, t.i), b.icmp("eq", t.p, t.p)),
    "fcmp": lambda b, t: b.fcmp("une", t.x, t.x, "nnan"),
    "select": lambda b, t: (
        b.select(t.m, t.x, t.x),
        b.select(const(i1, True), t.x, zero(t.x.type)),
    ),
    "cast": lambda b, t: b.cast("zext", t.i, i64, "nneg"),
    "zext": lambda b, t: b.zext(t.m, i8),
    "sext": lambda b, t: b.sext(t.i, i64),
    "trunc": lambda b, t: b.trunc(t.i, i16),
    "fptrunc": lambda b, t: (b.fptrunc(t.x, f16), b.fptrunc(t.x, bf16)),
    "fpext": lambda b, t: b.fpext(t.half, f64),
    "fptosi": lambda b, t: b.fptosi(t.x, i64),
    "sitofp": lambda b, t: b.sitofp(t.i, f64),
    "uitofp": lambda b, t: b.uitofp(t.m, f32),
    "bitcast": lambda b, t: (b.bitcast(t.x, i32), b.bitcast(t.half, bf16)),
    "ptrtoint": lambda b, t: b.ptrtoint(t.p, i64),
    "inttoptr": lambda b, t: b.inttoptr(t.i, ptr),
    "fptosi_sat": lambda b, t: b.fptosi_sat(t.x, i64),
    "fptoui_sat": lambda b, t: b.fptoui_sat(t.half, i8),
    "insertelement": lambda b, t: b.insertelement(undef(vec(i32, 4)), t.s, t.s),
    "extractelement": lambda b, t: b.extractelement(t.x, 0),
    "shufflevector": lambda b, t: (
        b.shufflevector(b.splat(t.s, 4), None, [3, -1]),
        b.shufflevector(b.splat(t.s, 4), b.splat(t.s, 4), [7]),
    ),
    "splat": lambda b, t: (b.splat(t.s, 4), b.splat(const(i32, 3), 4), b.splat(poison(i32), 4)),
    "reduce": lambda b, t: [
        *(
            b.reduce(k, t.i)
            for k in ("add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax")
        ),
        *(b.reduce(k, t.x) for k in ("fmin", "fmax", "fminimum", "fmaximum")),
        *(b.reduce(k, t.x, const(f32, 1.0), "reassoc") for k in ("fadd", "fmul")),
    ],
    "alloca": lambda b, t: b.alloca(array(f32, 16), const(i32, 2), 64),
    "gep": lambda b, t: (b.gep(t.base, t.i, f32), b.gep(t.base, 3, f32), b.gep(t.p, t.s, i8, "")),
    "load": lambda b, t: (b.load(t.x.type, t.base, 4, volatile=True), b.load(f32, t.base)),
    "store": lambda b, t: b.store(t.x, t.base, 64),
    "masked_load": lambda b, t: (
        masked_load(b, t.x.type, t.base, t.m),
        masked_load(b, t.x.type, t.base, t.m, t.x, 4),
    ),
    "masked_store": lambda b, t: masked_store(b, t.x, t.base, t.m, 4),
    "masked_gather": lambda b, t: (
        masked_gather(b, t.x.type, t.p),
        masked_gather(b, t.x.type, t.p, t.m, t.x, 4),
    ),
    "masked_scatter": lambda b, t: (
        masked_scatter(b, t.x, t.p),
        masked_scatter(b, t.x, t.p, t.m, 4),
    ),
    "prefetch": lambda b, t: prefetch(b, t.base, write=True, locality=1),
    "atomicrmw": lambda b, t: b.atomicrmw("umax", t.base, t.s, "monotonic", "singlethread"),
    "cmpxchg": lambda b, t: b.cmpxchg(t.base, t.s, t.s, "acq_rel", "monotonic"),
    "atomic_load": lambda b, t: b.atomic_load(i32, t.base),
    "atomic_store": lambda b, t: b.atomic_store(t.s, t.base),
    "insertvalue": lambda b, t: b.insertvalue(poison(struct_type(i32, f32)), t.s, 0),
    "extractvalue": lambda b, t: (
        b.extractvalue(zero(struct_type(i32, f32)), 1),
        b.extractvalue(zero(array(f32, 4)), 2),
    ),
    "phi": _phi,
    "br": lambda b, t: _control(b, t, b.br),
    "cond_br": lambda b, t: _control(b, t, lambda a: b.cond_br(const(i1, 1), a, a)),
    "switch": lambda b, t: _control(b, t, lambda a: b.switch(t.s, a, [(1, a), (-2, a)])),
    "ret": _ret,
    "unreachable": _unreachable,
    "branch_weights": _unreachable,
    "loop": _loop,
    "while_loop": _while,
    "if_then": _if_then,
    "cond": lambda b, t: b.cond(const(i1, 0), lambda: t.x, lambda: zero(t.x.type)),
    "position": lambda b, t: b.position(b.block),
    "emit": lambda b, t: b.emit(t.x.type, f"freeze {t.x}"),
    "emit_void": lambda b, t: b.emit_void(f"store {t.x}, {t.base}"),
    "terminate": lambda b, t: _control(b, t, lambda a: b.terminate(f"br label %{a.name}")),
    "binary": lambda b, t: b.binary("or", t.i, t.i, "disjoint"),
    "call": lambda b, t: b.call(
        t.module.declare("sqrtf", f32, [f32]),
        [const(f32, 2.0)],
        flags="nnan",
        tail="tail",
        attrs="nounwind",
    ),
    "call_pointer": lambda b, t: b.call_pointer(void, t.base, [t.s]),
    "intrinsic": lambda b, t: b.intrinsic("llvm.sqrt", t.x.type, [t.x], flags="contract"),
}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", sorted(USES))
def test_every_method_gives_valid_ir(name: str, lanes: int) -> None:
    if lanes == 1 and name in ("masked_gather", "masked_scatter"):
        pytest.skip("vectors alone have addresses of their own for each lane")
    bench = Bench(lanes)
    USES[name](bench.b, bench)
    bench.finish()


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_strided_loads_read_from_the_first_lane_to_the_last(stride: int, count: int) -> None:
    bench = Bench(8)
    value = strided_load(bench.b, bench.x.type, bench.base, stride, count)
    bench.finish()
    assert (value is None) == (count == 1)
    if value is None:
        return
    text = str(bench.module)
    starts = {n: int(at) for n, at in re.findall(r"(%\S+) = getelementptr.* i64 (\d+)", text)}
    read = [(starts.get(p, 0), int(n)) for n, p in re.findall(r"load <(\d) x .*ptr (%\S+),", text)]
    assert min(start for start, _ in read) == 0
    assert max(start + width for start, width in read) == stride * (count - 1) + 1


def test_every_method_is_covered() -> None:
    public = {n for n in dir(Builder) if not n.startswith("_") and callable(getattr(Builder, n))}
    of_vectors = {n for n in vars(masked) if n.startswith(("masked_", "prefetch"))}
    assert public | of_vectors == set(USES)


def test_types_are_interned() -> None:
    assert vec(f32, 16) is vec(f32, 16)
    assert vec(f32, 1) is f32
    assert vec(f32, 8).with_lanes(4) is vec(f32, 4)
    assert vec(f32, 8).scalar is f32
    assert integer(32) is i32
    assert pointer() is ptr
    assert (vec(bf16, 4).lanes, vec(bf16, 4).bits, bf16.is_float, i8.is_int) == (4, 16, True, True)


@pytest.mark.parametrize(
    ("type", "format", "value", "expected"),
    [
        (f32, "<f", 0.1, 0.1),
        (f32, "<f", 2.0**-150, 0.0),
        (f32, "<f", 1e39, math.inf),
        (f32, "<f", -0.0, -0.0),
        (f32, "<f", 3.4028235677973366e38, math.inf),
        (f16, "<e", 65519.99, 65504.0),
        (f16, "<e", 65520.0, math.inf),
        (f16, "<e", 2**-24, 2**-24),
        (f64, "<d", 0.1, 0.1),
        (f64, "<d", -math.inf, -math.inf),
    ],
)
def test_float_constants_round_once(
    type: Type,
    format: str,
    value: float,
    expected: float,
) -> None:
    got = _stored(const(type, value), type.bits // 8)
    try:
        want = struct.pack(format, expected)
    except OverflowError:
        want = struct.pack(format, math.inf)
    assert got == want


def test_bfloat_and_nan_constants() -> None:
    # Just above the midpoint of 1 and the next bfloat: rounding to f32 first would lose that.
    assert _stored(const(bf16, 1 + 2.0**-8 + 2.0**-40), 2) == b"\x81\x3f"
    assert _stored(const(bf16, 1 + 2.0**-8), 2) == b"\x80\x3f"
    assert np.isnan(np.frombuffer(_stored(const(f32, math.nan), 4), np.float32)[0])
    assert _stored(const_bits(f32, 0x7FA01234), 4) == struct.pack("<I", 0x7FA01234)
    assert _stored(const_bits(f64, 0xFFF8000000000001), 8) == struct.pack("<Q", 0xFFF8000000000001)


def test_integer_and_vector_constants_wrap() -> None:
    assert _stored(const(i8, 255), 1) == b"\xff"
    assert _stored(const(i32, -1), 4) == b"\xff" * 4
    assert _stored(const(vec(i16, 4), 7), 8) == struct.pack("<4h", 7, 7, 7, 7)
    assert _stored(const_vector(i32, [3, 1, -2, 2**31]), 16) == struct.pack(
        "<4i", 3, 1, -2, -(2**31)
    )


def _stored(value: Val, size: int) -> bytes:
    """The bytes of a constant as compiled code stores it."""
    module = Module()
    function = module.function(f"store{id(value)}_{size}", void, [("out", ptr)])
    b = Builder(function.block())
    b.store(value, function.args[0], 1)
    b.ret()
    buffer = ctypes.create_string_buffer(size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(load(module, function.name))(buffer)
    return buffer.raw


def test_integer_folding() -> None:
    bench = Bench(1)
    b, x = bench.b, bench.s
    nought, one = const(i32, 0), const(i32, 1)
    assert b.add(x, nought) is x
    assert b.add(nought, x) is x
    assert b.mul(one, x) is x
    assert b.mul(x, nought).text == "0"
    assert b.add(const(i32, 2**31 - 1), one).text == str(-(2**31))
    assert b.sub(const(i32, 3), const(i32, 5)).text == "-2"
    assert bench.b.block.lines == []


def test_loop_and_conditional_compute() -> None:
    """Sum of squares of the odd numbers below n, by a loop, a branch and a global table."""
    module = Module()
    table = module.global_constant("squares", i64, [k * k for k in range(100)])
    function = module.function("odd_squares", i64, [("n", i64)])
    b = Builder(function.block("entry"))
    with b.loop(const(i64, 0), function.args[0], carried=[const(i64, 0)]) as loop:
        total = loop.carried[0]
        square = b.load(i64, b.gep(table, loop.index, i64))
        odd = b.trunc(loop.index, i1)
        loop.next(b.cond(odd, lambda: b.add(total, square), lambda: total)[0])
    b.ret(loop.carried[0])
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(load(module, "odd_squares"))
    assert call(100) == sum(k * k for k in range(1, 100, 2))
    assert call(0) == 0


def test_masked_memory_leaves_other_lanes_alone() -> None:
    module = Module()
    function = module.function("masked", void, [("p", ptr), ("q", ptr)])
    p, q = function.args
    b = Builder(function.block("entry"))
    mask = const_vector(i1, [1, 0, 1, 1])
    x = masked_load(b, vec(f32, 4), p, mask, const(vec(f32, 4), -1.0), 4)
    masked_store(b, b.fadd(x, x), q, const_vector(i1, [1, 1, 0, 1]), 4)
    b.ret()
    source, target = np.arange(1, 5, dtype=np.float32), np.full(4, 9, np.float32)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(load(module, "masked"))
    call(source.ctypes.data, target.ctypes.data)
    assert target.tolist() == [2.0, -2.0, 9.0, 8.0]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("lanes", [(0,), (3,), (0, 1), (0, 5, 15)])
def test_masked_stores_of_narrowed_lanes_leave_others_alone(
    lanes: tuple[int, ...], both: bool
) -> None:
    """Whether a mask is written out, or the conjunction of two that are."""
    module = Module()
    function = module.function("narrowed", void, [("p", ptr), ("q", ptr)])
    p, q = function.args
    b = Builder(function.block("entry"))
    narrow = b.trunc(b.load(vec(i32, 16), p, 4), i16)
    mask = const_vector(i1, [k in lanes for k in range(16)])
    if both:
        mask = b.and_(mask, const_vector(i1, [k != 1 for k in range(16)]))
        lanes = tuple(k for k in lanes if k != 1)
    masked_store(b, narrow, q, mask, 2)
    b.ret()
    source, target = np.arange(16, dtype=np.int32), np.full(16, -1, np.int16)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(load(module, "narrowed"))
    call(source.ctypes.data, target.ctypes.data)
    assert target.tolist() == [k if k in lanes else -1 for k in range(16)]


def test_module_text_is_deterministic_and_complete() -> None:
    def build() -> Module:
        module = Module("x86_64-unknown-linux-gnu")
        module.global_variable("tile", array(f32, 64), "undef", address_space=3, align=16)
        module.named_metadata("meta", module.metadata("!{i32 7}"))
        function = module.function(
            "strange name",
            void,
            [("x", f32, "noundef")],
            "alwaysinline",
            calling_convention="fastcc",
            linkage="internal",
        )
        b = Builder(function.block())
        b.call(module.declare("sink", void, [f32]), [function.args[0]])
        assert module.declare("sink", void, [f32]) == module.declare("sink", void, [f32])
        b.ret()
        return module

    assert str(build()) == str(build())
    assert str(build()).count("declare") == 1
    assert 'fastcc void @"strange name"(float noundef %x) alwaysinline' in str(build())
    parse(build())
