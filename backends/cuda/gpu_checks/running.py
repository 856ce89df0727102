"""Running the parts in processes of their own, and writing down what they find as it comes."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_checks import bars, tables
from gpu_checks.packing import BACKEND, ROOT, commit
from gpu_checks.parts import Part

FORMAT = 1
SANITIZER = "compute-sanitizer"
#: What compute-sanitizer ends with where it found something.
FOUND = 86
#: Between being asked to end and being ended.
GRACE = 5.0
_SHOWN = 2000
_ERROR = re.compile(r"(error|[\w.]+(Error|Exit|Exception)): ")


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for.

    results: folder of what is found.  work: a folder of this run's own.
    packed: folder to install from, into ``site``; None to take what is installed.
    """

    device: str
    quick: bool
    seconds: float
    results: Path
    work: Path
    packed: Path | None
    site: Path | None


def run(asked: Run, parts: Sequence[Part]) -> int:
    """Run parts; 1 if one failed or a bar was missed.  Parts not chosen keep what was found."""
    until = time.monotonic() + asked.seconds
    asked.results.mkdir(parents=True, exist_ok=True)
    path = asked.results / f"gpu-{_slug(asked)}.json"
    found = _begun(path, asked)
    # Few parts in much time may take longer than they do among all.
    patience = max(1.0, asked.seconds / sum(part.seconds for part in parts))
    for part in parts:
        left = until - time.monotonic()
        found["parts"][part.name] = record = {"title": part.title, "commit": commit(asked.packed)}
        seconds = min(part.seconds * patience, left)
        _run_part(asked, part, seconds, record, lambda: _write(path, found))
        # After each part: the machine may go at any time.
        found["bars"] = bars.judge(found)
        _write(path, found)
        path.with_suffix(".md").write_text(tables.table(found))
        _say(f"{part.name:12} {record['status']:12} {record['seconds']:6.1f} s  {_digest(record)}")
    _say(f"{path}\n{tables.bars_table(found)}")
    good = all(each["status"] in ("done", "skipped") for each in found["parts"].values())
    return 0 if good and not any(bar["met"] is False for bar in found["bars"]) else 1


def _begun(path: Path, asked: Run) -> dict[str, Any]:
    before: dict[str, Any] = {}
    if path.is_file():
        before = json.loads(path.read_text())
        if before.get("quick") != asked.quick or before.get("format") != FORMAT:
            before = {}
    return {
        "format": FORMAT,
        "device": asked.device,
        "emulated": "emulated" in asked.device,
        "quick": asked.quick,
        "product": _product(asked),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(asked.packed),
        "environment": {"python": platform.python_version(), **_driver()},
        "parts": before.get("parts", {}),
        "bars": [],
    }


def _run_part(asked: Run, part: Part, seconds: float, record: dict[str, Any], write: Any) -> None:
    """One part, into its record: status, seconds, rows, and why it failed."""
    record.update(status="skipped", seconds=0.0, rows=[])
    why = _why_not(asked, part, seconds)
    if why:
        record["why"] = why
        return
    out, log = asked.work / f"{part.name}.jsonl", asked.work / f"{part.name}.log"
    out.write_text("")
    begin = time.monotonic()
    with log.open("wb") as opened:
        process = subprocess.Popen(
            _command(asked, part, out, seconds),
            cwd=ROOT, env=_environment(asked), stdout=opened, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        record["status"] = "running"
        status = _wait(process, begin + seconds + GRACE, lambda: _collect(out, record, write))
    record["seconds"] = round(time.monotonic() - begin, 1)
    _collect(out, record, write)
    _conclude(record, status, log.read_text(errors="replace"), part)
    write()


def _why_not(asked: Run, part: Part, seconds: float) -> str:
    if seconds < 1:
        return "no time was left"
    if part.work == "install" and asked.packed is None:
        return "nothing to install from: no --packed"
    if part.tool and "emulated" in asked.device:
        return "the emulator does these checks itself, in every launch"
    if part.tool and find_sanitizer() is None:
        return f"{SANITIZER} is not on the machine"
    return ""


def _conclude(record: dict[str, Any], status: int | None, log: str, part: Part) -> None:
    rows = record["rows"]
    if status is None:
        record["status"] = "out of time"
    elif status == 0:
        record["status"] = "done"
    else:
        record["status"] = "failed"
        record["why"] = _last_words(log) or f"exit status {status}"
    if part.tool:
        summary = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*", log)
        record["summary"] = summary[-1].strip("= ") if summary else "no summary"
        if status == FOUND:
            record["why"] = log[-2 * _SHOWN :]
    if any(row.get("wrong") or row.get("failed") for row in rows):
        record["status"] = "failed"
        record.setdefault("why", "rows of it failed")


def _wait(process: subprocess.Popen[bytes], until: float, look: Any) -> int | None:
    """The exit status, or None if it had to be ended."""
    while time.monotonic() < until:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            look()
    for way in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, way)
            process.wait(timeout=GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return None


def _collect(out: Path, record: dict[str, Any], write: Any) -> None:
    # A line that is still being written has no end yet.
    lines = out.read_text().split("\n")[:-1]
    rows = [json.loads(line) for line in lines]
    if len(rows) != len(record["rows"]):
        record["rows"] = rows
        write()


def _command(asked: Run, part: Part, out: Path, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "gpu_checks.work", part.work, "--out", str(out)]
    command += ["--device", asked.device, "--seconds", str(round(seconds, 1))]
    command += ["--quick"] if asked.quick else []
    if part.work == "install":
        command += ["--packed", str(asked.packed), "--site", str(asked.site)]
    tool = find_sanitizer() if part.tool else None
    if tool is None:
        return command
    options = ["--target-processes", "all", "--error-exitcode", str(FOUND)]
    # What the driver refuses is raised, or was asked on purpose.
    options += ["--report-api-errors", "no"] if part.tool == "memcheck" else []
    return [tool, "--tool", part.tool, *options, *command]


def _environment(asked: Run) -> dict[str, str]:
    """What was installed comes before what the machine has; of jax, no more memory than it uses."""
    places = [*([str(asked.site.resolve())] if asked.site else []), str(BACKEND)]
    places += [str(BACKEND / "emulator")] if "emulated" in asked.device else []
    if os.environ.get("PYTHONPATH"):
        places.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def find_sanitizer() -> str | None:
    """NVIDIA's checker of memory and races."""
    toolkit = Path("/usr/local/cuda/bin")
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=str(toolkit))


def _driver() -> dict[str, str]:
    asked = "--query-gpu=name,driver_version,memory.total"
    try:
        done = subprocess.run(
            ["nvidia-smi", asked, "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    line = done.stdout.partition("\n")[0].split(", ")
    return dict(zip(("gpu", "driver", "memory"), line, strict=False)) if len(line) == 3 else {}


def _product(asked: Run) -> str:
    return asked.device if "emulated" in asked.device else _driver().get("gpu", asked.device)


def _slug(asked: Run) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _product(asked).lower()).strip("-")


def _write(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all."""
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)


def _last_words(log: str) -> str:
    return log.strip()[-_SHOWN:]


def _digest(record: dict[str, Any]) -> str:
    if record.get("why"):
        lines = str(record["why"]).strip().split("\n")
        named = [line for line in lines if _ERROR.match(line)]
        return (named or lines)[-1][:160]
    return str(record.get("summary") or f"{len(record['rows'])} rows")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
