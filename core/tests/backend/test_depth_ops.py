"""A device with functions for the tier-0 names alone runs whole programs, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.backend import BufferView, Capabilities, DeviceInfo, OpsDevice, SimpleBackend, claims
from bringup.dtypes import ALL, f32
from bringup.graph import Builder, Graph, Value
from bringup.ops.evaluate import evaluate
from bringup.ops.table import OpDef, all_ops, lookup
from bringup.runtime import timeline, transfer
from bringup.runtime.compiler import compile_graph
from bringup.runtime.devices import OpenDevice

Array = np.ndarray[Any, Any]
TIER0 = [op for op in all_ops() if op.tier == 0]
#: All but `constant`, which core uploads.
CLAIMED = [claim for op in TIER0 for claim in op.tier0_claims if claim != "constant"]


def host(view: BufferView) -> Array:
    data = np.frombuffer(view.handle, np.uint8)[view.offset : view.offset + view.type.nbytes]
    return data.view(view.type.dtype.numpy).reshape(view.type.shape)


def by_reference(op: OpDef) -> Callable[..., None]:
    def run(*operands: BufferView, out: BufferView, **attrs: Any) -> None:
        assert list(attrs) == [a.name for a in op.attrs]  # those with a default too
        with np.errstate(all="ignore"):
            host(out)[...] = op.reference(*map(host, operands), **attrs)

    return run


TABLE = {op.name: by_reference(op) for op in TIER0 if op.name != "constant"}


class Toy(OpsDevice):
    """The six byte methods and a table: what a vendor writes."""

    ops = TABLE
    capabilities = Capabilities(ops=claims(CLAIMED, ALL))

    def alloc(self, nbytes: int) -> bytearray:
        return bytearray(b"\xff" * nbytes)

    def free(self, handle: bytearray) -> None:
        pass

    def upload(self, handle: bytearray, data: memoryview) -> None:
        handle[: len(data)] = data

    def download(self, handle: bytearray, out: memoryview) -> None:
        out[:] = handle[: len(out)]

    def copy(self, target: bytearray, source: bytearray, nbytes: int) -> None:
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None:
        pass


@pytest.fixture(scope="module")
def device() -> OpenDevice:
    toy = Toy()
    backend = SimpleBackend("toy", lambda index: toy, Toy.capabilities)
    return OpenDevice("toy", 0, backend, toy, DeviceInfo(0, "Toy"))


def emit(name: str, *operands: Value, **attrs: Any) -> Value:
    value: Value = lookup(name)(*operands, **attrs)
    return value


def layer(x: Value, w: Value) -> list[Value]:
    y = emit("dot_general", x, w, batch=((), ()), contract=((1,), (0,)))
    return [emit("softmax", emit("relu", y), dims=(1,)), emit("tanh", y), x]


def moments(x: Value, w: Value) -> list[Value]:
    both = emit("concatenate", x, emit("transpose", w, permutation=(1, 0)), dim=0)
    return [emit("mean", both, dims=(0,)), emit("var", both, dims=(1,)), both]


@pytest.mark.parametrize("body", [layer, moments])
def test_programs_decompose_plan_and_run(
    body: Callable[[Value, Value], list[Value]], device: OpenDevice
) -> None:
    with Builder() as b:
        graph: Graph = b.build(body(b.input(f32[4, 8]), b.input(f32[8, 3])))
    random = np.random.default_rng(7)
    inputs = [random.standard_normal(v.shape, np.float32) for v in graph.inputs]
    compiled = compile_graph(graph, device)
    assert compiled.kernels == ()
    assert {step.name for step in compiled.program.steps} <= {op.name for op in TIER0}
    handles = compiled.executable([bytearray(a.tobytes()) for a in inputs])
    for handle, value, expected in zip(
        handles, graph.outputs, evaluate(graph, inputs), strict=True
    ):
        found = host(BufferView(handle, 0, value.type))
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_steps_stand_in_the_timeline(device: OpenDevice, tmp_path: Path) -> None:
    with Builder() as b:
        graph = b.build([emit("exp", emit("mul", b.input(f32[4]), b.input(f32[4])))])
    compiled = compile_graph(graph, device)
    timeline.start(tmp_path / "t.json")
    toy = device.device
    x = transfer.upload(toy, np.float32([1, 2, 3, 4]))
    [y] = compiled.executable([transfer.handle_of(x)] * 2)
    transfer.download(toy, transfer.wrap(toy, y), f32[4])
    compiled.executable([transfer.handle_of(x)] * 2)
    timeline.stop()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    steps = [(e["name"], e["cat"]) for e in events if e["ph"] == "X"]
    assert steps == [
        ("upload", "transfer"),
        ("mul", "kernel"),
        ("exp", "kernel"),
        ("download", "transfer"),
        ("mul", "kernel"),
        ("exp", "kernel"),
    ]
    mul, exp, *again = (e["args"] for e in events if e.get("cat") == "kernel")
    assert mul["first"] is exp["first"] is True
    assert not any("first" in each for each in again)
    assert (mul["bytes"], mul["flops"], exp["bytes"]) == (48, 4, 32)
