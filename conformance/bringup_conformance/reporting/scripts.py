"""A failure as a Python script that runs alone: the program, its data, and the right results.

A script with small arrays lists their elements, and needs the suite only to compile a graph.  One
with large arrays makes them by their recipes, and judges the results as the suite does.  One of a
check runs the check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType
from bringup.graph.printer import print_graph
from bringup_conformance.cases import Case
from bringup_conformance.execution.running import made_inputs
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.residuals import judge_residuals
from bringup_conformance.reporting.failures import case_from_json, case_to_json, is_check

#: Elements of all arrays that a script holds.
_MOST = 600
_PER_LINE = 8

_INLINE = '''"""A failure of the suite, alone, on its device or another: python FILE [DEVICE]"""

import sys

import numpy as np

from bringup.dtypes import BY_NAME
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup_conformance import DeviceTarget

FAILURE = {failure}

IR = {ir}


def array(dtype, shape, words):
    """Elements by their bits, so that every NaN and both zeros are what they were."""
    kind = BY_NAME[dtype].numpy
    return np.array(words, f"u{{kind.itemsize}}").view(kind).reshape(shape)


# One list of inputs for each call; the last call is the one that fails.
CALLS = [
{calls}
]
# Of the last call: the lowest value allowed, the one of the reference, and the highest.
OUTPUTS = [
{outputs}
]


def main():
    print(FAILURE)
    device = DeviceTarget.named(sys.argv[1] if len(sys.argv) > 1 else {backend!r})
    graph, skip = parse_graph(IR, find), frozenset({skip!r})
    program = device.compile(graph, fuse={fused}, skip=skip, optimize={optimize})
    for inputs in CALLS:
        results = program(inputs)
    wrong = 0
    for number, (result, (low, right, high)) in enumerate(zip(results, OUTPUTS, strict=True)):
        same = result.reshape(-1).view(f"u{{result.itemsize}}") == right.reshape(-1).view(
            f"u{{result.itemsize}}"
        )
        good = same.reshape(result.shape) | (result != result) & (right != right)
        if low is not right:
            good |= (low <= result) & (result <= high) | (low != low)
        for index in np.argwhere(~good):
            at = tuple(index.tolist())
            print(f"output {{number}}{{list(at)}} is {{result[at]}}, not {{right[at]}}")
            wrong += 1
    print(f"{{wrong}} elements are wrong")
    return 1 if wrong else 0


sys.exit(main())
'''

_BY_RECIPES = '''"""A failure of the suite, alone, on its device or another: python FILE [DEVICE]"""

import json
import sys

from bringup_conformance import DeviceTarget
from bringup_conformance.execution.running import attempt
from bringup_conformance.reporting.failures import case_from_json

FAILURE = {failure}

CASE = {case}


def main():
    print(FAILURE)
    device = DeviceTarget.named(sys.argv[1] if len(sys.argv) > 1 else {backend!r})
    case = case_from_json(json.loads(CASE))
    _, problem = attempt(device, case, fuse={fused}, skip=frozenset({skip!r}))
    if problem is None:
        print("0 elements are wrong")
        return 0
    print(f"{{problem.kind}}: {{problem.what}}")
    for mismatch in problem.verdict.mismatches:
        print(mismatch)
    return 1


sys.exit(main())
'''


_CHECK = '''"""A failure of the suite, alone, on its device or another: python FILE [DEVICE]"""

import sys

from bringup_conformance import DeviceTarget
from bringup_conformance.execution.replay import find_check
from bringup_conformance.execution.running import run_check

FAILURE = {failure}

CASE = {case!r}
RUN = {run!r}


def main():
    print(FAILURE)
    device = DeviceTarget.named(sys.argv[1] if len(sys.argv) > 1 else {backend!r})
    problem = run_check(device, find_check({{"case": CASE, "run": RUN}}, device)).problem
    print("it passes" if problem is None else f"{{problem.kind}}: {{problem.what}}")
    return 0 if problem is None else 1


sys.exit(main())
'''


def script(document: Mapping[str, Any]) -> str:
    """The script of a failure's smallest program, or of its check."""
    if is_check(document):
        return _check_script(document)
    form = document.get("reduced") or document["case"]
    problem = form.get("problem") or document["problem"]
    case = case_from_json(form)
    common = {
        "failure": _headline(document, problem),
        "backend": document["backend"],
        "fused": bool(problem["fused"]),
        "skip": sorted(document["options"]["skip"]),
    }
    if not _fits(case, problem):
        text = json.dumps(case_to_json(case), indent=1)
        return _BY_RECIPES.format(case=_literal(text), **common)
    calls = [made_inputs(case, number) for number in range(int(problem["data_set"]) + 1)]
    return _INLINE.format(
        ir=_literal(print_graph(case.graph)), calls=_calls(case, calls),
        outputs=_outputs(case, calls[-1]), optimize=case.optimize, **common,
    )  # fmt: skip


def _check_script(document: Mapping[str, Any]) -> str:
    case = {key: str(document["case"][key]) for key in ("name", "level", "op", "dtype")}
    return _CHECK.format(
        failure=_headline(document, document["problem"]), backend=document["backend"], case=case,
        run={"seed": int(document["run"]["seed"])},
    )  # fmt: skip


def _headline(document: Mapping[str, Any], problem: Mapping[str, Any]) -> str:
    """What failed, as an expression.

    Files of failures come from others, so their texts are data: each stands in the script as the
    literal of a string.
    """
    title = f"{document['case']['name']} on {document['backend']}: {problem['kind']}."
    return _literal(f"{title}\n{problem['what']}")


def _literal(text: str) -> str:
    """A Python expression for a text, a line for each of its lines."""
    return "".join(["(", *(f"\n    {line!r}" for line in text.splitlines(keepends=True)), "\n)"])


def _fits(case: Case, problem: Mapping[str, Any]) -> bool:
    """Whether a failure is of wrong values alone, in arrays that are small enough for a script."""
    if case.cells or case.bitwise or problem["kind"] != "wrong" or not problem["mismatches"]:
        return False
    types = [v.type for v in (*case.graph.inputs, *case.graph.outputs)]
    if sum(t.size for t in types) * len(case.data) > _MOST:
        return False
    zeros = [np.zeros(v.shape, v.dtype.numpy) for v in case.graph.outputs]
    inputs = made_inputs(case, int(problem["data_set"]))
    return not judge_residuals(case.graph, zeros, inputs)[1]


def _calls(case: Case, calls: Sequence[Sequence[Array]]) -> str:
    lines = []
    for inputs in calls:
        pairs = zip(inputs, case.graph.inputs, strict=True)
        body = "".join(f"        {_array(x, v.dtype, 8)},\n" for x, v in pairs)
        lines.append(f"    [\n{body}    ],")
    return "\n".join(lines)


def _outputs(case: Case, inputs: Sequence[Array]) -> str:
    """What is allowed of a device that declares no numerics of its own; NaN where anything is."""
    lines = []
    for span in analyse(case.graph, inputs, Numerics()):
        right = _array(span.middle, span.dtype, 8)
        if span.exact:
            lines.append(f"    (\n        *[\n            {right}\n        ] * 3,\n    ),")
            continue
        low = np.where(span.unlimited(), np.nan, span.low).astype(span.dtype.numpy)
        parts = [_array(x, span.dtype, 8) for x in (low, span.middle, span.high)]
        lines.append("    (\n" + "".join(f"        {part},\n" for part in parts) + "    ),")
    return "\n".join(lines)


def _array(array: Array, dtype: DType, indent: int) -> str:
    """The call that makes an array by its bits, with its elements as comments."""
    dense = np.ascontiguousarray(array)
    words = dense.reshape(-1).view(f"u{dense.itemsize}")
    rows = [words[i : i + _PER_LINE] for i in range(0, words.size, _PER_LINE)]
    shown = [dense.reshape(-1)[i : i + _PER_LINE] for i in range(0, words.size, _PER_LINE)]
    shape = tuple(array.shape)
    if not rows:
        return f'array("{dtype.name}", {shape}, [])'
    space = " " * (indent + 4)
    body = "".join(
        f"\n{space}{', '.join(f'0x{int(w):0{2 * dense.itemsize}X}' for w in row)},"
        f"  # {' '.join(str(x) for x in values)}"
        for row, values in zip(rows, shown, strict=True)
    )
    return f'array("{dtype.name}", {shape}, [{body}\n{" " * indent}])'
