"""Tensor cores: matrix loads, and products of 16 × 8 sums.

Sums are added up in order of the inner index, each product exact and each addition rounded to f32;
hardware adds several products at once and rounds differently, within the same bound.
"""

from __future__ import annotations

from bringup.llvm.host.emit import Emit, number
from bringup.llvm.text import Type, Val, const, f16, f32, i8, i16, i32, ptr, struct_type, vec
from bringup_cuda_emulator.layout import Access
from bringup_cuda_emulator.shims import Lanes, Shim, Work, check, collective

_SHARED = 3
#: Registers of a lane: of the left factor, of the right one, of the sums.
_LEFT, _RIGHT, _SUMS = 4, 2, 4


def _lane(b: Emit, group: Val, member: Val) -> Val:
    """A lane by its group of four and its place there."""
    return b.add(b.mul(group, number(4)), member)


def _parts(b: Emit, lane: Val) -> tuple[Val, Val]:
    return b.lshr(lane, number(2)), b.and_(lane, number(3))


# -- matrix loads


def _load_matrices(*, turned: bool) -> Work:
    def work(b: Emit, lanes: Lanes) -> None:
        def look(_: Val, thread: Val) -> None:
            address = lanes.arg(thread, 0)
            check(b, thread, lanes.site, address, 16, space=_SHARED, kind=Access.READ)

        def one(lane: Val, thread: Val) -> None:
            group, member = _parts(b, lane)
            for matrix in range(4):
                first = number(8 * matrix)

                def row(at: Val, first: Val = first) -> Val:
                    return lanes.arg(lanes.at(b.add(first, at)), 0)

                if turned:
                    found = [
                        b.load(
                            i16, b.gep(row(b.add(b.mul(member, number(2)), number(n))), group, i16)
                        )
                        for n in range(2)
                    ]
                    high = b.shl(b.zext(found[1], i32), const(i32, 16))
                    word = b.or_(b.zext(found[0], i32), high)
                else:
                    word = b.load(i32, b.gep(row(group), member, i32))
                b.put(lanes.result_bytes(thread), 4 * matrix, word)

        lanes.each(look)
        lanes.each(one)

    return work


# -- products


def _elements(b: Emit, kind: str, word: Val) -> list[Val]:
    """The elements of a register, as f32 or i32."""
    if kind in ("s8", "u8"):
        lanes = b.bitcast(word, vec(i8, 4))
        parts = [b.extractelement(lanes, n) for n in range(4)]
        return [(b.sext if kind == "s8" else b.zext)(part, i32) for part in parts]
    if kind == "tf32":
        # The last 13 bits are none of the format's.
        return [b.bitcast(b.and_(word, const(i32, -(1 << 13))), f32)]
    if kind == "f16":
        halves = b.bitcast(word, vec(f16, 2))
        return [b.fpext(b.extractelement(halves, n), f32) for n in range(2)]
    low = b.shl(word, const(i32, 16))
    high = b.and_(word, const(i32, -(1 << 16)))
    return [b.bitcast(low, f32), b.bitcast(high, f32)]


def _product(kind: str, total: Type) -> Work:
    """Rows of a lane's sums are its group's and the eighth one after; columns twice its place."""

    def work(b: Emit, lanes: Lanes) -> None:
        def one(lane: Val, thread: Val) -> None:
            group, member = _parts(b, lane)
            for place in range(_SUMS):
                lower, column = divmod(place, 2)
                sums = lanes.arg(thread, _LEFT + _RIGHT + place)
                right = b.add(b.mul(member, number(2)), number(column))
                for half in range(2):
                    for quarter in range(4):
                        x = lanes.at(_lane(b, group, number(quarter)))
                        y = lanes.at(_lane(b, right, number(quarter)))
                        xs = b.load(i32, lanes.arg_bytes(x, lower + 2 * half))
                        ys = b.load(i32, lanes.arg_bytes(y, _LEFT + half))
                        pairs = zip(_elements(b, kind, xs), _elements(b, kind, ys), strict=True)
                        for p, q in pairs:
                            if total is f32:
                                sums = b.fadd(sums, b.fmul(p, q))
                            else:
                                sums = b.add(sums, b.mul(p, q))
                b.put(lanes.result_bytes(thread), 4 * place, sums)

        lanes.each(one)

    return work


def _mma(name: str, kind: str, element: Type, total: Type) -> Shim:
    params = (*[element] * (_LEFT + _RIGHT), *[total] * _SUMS)
    ret = struct_type(*[total] * _SUMS)
    return collective(f"llvm.nvvm.mma.{name}", ret, params, _product(kind, total))


def _matrices(form: str, *, turned: bool) -> Shim:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.{form}.b16.p3"
    ret = struct_type(*[i32] * 4)
    return collective(name, ret, (ptr,), _load_matrices(turned=turned))


SHIMS = (
    _matrices("m8n8.x4", turned=False),
    _matrices("m8n8.x4.trans", turned=True),
    _mma("m16n8k16.row.col.f32.f32", "f16", vec(f16, 2), f32),
    _mma("m16n8k16.row.col.bf16", "bf16", i32, f32),
    _mma("m16n8k8.row.col.tf32", "tf32", i32, f32),
    _mma("m16n8k32.row.col.s8", "s8", i32, i32),
    _mma("m16n8k32.row.col.u8", "u8", i32, i32),
)
