"""Search for faster schedules of the launches that lose most."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.errors import UnsupportedError
from bringup.runtime import compiler, tuned
from bringup.runtime.devices import OpenDevice
from bringup.runtime.tune import Tuned, tune
from bringup_conformance.bench.measure import Bench
from bringup_conformance.bench.workloads import WORKLOADS


def improve(device: OpenDevice, found: Bench, seconds: float) -> Iterator[Tuned]:
    """Tune the programs of `Bench.launches`, as ``bringup tune`` does, and keep what is faster.

    seconds: for all of it; each program gets an equal share.
    """
    names = list(dict.fromkeys(launch.workload for launch in found.launches if launch.schedule))
    size = list(found.roofs.bandwidth)[-1]
    for workload in WORKLOADS:
        if workload.name not in names:
            continue
        try:
            results = list(tune(workload.compiled(size), device, seconds / len(names)))
        except UnsupportedError:
            continue  # it runs by no loops that a schedule could change
        faster = dict(each.entry for each in results if each.is_faster)
        if faster:
            tuned.write(tuned.path_of(device.machine), faster)
        yield from results
    compiler.forget()
