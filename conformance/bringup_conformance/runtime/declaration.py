"""Where work runs, and what the device says of itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bringup as bu
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import NoHardware
from bringup.dtypes import f32
from bringup.errors import BackendError, BringupError, UnsupportedError
from bringup.graph import Graph
from bringup.ops.table import Kind, OpDef, all_ops, lookup
from bringup.runtime import timeline
from bringup.runtime.compiled import Compiled
from bringup.runtime.compiler import lower_graph
from bringup.runtime.devices import get
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.support import single
from bringup_conformance.execution.targets import DeviceTarget, missing_from
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.contractions import LAYOUTS, laid_out
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.runtime.arena_pressure import arena_samples
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture
from bringup_conformance.runtime.programs import call_sample, samples

CHECKS = ContractChecks()

#: Sides of products that are lowered and not run.
_SHORT, _LONG = 97, (1024, 4096)
#: What is lowered and not run: folds of many short rows, of long ones, of tall columns, and of
#: dimensions that lie apart; more small lines and matrices than a grid of blocks.
_LARGE: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    ("reduce", (1 << 14, 64), {"kind": "add", "dims": (1,)}),
    ("softmax", (8, 50_257), {"dims": (1,)}),
    ("softmax", (8192, 500), {"dims": (0,)}),
    ("reduce", (32, 3, 3136), {"kind": "add", "dims": (0, 2)}),
    ("cholesky", ((1 << 20) + 5, 2, 2), {}),
)
_UNKNOWN = "no such target"


@CHECKS.shows("placement.device-asked")
def _device_asked(dut: DeviceFixture) -> None:
    """Results are where they were asked for; devices that are not there are named."""
    here = dut.open
    x = dut.ramp(12)
    with bu.device(here):
        compiled = {
            "asarray": bu.asarray(x),
            "zeros": bu.zeros(3),
            "an operation": bu.asarray(x) + 1,
            "a call": bu.jit(lambda a: a + a)(x),
        }
    compiled["a call by name"] = dut.jit(lambda a: a + a)(x)
    compiled["an operation on it"] = compiled["a call by name"] * 2
    compiled["moved"] = bu.asarray(x, device=here).to(here)
    for what, array in compiled.items():
        dut.require(array.device is here, f"{what} is on {array.device}, not on {here}")
        dut.host(array)
        dut.require(array.device is here, f"{what} is on {array.device} once it is looked at")
    try:
        get(f"{here.backend_name}:4095")
    except BackendError as error:
        dut.require(error.fix is not None or "4095" not in error.what, f"no fix: {error.what}")
        return
    dut.fail("device 4095 was opened")


@CHECKS.shows("placement.complete")
def _complete(dut: DeviceFixture) -> None:
    """Every node of the optimised graph has a row with device and reason."""
    for sample in samples(dut):
        compiled = dut.lower(sample.fn, *sample.types)
        rows = compiled.placement()
        count = len(compiled.optimized.instrs)
        dut.require(len(rows) >= count, f"{sample.name}: {len(rows)} rows for {count} instructions")
        for row in rows:
            dut.require(
                row.device == dut.open.name,
                f"{sample.name}: {row.node} is said to run on {row.device}",
            )
            dut.require(bool(row.node and row.reason), f"{sample.name}: {row.node!r} has no reason")


@CHECKS.shows("declaration.without-hardware")
def _without_hardware(dut: DeviceFixture) -> None:
    """The backend's answer, asked twice, and the opened device's."""
    here = dut.open
    answers = [here.backend.capabilities() for _ in range(2)]
    dut.require(answers[0] == answers[1], "two answers about capabilities differ")
    if here.index:
        return  # the backend answers for its default device
    dut.require(
        answers[0] == here.device.capabilities,
        "the opened device declares other capabilities than the backend without it",
    )


@CHECKS.shows("declaration.claims-run")
def _claims_run(dut: DeviceFixture) -> None:
    """An instruction of every name that is claimed, with one of its dtypes, by itself."""
    capabilities = dut.info.capabilities
    for row in all_ops():
        dtypes = [d for d in row.dtypes if _claims(dut, row, d.name)]
        if not dtypes:
            continue
        dtype = pick(dut.choices("claims", row.name), dtypes)
        drawn_instances = instances(row, dtype, capabilities.shapes, dut.info.seed, few=True)
        for instance in drawn_instances[:1]:
            graph = single(row, instance.operands, dict(instance.attrs))
            if missing_from(capabilities, graph) is not None:
                continue
            kinds = instance.kinds or ("small",)
            data = [
                Recipe(kinds[i % len(kinds)]).make(type_)
                for i, type_ in enumerate(instance.operands)
            ]
            try:
                results = DeviceTarget(dut.open).compile(graph)(data)
            except BringupError as error:
                dut.fail(f"{row.name} of {dtype} is claimed and fails: {error.what}")
            for array, value in zip(results, graph.outputs, strict=True):
                dut.require(
                    (array.shape, array.dtype) == (value.shape, value.dtype.numpy),
                    f"{row.name} of {dtype} gave {array.dtype}{array.shape}, not {value.type}",
                )


def _claims(dut: DeviceFixture, row: OpDef, dtype: str) -> bool:
    capabilities = dut.info.capabilities
    return any(
        dtype in {d.name for d in claims.get(name, frozenset())}
        for claims in (capabilities.ops, capabilities.kernels)
        for name in row.claims
    )


@CHECKS.shows("declaration.lists-itself")
def _lists_itself(dut: DeviceFixture) -> None:
    """The list of devices holds this one, each with a number and a product of its own."""
    here = dut.open
    try:
        infos = list(here.backend.devices())
    except NoHardware as error:
        raise NotOffered(f"its backend lists no hardware: {error}") from None
    indices = [info.index for info in infos]
    dut.require(here.index in indices, f"device {here.index} is not in the list {indices}")
    dut.require(len(set(indices)) == len(indices), f"the list has a number twice: {indices}")
    for info in infos:
        dut.require(bool(info.product.strip()), f"device {info.index} has no product name")


@CHECKS.shows("declaration.lowered-equal")
def _lowered_equal(dut: DeviceFixture) -> None:
    """The texts of a program for the backend's own target, made twice without the device."""
    backend = dut.open.backend
    for sample in samples(dut):
        graph = bu.trace(sample.fn, *sample.types)
        try:
            first, second = (_texts(lower_graph(graph, backend)) for _ in range(2))
        except UnsupportedError as error:
            raise NotOffered(f"it shows no texts: {error.what}") from None
        dut.require(all(first), f"{sample.name}: a text is empty")
        dut.require(first == second, f"{sample.name}: the texts of one program differ")


@CHECKS.shows("declaration.targets-lowered")
def _targets_lowered(dut: DeviceFixture) -> None:
    """Programs as large as users have them, without a device; then a target of no name."""
    backend = dut.open.backend
    names = backend.targets()
    if not names:
        raise NotOffered("its backend names no targets")
    for name in names:
        theirs = backend.capabilities(name)
        for graph in (*_products(dut, theirs, name), *_large(dut, theirs, name)):
            _lowers(dut, graph, name)
    if dut.simulated:  # what others run at level ``ops`` is lowered at least
        capabilities = dut.info.capabilities
        for graph in (
            *_products(dut, capabilities, ""),
            *_large(dut, capabilities, ""),
            *_far(dut),
        ):
            _lowers(dut, graph, "")
    small = samples(dut)[0]
    program = bu.trace(small.fn, *small.types)
    for ask in (backend.capabilities, lambda name: lower_graph(program, backend, name)):
        try:
            ask(_UNKNOWN)
        except UnsupportedError:
            continue
        dut.fail(f"the target {_UNKNOWN!r} is taken for another one")


def _lowers(dut: DeviceFixture, graph: Graph, target: str) -> None:
    where = f"{graph.name} of {', '.join(str(v.type) for v in graph.inputs)} for {target!r}"
    try:
        texts = _texts(lower_graph(graph, dut.open.backend, target))
    except BringupError as error:
        dut.fail(f"{where} is not lowered: {error.what}")
    dut.require(all(texts), f"{where}: a text is empty")


def _products(dut: DeviceFixture, capabilities: Capabilities, target: str) -> Iterator[Graph]:
    """Of some float dtypes, of all for the device's own target: in products targets differ most."""
    row, choices = lookup("dot_general"), dut.choices("targets", target)
    dtypes, step = [d for d in row.dtypes if d.is_float], dut.count(2, 4) if target else 1
    for dtype in dtypes[choices.integer(0, step - 1) :: step]:
        short = choices.integer(0, 3)  # which side is, or none
        m, n, k = (_SHORT if side == short else pick(choices, _LONG) for side in range(3))
        lhs, rhs, batch, contract = laid_out((m, n, k), choices.integer(0, LAYOUTS - 1))
        attrs = {"batch": batch, "contract": contract}
        graph = single(row, (dtype[lhs], dtype[rhs]), attrs)
        if missing_from(capabilities, graph) is None:
            yield graph


def _far(dut: DeviceFixture) -> Iterator[Graph]:
    """Instructions in sizes that take too long to simulate: of each row the largest, and another
    where the device has a function for it.
    """
    capabilities, choices = dut.info.capabilities, dut.choices("far")
    for row in all_ops():
        if row.kind is Kind.CONTROL:
            continue
        drawn_instances = [
            instance
            for dtype in row.dtypes
            for instance in instances(row, dtype, capabilities.shapes, dut.info.seed)
            if instance.far
        ]
        if not drawn_instances:
            continue
        chosen = [max(drawn_instances, key=lambda instance: sum(t.size for t in instance.operands))]
        if row.name in capabilities.ops:
            chosen.append(pick(choices, drawn_instances))
        for instance in chosen:
            graph = single(row, instance.operands, dict(instance.attrs))
            if missing_from(capabilities, graph) is None:
                yield graph


def _large(dut: DeviceFixture, capabilities: Capabilities, target: str) -> Iterator[Graph]:
    """One of `_LARGE`; all for the device's own target."""
    forms = (pick(dut.choices("large", target), _LARGE),) if target else _LARGE
    for name, shape, attrs in forms:
        graph = single(lookup(name), (f32[shape],), attrs)
        if missing_from(capabilities, graph) is None:
            yield graph


def _texts(compiled: Compiled) -> tuple[str, ...]:
    """The source, and the assembly of backends that show it."""
    try:
        return compiled.source, compiled.asm
    except UnsupportedError:
        return (compiled.source,)


@CHECKS.shows("placement.traced-equal")
def _traced_equal(dut: DeviceFixture) -> None:
    """Programs that are compiled and run while a timeline is kept."""
    if timeline.enabled():
        raise NotOffered("a timeline is kept already")
    with tempfile.TemporaryDirectory() as folder:
        bu.clear_caches()
        timeline.start(Path(folder, "timeline.json"))
        try:
            for sample in (*samples(dut), *arena_samples(dut, 33)):
                call_sample(dut, sample, f"{sample.name}, on a timeline")
        finally:
            timeline.stop()
            bu.clear_caches()
