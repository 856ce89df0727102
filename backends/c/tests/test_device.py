"""Programs on the device: right results, one run of the compiler each, little code."""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
import bringup_c
from bringup.backend import DeviceInfo
from bringup.c import C11, scratch_bytes
from bringup.runtime.compiler import lower_graph
from bringup.runtime.devices import OpenDevice
from bringup_c import compiler, plugin

LINES = 150
LAYOUT = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip


def code_lines(text: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_the_device_is_at_most_150_lines_with_everything() -> None:
    files = sorted(Path(bringup_c.__file__).parent.rglob("*.py"))
    assert len(files) == 4
    assert 50 < sum(code_lines(file.read_text("utf-8")) for file in files) <= LINES


def test_source_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CC", "/nowhere/cc")
    graph = bu.jit(lambda x: x + x).lower(bu.float32[4]).graph
    lowered = lower_graph(graph, plugin.bringup_backend())
    assert "void k0_add(void *const *buffers, int64_t begin, int64_t end" in lowered.source


@pytest.fixture
def device(installed: str) -> OpenDevice:
    backend = plugin.bringup_backend()
    return OpenDevice("c", 0, backend, backend.open(0), DeviceInfo(0, installed))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the compiler is run with meanwhile."""
    commands: list[list[str]] = []
    run = subprocess.run

    def recorded(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    return commands


def test_all_functions_of_a_program_are_compiled_at_once(
    device: OpenDevice, runs: list[list[str]]
) -> None:
    def body(x: Any, w: Any) -> Any:
        return bu.nn.softmax(bu.tanh(x) @ w, axis=-1)

    random = np.random.default_rng(7)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((5, 40), (40, 700)))
    jitted = bu.jit(body, device=device)
    lowered = jitted.lower(x, w)
    assert len(lowered.kernels) > 1
    (run,) = runs
    assert run[:-4] == [*compiler.command(), *compiler.FLAGS]
    # Rows of 700 f32 are more than a local array: they stand in scratch.
    assert any(scratch_bytes(func, C11) for func in lowered.loops)
    result = np.asarray(jitted(x, w))
    terms = np.tanh(x.astype("f8"))
    logits = terms @ w
    exact = np.exp(logits - logits.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    # To first order, in units in the last place: of a logit those of tanh and of 41 roundings, and
    # the rounding of its distance from the largest; then exp, a sum of 700, and a division.
    sizes = np.abs(terms) @ np.abs(w)
    logit_error = (4 + 41 / 2) * sizes.max() + np.abs(logits).max()
    bound = (2 * logit_error + 2 * 2 + 700 / 2 + 1 / 2) * 2.0**-23
    assert np.abs(result / exact - 1).max() < 1.01 * bound < 0.01
    jitted(x, w)
    assert len(runs) == 1


def test_attention_is_one_function_that_keeps_no_scores(device: OpenDevice) -> None:
    random = np.random.default_rng(9)
    q, k, v = (random.standard_normal((2, n, 8), np.float32) for n in (40, 300, 300))

    def body(q: Any, k: Any, v: Any) -> Any:
        return bu.nn.attention(q, k, v, scale=0.25, causal=True)

    lowered = bu.jit(body, device=device).lower(q, k, v)
    assert [func.name for func in lowered.loops] == ["o0_attention"]
    assert lowered.program.arena_bytes == 0
    scores = np.einsum("bid,bjd->bij", *(x.astype("f8") for x in (q, k))) * 0.25
    scores[:, np.arange(300) > np.arange(40)[:, None] + 260] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = weights / weights.sum(axis=-1, keepdims=True) @ v
    # To first order, in units of the last place: of a score 8 products, the scale, and its distance
    # from the largest; of a weight exp twice and a product for each of 8 blocks; two sums of 300.
    score_error = (8 + 1 + 2) * (np.abs(q).sum(-1).max() * np.abs(k).max() * 0.25)
    bound = (2 * (score_error + 8 * (2 * 2 + 1) + 300) + 1) * 2.0**-24 * np.abs(v).max()
    result = np.asarray(bu.jit(body, device=device)(q, k, v))
    assert np.abs(result - exact).max() < bound < 0.001


def test_arrays_are_seen_where_they_are(device: OpenDevice) -> None:
    x = bu.asarray(np.arange(6, dtype=np.int32).reshape(2, 3), device=device)
    doubled = x + x
    assert np.shares_memory(np.asarray(doubled), np.asarray(doubled))
    assert np.asarray(doubled).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_buffers_are_aligned_and_may_be_empty(device: OpenDevice) -> None:
    assert device.device.alloc(0).size == 0
    for nbytes in (1, 100):
        handle = device.device.alloc(nbytes)
        assert handle.size == nbytes
        assert handle.ctypes.data % device.capabilities.alignment == 0
