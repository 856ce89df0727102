"""Where work runs, and what the device says of itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import bringup as bu
from bringup.backend.device import NoHardware
from bringup.errors import BackendError, BringupError, UnsupportedError
from bringup.graph import Builder
from bringup.ops.table import OpDef, all_ops
from bringup.runtime import timeline
from bringup.runtime.compiled import Compiled
from bringup.runtime.compiler import lower_graph
from bringup.runtime.devices import get
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import DeviceTarget, missing_from
from bringup_conformance.generate.choices import pick
from bringup_conformance.generate.instances import instances
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.runtime.bench import Bench, Promise
from bringup_conformance.runtime.crowds import crowds
from bringup_conformance.runtime.programs import samples
from bringup_conformance.runtime.second import check


def _device_asked(bench: Bench) -> None:
    """Results are where they were asked for; devices that are not there are named."""
    here = bench.open
    x = bench.ramp(12)
    with bu.device(here):
        made = {
            "asarray": bu.asarray(x),
            "zeros": bu.zeros(3),
            "an operation": bu.asarray(x) + 1,
            "a call": bu.jit(lambda a: a + a)(x),
        }
    made["a call by name"] = bench.jit(lambda a: a + a)(x)
    made["an operation on it"] = made["a call by name"] * 2
    made["moved"] = bu.asarray(x, device=here).to(here)
    for what, array in made.items():
        bench.require(array.device is here, f"{what} is on {array.device}, not on {here}")
        bench.host(array)
        bench.require(array.device is here, f"{what} is on {array.device} once it is looked at")
    try:
        get(f"{here.backend_name}:4095")
    except BackendError as error:
        bench.require(error.fix is not None or "4095" not in error.what, f"no fix: {error.what}")
        return
    bench.broken("device 4095 was opened")


def _complete(bench: Bench) -> None:
    """Every node of the optimised graph has a row with device and reason."""
    for sample in samples(bench):
        compiled = bench.lower(sample.fn, *sample.types)
        rows = compiled.placement()
        count = len(compiled.optimized.instrs)
        bench.require(
            len(rows) >= count, f"{sample.name}: {len(rows)} rows for {count} instructions"
        )
        for row in rows:
            bench.require(
                row.device == bench.open.name,
                f"{sample.name}: {row.node} is said to run on {row.device}",
            )
            bench.require(
                bool(row.node and row.reason), f"{sample.name}: {row.node!r} has no reason"
            )


def _without_hardware(bench: Bench) -> None:
    """The backend's answer, asked twice, and the opened device's."""
    here = bench.open
    answers = [here.backend.capabilities() for _ in range(2)]
    bench.require(answers[0] == answers[1], "two answers about capabilities differ")
    if here.index:
        return  # the backend answers for its default device
    bench.require(
        answers[0] == here.device.capabilities,
        "the opened device declares other capabilities than the backend without it",
    )


def _claims_run(bench: Bench) -> None:
    """An instruction of every name that is claimed, with one of its dtypes, by itself."""
    capabilities = bench.facts.capabilities
    for row in all_ops():
        dtypes = [d for d in row.dtypes if _claims(bench, row, d.name)]
        if not dtypes:
            continue
        dtype = pick(bench.choices("claims", row.name), dtypes)
        found = instances(row, dtype, capabilities.shapes, bench.facts.seed, few=True)
        for instance in found[:1]:
            with Builder() as builder:
                results = row(*map(builder.input, instance.operands), **dict(instance.attrs))
                outputs = results if isinstance(results, tuple) else (results,)
                graph = builder.build(outputs, row.name)
            if missing_from(capabilities, graph) is not None:
                continue
            kinds = instance.kinds or ("small",)
            data = [
                Recipe(kinds[i % len(kinds)]).make(type_)
                for i, type_ in enumerate(instance.operands)
            ]
            try:
                made = DeviceTarget(bench.open).compile(graph)(data)
            except BringupError as error:
                bench.broken(f"{row.name} of {dtype} is claimed and fails: {error.what}")
            for array, value in zip(made, graph.outputs, strict=True):
                bench.require(
                    (array.shape, array.dtype) == (value.shape, value.dtype.numpy),
                    f"{row.name} of {dtype} gave {array.dtype}{array.shape}, not {value.type}",
                )


def _claims(bench: Bench, row: OpDef, dtype: str) -> bool:
    kept = bench.facts.capabilities
    return any(
        dtype in {d.name for d in claims.get(name, frozenset())}
        for claims in (kept.ops, kept.kernels)
        for name in row.claims
    )


def _lists_itself(bench: Bench) -> None:
    """The list of devices holds this one, each with a number and a product of its own."""
    here = bench.open
    try:
        infos = list(here.backend.devices())
    except NoHardware as error:
        raise NotOffered(f"its backend lists no hardware: {error}") from None
    indices = [info.index for info in infos]
    bench.require(here.index in indices, f"device {here.index} is not in the list {indices}")
    bench.require(len(set(indices)) == len(indices), f"the list has a number twice: {indices}")
    for info in infos:
        bench.require(bool(info.product.strip()), f"device {info.index} has no product name")


def _lowered_equal(bench: Bench) -> None:
    """The texts of a program for the backend's own target, made twice without the device."""
    backend = bench.open.backend
    for sample in samples(bench):
        graph = bu.trace(sample.fn, *sample.types)
        try:
            first, second = (_texts(lower_graph(graph, backend)) for _ in range(2))
        except UnsupportedError as error:
            raise NotOffered(f"it shows no texts: {error.what}") from None
        bench.require(all(first), f"{sample.name}: a text is empty")
        bench.require(first == second, f"{sample.name}: the texts of one program differ")


def _texts(compiled: Compiled) -> tuple[str, str]:
    return compiled.source, compiled.asm


def _traced_equal(bench: Bench) -> None:
    """Programs that are compiled and run while a timeline is kept."""
    if timeline.enabled():
        raise NotOffered("a timeline is kept already")
    with tempfile.TemporaryDirectory() as folder:
        bu.clear_caches()
        timeline.start(Path(folder, "timeline.json"))
        try:
            for sample in (*samples(bench), *crowds(bench, 33)):
                check(bench, sample, f"{sample.name}, on a timeline")
        finally:
            timeline.stop()
            bu.clear_caches()


PROMISES: tuple[Promise, ...] = (
    Promise(("placement.device-asked",), _device_asked),
    Promise(("placement.complete",), _complete),
    Promise(("declaration.without-hardware",), _without_hardware),
    Promise(("declaration.claims-run",), _claims_run),
    Promise(("declaration.lists-itself",), _lists_itself),
    Promise(("declaration.lowered-equal",), _lowered_equal),
    Promise(("placement.traced-equal",), _traced_equal),
)
