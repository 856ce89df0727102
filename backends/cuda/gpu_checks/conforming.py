"""Levels of the conformance suite, as the command line runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from gpu_checks.work import Task

#: Of the seconds of a part, for what is not cases: starting, reducing failures, the report.
RESERVED = 0.3
FAILURES = 8
_QUICK_FRACTION = "1/40"


def work(task: Task) -> bool:
    """The part ``conformance:LEVEL``: the cases of that level alone, as many as fit its time."""
    found = _run(task)
    failures = found.pop("failures")
    leak = ("level", "passed", "failed", "unsupported", "seconds", "reduced")
    task.row(**{name: found[name] for name in leak}, only=task.argument)
    for device_error in failures[:FAILURES]:
        task.row(
            device_error=device_error["name"],
            what=device_error["what"],
            program=device_error["program"],
        )
    return not found["failed"] and bool(found["passed"])


def _run(task: Task) -> dict[str, Any]:
    words = [
        "run", f"--backend={task.device}", "--level", task.argument, "--only", task.argument,
        "--json", "--time-budget", str(max(1.0, task.left * (1 - RESERVED))),
        "-j", "0" if task.quick else str(min(4, os.cpu_count() or 1)),
    ]  # fmt: skip
    if task.quick and task.argument != "smoke":
        words += ["--fraction", _QUICK_FRACTION]
    script = "from bringup_conformance.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True, check=False
    )
    # 0 and 1 are a run's; with others there is no report.
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"conformance ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
