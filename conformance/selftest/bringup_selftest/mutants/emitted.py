"""Mistakes in the LLVM IR that a backend emits: all that one line of its source emits is wrong in
one way.

`bringup.llvm.text.Builder` writes every instruction, so its methods are where mistakes are made.
The place of an instruction is the line that called the builder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bringup.llvm import text as ir
from bringup_selftest.mutants.mutant import Mutant

# What calls on behalf of a line: this module, the builder, and the context managers of its loops.
_BUILDER = {__name__, "contextlib", *(each.__module__ for each in ir.Builder.__mro__)}
_OTHER_OPERATION = {
    "add": "sub", "sub": "add", "mul": "add", "and": "or", "or": "and", "xor": "or",
    "fadd": "fsub", "fsub": "fadd", "fmul": "fadd", "fdiv": "fmul",
    "shl": "lshr", "lshr": "ashr", "ashr": "lshr", "sdiv": "udiv", "udiv": "sdiv",
    "srem": "urem", "urem": "srem",
}  # fmt: skip
_IN_ORDER = frozenset(
    ["sub", "fsub", "sdiv", "udiv", "fdiv", "srem", "urem", "frem", "shl", "lshr", "ashr"]
)
_OFF_BY_ONE = {
    "slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt",
    "ult": "ule", "ule": "ult", "ugt": "uge", "uge": "ugt",
    "olt": "ole", "ole": "olt", "ogt": "oge", "oge": "ogt",
}  # fmt: skip
_OTHER_PREDICATE = {
    "eq": "ne", "ne": "eq", "slt": "ult", "ult": "slt", "sgt": "ugt", "ugt": "sgt",
    "sle": "ule", "ule": "sle", "sge": "uge", "uge": "sge",
    "oeq": "ueq", "une": "one", "one": "une", "olt": "ult", "ole": "ule", "ogt": "ugt",
    "oge": "uge", "ord": "uno", "uno": "ord",
}  # fmt: skip
_OTHER_CAST = {
    "zext": "sext", "sext": "zext", "sitofp": "uitofp", "uitofp": "sitofp",
    "fptosi": "fptoui", "fptoui": "fptosi",
}  # fmt: skip
_OTHER_ROUNDING = {
    "llvm.roundeven": "llvm.trunc", "llvm.rint": "llvm.trunc", "llvm.nearbyint": "llvm.trunc",
    "llvm.floor": "llvm.trunc", "llvm.ceil": "llvm.floor", "llvm.trunc": "llvm.floor",
}  # fmt: skip
_OTHER_INTRINSIC = {
    "llvm.smax": "llvm.smin", "llvm.smin": "llvm.smax", "llvm.umax": "llvm.umin",
    "llvm.umin": "llvm.umax", "llvm.maximum": "llvm.minimum", "llvm.minimum": "llvm.maximum",
    "llvm.maxnum": "llvm.minnum", "llvm.minnum": "llvm.maxnum", "llvm.ctlz": "llvm.cttz",
    "llvm.cttz": "llvm.ctlz", "llvm.fshl": "llvm.fshr", "llvm.fshr": "llvm.fshl",
}  # fmt: skip
# Where the mask of a masked access is among its operands.
_MASKS = {
    "llvm.masked.load": 1, "llvm.masked.store": 2, "llvm.masked.gather": 1,
    "llvm.masked.scatter": 2,
}  # fmt: skip

# Makes the call at hand with a mistake in it.
_Wrong = Callable[[], Any]
_Wrongs = Iterator[tuple[str, _Wrong]]
_Right = Callable[..., Any]


def _of_binary(b: Any, right: _Right, op: str, x: ir.Val, y: ir.Val, flags: str = "") -> _Wrongs:
    if op in _OTHER_OPERATION:
        # Flags of one operation may mean nothing to another.
        yield "operation", partial(right, b, _OTHER_OPERATION[op], x, y)
    if op in _IN_ORDER and x.text != y.text:
        yield "swapped operands", partial(right, b, op, y, x, flags)
    if op in ("add", "sub") and y.text.lstrip("-").isdigit():
        more = ir.const(y.type, int(y.text) + 1)
        yield "off by one", partial(right, b, op, x, more, flags)


def _of_emit(b: Any, right: _Right, type: ir.Type, text: str) -> _Wrongs:
    words = text.split(" ")
    if words[0] in ("icmp", "fcmp"):
        for rule, table in (("off by one", _OFF_BY_ONE), ("predicate", _OTHER_PREDICATE)):
            other = [table.get(word, word) for word in words]
            if other != words:
                yield rule, partial(right, b, type, " ".join(other))
    elif words[0] == "select":
        condition, *arms = _operands(text)
        yield "dropped mask", partial(right, b, type, f"{condition}, {arms[0]}, {arms[0]}")
        yield "swapped operands", partial(right, b, type, f"{condition}, {arms[1]}, {arms[0]}")
    elif words[0] in _OTHER_CAST:
        flags = [word for word in words[1:] if word != "nneg"]
        yield "cast", partial(right, b, type, " ".join([_OTHER_CAST[words[0]], *flags]))
    elif words[0] == "load" and "align " in text:
        yield "alignment", partial(right, b, type, _aligned(text))


def _of_emit_void(b: Any, right: _Right, text: str) -> _Wrongs:
    word = text.partition(" ")[0]
    if word == "store":
        yield "left out", lambda: None
        if "align " in text:
            yield "alignment", partial(right, b, _aligned(text))


def _of_intrinsic(
    b: Any, right: _Right, name: str, ret: ir.Type, args: Sequence[ir.Val], *rest: Any, **more: Any
) -> _Wrongs:
    if name in _MASKS:
        at = _MASKS[name]
        whole = [*args[:at], ir.const(args[at].type, 1), *args[at + 1 :]]
        yield "dropped mask", partial(right, b, name, ret, whole, *rest, **more)
    for rule, table in (("rounding", _OTHER_ROUNDING), ("operation", _OTHER_INTRINSIC)):
        if name in table:
            yield rule, partial(right, b, table[name], ret, args, *rest, **more)
    if name == "llvm.fma":
        yield "rounding", lambda: b.fadd(b.fmul(args[0], args[1]), args[2])
    if "barrier" in name or "bar.warp" in name:
        yield "missing barrier", lambda: None


def _of_gep(b: Any, right: _Right, base: ir.Val, index: Any, *rest: Any, **more: Any) -> _Wrongs:
    if isinstance(index, int):
        yield "off by one", partial(right, b, base, index + 1, *rest, **more)
    elif index.type.lanes == 1:
        one = ir.const(index.type, 1)
        yield "off by one", lambda: right(b, base, b.add(index, one), *rest, **more)


def _of_shuffle(b: Any, right: _Right, x: ir.Val, y: ir.Val | None, mask: Sequence[int]) -> _Wrongs:
    if len(mask) > 1 and len(set(mask)) > 1:
        yield "lanes", partial(right, b, x, y, [*mask[1:], mask[0]])


def _of_edge(phi: Any, right: _Right, value: ir.Val, block: ir.Block) -> _Wrongs:
    # The first edge known of a loop is the one back to its head.
    if value.text != phi.text and not value.is_constant:
        yield "stale carry", partial(right, phi, phi, block)


def _operands(text: str) -> list[str]:
    """An instruction's operands: its text parted at the commas that no bracket encloses."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            found.append(text[start:place])
            start = place + 2
    return [*found, text[start:]]


def _aligned(text: str) -> str:
    """An access that says that its address is a multiple of 64 bytes."""
    before, _, after = text.rpartition("align ")
    return f"{before}align 64{after.lstrip('0123456789')}"


_METHODS: Mapping[tuple[type, str], Callable[..., _Wrongs]] = {
    (ir.Builder, "binary"): _of_binary,
    (ir.Builder, "emit"): _of_emit,
    (ir.Builder, "emit_void"): _of_emit_void,
    (ir.Builder, "intrinsic"): _of_intrinsic,
    (ir.Builder, "gep"): _of_gep,
    (ir.Builder, "shufflevector"): _of_shuffle,
    (ir.Phi, "add_incoming"): _of_edge,
}

# Told of every mistake that could be made: the mutant that it is, and how to make it.  Gives what
# is to be done in the place of the right call, or None.
_Decide = Callable[[Mutant, _Wrong], _Wrong | None]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Inside, a mistake is made wherever it can be made."""
    with _asked(lambda each, wrong: wrong if each == mutant else None):
        yield


@contextmanager
def noted() -> Iterator[set[Mutant]]:
    """The mutants of all that is emitted inside."""
    found = set[Mutant]()
    with _asked(lambda each, _wrong: found.add(each)):
        yield found


@contextmanager
def _asked(decide: _Decide) -> Iterator[None]:
    """Ask about every mistake that could be made inside."""
    before = {(owner, name): vars(owner).get(name) for owner, name in _METHODS}
    for owner, name in _METHODS:
        setattr(owner, name, _asking(decide, owner, name))
    try:
        yield
    finally:
        for (owner, name), own in before.items():
            if own is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _asking(decide: _Decide, owner: type, name: str) -> Callable[..., Any]:
    right, wrongs = getattr(owner, name), _METHODS[owner, name]

    def method(self: Any, *args: Any, **more: Any) -> Any:
        module, line = _caller()
        for rule, wrong in wrongs(self, right, *args, **more):
            instead = decide(Mutant("emitted", rule, module, line, name), wrong)
            if instead is not None:
                return instead()
        return right(self, *args, **more)

    return method


def _caller() -> tuple[str, int]:
    """The line that an instruction is written for: the first outside the builder."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BUILDER:
        frame = frame.f_back
    return frame.f_globals.get("__name__", ""), frame.f_lineno
