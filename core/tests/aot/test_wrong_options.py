"""Arguments of the wrong kind get errors of ours, or none: `export`, `save`, `load`, `write`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import BringupError

F32 = bu.float32[4]
JUNK: list[Any] = [
    None, 0, -1, 1.5, "", "x", "a\0b", b"x", [], {}, (), object(), np.zeros(2), float("nan"), True,
    {1: 2}, F32, abs,
]  # fmt: skip


def plus(x: Any) -> Any:
    return x + 1


def attempt(function: Any, *args: Any, **kwargs: Any) -> None:
    with suppress(BringupError):
        function(*args, **kwargs)


@pytest.mark.parametrize("value", JUNK, ids=lambda value: repr(value)[:20])
def test_junk_is_refused(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function: Any = bu.jit(plus)
    export: Any = bu.export
    save: Any = bu.save
    load: Any = bu.load
    attempt(function.export, value, F32, target="wasm32")
    attempt(function.export, "m", F32, target=value)
    for target in ("c11", "opencl-c", "program"):
        for option in ("weights", "small", "threads", "metadata"):
            attempt(function.export, "m", F32, target=target, **{option: value})
        attempt(export, value, {"f": (plus, F32)}, target=target)
        attempt(export, "m", value, target=target)
        attempt(export, "m", {"f": value}, target=target)
        attempt(export, "m", {"f": (value,)}, target=target)
    for option in ("metadata", "locations"):
        attempt(save, "f.bringup", plus, F32, **{option: value})
    attempt(save, "f.bringup", value, F32)
    save("f.bringup", plus, F32)
    for option in ("entry", "device", "fallback", "copy"):
        attempt(load, "f.bringup", **{option: value})
    attempt(load, value)
    attempt(save, value, plus, F32)
    Path("x").unlink(missing_ok=True)
    attempt(function.export("m", F32, target="c11").write, value)
