"""Ask a plugin for its state in an interpreter of its own: a crash or a hang there is an answer."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

from bringup.backend.device import Backend, DeviceInfo
from bringup.backend.discovery import BackendStatus, Candidate, candidates, describe, select
from bringup.backend.loading import load_candidate, sentence, with_devices
from bringup.errors import BackendError

SECONDS = 60.0
_PROGRAM = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from bringup.backend.probing import answer
answer(request["name"], request["opened"])
"""


def probe_elsewhere(
    candidate: Candidate, seconds: float = SECONDS, *, opened: bool = False
) -> BackendStatus:
    """The state of a plugin and its devices, found in a new interpreter with the same path.

    opened: open the first device too, and compare what it claims with what it has.
    """
    import subprocess

    known = describe(candidate)
    if not sys.executable:  # embedded in another program
        return replace(known, reason="no Python interpreter to try it in")
    request = json.dumps({"path": sys.path, "name": candidate.name, "opened": opened})
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


def answer(name: str, opened: bool) -> None:
    """The child's side: write the status as JSON where only the parent reads, and leave at once."""
    reply = os.dup(1)
    os.dup2(2, 1)  # native code prints to the descriptor, not to sys.stdout
    sys.stdout = sys.stderr  # which is not lost in a crash
    outcome = load_candidate(select(name, candidates()))
    status = outcome.status
    if outcome.backend is not None:
        status = with_devices(status, outcome.backend)
        if opened and status.state == "ready":
            status = _with_functions(status, outcome.backend)
    sys.stderr.flush()
    with os.fdopen(reply, "w") as stream:
        json.dump(asdict(status), stream, default=str)
    os._exit(0)  # a driver's threads and exit handlers may hang


def _with_functions(status: BackendStatus, backend: Backend) -> BackendStatus:
    """The status after opening the first device, and comparing its ops with its claims."""
    from bringup.backend.adapters import OpsDevice, claims

    index = status.devices[0].index
    try:
        device = backend.open(index)
    except Exception as raised:  # noqa: BLE001  (a vendor's)
        return _broken(status, f"open({index}) raised {sentence(raised)}", status.output)
    if not isinstance(device, OpsDevice):
        return status
    claimed = set(device.capabilities.ops)
    try:
        covered = {name: set(claims([name], [])) for name in device.ops}
    except BackendError as unknown:
        return _broken(status, unknown.what, status.output)
    missing = sorted(claimed.difference({"constant"}, *covered.values()))  # core uploads constants
    if missing:
        many = "them" if len(missing) > 1 else "it"
        return replace(
            status,
            state="broken",
            reason=f"it claims {', '.join(missing)} and has no function for {many}",
            fix="write the functions in the table of ops, or take them out of Capabilities.ops",
        )
    unused = sorted(name for name, each in covered.items() if claimed.isdisjoint(each))
    if unused:
        many = "them" if len(unused) > 1 else "it"
        reason = f"it has a function for {', '.join(unused)} and does not claim {many}"
        return replace(status, reason=reason)
    return status


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
