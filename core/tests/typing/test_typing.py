"""What mypy and pyright say of uses of the package: no more and no less than a file states."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

#: Not a module: half of it is wrong.
USES = Path(__file__).with_name("uses.py.txt").read_text("utf-8")
NAME = "uses.py"
SETTINGS = "[tool.pyright]\nreportUnusedExpression = false\n"

#: (line, "error" or "type", text)
Message = tuple[int, str, str]


def mypy(folder: Path) -> Iterable[Message]:
    options = ["--strict", "--config-file=", f"--cache-dir={folder}", "--no-error-summary"]
    (folder / NAME).write_text(USES, "utf-8")
    done = run("mypy", *options, "--hide-error-codes", str(folder / NAME))
    assert "Traceback" not in done.stderr, done.stderr
    for line in done.stdout.splitlines():
        found = re.fullmatch(r"(.+?):(\d+): (error|note): (.*)", line)
        assert found is not None, line
        path, number, kind, text = found.groups()
        assert Path(path).name == NAME, line
        revealed = re.fullmatch(r'Revealed type is "(.*)"', text)
        if revealed is not None:
            yield int(number), "type", re.sub(r"\b(?:\w+\.)+(?=\w)", "", revealed[1])
        elif kind == "error":
            yield int(number), "error", text


def pyright(folder: Path) -> Iterable[Message]:
    (folder / "pyproject.toml").write_text(SETTINGS)
    options = ["--outputjson", "--project", str(folder), "--pythonpath", sys.executable]
    (folder / NAME).write_text(USES, "utf-8")
    done = run("pyright", *options)
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        number, text = found["range"]["start"]["line"] + 1, found["message"]
        revealed = re.fullmatch(r'Type of ".*" is "(.*)"', text, re.DOTALL)
        if revealed is not None:
            yield number, "type", revealed[1]
        elif found["severity"] == "error":
            yield number, "error", text


def run(tool: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", tool, *options], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checkers_say_what_the_comments_say(checker: object, tmp_path: Path) -> None:
    said: dict[int, list[tuple[str, str]]] = {}
    for number, kind, text in (mypy if checker is mypy else pyright)(tmp_path):
        said.setdefault(number, []).append((kind, text))
    wrong = []
    for number, line in enumerate(USES.splitlines(), 1):
        comment = re.search(r"  # ([TE]): (.*)$", line)
        messages = said.pop(number, [])
        if comment is None:
            wrong += [f"{number}: {text}" for _, text in messages]
            continue
        kind = "type" if comment[1] == "T" else "error"
        first, _, second = comment[2].partition(" | ")
        expected = second or first if checker is pyright else first
        texts = [text for kind_, text in messages if kind_ == kind]
        alternatives = [expected] if kind == "type" else expected.split("|")
        right = any(
            text == e if kind == "type" else e in text for text in texts for e in alternatives
        )
        if not right or len({k for k, _ in messages}) > 1:
            wrong.append(f"{number}: {messages} where {expected!r} was expected")
    assert wrong == []
    assert said == {}
