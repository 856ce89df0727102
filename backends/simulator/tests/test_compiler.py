"""What the compiler refuses, and says about it; how values are released."""

from __future__ import annotations

import ast

import pytest

from bringup_simulator import Accelerator, BadKernelError, LimitError, Limits
from bringup_simulator.compiler import compile_kernel

START = "x = input(f32, 4)\ny = output(f32, 4)\nv = const(1.0, f32)\nn = const(1, i64)\n"

# The line that is wrong, and what the error says.
REFUSED = {
    "v = (": "'(' was never closed",
    "v = halt(v)": "name 'halt' is not defined",
    "v = const(1.0, f33)": "name 'f33' is not defined",
    "v = const(256, i8)": "out of bounds",
    "w = neg(u)": "name 'u' is not defined",
    "w = add(v)": "add takes 2 operands, not 1",
    "w = add(v, n)": "add: operand types differ: f32, i64",
    "w = add(v, 1)": "'int' object has no attribute 'dtype'",
    "w = xor(v, v)": "xor does not take f32",
    "w = exp(n)": "exp does not take i64",
    "w = select(v, v, v)": "the first operand of select is bool",
    "w = truncate(v, i32)": "truncate takes no f32 to i32",
    "w = bitcast(v, i64)": "bitcast takes no f32 to i64",
    "w = load(x, v)": "an index is an integer, not f32",
    "store(x, 0, v)": "an input is only read",
    "store(y, 0, n)": "i64 is stored to f32",
    "w = load(x, grid(4) // 0)": "divided by positive integers, not 0",
    "w = load(x, grid(4) % -3)": "divided by positive integers, not -3",
    "w = load(x, v.dtype)": "the language has no Attribute",
    "w = [v]": "the language has no List",
    "import os": "the language has no Import",
    "w = lambda: v": "the language has no Lambda",
    "w = load(x, 10 ** 9)": "the language has no Pow",
    "while v: pass": "the language has no While",
    "w = print(v)": "name 'print' is not defined",
    "for i in x: store(y, i, v)": "a loop is over range(n) or lanes(n)",
    "for i in range(n): store(y, i, v)": "a loop is over range(n) or lanes(n)",
    "for i, j in range(4): store(y, i, v)": "the language has no Tuple",
    "i, j = grid(lanes(4)), grid(lanes(4))": "the language has no Tuple",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_is_refused_at_load_with_its_line(line: str) -> None:
    with pytest.raises(BadKernelError) as caught:
        Accelerator().load(START + line + "\n", "k")
    message = str(caught.value)
    assert message.startswith(f"k: line 5 ({line}): ")
    assert REFUSED[line] in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("for i in lanes(4):\n    for j in lanes(4):\n        load(x, i)\n", "lanes are taken"),
        ("i = grid(lanes(4))\nfor j in lanes(4):\n    load(x, j)\n", "lanes are taken"),
        ("for i in range(0):\n    w = neg(v)\nstore(y, 0, w)\n", "name 'w' is not defined"),
        # The second round finds v with the type that the first gave it.
        ("for i in range(2):\n    w = exp(v)\n    v = n\n", "exp does not take i64"),
    ],
)
def test_loops_are_tried_for_two_rounds(text: str, says: str) -> None:
    with pytest.raises(BadKernelError, match=says):
        Accelerator().load(START + text, "k")


def test_a_value_made_in_a_loop_may_be_used_after_it() -> None:
    Accelerator().load(START + "for i in range(2):\n    w = neg(v)\nstore(y, 0, w)\n", "k")


def test_what_does_not_fit_is_refused() -> None:
    limits = Limits(scratchpad=1024, buffers=2, rank=1, elements=1000)
    for text, says in (
        ("t = tile(f32, 300)\n", "k: needs 1200 bytes of scratchpad, the chip takes 1024"),
        ("x = input(f32, 1)\n" * 3, "3 buffers"),
        ("i = grid(1)\nj = grid(1)\n", "2 grid axes"),
        ("i = grid(1001)\n", "1001 grid points"),
    ):
        with pytest.raises(LimitError, match=says):
            Accelerator(limits=limits).load(text, "k")
    with pytest.raises(ValueError, match="power of two"):
        Limits(vector_width=3)


def test_statements_are_counted_with_their_loops() -> None:
    text = (
        "v = const(0, i64)\n"
        "for i in range(10):\n"
        "    for j in lanes(300):\n"
        "        v = add(v, index(j))\n"
        "    v = neg(v)\n"
    )
    assert compile_kernel(text, "k", Limits()).statements == 2 + 10 * (2 + 3)


def names_deleted(text: str) -> str:
    """The text of a module as the compiler releases its values."""
    from bringup_simulator import compiler

    module = ast.parse(text)
    values = {
        node.id
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    module.body = compiler._release(module.body, set(), values)
    return ast.unparse(module)


def test_a_value_is_released_after_its_last_use() -> None:
    text = (
        "a = const(1, i32)\n"
        "total = const(0, i32)\n"
        "for i in range(3):\n"
        "    b = add(a, a)\n"
        "    for j in range(2):\n"
        "        c = mul(b, index(i))\n"
        "        total = accumulate(add, total, c)\n"
        "store(y, 0, total)"
    )
    assert names_deleted(text) == (
        "a = const(1, i32)\n"
        "total = const(0, i32)\n"
        "for i in range(3):\n"
        "    b = add(a, a)\n"
        "    for j in range(2):\n"
        "        c = mul(b, index(i))\n"
        "        total = accumulate(add, total, c)\n"
        "        del c\n"
        "    del b\n"
        "del a\n"
        "store(y, 0, total)\n"
        "del total"
    )
