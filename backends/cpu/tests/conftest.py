"""What the tests of this backend share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new interpreter with a cache of the test's own; it must exit with 0.

    options: of the interpreter.  environment: on top of this process's; nothing of the SDK's own.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BRINGUP_")}

    def run(
        code: str, *options: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**inherited, "XDG_CACHE_HOME": str(tmp_path), **environment}
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", *options, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run
