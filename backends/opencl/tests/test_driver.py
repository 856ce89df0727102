"""The folder that each process has for what PoCL and pyopencl keep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyopencl", reason="no pyopencl")
pytest.importorskip("fcntl", reason="folders are not locked on Windows")

READY = "import bringup_opencl.driver, sys; print('ready', flush=True); sys.stdin.read()"


def started(folder: Path) -> subprocess.Popen[str]:
    """A process that has its folder, until its input ends."""
    environment = os.environ | {"TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", READY]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_folders_of_killed_processes_go_at_the_next_start(tmp_path: Path) -> None:
    killed, living = started(tmp_path), started(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    started(tmp_path).communicate()
    (left,) = tmp_path.iterdir()
    started(tmp_path).communicate()
    assert list(tmp_path.iterdir()) == [left]
    living.communicate()
    assert not list(tmp_path.iterdir())
