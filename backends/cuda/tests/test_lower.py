"""Programs as PTX for an architecture, without a GPU: every op, every form of kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8, int32
from bringup.api.apply import apply
from bringup.dtypes import ALL, DType, bool_
from bringup.errors import UnsupportedError
from bringup.graph import Literal
from bringup.ops.table import Kind, OpDef, Trait, all_ops, lookup
from bringup.runtime.compiler import Compiled
from bringup.types import TensorType
from bringup_cuda.targets import TARGETS

Assemble = Callable[[str, str], None]
Attrs = Mapping[str, Any]
Fn = Callable[..., Any]

f32 = float32
ROWS = [r for r in all_ops() if r.kind is Kind.ELEMENTWISE or Trait.POINTWISE in r.traits]


def assembled(names: Iterable[str]) -> list[tuple[str, str]]:
    """Everything for one architecture, every fourth for an older one too."""
    listed = list(names)
    return [(n, "sm_90") for n in listed] + [(n, "sm_80") for n in listed[::4]]


def lower(fn: Fn, *types: TensorType, architecture: str = "sm_90") -> Compiled:
    made: Compiled = bu.jit(fn).lower(*types, target=f"cuda:{architecture}")
    return made


def check_text(made: Compiled, architecture: str = "sm_90") -> None:
    """A module for the architecture with an entry for each step, or two where a sum is cut, that
    needs nothing from outside but shared memory and rounds as IEEE says.
    """
    text = made.asm
    assert f"\n.target {architecture}\n" in text
    assert "\n.address_size 64\n" in text
    entries = re.findall(r"^\.visible \.entry (\w+)\(", text, re.MULTILINE)
    assert len(entries) == len(set(entries))
    steps = len(made.program.steps)
    assert 1 <= steps <= len(entries) <= 2 * steps
    defined = set(re.findall(r"^\.func .*?([\w$]+)\($", text, re.MULTILINE))
    called = set(re.findall(r"\bcall(?:\.uni)?\s+(?:\(\w+\),\s*)?([\w$]+)", text))
    assert called <= defined, called - defined
    assert called or not re.search(r"\bcall\b", text)
    assert not re.search(r"\.weak\b|\.extern\b(?! \.shared)", text)
    # The assembler may flush, approximate and fuse what does not say otherwise.
    assert not re.search(r"\.(ftz|approx)\b", text)
    assert not re.search(r"\b(add|sub|mul|mad)\.(f16|bf16|f32|f64)", text)


# -- every op --------------------------------------------------------------------------------------


def forms(row: OpDef, dtype: DType) -> Iterator[Attrs]:
    """Every choice of attributes."""
    if row.name in ("convert", "bitcast"):
        for target in ALL:
            same = (target.bits, target is bool_) == (dtype.bits, dtype is bool_)
            if target is not dtype and (row.name == "convert" or same):
                yield {"dtype": target}
        return
    names = [a.name for a in row.attrs]
    for choice in product(*(a.choices for a in row.attrs)):
        yield dict(zip(names, choice, strict=True))


def operand_types(row: OpDef, dtype: DType) -> list[TensorType]:
    if row.name == "select":
        return [bool_[40], dtype[40], dtype[40]]
    assert row.arity is not None
    return [dtype[40]] * row.arity


def every_form(row: OpDef) -> tuple[Fn, list[TensorType]]:
    """A function of the row at each of its dtypes and attributes, and its arguments."""
    dtypes = ALL if row.name == "select" else row.dtypes
    types = [operand_types(row, dtype) for dtype in dtypes]

    def fn(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        results = []
        for dtype, own in zip(dtypes, types, strict=True):
            operands = [next(rest) for _ in own]
            results += [apply(row.name, operands, attrs) for attrs in forms(row, dtype)]
        return results

    return fn, [t for own in types for t in own]


@pytest.mark.parametrize(("name", "architecture"), assembled(row.name for row in ROWS))
def test_every_elementwise_op(name: str, architecture: str, assemble: Assemble) -> None:
    """Nothing of a row is left whole, nothing is lost on the way, and the assembler takes it."""
    row = lookup(name)
    fn, types = every_form(row)
    made = lower(fn, *types, architecture=architecture)
    check_text(made, architecture)
    outputs = len(bu.trace(fn, *types).outputs)
    assert outputs >= len(row.dtypes)
    assert len(made.program.outputs) == outputs
    assemble(made.asm, architecture)


# -- every form of kernel --------------------------------------------------------------------------


def moved(x: Any, y: Any) -> Any:
    """Transposed, reversed, cut and joined."""
    turned = bu.permute_dims(x, (1, 0))[::-1, 1:]
    return bu.concat([turned, bu.flip(y, axis=0)], axis=1)


def padded(x: Any) -> Any:
    one = Literal.splat(1, f32[()])
    return apply("pad", (x, one), {"lo": (1, -2), "hi": (0, 3), "interior": (2, 0)})


def cross_entropy(x: Any, labels: Any) -> Any:
    hot = bu.nn.one_hot(labels, x.shape[-1], dtype=f32)
    return -bu.mean(bu.sum(bu.nn.log_softmax(x) * hot, axis=-1))


def norm(x: Any, gain: Any, bias: Any) -> Any:
    return bu.nn.layer_norm(x, gain, bias)


def dense(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


WIDE, CUBE = f32[300, 700], f32[20, 30, 40]
PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "sum(x + y*z)": (lambda x, y, z: bu.sum(x + y * z), (f32[1 << 20],) * 3),
    "sum, axis 0": (lambda x: bu.sum(x, axis=0), (CUBE,)),
    "sum, axis 1": (lambda x: bu.sum(x, axis=1), (CUBE,)),
    "sum, axis 2": (lambda x: bu.sum(x, axis=2), (CUBE,)),
    "sum, axes 0 and 2": (lambda x: bu.sum(x, axis=(0, 2)), (CUBE,)),
    "sum of f16": (lambda x: bu.sum(x, axis=1), (float16[300, 700],)),
    "sum of bf16": (lambda x: bu.sum(x, axis=1), (bfloat16[300, 700],)),
    "sum of i8": (lambda x: bu.sum(x), (int8[300, 700],)),
    "product of f64": (lambda x: bu.prod(x, axis=1), (float64[300, 700],)),
    "greatest": (lambda x: bu.max(x, axis=0), (WIDE,)),
    "least of i32": (lambda x: bu.min(x, axis=1), (int32[300, 700],)),
    "all": (lambda x: bu.all(x, axis=1), (bool_[300, 700],)),
    "any": (lambda x: bu.any(x), (bool_[300, 700],)),
    "argmax, axis 0": (lambda x: bu.argmax(x, axis=0), (WIDE,)),
    "argmax, axis 1": (lambda x: bu.argmax(x, axis=1), (WIDE,)),
    "softmax, axis 0": (lambda x: bu.nn.softmax(x, axis=0), (WIDE,)),
    "softmax, axis 1": (lambda x: bu.nn.softmax(x, axis=1), (WIDE,)),
    "softmax of f16": (lambda x: bu.nn.softmax(x, axis=1), (float16[300, 700],)),
    "layer norm": (norm, (WIDE, f32[700], f32[700])),
    "layer norm, gradient": (
        bu.grad(lambda x, g, b: bu.sum(norm(x, g, b) ** 2), argnums=(0, 1, 2)),
        (WIDE, f32[700], f32[700]),
    ),
    "cross-entropy and gradient": (bu.value_and_grad(cross_entropy), (WIDE, int32[300])),
    "x @ w": (lambda x, w: x @ w, (f32[64, 32], f32[32, 48])),
    "x @ w of bf16": (lambda x, w: x @ w, (bfloat16[64, 32], bfloat16[32, 48])),
    "x @ w of i8": (lambda x, w: x @ w, (int8[64, 32], int8[32, 48])),
    "batches of products": (lambda x, w: x @ w, (f32[5, 64, 32], f32[5, 32, 48])),
    "relu(x @ w + b)": (dense, (f32[64, 32], f32[32, 48], f32[48])),
    "convolution": (
        lambda x, w: bu.nn.relu(bu.nn.conv(x, w, padding=1)),
        (f32[2, 8, 20, 20], f32[16, 8, 3, 3]),
    ),
    "convolution in groups": (
        lambda x, w: bu.nn.conv(x, w, groups=2, stride=2, layout="NHWC"),
        (f32[2, 20, 20, 8], f32[3, 3, 4, 16]),
    ),
    "convolution, gradient": (
        bu.grad(lambda x, w: bu.sum(bu.nn.conv(x, w, stride=2) ** 2), argnums=(0, 1)),
        (f32[2, 8, 20, 20], f32[16, 8, 3, 3]),
    ),
    "pooling, gradient": (
        bu.grad(lambda x: bu.sum(bu.nn.max_pool(x, 3, stride=2, padding=1))),
        (f32[2, 8, 20, 20],),
    ),
    "norm of groups": (lambda x: bu.nn.group_norm(x, 4), (f32[2, 8, 20, 20],)),
    "attention": (
        lambda q, k, v: bu.nn.attention(q, k, v, causal=True),
        (float16[2, 40, 16],) * 3,
    ),
    "movement": (moved, (f32[8, 10], f32[10, 3])),
    "movement into arithmetic": (lambda x, y: moved(x, y) * 2, (f32[8, 10], f32[10, 3])),
    "padding": (padded, (f32[8, 10],)),
    "broadcasting": (lambda x, y: x + y, (f32[300, 1], f32[700])),
    "counting": (lambda x: x + bu.arange(700, dtype=f32), (WIDE,)),
    "nothing": (lambda x: x * 2, (f32[0],)),
    "the sum of nothing": (lambda x: bu.sum(x * 2), (f32[0],)),
    "no dimensions": (lambda x: bu.exp(x) + 1, (f32[()],)),
}


@cache
def lowered_program(name: str, architecture: str) -> Compiled:
    fn, types = PROGRAMS[name]
    return lower(fn, *types, architecture=architecture)


@pytest.mark.parametrize(("name", "architecture"), assembled(PROGRAMS))
def test_every_form_of_kernel(name: str, architecture: str, assemble: Assemble) -> None:
    made = lowered_program(name, architecture)
    check_text(made, architecture)
    assemble(made.asm, architecture)


@pytest.mark.parametrize("architecture", TARGETS)
def test_every_architecture(architecture: str, assemble: Assemble) -> None:
    made = lowered_program("softmax of f16", architecture)
    check_text(made, architecture)
    assemble(made.asm, architecture)


# -- what the text says ----------------------------------------------------------------------------


def test_a_program_without_an_architecture_is_for_the_oldest() -> None:
    made = bu.jit(lambda x: x + 1).lower(f32[8], target="cuda")
    assert f"\n.target {min(TARGETS, key=list(TARGETS).index)}\n" in made.asm


def test_a_long_sum_is_cut_and_its_parts_are_summed() -> None:
    made = lowered_program("sum(x + y*z)", "sm_90")
    entries = re.findall(r"\.entry (\w+)\(", made.asm)
    assert [name.rsplit("_", 2)[-2] for name in entries] == ["partial", "final"]


def test_rows_stay_in_registers() -> None:
    """Memory is read once; threads share sums by shuffles and a slot for each warp."""
    made = lowered_program("softmax, axis 1", "sm_90")
    assert len(made.kernels) == 1
    assert "shfl.sync.bfly" in made.asm
    assert "tile" not in made.asm
    assert len(re.findall(r"\bld\.global", made.asm)) == 1


def test_threads_beside_each_other_read_beside_each_other() -> None:
    """Columns belong to threads, whose sums wait in shared memory for each other."""
    made = lowered_program("greatest", "sm_90")
    assert "bar.sync" in made.asm
    assert "shfl" not in made.asm


def test_products_are_rounded_once_only_where_sums_allow_it() -> None:
    assert "fma.rn.f32" not in lower(lambda x, y, z: x + y * z, *[f32[8]] * 3).asm


def test_op_steps_stand_beside_kernels() -> None:
    made = lower(lambda x: bu.cumulative_sum(x * 2), f32[6])
    check_text(made)
    assert [step.name for step in made.program.steps][1:] == ["cumulative"]
    assert re.search(r"\.entry cumulative_\d", made.asm)


def test_an_unknown_architecture_is_refused_with_those_known() -> None:
    with pytest.raises(UnsupportedError, match=r"no architecture 'sm_1'(?s:.*)sm_90"):
        lower(lambda x: x + 1, f32[8], architecture="sm_1")
