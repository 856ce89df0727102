"""Pages of levels and tables of arrays: whole, true to what was compiled, and safe to show."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bringup as bu
from bringup.cli import app

f32 = bu.float32
VOID = ("meta", "br", "hr")


class Page(HTMLParser):
    """Checks that elements are closed in order; gathers their texts and how many there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.count: dict[str, int] = {}
        self.titles: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def block(x: Any, w: Any) -> Any:
    h = bu.nn.gelu(bu.nn.layer_norm(x) @ w)
    return bu.nn.softmax(bu.cumsum(h, axis=0)), bu.fori_loop(0, 3, lambda _, v: bu.tanh(v @ w), h)


def test_a_page_has_every_level() -> None:
    compiled = bu.jit(block).lower(f32[64, 64], f32[64, 64])
    page = Page(compiled.html())
    for kernel, scheduled in zip(compiled.kernels, compiled.schedules, strict=True):
        assert str(kernel) in page.text
        assert scheduled is None or str(scheduled.after) in page.text
    for func in compiled.loops:
        assert func.name in page.text
    assert compiled.source.strip() in page.text
    cost = compiled.cost()
    assert f"{cost.arena_bytes:,} bytes" in page.text
    assert any("layer_norm, then" in title for title in page.titles), "the graph as traced"
    assert any(title.startswith("launches: ") for title in page.titles)
    assert "body of scan" in page.text
    assert "inputs: dot_general, then tanh" in "\n".join(page.titles), "the body of the loop"


def test_memory_shows_buffers_that_are_needed_at_the_same_time_apart() -> None:
    """Boxes that share steps share no bytes."""
    compiled = bu.jit(block).lower(f32[64, 64], f32[64, 64])
    page = Page(compiled.html())
    shown = [title for title in page.titles if ", steps " in title]
    boxes = []
    for title in shown:
        dtype, shape, offset, first, last = re.fullmatch(
            r"(\w+)\[([\d,]*)\] at ([\d,]+), steps (\d+) to (\d+)", title
        ).groups()  # type: ignore[union-attr]
        nbytes = math.prod(int(n) for n in shape.split(",") if n) * int(dtype[1:]) // 8
        start = int(offset.replace(",", ""))
        boxes.append((start, start + nbytes, int(first), int(last)))
    assert len(boxes) >= 4
    assert max(end for _, end, _, _ in boxes) <= compiled.program.arena_bytes
    for one, other in combinations(boxes, 2):
        together = one[2] <= other[3] and other[2] <= one[3]
        if together:
            assert one[1] <= other[0] or other[1] <= one[0], (one, other)


def test_large_graphs_are_text() -> None:
    def long(x: Any) -> Any:
        for n in range(200):
            x = bu.sin(x) if n % 2 else bu.exp(x)
        return x

    compiled = bu.jit(long).lower(f32[8])
    page = Page(compiled.html())
    assert str(compiled.graph) in page.text


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import bringup as bu\ndef loss(x):\n    return bu.sum(bu.exp(x) * x)\n")
    page = tmp_path / "loss.html"
    done = CliRunner().invoke(app.app, ["dump", f"{source}:loss", "f32[4,8]", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "k0" in Page(page.read_text()).text


def test_a_lowered_function_is_a_frame_in_a_notebook() -> None:
    compiled = bu.jit(lambda x: x + 1).lower(f32[3])
    frame = Page(compiled._repr_html_())
    assert frame.count == {"iframe": 1}
    assert frame.text == "", "the page is an attribute: nothing of it is in the notebook's own"


@pytest.mark.parametrize(
    ("array", "cells"),
    [
        (bu.asarray([[1.5, 2.0], [3.0, 4.0]], dtype=f32), 4),
        (bu.arange(100), 11),
        (bu.zeros((30, 40), dtype=bu.bfloat16), 121),
        (bu.ones((2, 3, 4), dtype=bu.bool), 12),
        (bu.asarray(3.0), 1),
        (bu.zeros((0, 3)), 0),
    ],
)
def test_an_array_is_a_table_in_a_notebook(array: Any, cells: int) -> None:
    page = Page(array._repr_html_())
    assert page.count.get("td", 0) == cells
    assert str(array.device) in page.text


def test_traced_and_deleted_arrays_show_no_values() -> None:
    seen: list[str] = []

    @bu.jit
    def peek(x: Any) -> Any:
        seen.append(x._repr_html_())
        return x + 1

    x = bu.ones(3)
    peek(x)
    bu.jit(lambda v: v + 1, donate_argnums=0)(x)
    assert x.is_deleted
    for text in (*seen, x._repr_html_()):
        assert Page(text).count == {"code": 1}
