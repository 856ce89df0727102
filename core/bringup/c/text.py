"""Lines, blocks and conditions of C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def parenthesised(text: str) -> str:
    """An operand of an operator."""
    return f"({text})" if " " in text else text


def conjunction(tests: Sequence[str]) -> str:
    """The conjunction of conditions."""
    return " && ".join(tests) if tests else "true"


def indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Lines within a block."""
    return (f"  {line}" for line in lines)


def block(head: str, body: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Lines in braces."""
    yield f"{head} {{" if head else "{"
    yield from indented(body)
    yield "}"


__all__ = ["block", "conjunction", "indented", "parenthesised"]
