"""Write the reference pages from the tables of the code: ``python docs/generate.py``.

A test compares the committed pages with what this writes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import bringup
import bringup.c
from bringup import config
from bringup.api import foreign_names
from bringup.c import render_c
from bringup.cli.ops import facts
from bringup.dtypes import STORED
from bringup.errors import BringupError
from bringup.kernel import Kernel
from bringup.loops import Func, lower_kernel, parse_func, verify_func
from bringup.loops.schedule import PRIMITIVES
from bringup.ops.table import OpDef, Trait, all_ops
from bringup_conformance.rules import CONTRACT, NUMERICS, Rule, all_rules
from bringup_conformance.rules.cells import rules_of, shown
from bringup_conformance.rules.contract import AREAS

sys.path.append(str(Path(__file__).parent))  # behind all else: a file here is called site.py
import forms
from checks import ALIASED, CHECKED

sys.path.append(str(Path(__file__).parents[1] / "core/tests/backend"))
from seam import SEAM

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the code; change the code and run it again. -->"

Facts = dict[str, Any]


def pages() -> dict[str, str]:
    """The text of every generated page, by file name."""
    return {
        "ops.md": ops_page(),
        "rules.md": rules_page(),
        "environment.md": environment_page(),
        "api.md": api_page(API, NAMESPACES),
        "backend.md": seam_page(),
        "seam-forms.md": api_page(SEAM_FORMS, SEAM_FORMS_MODULES),
        "errors.md": api_page(ERRORS, {"bringup.errors": ()}),
        "names.md": names_page(),
        "kernel-form.md": kernels_page(),
        "loop-form.md": loops_page(),
        "steps.md": steps_page(),
    }


OPS = """\
# Ops

{note}

Every op of the intermediate representation, from the op table. `bringup ops NAME` shows the same in
a terminal, `bringup ops --json` gives it to programs. `bringup ops --coverage` says for each op and
dtype whether there is a reference, whether the device runs it, whether it has a gradient and
whether the suite checks it, and why where not.

* **tier**: 0 for what a device must have itself; everything else can be decomposed.
* **dtypes**: those of the first operand, or of the result where there is none.
* **laws**: what rules of the simplifier may rely on. "associative" holds on integers and booleans;
  "expensive" is kept rather than computed twice.
* **accuracy**: how far a right device may be from the reference, in units in the last place.
* **special values**: tested as they stand; "or" separates allowed results.
* **default**, "if left out", "if none": for callers. A device gets every attribute with its value.

"""

ENVIRONMENT = """\
# Environment

{note}

Core reads these variables. An empty text is the default; `bringup doctor` finds wrong values.

{table}

Compiled code is kept in the user's cache directory, which `bringup doctor` names.

A backend may read variables of its own. The one for CPUs reads `BRINGUP_THREADS`: the number of
threads, by default the number of CPUs that this process may run on. Emulated GPUs read
`CUDA_EMULATED_SEED`: a number that picks the order of queued work, blocks and threads. The one that
compiles C reads `BRINGUP_CC`: the compiler's command. `bringup build --kind` reads
`BRINGUP_TARGET_CC` and `BRINGUP_TARGET_AR`: the commands that link for the target.
"""

NAMES = """\
# Names from numpy, JAX and PyTorch

{note}

Functions have the names of the [Python array API standard](https://data-apis.org/array-api/), and
beside them those of numpy and JAX: `bringup.concat` is `bringup.concatenate` too, and what numpy
has besides, such as `bringup.interp` and `bringup.pad`, is there. What JAX has in `lax`, `ops` and
`jax` itself stands without these: `bringup.scan`, `bringup.segment_sum`, `bringup.linearize`; what
has other arguments in `lax` stands in `bringup.lax`, such as `bringup.lax.reduce_window`. Where
the shape of a result depends on values, functions take it as JAX's do: `size=` of `argwhere`,
`length=` of `bincount`, `num_segments` of `segment_sum`. This page has the names that are not
there. Errors for missing names answer from the same table.

The methods of arrays are functions of the same names: `x.sum(0)`, `x.reshape(2, -1)`,
`x.astype(bringup.float32)`. `axis` and `dtype` are given by name or by position, other options by
name: `bringup.sum(x, 0, keepdims=True)`.

A default may differ where the name does not: `bringup.nn.gelu(x)` is exact, as in PyTorch; JAX's is
`bringup.nn.gelu(x, approximate=True)`.

## Programs written for JAX

Most need other lines of imports alone, and `bringup.set_default_dtype(bringup.float32)` after them.
Floats have the dtypes then that JAX gives them, also beside scalars and arrays of numpy; integers
that nothing else decides are int64, as the array API standard has it, where JAX has int32.

| there | here |
|---|---|
| `import jax` | `import bringup as jax` |
| `import jax.numpy as jnp` | `import bringup as jnp` |
| `import jax.scipy as jsp` | `import bringup as jsp` |
| `from jax import jit, grad, lax, random` | `from bringup import jit, grad, lax, random` |
| `from jax.nn import relu` | `from bringup.nn import relu` |
| `from jax.ops import segment_sum` | `from bringup import segment_sum` |
| `from jax.image import resize` | `from bringup.nn import resize`, not antialiased by default |
| `from jax.scipy.linalg import cho_solve` | `from bringup.linalg import cho_solve` |
| `from jax.scipy.special import logsumexp` | `from bringup.special import logsumexp` |

What needs more: `jax.ops`, `jax.image` and `jax.nn.initializers` inside of expressions, and
`jnp.trace`, which is `bringup.linalg.trace`. Random numbers follow the same laws from other bits.

{sections}
## Names of parameters

{parameters}
"""

RULES = """\
# Rules

{note}

What a device must do, beyond being fast: {count:,} rules in three tables. Each has an id that never
changes its meaning; the suite's cases carry it, and a failure names it. `conformance list --rules`
says which test checks which rule, with `--json` for programs, with `--only add.f32` for some;
`conformance run --only RULE` runs the tests of one.

1. [Contract](#contract): what a device promises beyond the values of one program.
2. [Numerics](#numerics): how near results have to be.
3. [Special values](#special-values): NaN, infinities, zeros of both signs, subnormals, extremes.

"""

CELLS = """\
## Special values

The id of a rule is op, dtype and the words in the first column: `sqrt.f32.of-minus-zero` is the
rule `of-minus-zero` of `sqrt` for `f32`. Where cells are instances of one rule they share its id,
and the sentence is the rule; else the cell itself is the rule. Results hold bit for bit; `nan` is
any NaN, `+nan` and `-nan` one with that sign; "or" separates allowed results. `MAX` is the largest
finite value, `TINY` the smallest normal and `SUBNORMAL` the smallest positive one, `INT_MIN` and
`INT_MAX` are the ends of the dtype's range, `BITS` is its width. What no cell tells is told by
[the op's own section](ops.md), or is not specified and then not tested.

"""


#: Namespaces of the package, in the order of the page.
NAMESPACES: dict[str, Sequence[str]] = dict.fromkeys(
    (
        "bringup",
        "bringup.nn",
        "bringup.nn.init",
        "bringup.linalg",
        "bringup.fft",
        "bringup.random",
        "bringup.special",
        "bringup.optim",
        "bringup.prune",
        "bringup.quant",
        "bringup.tree",
        "bringup.lax",
        "bringup.amp",
        "bringup.debug",
    ),
    (),
)
#: What of the seam has a page of its own.
SEAM_FORMS_MODULES = {
    name: names for name, names in SEAM.items() if name not in ("bringup.backend", "bringup.errors")
}

API = """\
# Functions and classes

{note}

All that `import bringup` gives, from the docstrings; `help(bringup.nn.softmax)` shows the same.

"""

BACKEND = """\
# The seam

{note}

All that a backend needs of core: `from bringup.backend import ...`. Below each class stands what
the suite does with its fields and methods, by [rules](rules.md) where there are some, and what
breaks where one is wrong. What renderers read has [a page of its own](seam-forms.md), with
[dtypes](seam-forms.md#bringupdtypesdtype) and [types](seam-forms.md#bringuptypestensortype), which
every view of memory has; [errors](errors.md) have another. What stays as it is is in
[Stability](stability.md).

{aliasing}

"""

SEAM_FORMS = """\
# What renderers read

{note}

The rest of [the seam](backend.md): kernels, loops, schedules, C, and the types and graphs that they
are made of. How they read is in [The kernel form](../explanation/kernels.md), [The loop
form](../explanation/loops.md) and [Schedules](../explanation/schedules.md); what stays as it is is
in [Stability](stability.md).

"""

ALIASING = """\
## Which memory may be the same

{table}

Operands may be one memory (`aliasing.operand-twice`). The suite puts guard bands round all memory,
and looks at every input, constant and earlier result after a call."""

ERRORS = """\
# Errors

{note}

Every error of bringup's own is a `BringupError`, and also of the class of Python that fits: an
`OpTypeError` is a `TypeError`. The message says what is wrong, the line of your code, and the fix.

"""

KERNEL_FORM = """\
---
hide: [toc]
---

# Kernels beside C

{note}

Each part of [the kernel form](../explanation/kernels.md) with a program that has it, the kernel
that core makes of the program, and the C that `bringup.c` makes of the kernel's loops before any
schedule. The C is the function alone: the file has what it calls in front.

"""

LOOP_FORM = """\
---
hide: [toc]
---

# Loops beside C

{note}

Each part of [the loop form](../explanation/loops.md) with the C that `bringup.c` makes of it, in
the dialect that is named where it is not C11. What a dialect refuses, it refuses with the message
that stands in the place of C. The C is the function alone: the file has what it calls in front.

"""

STEPS = """\
---
hide: [toc]
---

# Schedule steps, before and after

{note}

Each primitive of [schedules](../explanation/schedules.md) with a function, a step, and the function
after it: the shortest of the cases by which its tests hold it.

"""


def names_page() -> str:
    """The table of foreign names, section by section."""
    lines: list[str] = []
    for section, rows in groupby(foreign_names.table(), key=lambda row: row.section):
        answers: dict[str, list[str]] = {}
        for row in rows:
            answer = _code(row.answer) if row.answer else _code(row.why, whole=False)
            answers.setdefault(answer, []).append(f"`{row.name}`")
        cells = [(", ".join(names), answer) for answer, names in answers.items()]
        lines += [f"## {section}", "", *table(("there", "here"), cells), ""]
    words = [
        (f"`{k}`", ", ".join(f"`{v}`" for v in own)) for k, own in foreign_names.PARAMETERS.items()
    ]
    parameters = "\n".join(table(("there", "here"), words))
    return NAMES.format(note=NOTE, sections="\n".join(lines), parameters=parameters)


def _code(text: str, whole: bool = True) -> str:
    """An answer with its expressions as code: all of it if it is one."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        whole = False
    return f"`{text}`" if whole else re.sub(r"bringup\.[\w.]*\w|BRINGUP_\w+=\S+", r"`\g<0>`", text)


def ops_page() -> str:
    """The op table: one overview, then a section for each op."""
    rows = [facts(op) for op in all_ops()]
    lines: list[str] = []
    for kind, group in groupby(rows, key=lambda row: row["kind"]):
        overview = [
            (f"[{r['name']}](#{r['name']})", _tier(r), r["dtypes_text"], _sentence(r["doc"]))
            for r in group
        ]
        lines += [f"## {kind.capitalize()}", ""]
        lines += [*table(("op", "tier", "dtypes", "meaning"), overview), ""]
    for row in rows:
        lines += section(row)
    return OPS.format(note=NOTE) + "\n".join(lines).rstrip() + "\n"


def section(row: Facts) -> Iterable[str]:
    """All facts of one op."""
    yield from (f"### {row['name']}", "", escaped(row["doc"]), "")
    operands = "one or more" if row["arity"] is None else str(row["arity"])
    yield f"* operands: {operands}; dtypes: {row['dtypes_text']}; tier {_tier(row)}"
    yield f"* accuracy: {row['accuracy']}"
    if len(row["claims"]) > 1:
        yield f"* claimed one by one: {', '.join(f'`{claim}`' for claim in row['claims'])}"
    if row["traits"]:
        yield f"* laws: {', '.join(row['traits'])}"
    words = ("has a derivative", "has no derivative of its own")
    yield f"* {words[not row['differentiable']]}; " + (
        "can be decomposed" if row["decomposes"] else "cannot be decomposed"
    )
    yield ""
    if row["attrs"]:
        cells = [
            (f"`{a['name']}`", a["kind"], a["default"], ", ".join(a["choices"]), a["doc"])
            for a in row["attrs"]
        ]
        yield from (*table(("attribute", "kind", "default", "choices", "meaning"), cells), "")
    if row["special"]:
        special = [
            (", ".join(s["dtypes"]), ", ".join(s["operands"]), s["attrs"], s["result"])
            for s in row["special"]
        ]
        yield from (*table(("dtypes", "operands", "attributes", "result"), special), "")


def rules_page() -> str:
    """The contract, the rules of numerics, and the special values row by row."""
    lines: list[str] = ["## Contract", ""]
    for area, about in AREAS.items():
        rules = [rule for rule in CONTRACT if rule.area == area]
        lines += [f"### {area.capitalize()}", "", about, "", *_sentences(rules), ""]
    lines += ["## Numerics", "", *_sentences(NUMERICS), ""]
    head = RULES.format(note=NOTE, count=len(all_rules()))
    rows = [line for op in all_ops() if op.special for line in _special(op)]
    return head + "\n".join(lines) + "\n" + CELLS + "\n".join(rows).rstrip() + "\n"


def _sentences(rules: Iterable[Rule]) -> Iterable[str]:
    rows = [(f"`{rule.id}`", rule.says, rule.needs) for rule in rules]
    return table(("rule", "says", "only if declared"), rows)


def _special(op: OpDef) -> Iterable[str]:
    """The rules of one row, dtypes that have the same cells together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for dtype in op.dtypes:
        for rule, cells in rules_of(op, dtype).items():
            texts = "; ".join(shown(op, cell) for cell in cells)
            says = "" if rule.says == texts else rule.says
            found.setdefault((rule.slug, texts, says), []).append(dtype.name)
    rows = [
        (f"`{slug}`", " ".join(dtypes), texts, says)
        for (slug, texts, says), dtypes in found.items()
    ]
    yield from (f"### {op.name}", "")
    yield from (*table(("rule", "dtypes", "cells", "says"), rows), "")


def environment_page() -> str:
    """The variables of the environment."""
    rows = [(f"`{v.name}`", f"`{v.default}`" if v.default else "", v.doc) for v in config.VARIABLES]
    cells = "\n".join(table(("variable", "default", "meaning"), rows))
    return ENVIRONMENT.format(note=NOTE, table=cells)


def api_page(head: str, modules: Mapping[str, Sequence[str]]) -> str:
    """Public names, each with its signature and docstring.

    modules: of each its names, or none for all that it lists.
    """
    lines: list[str] = []
    for title, chosen in modules.items():
        module = importlib.import_module(title) if title in SEAM else _namespace(title)
        lines += [f"## {title}", "", *_text(inspect.getdoc(module) or "")]
        values = {name: getattr(module, name) for name in sorted(chosen or module.__all__)}
        constants = {name: v for name, v in values.items() if not _has_entry(v)}
        if constants:
            rows = [(f"`{n}`", *_constant(title, n, value)) for n, value in constants.items()]
            lines += [*table(("name", "is", "meaning"), rows), ""]
        for name, value in values.items():
            if name not in constants and not inspect.ismodule(value):
                lines += _entry(f"{title}.{name}", name, value)
    return head.format(note=NOTE) + "\n".join(lines).rstrip() + "\n"


def _namespace(title: str) -> Any:
    module: Any = bringup
    for part in title.split(".")[1:]:
        module = getattr(module, part)
    return module


def _has_entry(value: object) -> bool:
    """Whether a name is a class, a function or a module."""
    kinds = (inspect.isclass, inspect.isroutine, inspect.ismodule)
    return value is not Any and any(kind(value) for kind in kinds)


def _constant(title: str, name: str, value: object) -> tuple[str, str]:
    """What a constant is, and the comment that stands above it in its module."""
    shown = re.sub(r"\b[a-z_]+(?:\.[a-z_]+)*\.(?=[A-Z])", "", repr(value))
    if isinstance(value, UnionType):
        shown = ", ".join(each.__name__ for each in get_args(value))
    meaning = ""
    for module in [m for n, m in sys.modules.items() if n.startswith("bringup.")]:
        if getattr(module, name, None) is value and (source := _source(module)):
            found = re.search(rf"((?:^#: .*\n)+){name}\b(: .*)? = ", source, re.MULTILINE)
            if found is not None:
                meaning = " ".join(re.findall(r"^#: (.*)$", found[1], re.MULTILINE))
    opaque = shown.startswith("<") or len(shown) > 100
    return (f"a `{type(value).__name__}`" if opaque else f"`{shown}`"), meaning


@cache
def _source(module: Any) -> str:
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(module)
    return ""


def seam_page() -> str:
    """The names of `bringup.backend`, and which memory may be the same."""
    in_place = ", ".join(f"`{row.name}`" for row in all_ops() if Trait.IN_PLACE in row.traits)
    rows = [(kind.format(in_place=in_place), may) for kind, may in ALIASED]
    aliasing = "\n".join(table(("", "what is written may be the memory of"), rows))
    rules = {rule.id for rule in (*CONTRACT, *NUMERICS)}
    for row in CHECKED.values():
        for named in re.findall(r"`([a-z]+\.(?:[a-z0-9-]+|\*))`", row[0]):
            assert any(re.fullmatch(named.replace("*", ".*"), rule) for rule in rules), named
    assert CHECKED.keys() == set(_to_check()), CHECKED.keys() ^ set(_to_check())
    return api_page(
        BACKEND.replace("{aliasing}", ALIASING.format(table=aliasing)), {"bringup.backend": ()}
    )


def _to_check() -> Iterable[str]:
    """What a backend declares and writes, as ``Class.name``."""
    seam = bringup.backend
    declared = (
        *(seam.Capabilities, seam.Limits, seam.Numerics, seam.Shapes),
        *(seam.Handshake, seam.DeviceInfo, seam.Target),
    )
    for kind in declared:
        yield from (f"{kind.__name__}.{field.name}" for field in fields(kind))
    written = (seam.Backend, seam.Device, seam.OpsDevice, seam.RenderingDevice, seam.LoopsDevice)
    for kind in written:
        for name in {**kind.__annotations__, **vars(kind)}:
            above = any(name in {**b.__annotations__, **vars(b)} for b in kind.__mro__[1:-1])
            if not name.startswith("_") and not above:
                yield f"{kind.__name__}.{name}"
    yield from ("OpsDevice.ops", "Executable.__call__")


def _entry(path: str, name: str, value: object) -> Iterable[str]:
    """One name: what it is, how it is called, and what its docstring says."""
    yield from (f"### {path}", "")
    same = inspect.isroutine(value) and getattr(bringup, name, None) is value
    if same and path != f"bringup.{name}":
        yield from (f"`bringup.{name}`.", "")
        return
    if inspect.isfunction(value) and value.__name__ != name and not name.startswith("_"):
        yield from (f"`{value.__name__}` under another name.", "")
        return
    # A class that is made as its base is, and a protocol, which is not made at all, have none.
    protocol = getattr(value, "_is_protocol", False)
    if not inspect.isclass(value) or ({"__init__", "__new__"} & {*vars(value)} and not protocol):
        yield from ("```text", _wrapped(f"{name}{_signature(value)}"), "```", "")
    yield from _text(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        rows = [
            (f"`{key.partition('.')[2]}`", *texts)
            for key, texts in CHECKED.items()
            if key.startswith(f"{name}.") and path == f"bringup.backend.{name}"
        ]
        if rows:
            yield from (*table(("", "the suite", "if it is wrong"), rows), "")
        for member in sorted(vars(value)):
            attribute = inspect.getattr_static(value, member)
            function = getattr(value, member)  # some are looked up when they are asked for
            doc = inspect.getdoc(attribute if isinstance(attribute, property) else function)
            if not doc or (member.startswith("_") and not (protocol and member == "__call__")):
                continue
            called = f"{member}{_signature(function)}" if inspect.isfunction(function) else member
            if inspect.isfunction(function) or isinstance(attribute, property):
                said = escaped(doc.partition(">>>")[0].rstrip())
                yield from (f"* `{called}`: {said}", "")


def kernels_page() -> str:
    """Programs, their kernels, and the C of these."""
    lines: list[str] = []
    for form in forms.KERNELS:
        lines += [f"## {form.title}", "", form.says, "", *_fenced("py", form.text), ""]
        for kernel in _kernels(form.text):
            func = lower_kernel(kernel)
            lines += _beside(("text", str(kernel)), ("c", _function(func, form.dialect)))
    return KERNEL_FORM.format(note=NOTE) + "\n".join(lines).rstrip() + "\n"


def _kernels(text: str) -> Sequence[Kernel]:
    """The kernels of a program, which is an expression and the types of its arguments."""
    names = {"bu": bringup, **{dtype.name: dtype for dtype in STORED}}
    program, *types = eval(f"({text})", names)
    kernels: Sequence[Kernel] = bringup.jit(program).lower(*types, target="cpu:x86-64-v3").kernels
    return kernels


def loops_page() -> str:
    """Functions of the loop level, and the C of these."""
    lines: list[str] = []
    for form in forms.LOOPS:
        text = inspect.cleandoc(form.text)
        func = parse_func(text)
        assert str(func) == text, f"{form.title}: {func}"
        verify_func(func)
        dialect = "" if form.dialect == "C11" else f" In the dialect `{form.dialect}`."
        lines += [f"## {form.title}", "", f"{form.says}{dialect}".strip(), ""]
        lines += _beside(("text", text), ("c", _function(func, form.dialect)))
    return LOOP_FORM.format(note=NOTE) + "\n".join(lines).rstrip() + "\n"


def steps_page() -> str:
    """Every primitive of schedules with a function before and after it."""
    lines: list[str] = []
    for name, (case, before, steps, after) in sorted(forms.steps().items()):
        doc = inspect.getdoc(PRIMITIVES[name]) or ""
        says = escaped(doc.partition("\n\n")[0])
        lines += [f"## {name}", "", f"{says} Here: {case}." if case else says, ""]
        lines += [*_fenced("text", inspect.cleandoc(steps)), ""]
        lines += _beside(*(("text", inspect.cleandoc(text)) for text in (before, after)))
    return STEPS.format(note=NOTE) + "\n".join(lines).rstrip() + "\n"


def _function(func: Func, dialect: str) -> str:
    """The C of a function without what it calls, or why the dialect refuses it."""
    try:
        source = render_c(func, getattr(bringup.c, dialect))
    except BringupError as error:
        return f"/* {error} */"
    start = re.search(rf"^.*\b{func.name}\(", source, re.MULTILINE)
    assert start is not None
    return source[start.start() :].rstrip()


def _beside(*columns: tuple[str, str]) -> Iterable[str]:
    """Blocks of code side by side, where the window is wide enough."""
    yield from ('<div class="beside" markdown>', "")
    for language, text in columns:
        yield from (*_fenced(language, text), "")
    yield from ("</div>", "")


def _fenced(language: str, text: str) -> Iterable[str]:
    return (f"```{language}", text, "```")


def _signature(function: Any) -> str:
    """The arguments, annotations as they are written in the source."""
    with contextlib.suppress(ValueError, TypeError):
        return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return "(…)"


def _wrapped(call: str) -> str:
    """A signature with a line for each parameter, where it is too long for one."""
    if len(call) <= 80:
        return call
    parts, depth, start = list[str](), 0, call.index("(") + 1
    for place in range(start, len(call)):
        depth += (call[place] in "([{") - (call[place] in ")]}")
        if depth < 0 or (depth == 0 and call[place] == ","):
            parts.append(call[start:place].strip())
            start = place + 1
        if depth < 0:
            break
    lines = "".join(f"    {part},\n" for part in parts)
    return f"{call.partition('(')[0]}(\n{lines}){call[start:]}"


def _text(doc: str) -> Iterable[str]:
    """A docstring as Markdown: examples as they would be typed, what is named first as a list."""
    for block in doc.split("\n\n"):
        if block.lstrip().startswith(">>>"):
            yield from ("```pycon", block, "```", "")
        else:
            text = "\n".join(escaped(line) for line in block.split("\n"))
            yield from (re.sub(r"^(\w+(?:, \w+)*): ", r"* `\1`: ", text, flags=re.MULTILINE), "")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Rows of Markdown; columns without any content are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    yield "| " + " | ".join(columns[i] for i in kept) + " |"
    yield "|" + "---|" * len(kept)
    for row in rows:
        yield "| " + " | ".join(escaped(row[i]) for i in kept) + " |"


def escaped(text: str) -> str:
    """Text that neither ends a cell nor becomes HTML or emphasis."""

    def part(text: str, code: bool) -> str:
        for character in "|" if code else "|*":
            text = text.replace(character, f"\\{character}")
        # A backslash before "<" is shown by the site.
        return (text if code else text.replace("<", "&lt;")).replace("\n", " ")

    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(part(text, number % 2 == 1) for number, text in enumerate(parts))


def _tier(row: Facts) -> str:
    must = row["tier0_claims"]
    if row["tier"] == 0 and must != row["claims"]:
        return f"0 ({', '.join(claim.partition('.')[2] for claim in must)}), else 1"
    return str(row["tier"])


def _sentence(doc: str) -> str:
    return doc.split(". ", maxsplit=1)[0].rstrip(".").replace("\n", " ")


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
