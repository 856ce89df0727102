"""``bringup ops``: the op table, as people and as programs read it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from bringup import dtypes
from bringup.cli.output import document, heading, is_terminal, line, table
from bringup.dtypes import DType
from bringup.errors import BringupError
from bringup.graph.printer import format_attr
from bringup.kernel.ops import KERNEL_OPS
from bringup.ops.catalogue import MODULE_OF
from bringup.ops.table import REQUIRED, Accuracy, Attr, OpDef, all_ops, find

_GROUPS: tuple[tuple[str, tuple[DType, ...]], ...] = (
    ("all", dtypes.ALL),
    ("numeric", dtypes.NUMERIC),
    ("bool, integers", (dtypes.bool_, *dtypes.INTS)),
    ("integers", dtypes.INTS),
    ("signed integers", dtypes.SIGNED_INTS),
    ("floats", dtypes.FLOATS),
)


def show(name: str, *, as_json: bool) -> None:
    """Print the table, or one op.  Raises BringupError for an unknown name."""
    row = row_of(name)
    if row is None:
        _all(as_json)
    elif as_json:
        document(facts(row))
    else:
        _one(row)


def row_of(name: str) -> OpDef | None:
    """The op of that name, or of that claim, such as ``reduce.add``; None for no name.

    Raises BringupError for an unknown one.
    """
    op, dot, _ = name.partition(".")
    row = find(op) or KERNEL_OPS.get(op)
    if dot and row is not None and name not in row.claims:
        raise BringupError(
            f"no op is claimed as {name!r}", fix=f"claims of {op}: {', '.join(row.claims)}"
        )
    if row is None and name:
        close = difflib.get_close_matches(name, [*MODULE_OF, *KERNEL_OPS], n=3)
        raise BringupError(
            f"no op is named {name!r}",
            fix=f"did you mean {' or '.join(close)}?" if close else "list them: bringup ops",
        )
    return row


def _all(as_json: bool) -> None:
    rows = all_ops()
    if as_json:
        document({"ops": [facts(op) for op in rows]})
        return
    cells = [(op.name, op.kind.value, _tier(op), _dtypes(op), _sentence(op.doc)) for op in rows]
    if not is_terminal():
        table(("name", "kind", "tier", "dtypes", "meaning"), cells)
        return
    # A window has no room for the kind, which is the same for many rows in a row.
    for kind, group in groupby(cells, key=lambda row: row[1]):
        table((kind, "tier", "dtypes", "meaning"), [(row[0], *row[2:]) for row in group])
        line()


def _one(op: OpDef) -> None:
    heading(op.name)
    line(op.doc)
    line()
    facts: list[tuple[str, str]] = [
        ("kind", op.kind.value),
        ("operands", _operands(op)),
    ]
    if op.name in KERNEL_OPS:
        facts += [("stands in", "the bodies of kernels alone"), ("claims", "none is needed")]
    else:
        facts += [
            ("tier", _tier(op)),
            ("dtypes", _dtypes(op)),
            ("claims", ", ".join(op.claims)),
            ("accuracy", _accuracies(op)),
            ("laws", ", ".join(sorted(t.value for t in op.traits))),
            ("derivative", "yes" if op.vjp is not None else "none of its own"),
            ("decomposes", "yes" if op.decompose is not None else "no"),
            ("since opset", str(op.since)),
        ]
    table(("fact", "value"), [row for row in facts if row[1]])
    if op.attrs:
        line()
        heading("Attributes")
        table(
            ("name", "kind", "default", "choices", "meaning"),
            [(a.name, a.kind, _default(a), _choices(a), a.doc) for a in op.attrs],
        )
    if op.special:
        line()
        heading("Special values")
        table(
            ("dtypes", "operands", "attributes", "result"),
            [
                (", ".join(s.kinds), ", ".join(s.operands), _attrs(s.attrs), _result(s.result))
                for s in op.special
            ],
        )


def facts(op: OpDef) -> dict[str, Any]:
    """Everything about a row but its functions, as JSON holds it."""
    return {
        "name": op.name,
        "kind": op.kind.value,
        "arity": op.arity,
        "tier": op.tier,
        "since": op.since,
        "doc": op.doc,
        "dtypes": [d.name for d in op.dtypes],
        "dtypes_text": _dtypes(op),
        "attrs": [
            {
                "name": a.name,
                "kind": a.kind,
                "required": a.default is REQUIRED,
                "default": _default(a),
                "choices": [str(c) for c in a.choices],
                "doc": a.doc,
            }
            for a in op.attrs
        ],
        "claims": list(op.claims),
        "tier0_claims": list(op.tier0_claims),
        "accuracy": _accuracies(op),
        "traits": sorted(t.value for t in op.traits),
        "differentiable": op.vjp is not None,
        "decomposes": op.decompose is not None,
        "special": [
            {
                "dtypes": list(s.kinds),
                "operands": list(s.operands),
                "attrs": _attrs(s.attrs),
                "result": _result(s.result),
            }
            for s in op.special
        ],
    }


def _operands(op: OpDef) -> str:
    if op.name in KERNEL_OPS:
        return "the values that its indices name: d0, d1, …"
    return "one or more" if op.arity is None else str(op.arity)


def _tier(op: OpDef) -> str:
    if op.tier == 0 and op.tier0_claims != op.claims:
        return f"0 ({', '.join(op.tier0_variants)}), else 1"
    return str(op.tier)


def _dtypes(op: OpDef) -> str:
    for name, members in _GROUPS:
        if set(op.dtypes) == set(members):
            return name
    return " ".join(d.name for d in op.dtypes)


def _sentence(doc: str) -> str:
    return doc.split(". ", maxsplit=1)[0].rstrip(".").replace("\n", " ")


def _accuracies(op: OpDef) -> str:
    texts = [_accuracy(op.accuracy)]
    texts += [f"{variant}: {_accuracy(each)}" for variant, each in op.variant_accuracy.items()]
    return "; ".join(texts)


def _accuracy(accuracy: Accuracy) -> str:
    if accuracy.exact:
        return "exact"
    if accuracy.accumulates:
        return "grows with the number of terms"
    if accuracy.residual is not None:
        return "backward stable, by its residual"
    if not accuracy.ulp:
        return "that of its decomposition"
    return ", ".join(f"{name} {ulp:g} ULP" for name, ulp in accuracy.ulp.items())


def _default(attr: Attr) -> str:
    return "" if attr.default is REQUIRED else format_attr(attr.default)


def _choices(attr: Attr) -> str:
    return ", ".join(map(str, attr.choices))


def _attrs(attrs: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={format_attr(value)}" for name, value in attrs)


def _result(result: str | tuple[str, ...]) -> str:
    return result if isinstance(result, str) else " or ".join(result)
