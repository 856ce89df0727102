"""The code keeps to the words of the glossary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "glossary.md"
PRODUCT = ("core/bringup", "backends", "conformance/bringup_conformance", "conformance/selftest")


def rows() -> list[tuple[str, str, str]]:
    """The lines of the tables: term, meaning, words that are not used for it."""
    cells = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| ")
    ]
    return [(a, b, c) for a, b, c in cells if a != "term"]


def names(path: Path) -> Iterator[str]:
    """Every name that a file defines, and its own."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_names_are_split_into_words() -> None:
    assert words("_RowBody2d") >= {"row", "body"}
    assert words("mark_complete") == {"mark", "complete"}


def test_a_term_has_one_line() -> None:
    terms = [term for term, _, _ in rows()]
    assert len(terms) > 100
    assert len(set(terms)) == len(terms), sorted(t for t in terms if terms.count(t) > 1)
    assert all(meaning for _, meaning, _ in rows())


def test_no_name_has_a_word_that_another_term_replaced() -> None:
    replaced = {word: term for term, _, nots in rows() for word in nots.replace(",", " ").split()}
    assert len(replaced) >= 12
    used: defaultdict[str, list[str]] = defaultdict(list)
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tests" in path.relative_to(ROOT).parts:
                continue
            for name in set(names(path)):
                for word in words(name) & replaced.keys():
                    used[word].append(f"{path.relative_to(ROOT)}: {name}")
    assert not used, {f"{word}, now {replaced[word]}": where for word, where in used.items()}
