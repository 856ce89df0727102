"""Depths 1 and 2 on a toy device: right bytes in right places, nothing leaks, errors say where."""

from __future__ import annotations

import doctest
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup.backend import (
    BufferView,
    Capabilities,
    KernelsDevice,
    LoopsDevice,
    Lowered,
    OpFunction,
    OpsDevice,
    SimpleBackend,
    adapters,
    claims,
    current_step,
)
from bringup.dtypes import bool_, f32
from bringup.errors import (
    BackendError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    Location,
    OutOfMemoryError,
    ScheduleError,
    UnsupportedError,
)
from bringup.graph import Builder, Literal
from bringup.graph.index import Axis, Expr
from bringup.kernel.form import BufferDecl, Kernel, Stage, Store
from bringup.kernel.ops import load
from bringup.llvm.choices import ChosenLoopsBackend, ChosenLoopsDevice
from bringup.loops import Func, evaluate_func, lower_kernel, parse_func
from bringup.loops.schedule import Schedule
from bringup.ops.table import Kind, OpDef, lookup
from bringup.program.program import KernelStep, OpStep, Program, Slot, Space
from bringup.target import Target
from bringup.types import TensorType

Array = np.ndarray[Any, Any]
HERE = Location("model.py", 12, "forward")


class Memory:
    """Host memory behind integers; knows what is allocated, and fails on demand."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = {}
        self.count = 0
        self.fail_after = 1 << 30

    def alloc(self, nbytes: int) -> int:
        if self.fail_after == 0:
            raise MemoryError("the toy is full")
        self.fail_after -= 1
        self.count += 1
        self.blocks[self.count] = bytearray(b"\xab" * nbytes)
        return self.count

    def free(self, handle: int) -> None:
        del self.blocks[handle]

    def upload(self, handle: int, data: memoryview) -> None:
        self.blocks[handle][: len(data)] = data

    def download(self, handle: int, out: memoryview) -> None:
        out[:] = self.blocks[handle][: len(out)]

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.blocks[target][:nbytes] = self.blocks[source][:nbytes]

    def synchronize(self) -> None:
        pass

    def array(self, view: BufferView) -> Array:
        """The elements of a view, writable."""
        block = np.frombuffer(self.blocks[view.handle], np.uint8)
        data = block[view.offset : view.offset + view.type.nbytes]
        return data.view(view.type.dtype.numpy).reshape(view.type.shape)

    def put(self, array: Array) -> int:
        handle = self.alloc(array.nbytes)
        self.upload(handle, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return handle

    def take(self, handle: int, type_: TensorType) -> Array:
        return self.array(BufferView(handle, 0, type_)).copy()


class Toy(Memory, OpsDevice):
    capabilities = Capabilities(ops=claims(["add", "mul"], ["f32"]))

    def __init__(self, **ops: Callable[..., Array]) -> None:
        super().__init__()
        table: dict[str, OpFunction] = {"add": self.lift(np.add), "mul": self.lift(np.multiply)}
        self.ops = table | {k.replace("_", "."): self.lift(f) for k, f in ops.items()}

    def lift(self, function: Callable[..., Any]) -> OpFunction:
        def run(*views: BufferView, out: BufferView | tuple[BufferView, ...], **attrs: Any) -> None:
            result = function(*map(self.array, views), **attrs)
            if isinstance(out, tuple):
                for view, part in zip(out, result, strict=True):
                    self.array(view)[...] = part
            else:
                self.array(out)[...] = result

        return run


def slot(space: Space, type_: TensorType, index: int = 0, offset: int = 0) -> Slot:
    return Slot(space, index, offset, type_)


def op(
    name: str | OpDef, operands: Sequence[Slot], *results: Slot, at: Location = HERE, **attrs: Any
) -> OpStep:
    row = name if isinstance(name, OpDef) else lookup(name)
    return OpStep(row, row.bind(attrs), tuple(operands), results, at)


def program(steps: Sequence[OpStep | KernelStep], **rest: Any) -> Program:
    slots = {s for step in steps for s in step.slots}
    found: Mapping[str, dict[int, TensorType]] = {"input": {}, "output": {}}
    for s in slots:
        if s.space in found:
            found[s.space][s.index] = s.type
    inputs, outputs = (tuple(t[i] for i in sorted(t)) for t in found.values())
    return Program("main", inputs, outputs, tuple(steps), **rest)


V = f32[4]
X, Y, Z = slot("input", V), slot("input", V, 1), slot("output", V)
T = slot("arena", V, offset=64)
C = slot("constant", V)
ARRAYS = np.float32([1, 2, 3, 4]), np.float32([10, 20, 30, 40])


def chain(**rest: Any) -> Program:
    """``(x + y) * c`` with the sum in the arena."""
    constant = Literal.of([2.0, 3.0, 4.0, 5.0], f32)
    steps = [op("add", [X, Y], T), op("mul", [T, C], Z)]
    return program(steps, constants=(constant,), arena_bytes=128, **rest)


def test_a_program_runs_step_by_step() -> None:
    toy = Toy()
    inputs = [toy.put(a) for a in ARRAYS]
    run = toy.compile(chain())
    [z] = run(inputs)
    assert toy.take(z, V).tolist() == [22, 66, 132, 220]
    assert toy.take(inputs[0], V).tolist() == ARRAYS[0].tolist()
    [again] = run(inputs)
    assert again != z
    assert toy.take(again, V).tolist() == [22, 66, 132, 220]


def test_arena_slots_lie_where_the_plan_puts_them() -> None:
    toy = Toy()
    low = slot("arena", V, offset=16)
    steps = [op("add", [X, Y], T), op("mul", [X, Y], low), op("add", [T, low], Z)]
    [z] = toy.compile(program(steps, arena_bytes=128))([toy.put(a) for a in ARRAYS])
    assert toy.take(z, V).tolist() == [21, 62, 123, 204]


def test_handles_that_count_references_are_never_freed() -> None:
    class Counted(Toy):
        refcounted_handles = True

        def free(self, handle: int) -> None:
            raise AssertionError

    toy = Counted()
    run = toy.compile(chain(donated=frozenset({0})))
    [z] = run([toy.put(a) for a in ARRAYS])
    assert toy.take(z, V).tolist() == [22, 66, 132, 220]
    del run
    gc.collect()


def test_only_inputs_outputs_and_constants_stay_allocated() -> None:
    toy = Toy()
    inputs = [toy.put(a) for a in ARRAYS]
    run = toy.compile(chain())
    before = set(toy.blocks)
    assert len(before) == 3
    outputs = run(inputs)
    assert set(toy.blocks) == before | set(outputs)
    del run
    gc.collect()
    assert set(toy.blocks) == {*inputs, *outputs}


def test_a_splat_constant_is_uploaded_dense() -> None:
    toy = Toy()
    x = toy.put(ARRAYS[0])
    splat = Literal.splat(1.5, V)
    [z] = toy.compile(program([op("add", [X, C], Z)], constants=(splat,)))([x])
    assert toy.take(z, V).tolist() == [2.5, 3.5, 4.5, 5.5]


def test_a_donated_input_becomes_the_output_or_is_freed() -> None:
    toy = Toy()
    x, y = (toy.put(a) for a in ARRAYS)
    both = chain(donated=frozenset({0, 1}), aliases=((0, 1),))
    run = toy.compile(both)
    before = set(toy.blocks)
    assert run([x, y]) == [y]
    assert set(toy.blocks) == before - {x}
    assert toy.take(y, V).tolist() == [22, 66, 132, 220]


def test_a_claimed_variant_is_called_without_the_attribute_it_fixes() -> None:
    calls: list[dict[str, Any]] = []

    def total(x: Array, **attrs: Any) -> Array:
        calls.append(attrs)
        return np.asarray(x.sum(axis=attrs["dims"]))

    def fold(x: Array, **attrs: Any) -> Array:
        calls.append(attrs)
        return np.asarray(x.max(axis=attrs["dims"]))

    matrix, row = slot("input", f32[2, 3]), slot("output", f32[2])
    toy = Toy(reduce_add=total, reduce=fold)
    x = toy.put(np.arange(6, dtype=np.float32).reshape(2, 3))
    for kind, expected in (("add", [3, 12]), ("max", [2, 5])):
        [z] = toy.compile(program([op("reduce", [matrix], row, kind=kind, dims=(1,))]))([x])
        assert toy.take(z, row.type).tolist() == expected
    assert "kind" not in calls[0]
    assert calls[1]["kind"] == "max"


TWO = OpDef(
    name="both",
    arity=1,
    kind=Kind.ELEMENTWISE,
    doc="A test's own: the operand, and twice the operand.",
    infer=lambda operands, _: (operands[0], operands[0]),
    reference=lambda x: (x, 2 * x),
)


def test_several_results_come_as_a_tuple() -> None:
    toy = Toy(both=lambda x: (x, 2 * x))
    x = toy.put(ARRAYS[0])
    first, second = toy.compile(program([op(TWO, [X], Z, slot("output", V, 1))]))([x])
    assert toy.take(first, V).tolist() == [1, 2, 3, 4]
    assert toy.take(second, V).tolist() == [2, 4, 6, 8]


def test_functions_are_not_called_for_results_without_elements() -> None:
    def never(*_: Array) -> Array:
        raise AssertionError

    empty = slot("input", f32[0]), slot("output", f32[0])
    toy = Toy(add=never)
    [z] = toy.compile(program([op("add", [empty[0], empty[0]], empty[1])]))([toy.alloc(0)])
    assert toy.blocks[z] == b""


def test_a_constant_that_is_an_output_needs_no_function() -> None:
    toy = Toy()
    literal = Literal.of([1.0, 2.0, 3.0, 4.0], f32)
    run = toy.compile(program([op("constant", [], Z, value=literal)]))
    [z] = run([])
    assert toy.take(z, V).tolist() == [1, 2, 3, 4]
    with pytest.raises(UnsupportedError, match="constant: Toy has no function for it"):
        toy.compile(program([op("constant", [], T, value=literal), op("add", [T, T], Z)]))


def test_an_op_without_function_is_unsupported() -> None:
    step = op("compare", [X, Y], slot("output", bool_[4]), direction="lt")
    with pytest.raises(UnsupportedError) as caught:
        Toy().compile(program([step]))
    assert str(caught.value) == (
        "compare.lt: Toy has no function for it\n"
        "  at model.py:12 (forward)\n"
        "  fix: add 'compare.lt' to the table of ops, or do not claim it in Capabilities.ops"
    )


def test_a_kernel_is_unsupported_by_a_device_of_ops() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Toy().compile(program([KernelStep(negation("k0"), (X, Z), HERE)]))
    assert str(caught.value) == (
        "Toy takes ops, and the program holds kernel k0\n"
        "  at model.py:12 (forward)\n"
        "  fix: leave Capabilities.kernels empty, or derive from KernelsDevice or LoopsDevice"
    )


def failing(error: BaseException) -> tuple[Toy, Program, Callable[[], list[int]]]:
    """A toy whose mul fails, a program, and a call of it with donated inputs."""

    def fail(*_: Array) -> Array:
        raise error

    toy = Toy(mul=fail)
    run = toy.compile(chain(donated=frozenset({0, 1}), aliases=((0, 1),)))
    return toy, chain(), lambda: run([toy.put(a) for a in ARRAYS])


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("bad lane"), DeviceError),
        (MemoryError("no scratch"), OutOfMemoryError),
        (TimeoutError("stuck"), DeviceTimeoutError),
        (NotImplementedError("later"), UnsupportedError),
    ],
)
def test_what_a_function_raises_becomes_an_error_of_ours(
    raised: Exception, expected: type[Exception]
) -> None:
    toy, _, call = failing(raised)
    constants = set(toy.blocks)
    with pytest.raises(expected) as caught:
        call()
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
    assert str(caught.value) == (
        f"mul: {type(raised).__name__}: {raised}\n"
        "  at model.py:12 (forward)\n"
        "  in instruction: mul(f32[4], f32[4]) -> f32[4]"
    )
    assert set(toy.blocks) == constants
    assert current_step() is None


def test_an_error_of_ours_keeps_its_class_and_gains_the_line() -> None:
    lost = DeviceLostError("the toy fell off the table")
    _, _, call = failing(lost)
    with pytest.raises(DeviceLostError) as caught:
        call()
    assert caught.value is lost
    assert lost.location is HERE
    assert lost.instruction == "mul(f32[4], f32[4]) -> f32[4]"


def test_the_device_stays_usable_after_an_error() -> None:
    toy, good, call = failing(ValueError("once"))
    with pytest.raises(DeviceError):
        call()
    toy.ops = {**toy.ops, "mul": toy.lift(np.multiply)}
    [z] = toy.compile(good)([toy.put(a) for a in ARRAYS])
    assert toy.take(z, V).tolist() == [22, 66, 132, 220]


def test_an_interrupt_passes_and_leaks_nothing() -> None:
    toy, _, call = failing(KeyboardInterrupt())
    constants = set(toy.blocks)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert set(toy.blocks) == constants


@pytest.mark.parametrize(("after", "purpose"), [(0, "output 0 of type f32[4]"), (1, "the arena")])
def test_a_full_device_says_for_what(after: int, purpose: str) -> None:
    toy = Toy()
    inputs = [toy.put(a) for a in ARRAYS]
    run = toy.compile(chain())
    before = set(toy.blocks)
    toy.fail_after = after
    with pytest.raises(OutOfMemoryError, match="MemoryError: the toy is full") as caught:
        run(inputs)
    assert f"bytes for {purpose}" in str(caught.value)
    assert set(toy.blocks) == before
    toy.fail_after = 99
    assert toy.take(run(inputs)[0], V).tolist() == [22, 66, 132, 220]


def test_constants_that_do_not_fit_leak_nothing() -> None:
    toy = Toy()
    toy.fail_after = 1
    two = (Literal.of([1.0], f32), Literal.of([2.0], f32))
    with pytest.raises(MemoryError):
        toy.compile(program([op("add", [X, X], Z)], constants=two))
    assert toy.blocks == {}


def test_a_function_can_ask_which_step_it_serves() -> None:
    seen: list[Any] = []

    def spy(x: Array, y: Array) -> Array:
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append(current_step()))
        thread.start()
        thread.join()
        seen.append((current_step(), *other))
        return x + y

    toy = Toy(add=spy)
    step = op("add", [X, Y], Z)
    toy.compile(program([step]))([toy.put(a) for a in ARRAYS])
    assert seen == [(step, None)]
    assert current_step() is None


# Kernels


def negation(name: str, n: int = 4) -> Kernel:
    """``b1[i] = neg(b0[i])``."""
    axis = Axis(0, n)
    with Builder() as builder:
        x = load(buffer=0, dtype=f32, index=Expr.of(axis), mask=())
        body = builder.build([lookup("neg")(x)])
    buffers = (BufferDecl(f32[n], "in"), BufferDecl(f32[n], "out"))
    return Kernel(name, (axis,), buffers, (Stage((), body, (Store(1, Expr.of(axis)),)),))


class Chip(Memory, KernelsDevice):
    capabilities = Capabilities(kernels=claims(["neg"], ["f32"]))

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def render(self, kernel: Kernel) -> str | bytes:
        self.events.append(f"render {kernel.name}")
        return f"negate {kernel.points}"

    def load(self, source: str | bytes, name: str) -> object:
        self.events.append(f"load {name}")
        return ("loaded", source)

    def launch(self, loaded: Any, kernel: Kernel, views: list[BufferView]) -> None:
        self.events.append(f"launch {kernel.name}")
        assert loaded == ("loaded", f"negate {kernel.points}")
        assert [v.type for v in views] == [b.type for b in kernel.buffers]
        self.array(views[1])[...] = -self.array(views[0])


def twice(first: str = "k0", second: str = "k1") -> Program:
    """``-(-x)`` in two equal kernels."""
    steps = [KernelStep(negation(first), (X, T), HERE), KernelStep(negation(second), (T, Z), HERE)]
    return program(steps, arena_bytes=128)


def test_kernels_are_launched_in_order_and_equal_ones_made_once() -> None:
    chip = Chip()
    run = chip.compile(twice())
    assert chip.events == ["render k0", "load k0"]
    assert run.source == "negate 4"
    [z] = run([chip.put(ARRAYS[0])])
    assert chip.events[2:] == ["launch k0", "launch k1"]
    assert chip.take(z, V).tolist() == [1, 2, 3, 4]
    chip.compile(twice("k7", "k8"))
    assert len(chip.events) == 4


def test_loaded_kernels_go_with_the_last_program_that_uses_them() -> None:
    chip = Chip()
    first, second = chip.compile(twice()), chip.compile(twice())
    del first
    gc.collect()
    chip.compile(twice())
    assert chip.events == ["render k0", "load k0"]
    del second
    gc.collect()
    chip.compile(twice())
    assert chip.events == ["render k0", "load k0"] * 2


def test_ops_and_kernels_mix() -> None:
    chip = Chip()
    x = chip.put(ARRAYS[0])

    def add(a: BufferView, b: BufferView, out: BufferView) -> None:
        chip.array(out)[...] = chip.array(a) + chip.array(b)

    chip.ops = {"add": add}
    steps = [KernelStep(negation("k0"), (X, T), HERE), op("add", [T, T], Z)]
    [z] = chip.compile(program(steps, arena_bytes=128))([x])
    assert chip.take(z, V).tolist() == [-2, -4, -6, -8]


def test_a_kernel_without_output_elements_is_not_launched() -> None:
    chip = Chip()
    slots = slot("input", f32[0]), slot("output", f32[0])
    chip.compile(program([KernelStep(negation("k0", 0), slots, HERE)]))([chip.alloc(0)])
    assert "launch k0" not in chip.events


def broken(where: str, error: Exception) -> Chip:
    def fail(*_: object) -> None:
        raise error

    chip = Chip()
    setattr(chip, where, fail)
    return chip


def test_what_render_raises_becomes_a_compile_error_with_the_kernel() -> None:
    raised = KeyError("tanh")
    with pytest.raises(CompileError) as caught:
        broken("render", raised).compile(twice())
    assert caught.value.__cause__ is raised
    assert "render of kernel k0 failed: KeyError: 'tanh'" in str(caught.value)
    assert caught.value.source == str(negation("k0"))
    assert caught.value.location is HERE


def test_what_load_raises_becomes_a_compile_error_with_source_and_log() -> None:
    with pytest.raises(CompileError) as caught:
        broken("load", RuntimeError("line 1: unknown word\nline 2: sigh")).compile(twice())
    assert caught.value.source == "negate 4"
    assert caught.value.log == "line 1: unknown word\nline 2: sigh"
    assert "  line 2: sigh" in str(caught.value).splitlines()


def test_a_compile_error_of_the_vendor_stays_itself_and_gains_the_source() -> None:
    theirs = CompileError("assembler gave up", log="register pressure")
    with pytest.raises(CompileError) as caught:
        broken("load", theirs).compile(twice())
    assert caught.value is theirs
    assert (theirs.source, theirs.location) == ("negate 4", HERE)


def test_unsupported_passes_through_render() -> None:
    with pytest.raises(UnsupportedError, match="no double") as caught:
        broken("render", UnsupportedError("no double precision")).compile(twice())
    assert caught.value.location is HERE
    assert caught.value.instruction == "kernel k0(f32[4], f32[4])"


def test_what_launch_raises_names_the_kernel() -> None:
    chip = broken("launch", RuntimeError("bad grid"))
    x = chip.put(ARRAYS[0])
    with pytest.raises(DeviceError) as caught:
        chip.compile(twice())([x])
    assert str(caught.value) == (
        "k0: RuntimeError: bad grid\n"
        "  at model.py:12 (forward)\n"
        "  in instruction: kernel k0(f32[4], f32[4])"
    )
    assert set(chip.blocks) == {x}


# Loops


class LoopsChip(Memory, LoopsDevice):
    """Runs the very text of loops."""

    capabilities = Capabilities(kernels=claims(["neg"], ["f32"]))

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def render(self, func: Func) -> str | bytes:
        self.events.append(f"render {func.name}")
        return str(func)

    def load(self, source: str | bytes, name: str) -> object:
        self.events.append(f"load {name}")
        return parse_func(str(source))

    def launch(self, loaded: Any, func: Func, views: list[BufferView]) -> None:
        self.events.append(f"launch {func.name}")
        assert loaded.content == func.content
        evaluate_func(loaded, [self.array(view) for view in views])


LOOPS = """\
func k0(b0: in f32[4], b1: out f32[4]) {
  for g0 in 4 parallel {
    %0: f32 = b0[g0]
    %1: f32 = neg(%0)
    b1[g0] = %1
  }
}"""
#: Two elements, from the second input to the second output.
HX, HZ = slot("input", f32[2], 1), slot("output", f32[2], 1)


def different() -> list[KernelStep]:
    """Two different kernels."""
    return [
        KernelStep(negation("k0"), (X, Z), HERE),
        KernelStep(negation("k1", 2), (HX, HZ), HERE),
    ]


def three() -> Program:
    """``-(-x)`` and ``-y`` of other sizes; the first and the last kernel are equal."""
    middle = different()[1]
    first = KernelStep(negation("k0"), (X, T), HERE)
    last = KernelStep(negation("k2"), (T, Z), HERE)
    return program([first, middle, last], arena_bytes=80)


def test_a_device_of_loops_gets_each_kernel_lowered_and_equal_ones_once() -> None:
    seen = []

    class Seeing(LoopsChip):
        def schedule(self, func: Func) -> Schedule:
            seen.append(str(func))
            return Schedule()

    chip = Seeing()
    run = chip.compile(twice())
    assert seen == [LOOPS, LOOPS.replace("k0", "k1")]
    assert chip.events == ["render k0", "load k0"]
    assert run.source == LOOPS
    [z] = run([chip.put(ARRAYS[0])])
    assert chip.events[2:] == ["launch k0", "launch k1"]
    assert chip.take(z, V).tolist() == [1, 2, 3, 4]


def vectors(func: Func) -> Schedule:
    return Schedule.parse("vectorize g0")


def test_what_a_schedule_gives_is_rendered_and_launched() -> None:
    class Vectors(LoopsChip):
        def schedule(self, func: Func) -> Schedule:
            return vectors(func)

    chip = Vectors()
    run = chip.compile(twice())
    assert "for g0 in 4 vector {" in run.source
    [z] = run([chip.put(ARRAYS[0])])
    assert chip.take(z, V).tolist() == [1, 2, 3, 4]


def test_a_device_and_its_backend_may_have_core_choose_by_their_row() -> None:
    class ByRow(LoopsChip, ChosenLoopsDevice):
        target = Target(vector_bits=64)

    chip = ByRow()
    run = chip.compile(twice())
    assert "for g0.v in 4 vector {" in run.source
    assert chip.take(run([chip.put(ARRAYS[0])])[0], V).tolist() == [1, 2, 3, 4]
    parts: Any = ("toy", None, chip.capabilities)
    backend = ChosenLoopsBackend(*parts, render=str, target=chip.target)
    assert backend.lower(twice()).source == run.source


def test_a_step_that_does_not_fit_the_loops_is_an_error_at_the_user_s_line() -> None:
    class Wrong(LoopsChip):
        def schedule(self, func: Func) -> Schedule:
            return Schedule.parse("vectorize s0_0")

    with pytest.raises(ScheduleError, match="s0_0") as caught:
        Wrong().compile(twice())
    assert caught.value.location is HERE


def test_scratch_is_a_last_view_behind_the_planned_slots() -> None:
    class Wide(LoopsChip):
        def scratch_bytes(self, func: Func) -> int:
            return {4: 100, 2: 40}[func.outputs[0].size]

        def launch(self, loaded: Any, func: Func, views: list[BufferView]) -> None:
            *views, scratch = views
            self.array(scratch)[...] = 0x55
            seen.append((func.name, scratch.offset, str(scratch.type)))
            super().launch(loaded, func, views)  # which needs none

    seen: list[tuple[str, int, str]] = []
    chip = Wide()
    first, second = chip.compile(three())([chip.put(a) for a in ARRAYS])
    assert seen == [("k0", 128, "u8[100]"), ("k1", 128, "u8[40]"), ("k2", 128, "u8[100]")]
    assert chip.take(first, V).tolist() == ARRAYS[0].tolist()
    assert chip.take(second, HZ.type).tolist() == [-10, -20]
    assert set(chip.blocks) == {1, 2, first, second}


class Batched(LoopsChip):
    def build(self, codes: Sequence[Func]) -> list[tuple[str | bytes, object]]:
        self.events.append(f"build {', '.join(func.name for func in codes)}")
        source = "\n\n".join(map(str, codes))
        return [(source, parse_func(text)) for text in source.split("\n\n")]


def test_the_code_of_a_program_can_be_built_together() -> None:
    chip = Batched()
    run = chip.compile(three())
    first, _ = run([chip.put(a) for a in ARRAYS])
    assert chip.events == ["build k0, k1", "launch k0", "launch k1", "launch k2"]
    assert run.source == "\n\n".join([LOOPS, str(lower_kernel(negation("k1", 2)))])
    assert chip.take(first, V).tolist() == ARRAYS[0].tolist()


class Quick(Batched):
    def build_quickly(self, codes: Sequence[Func]) -> list[tuple[str | bytes, object]]:
        self.events.append("quickly")
        return self.build(codes)


def test_code_that_is_built_quickly_is_for_programs_of_a_few_calls_alone() -> None:
    chip, quick = Quick(), replace(twice(), optimize=False)
    kept = [chip.compile(each) for each in (quick, quick, twice())]
    assert chip.events == ["quickly", "build k0", "build k0"]
    chip = Quick()
    kept += [chip.compile(each) for each in (twice(), quick)]
    assert chip.events == ["build k0"]


def test_a_device_that_loads_no_code_is_told_what_to_write() -> None:
    Nothing = type("Nothing", (LoopsChip,), {"load": LoopsDevice.load})
    with pytest.raises(BackendError, match="Nothing has neither `load` nor `build`"):
        Nothing().compile(twice())


def test_code_that_is_not_built_is_an_error() -> None:
    chip = Batched()
    chip.build = lambda codes: [("one", "one")]  # type: ignore[method-assign]
    with pytest.raises(CompileError, match="build gave nothing for kernel k1"):
        chip.compile(program(different()))


def test_a_program_that_cannot_be_built_as_a_whole_names_its_kernels() -> None:
    class Failing(LoopsChip):
        def build(self, codes: Sequence[Func]) -> list[tuple[str | bytes, object]]:
            raise RuntimeError("no linker")

    with pytest.raises(CompileError) as caught:
        Failing().compile(program(different()))
    assert "build of kernels k0, k1 failed: RuntimeError: no linker" in str(caught.value)
    assert "func k0(" in str(caught.value.source)
    assert "func k1(" in str(caught.value.source)
    assert caught.value.location is None
    with pytest.raises(CompileError) as caught:
        Failing().compile(twice())
    assert caught.value.location is HERE


def test_what_a_schedule_raises_becomes_a_compile_error_with_the_kernel() -> None:
    class Failing(LoopsChip):
        def schedule(self, func: Func) -> Schedule:
            raise KeyError(func.name)

    with pytest.raises(CompileError) as caught:
        Failing().compile(twice())
    assert "lowering of kernel k0 failed: KeyError: 'k0'" in str(caught.value)
    assert caught.value.source == str(negation("k0"))
    assert caught.value.location is HERE


def test_a_backend_of_parts_renders_without_a_device() -> None:
    def backend(**functions: Any) -> SimpleBackend:
        return SimpleBackend("toy", lambda _: LoopsChip(), LoopsChip.capabilities, **functions)

    def render(func: Func) -> str:
        return f"source of {func.name}"

    with pytest.raises(UnsupportedError, match="does not lower without a device"):
        backend().lower(twice())
    assert backend(render=render).lower(twice()) == Lowered("source of k0", "")
    both = backend(render=str, schedule=vectors).lower(program(different()))
    assert both.source.count(" vector {") == 2
    (step,) = twice().steps[:1]
    assert isinstance(step, KernelStep)
    assert backend().scheduled(step) is None
    shown = backend(render=str, schedule=vectors).scheduled(step)
    assert shown is not None
    assert str(shown.before) == LOOPS
    assert str(shown) == "vectorize g0\n\n" + LOOPS.replace("parallel", "vector")


def test_a_backend_of_parts_renders_kernels_without_a_device() -> None:
    backend = SimpleBackend(
        "toy",
        lambda _: LoopsChip(),
        LoopsChip.capabilities,
        render_kernel=lambda kernel: f"kernel {kernel.name}",
    )
    assert backend.lower(twice()) == Lowered("kernel k0", "")  # equal kernels are shown once
    (step,) = twice().steps[:1]
    assert isinstance(step, KernelStep)
    assert backend.scheduled(step) is None


def test_a_backend_of_parts() -> None:
    backend = SimpleBackend("toy", lambda index: Toy(), Toy.capabilities)
    assert [(d.index, d.product) for d in backend.devices()] == [(0, "toy")]
    assert backend.capabilities("any") is Toy.capabilities
    assert isinstance(backend.open(0), Toy)


def test_the_examples_of_the_docstrings_run() -> None:
    failed, tried = doctest.testmod(adapters)
    assert tried > 10
    assert failed == 0
