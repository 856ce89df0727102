"""Three reports to look at: a clean one, one of a device with two planted faults, and one of a
device that crashes, hangs and runs out of memory.

    python conformance/examples/reports.py FOLDER [DEVICE]

The first two are of DEVICE, by default the first that is ready; faults go round its backend.  Takes
about a minute, so the run on the faults is a part of a whole one, and says so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bringup.backend import Backend
from bringup.runtime.devices import get
from bringup_conformance import Report, run
from bringup_selftest.control import target_of
from bringup_selftest.corpus import faults

#: ``c - x`` computed as ``x - c`` in kernels; ``x * 0`` made 0 by a pass, NaN or not.
PLANTED = ("FU14b", "SV06")

#: A backend in a distribution of its own, so that worker processes find it and may die of it.
FRAGILE = """
import os, time
from bringup.backend import Handshake, hookimpl
from bringup_selftest.corpus import with_ops
from bringup_selftest.device import Reference

def no_room(call):
    raise MemoryError("no room for the result")

ENDS = {"exp": lambda call: os.abort(), "floor": lambda call: time.sleep(60), "sqrt": no_room}

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return with_ops(ENDS)(Reference(simulated=True, name="fragile"))
"""


def clean(device: str, folder: Path) -> Report:
    """A run on the device as it is."""
    return run(device, "smoke", report=folder)


def two_faults(device: str, folder: Path) -> Report:
    """A run on the device with the faults planted."""
    backend: Backend = get(device).backend
    for fault in faults():
        if fault.id in PLANTED:
            backend = fault.inject(backend)
    backend.name = f"{device}-with-{'-'.join(PLANTED)}"
    return run(target_of(backend), "fusion", fraction=(1, 10), report=folder)


def crashing(folder: Path, plugin: Path) -> Report:
    """A run on a device that takes its process with it; the plugin is written for it."""
    info = plugin / "bringup_fragile-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bringup-fragile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bringup.backends]\nfragile = fragile_device\n")
    (plugin / "fragile_device.py").write_text(FRAGILE)
    sys.path.insert(0, str(plugin))
    return run("fragile", "smoke", timeout=5.0, report=folder)


def main() -> None:
    """Write the three folders."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("device", nargs="?", default="")
    given = parser.parse_args()
    folder, device = given.folder, given.device or get().name
    made = {
        "clean": clean(device, folder / "clean"),
        "two-faults": two_faults(device, folder / "two-faults"),
        "crashing": crashing(folder / "crashing", folder / "plugin"),
    }
    for name, report in made.items():
        counts = f"{report.passed} passed, {report.failed} failed"
        sys.stdout.write(f"{folder / name / 'report.html'}: {counts}\n")


if __name__ == "__main__":
    main()
