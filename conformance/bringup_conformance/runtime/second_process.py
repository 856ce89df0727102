"""Another process that runs near-identical programs: ``python -m … name seed order``.

Prints a line of JSON: what was wrong, empty if nothing was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bringup_conformance.execution import code_coverage, heartbeat
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.generate.choices import Stream
from bringup_conformance.runtime.cache_key_cases import families
from bringup_conformance.runtime.fixture import CheckFailed, DeviceFixture, summary_of
from bringup_conformance.runtime.programs import Sample, call_sample

# What a process may take, in seconds, where nobody watches this one.
_PATIENCE = 300.0
_TICK = 0.5
_MODULE = "bringup_conformance.runtime.second_process"
_RULES = ("cache.key-constant", "cache.key-operands", "cache.key-structure")


def fixture_of(name: str, seed: int) -> DeviceFixture:
    """A device opened in this process."""
    target = DeviceTarget.named(name)
    info = summary_of(target.capabilities, Support(target.missing), seed)
    assert not isinstance(info, str)
    return DeviceFixture(info, target)


def run_here(name: str, seed: int, which: int) -> str:
    """Open a device and run every program that other processes run too; what is wrong, or ""."""
    dut = fixture_of(name, seed)
    try:
        for sample in _in_random_order(dut, which):
            call_sample(dut, sample, f"{sample.name} in another process")
    except CheckFailed as broken:
        return broken.problem.what
    return ""


def _in_random_order(dut: DeviceFixture, which: int) -> Iterator[Sample]:
    by_rule = families(dut)
    samples = [sample for rule in _RULES for sample in by_rule[rule]]
    order = Stream(dut.info.seed, "turn", which)
    while samples:
        yield samples.pop(order.integer(0, len(samples) - 1))


def start(name: str, seed: int, which: int, caches: Path) -> subprocess.Popen[str]:
    """Another interpreter whose files of compiled programs, if it keeps any, are in a folder."""
    folder = str(caches)
    words = (name, str(seed), str(which))
    return started(_MODULE, *words, XDG_CACHE_HOME=folder, LOCALAPPDATA=folder)


def started(module: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Another interpreter that runs a module: `begin` in it, and `wait` for what it tells."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait(process: subprocess.Popen[str]) -> str:
    """What was wrong in another interpreter, or "".

    That it computes is a sign of life of this process, which is watched in its place.
    """
    until = time.monotonic() + _PATIENCE
    worked = heartbeat.cpu_seconds(process.pid) or 0.0
    while True:
        try:
            out, err = process.communicate(timeout=_TICK)
            break
        except subprocess.TimeoutExpired:
            if not heartbeat.is_watched() and time.monotonic() > until:
                process.kill()
                process.communicate()
                return f"it did not end in {_PATIENCE:.0f} s"
            now = heartbeat.cpu_seconds(process.pid)
            if now is None or now > worked:
                worked = now or 0.0
                with heartbeat.phase("waiting"):
                    continue
    if process.returncode != 0:
        last = (err.strip().splitlines() or ["nothing on standard error"])[-1]
        return f"it ended with status {process.returncode}: {last}"
    said: str = json.loads(out.splitlines()[-1])
    return said


def begin() -> None:
    """The start of another interpreter's work."""
    code_coverage.begin()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def tell(what: str) -> None:
    """What was wrong: the last line of the output, whatever a backend prints before it."""
    sys.stdout.write(json.dumps(what) + "\n")


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(_TICK)
    os._exit(1)


if __name__ == "__main__":
    begin()
    tell(run_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
