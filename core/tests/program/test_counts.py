"""Launches and bytes of whole programs: exact, where time is noisy.

Every program here is also run by the reference interpreter, before and after fusion and planning
(``BRINGUP_CHECK=2``), so that no count comes from a wrong program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from lowering import lower

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8, int32
from bringup.api.apply import apply
from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.graph import Literal
from bringup.kernel.limits import Limits
from bringup.program.program import Cost, KernelStep
from bringup.runtime import devices
from bringup.runtime.compiler import lower_graph
from bringup.types import TensorType

f32 = float32


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CHECK", "2")


@dataclass(frozen=True, slots=True)
class Case:
    """A function, its arguments, and what one run of it must cost; read, written: bytes."""

    fn: Callable[..., Any]
    types: tuple[TensorType, ...]
    kernels: int
    unfused: int
    read: int
    written: int
    arena: int = 0


def case(
    fn: Callable[..., Any],
    *types: TensorType,
    kernels: tuple[int, int],
    elements: tuple[int, int],
    arena: int = 0,
) -> Case:
    """kernels: fused and unfused.  elements: of 4 bytes, read and written."""
    return Case(fn, types, *kernels, 4 * elements[0], 4 * elements[1], arena)


def softmax(x: Any) -> Any:
    return bu.nn.softmax(x)


def log_sum_exp(x: Any) -> Any:
    top = bu.max(x, axis=-1, keepdims=True)
    return bu.log(bu.sum(bu.exp(x - top), axis=-1)) + bu.squeeze(top, axis=-1)


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    return bu.nn.layer_norm(x, gain, bias)


def weighed_norm(x: Any, gain: Any, bias: Any, weight: Any) -> Any:
    return bu.sum(layer_norm(x, gain, bias) * weight)


def cross_entropy(x: Any, labels: Any) -> Any:
    hot = bu.nn.one_hot(labels, x.shape[-1], dtype=f32)
    return -bu.mean(bu.sum(bu.nn.log_softmax(x) * hot, axis=-1))


def weighed_softmax(x: Any, weight: Any) -> Any:
    return bu.sum(bu.nn.softmax(x) * weight)


def softmax_and_pullback(x: Any, weight: Any) -> Any:
    return bu.nn.softmax(x), bu.grad(weighed_softmax)(x, weight)


def dense(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


def regression_step(w: Any, b: Any, x: Any, labels: Any) -> Any:
    def loss(parameters: Any) -> Any:
        return cross_entropy(x @ parameters[0] + parameters[1], labels)

    value, gradients = bu.value_and_grad(loss)((w, b))
    return value, *[p - 0.1 * g for p, g in zip((w, b), gradients, strict=True)]


def network_step(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, labels: Any) -> Any:
    def loss(p: Any) -> Any:
        return cross_entropy(dense(x, p[0], p[1]) @ p[2] + p[3], labels)

    parameters = (w1, b1, w2, b2)
    value, gradients = bu.value_and_grad(loss)(parameters)
    return value, *[p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]


def attention(q: Any, k: Any, v: Any) -> Any:
    return bu.nn.softmax(q @ k.T) @ v


def padded(x: Any) -> Any:
    """Ones around, and one between every two columns."""
    one = Literal.splat(1, f32[()])
    return apply("pad", (x, one), {"lo": (1, 2), "hi": (1, 0), "interior": (0, 1)})


def moved(x: Any, y: Any) -> Any:
    """Transposed, reversed, cut and joined."""
    turned = bu.permute_dims(x, (1, 0))[::-1, 1:]
    return bu.concat([turned, bu.flip(y, axis=0)], axis=1)


N, R, C = 1000, 8, 100
ROWS = f32[R, C]
B, D, K, H = 64, 32, 10, 48  # batch, features, classes, hidden

CASES: dict[str, Case] = {
    "elementwise chain": case(
        lambda x, y: bu.tanh(x * y + x) - 1,
        f32[N], f32[N], kernels=(1, 4), elements=(2 * N, N),
    ),
    "sum(x + y*z)": case(
        lambda x, y, z: bu.sum(x + y * z),
        f32[N], f32[N], f32[N], kernels=(1, 3), elements=(3 * N, 1),
    ),
    "softmax": case(softmax, ROWS, kernels=(1, 7), elements=(R * C, R * C)),
    "softmax of columns": case(
        lambda x: bu.nn.softmax(x, axis=0), ROWS, kernels=(1, 7), elements=(R * C, R * C)
    ),
    "log_softmax": case(
        lambda x: bu.nn.log_softmax(x), ROWS, kernels=(1, 8), elements=(R * C, R * C)
    ),
    "log-sum-exp": case(log_sum_exp, ROWS, kernels=(1, 7), elements=(R * C, R)),
    "layer norm, affine": case(
        layer_norm, ROWS, f32[C], f32[C], kernels=(1, 16), elements=(R * C + 2 * C, R * C)
    ),
    "layer norm, gradient of x": case(
        bu.grad(weighed_norm), ROWS, f32[C], f32[C], ROWS,
        kernels=(1, 25), elements=(2 * R * C + C, R * C),
    ),
    # The second sums columns: it reads x, the weight and the rows' means and deviations again.
    "layer norm, all gradients": case(
        bu.grad(weighed_norm, argnums=(0, 1, 2)), ROWS, f32[C], f32[C], ROWS,
        kernels=(2, 28), elements=(2 * R * C + C + 2 * R * C + 2 * R, R * C + 2 * C + 2 * R),
        arena=128,
    ),
    "cross-entropy": case(
        cross_entropy, ROWS, int32[R],
        kernels=(2, 16), elements=(R * C + R + R, R + 1), arena=64,
    ),
    "cross-entropy, gradient": case(
        bu.grad(cross_entropy), ROWS, int32[R], kernels=(1, 17), elements=(R * C + R, R * C)
    ),
    "cross-entropy and gradient": case(
        bu.value_and_grad(cross_entropy), ROWS, int32[R],
        kernels=(2, 22), elements=(R * C + R + R, R * C + R + 1), arena=64,
    ),
    "softmax, gradient": case(
        bu.grad(weighed_softmax), ROWS, ROWS, kernels=(1, 12), elements=(2 * R * C, R * C)
    ),
    "softmax and its gradient": case(
        softmax_and_pullback, ROWS, ROWS, kernels=(1, 12), elements=(2 * R * C, 2 * R * C)
    ),
    "relu(x @ w + b)": case(
        dense, f32[B, D], f32[D, H], f32[H],
        kernels=(1, 4), elements=(B * D + D * H + H, B * H),
    ),
    "two outputs of one read": case(
        lambda x: (bu.sin(x), bu.cos(x)), ROWS, kernels=(1, 2), elements=(R * C, 2 * R * C)
    ),
    "mean and variance of rows": case(
        lambda x: (bu.mean(x, axis=1), bu.var(x, axis=1)),
        ROWS, kernels=(1, 7), elements=(R * C, 2 * R),
    ),
    "mean and variance of all": case(
        lambda x: (bu.mean(x), bu.var(x)), ROWS, kernels=(1, 7), elements=(R * C, 2)
    ),
    "least, greatest and sum": case(
        lambda x: (bu.min(x), bu.max(x), bu.sum(x)), ROWS, kernels=(1, 3), elements=(R * C, 3)
    ),
    "a row and what became of it": case(
        lambda x: (bu.sum(bu.exp(x), axis=1), bu.exp(x)),
        ROWS, kernels=(1, 2), elements=(R * C, R + R * C),
    ),
    # Different grids: one kernel could not hold both.
    "sums of rows and of columns": case(
        lambda x: (bu.sum(x, axis=0), bu.sum(x, axis=1)),
        ROWS, kernels=(2, 2), elements=(2 * R * C, R + C),
    ),
    "movement alone": case(moved, f32[8, 10], f32[10, 3], kernels=(1, 4), elements=(100, 100)),
    "movement into arithmetic": case(
        lambda x, y: moved(x, y) * 2,
        f32[8, 10], f32[10, 3], kernels=(1, 5), elements=(100, 100),
    ),
    "movement into a sum": case(
        lambda x, y: bu.sum(moved(x, y) * 2, axis=0),
        f32[8, 10], f32[10, 3], kernels=(1, 6), elements=(100, 10),
    ),
    "every other element": case(
        lambda x: bu.sum(x[::2]), f32[N], kernels=(1, 2), elements=(N // 2, 1)
    ),
    "spread": case(
        lambda row, column: row * column, f32[C], f32[R, 1], kernels=(1, 3), elements=(R + C, R * C)
    ),
    "padded": case(
        lambda x: bu.nn.relu(padded(x)),
        ROWS, kernels=(1, 2), elements=(R * C, (R + 2) * (2 * C + 1)),
    ),
    # Scores, softmax in their place, product.
    "attention": case(
        attention, f32[16, D], f32[24, D], f32[24, D],
        kernels=(3, 9),
        elements=(16 * D + 24 * D + 16 * 24 + 16 * 24 + 24 * D, 16 * 24 + 16 * 24 + 16 * D),
        arena=4 * 16 * 24,
    ),
    # x @ w; loss rows and their gradients, in place; loss; w and its gradient; b and its gradient.
    "softmax regression, step": case(
        regression_step, f32[D, K], f32[K], f32[B, D], int32[B],
        kernels=(5, 31),
        elements=(2 * B * D + 2 * D * K + 3 * B * K + 2 * K + 2 * B, D * K + K + 2 * B * K + B + 1),
        arena=4 * (B * K + B),
    ),
    "network of two layers, step": case(
        network_step, f32[D, H], f32[H], f32[H, K], f32[K], f32[B, D], int32[B],
        kernels=(9, 44),
        elements=(
            2 * B * D + 2 * D * H + 5 * B * H + 3 * H * K + 4 * B * K + 2 * H + 2 * K + 2 * B,
            D * H + H + H * K + K + 2 * B * H + 2 * B * K + B + 1,
        ),
        arena=4 * (B * H + B * K + B),
    ),
}  # fmt: skip


def counted(cost: Cost) -> tuple[int, int, int, int]:
    return cost.kernels, cost.bytes_read, cost.bytes_written, cost.arena_bytes


@pytest.mark.parametrize("name", CASES)
def test_launches_and_bytes(name: str) -> None:
    wanted = CASES[name]
    made = lower(wanted.fn, *wanted.types)
    assert counted(made.cost()) == (wanted.kernels, wanted.read, wanted.written, wanted.arena)
    assert len(made.kernels) == wanted.kernels


@pytest.mark.parametrize("name", CASES)
def test_without_fusion_every_instruction_is_a_launch(name: str) -> None:
    wanted = CASES[name]
    made = lower(wanted.fn, *wanted.types, fuse=False)
    cost = made.cost()
    assert cost.kernels == wanted.unfused >= wanted.kernels
    assert all(len(s.kernel.outputs) == 1 for s in made.program.steps if isinstance(s, KernelStep))
    assert (cost.bytes_read, cost.bytes_written) >= (wanted.read, wanted.written)


@pytest.mark.parametrize("name", CASES)
def test_the_default_device_runs_the_same_kernels(name: str) -> None:
    """What is counted on paper is what runs."""
    wanted = CASES[name]
    paper = lower(wanted.fn, *wanted.types)
    backend = devices.get().backend
    assert lower_graph(bu.trace(wanted.fn, *wanted.types), backend).cost() == paper.cost()


@pytest.mark.parametrize("dtype", [int8, float16, bfloat16, int32, float32, float64], ids=str)
def test_a_sum_reads_its_operands_once_in_their_own_dtype(dtype: DType) -> None:
    cost = lower(lambda x, y, z: bu.sum(x + y * z, dtype=dtype), *[dtype[N]] * 3).cost()
    size = dtype.itemsize
    assert counted(cost) == (1, 3 * N * size, size, 0)


@pytest.mark.parametrize("fuse", [True, False])
def test_an_empty_program_moves_nothing(fuse: bool) -> None:
    cost = lower(lambda x: bu.sum(x * 2, axis=1), f32[0, 5], fuse=fuse).cost()
    assert (cost.bytes_read, cost.bytes_written, cost.flops) == (0, 0, 0)


def test_the_sum_of_nothing_is_written() -> None:
    cost = lower(lambda x: bu.sum(x * 2), f32[0]).cost()
    assert counted(cost) == (1, 0, 4, 0)


# -- where a device ends ---------------------------------------------------------------------------


def test_one_loop_a_kernel_cuts_a_softmax_at_its_reductions() -> None:
    """Greatest; exponentials and their sum; quotient."""
    made = lower(softmax, ROWS, limits=Limits(stages=1))
    assert counted(made.cost())[:3] == (3, 4 * (3 * R * C + 2 * R), 4 * (2 * R * C + 2 * R))
    assert all(sum(bool(s.axes) for s in k.stages) <= 1 for k in made.kernels)


def test_rows_that_do_not_stay_close_are_read_again() -> None:
    fits = lower(softmax, ROWS, limits=Limits(row_elements=C))
    assert fits.cost().kernels == 1
    beyond = lower(softmax, ROWS, limits=Limits(row_elements=C - 1))
    assert beyond.cost().kernels == 3


def test_more_operands_than_a_kernel_takes() -> None:
    def sum_of(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    types = [f32[N]] * 9
    assert lower(sum_of, *types).cost().kernels == 1
    made = lower(sum_of, *types, limits=Limits(buffers=4))
    assert made.cost().kernels == 4
    assert all(len(k.buffers) <= 4 for k in made.kernels)


@pytest.mark.parametrize(
    ("parts", "buffers", "kernels"), [(31, 32, 1), (32, 32, 2), (100, 32, 4), (9, 4, 4), (4, 3, 3)]
)
def test_a_concatenation_of_more_operands_than_a_kernel_takes(
    parts: int, buffers: int, kernels: int
) -> None:
    limits = Limits(buffers=buffers)
    made = lower(lambda *xs: bu.concat(xs) * 2, *[f32[5]] * parts, limits=limits)
    assert made.cost().kernels == kernels
    same = lower(lambda x: bu.concat([x] * parts), f32[5], limits=limits)
    assert counted(same.cost()) == (1, 20, 20 * parts, 0)


def test_an_op_beyond_the_limits_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"^add is no kernel of this device: needs 2 inputs"):
        lower(lambda x, y: x + y, f32[N], f32[N], limits=Limits(buffers=2))


# -- memory ----------------------------------------------------------------------------------------


def powers(steps: int) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        for _ in range(steps):
            x = x @ x
        return x

    return fn


@pytest.mark.parametrize(("steps", "buffers"), [(1, 0), (2, 1), (3, 2), (4, 2), (7, 2)])
def test_a_chain_that_cannot_fuse_takes_turns_on_two_buffers(steps: int, buffers: int) -> None:
    cost = lower(powers(steps), f32[16, 16]).cost()
    assert (cost.kernels, cost.arena_bytes) == (steps, buffers * 16 * 16 * 4)


def test_what_is_read_late_keeps_its_place() -> None:
    """The first product lives until the end, so that the others need two more buffers."""
    made = lower(lambda x: powers(4)(x @ x) @ (x @ x), f32[16, 16])
    assert made.cost().arena_bytes == 3 * 16 * 16 * 4


def test_a_kernel_writes_over_an_operand_that_dies_in_it() -> None:
    made = lower(lambda x: bu.nn.softmax(x @ x) @ x, f32[16, 16])
    assert made.cost().arena_bytes == 16 * 16 * 4
    turned = lower(lambda x: bu.nn.softmax((x @ x).T) @ x, f32[16, 16])
    assert turned.cost().kernels == 3
    assert turned.cost().arena_bytes == 2 * 16 * 16 * 4


def test_intermediates_are_aligned() -> None:
    made = lower(lambda x: powers(3)(x), f32[3, 3])
    assert made.cost().arena_bytes == 2 * 64


# -- donation --------------------------------------------------------------------------------------


def test_an_output_takes_the_place_of_a_donated_input() -> None:
    made = lower(lambda x, y: x + y * 2, f32[N], f32[N], donated=[0])
    assert made.program.aliases == ((0, 0),)
    plain = lower(lambda x, y: x + y * 2, f32[N], f32[N]).cost()
    assert made.cost() == replace(plain, peak_bytes=plain.peak_bytes - f32[N].nbytes)
    assert plain.peak_bytes == 3 * f32[N].nbytes


def test_a_step_updates_its_parameters_in_place() -> None:
    wanted = CASES["network of two layers, step"]
    made = lower(wanted.fn, *wanted.types, donated=range(4))
    assert made.program.aliases == ((1, 0), (2, 1), (3, 2), (4, 3))
    assert made.cost().kernels == wanted.kernels
    assert made.cost().bytes_written == wanted.written


@pytest.mark.parametrize(
    "fn",
    [softmax, lambda x: x - bu.sum(x), lambda x: (x.T @ x) @ (x @ x)],
    ids=["by rows", "as a whole", "in an earlier kernel"],
)
def test_what_has_been_read_is_replaced(fn: Callable[..., Any]) -> None:
    made = lower(fn, f32[16, 16], donated=[0])
    assert made.program.aliases == ((0, 0),)


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        (lambda x: x[::-1] + 1, (f32[N],)),
        (lambda x: x.T * 2, (f32[16, 16],)),
        (lambda x: (x + 1, x[::-1]), (f32[N],)),
        (lambda x: x @ x, (f32[16, 16],)),
        (lambda x: bu.astype(x, float64), (f32[N],)),
        (lambda x: x[1:] * 2, (f32[N],)),
    ],
    ids=["reversed", "transposed", "read twice", "product", "wider", "shorter"],
)
def test_what_others_still_read_or_what_does_not_fit_stays(
    fn: Callable[..., Any], types: tuple[TensorType, ...]
) -> None:
    made = lower(fn, *types, donated=[0])
    assert made.cost().kernels == 1
    assert made.program.donated == {0}
    assert made.program.aliases == ()


def test_a_device_without_donation_keeps_its_inputs() -> None:
    made = lower(lambda x: x + 1, f32[N], donated=[0], donation=False)
    assert made.program.aliases == ()
    assert made.program.donated == frozenset()


def test_two_outputs_never_share_one_donated_input() -> None:
    made = lower(lambda x: (x + 1, x * 2), f32[N], donated=[0])
    assert len(made.program.aliases) == 1
    both = lower(lambda x, y: (x + y, x * y), f32[N], f32[N], donated=[0, 1])
    assert sorted(i for _, i in both.program.aliases) == [0, 1]


@pytest.mark.parametrize(
    "name",
    ["exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
     "acos", "atan", "asinh", "acosh", "atanh"],
)  # fmt: skip
def test_a_complex_function_is_one_kernel(name: str) -> None:
    part = f32[R, C]
    fn = getattr(bu, name)
    cost = lower(lambda a, b: tuple(parts(fn(bu.complex(a, b)))), part, part).cost()
    assert cost.kernels == 1


def parts(z: Any) -> tuple[Any, Any]:
    return bu.real(z), bu.imag(z)
