"""Ask a plugin for its state in an interpreter of its own: a crash or a hang there is an answer."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

from bringup.backend.device import DeviceInfo
from bringup.backend.discovery import BackendStatus, Candidate, candidates, describe, select
from bringup.backend.loading import load_candidate, with_devices

SECONDS = 60.0
_PROGRAM = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from bringup.backend.probing import answer
answer(request["name"])
"""


def probe_elsewhere(candidate: Candidate, seconds: float = SECONDS) -> BackendStatus:
    """The state of a plugin and its devices, found in a new interpreter with the same path."""
    import subprocess

    known = describe(candidate)
    if not sys.executable:  # embedded in another program
        return replace(known, reason="no Python interpreter to try it in")
    request = json.dumps({"path": sys.path, "name": candidate.name})
    # The child's trace would overwrite ours.
    environment = {k: v for k, v in os.environ.items() if k != "BRINGUP_TRACE"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=request.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
            env=environment,
        )
    except OSError as error:  # it is for another processor, or gone
        reason = f"{sys.executable} does not start: {error.strerror}"
        return replace(known, reason=f"no Python interpreter to try it in: {reason}")
    except subprocess.TimeoutExpired as late:
        output = (late.stderr or b"").decode(errors="replace")
        return _broken(known, f"it did not answer within {seconds:g} s", output)
    output = done.stderr.decode(errors="replace")
    if done.returncode or not done.stdout:
        return _broken(known, _exit_reason(done.returncode), output)
    return replace(_status(json.loads(done.stdout)), output=output)


def answer(name: str) -> None:
    """The child's side: write the status as JSON where only the parent reads, and leave at once."""
    reply = os.dup(1)
    os.dup2(2, 1)  # native code prints to the descriptor, not to sys.stdout
    sys.stdout = sys.stderr  # which is not lost in a crash
    outcome = load_candidate(select(name, candidates()))
    status = outcome.status
    if outcome.backend is not None:
        status = with_devices(status, outcome.backend)
    sys.stderr.flush()
    with os.fdopen(reply, "w") as stream:
        json.dump(asdict(status), stream, default=str)
    os._exit(0)  # a driver's threads and exit handlers may hang


def _status(fields: dict[str, Any]) -> BackendStatus:
    devices = tuple(
        DeviceInfo(d["index"], d["product"], tuple(map(tuple, d["details"])))
        for d in fields.pop("devices")
    )
    return BackendStatus(**fields, devices=devices)


def _broken(known: BackendStatus, reason: str, output: str) -> BackendStatus:
    fix = known.fix or f"update {known.distribution}, or report this to its authors"
    return replace(known, state="broken", reason=reason, fix=fix, output=output)


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"its interpreter ended with status {code} before it answered"
    import signal

    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"it crashed its interpreter ({name})"
