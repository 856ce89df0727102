"""Every field of the files of a report, with its meaning: what programs may rely on.

Parts of a path: ``a.b`` is a field of a field, ``[]`` an element of a list, ``{}`` any key of a
mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Field(NamedTuple):
    """path: see the module.  type: of its JSON value; ``any`` is not looked into."""

    path: str
    type: str
    meaning: str


REPORT: Sequence[Field] = (
    Field("backend", "text", "the device, as the command line names it"),
    Field("level", "text", "the highest level of the run"),
    Field("seed", "number", "which cases were drawn"),
    Field("passed", "number", "cases that passed"),
    Field("failed", "number", "cases that failed, those expected to fail among them"),
    Field("unsupported", "number", "items that the device does not declare"),
    Field("seconds", "number", "the run took, reducing included"),
    Field("reduced", "list of texts", "why the run is not whole; empty if it is"),
    Field("ok", "boolean", "something passed, and nothing failed but what was expected to"),
    Field("suite", "text", "version of the suite"),
    Field("only", "text", "the selection; empty for all cases"),
    Field("in_part", "list of texts", "levels of which something was left out"),
    Field("left", "number", "units that are not whole, which `--resume` goes on with"),
    Field("few_kernels", "boolean", "cases of few kernels: the device compiles slowly"),
    Field("date", "text", "when the run began, in UTC"),
    Field("command", "list of texts", "the command line that began it; empty for none"),
    Field("notes", "list of texts", "what else there is to know of the run"),
    Field("failures", "list", "the smallest program first"),
    Field("failures[].name", "text", "of the case; unique in the run"),
    Field("failures[].level", "text", "its level"),
    Field("failures[].op", "text", "its op, `programs`, or an area of the runtime contract"),
    Field("failures[].dtype", "text", "its dtype; empty for none"),
    Field("failures[].mode", "text", "`fused` or `op by op`: the run that failed"),
    Field(
        "failures[].kind",
        "text",
        "`wrong`, `shape`, `unstable`, `input` (an input changed), `broken` (a promise of the "
        "runtime), `crash`, `hang` or `oom`",
    ),
    Field("failures[].what", "text", "one sentence"),
    Field("failures[].guilty", "list of texts", "passes, or `fusion`, without which it is right"),
    Field("failures[].nodes", "number", "instructions of the smallest program known"),
    Field("failures[].program", "text", "that program; empty for a check of the runtime"),
    Field("failures[].file", "text or null", "the failure's own file"),
    Field("costs.cases", "number", "seconds of all cases; of several workers together"),
    Field("costs.compiling", "number", "seconds of these, compiling programs"),
    Field("costs.running", "number", "seconds of these, running them, copies included"),
    Field("costs.checking", "number", "seconds of these, in checks of the runtime"),
    Field("costs.compiled", "number", "kernels of the programs that were compiled"),
    Field("costs.first", "number", "seconds of compiling them and of their first calls"),
    Field("costs.busy", "number", "seconds of these in which a processor worked"),
    Field("costs.kernels", "number", "launches"),
    Field("costs.bytes_read", "number", "by them"),
    Field("costs.bytes_written", "number", "by them"),
    Field("environment", "object", "where the run took place"),
    Field("environment.device", "text", "the device's own name"),
    Field("environment.suite", "text", "version of the suite"),
    Field("environment.plugin.{}", "text", "by name of the backend's distribution: its version"),
    Field("environment.python", "text", "version"),
    Field("environment.numpy", "text", "version"),
    Field("environment.platform", "text", "system and machine"),
    Field("environment.product", "text", "what the device says it is"),
    Field("environment.details.{}", "any", "what else it says, such as its driver's version"),
    Field("environment.capabilities.{}", "any", "all that it declares, by field"),
    Field("rules.{}.passed", "number", "by a rule's id: cases that show it to hold"),
    Field("rules.{}.failed", "number", "cases that show it to be broken"),
    Field("results", "list", "one row for each level, op and dtype"),
    Field("results[].level", "text", "level"),
    Field("results[].op", "text", "op, `programs`, or an area of the runtime contract"),
    Field("results[].dtype", "text", "dtype; of programs that of the first output"),
    Field("results[].passed", "number", "cases that passed"),
    Field("results[].failed", "number", "cases that failed"),
    Field("results[].compared", "number", "elements compared"),
    Field("results[].open", "number", "elements of which nothing can be said"),
    Field("results[].ratio", "number", "the largest error as a share of its bound, where right"),
    Field("results[].ulp", "number", "the largest error in ULP of the reference, where right"),
    Field(
        "results[].ulps",
        "list of numbers",
        "elements by that error: 0, then up to ¼, ½, 1, 2, 4 … ULP; zeros at the end are left out",
    ),
    Field("unsupported_reasons", "list", "items that the device does not declare"),
    Field("unsupported_reasons[].name", "text", "what it is called"),
    Field("unsupported_reasons[].level", "text", "level"),
    Field("unsupported_reasons[].op", "text", "op"),
    Field("unsupported_reasons[].dtype", "text", "dtype"),
    Field("unsupported_reasons[].reason", "text", "by the device's own declaration"),
    Field("cases", "list", "every case, in the order of the suite"),
    Field("cases[].name", "text", "unique in the run"),
    Field("cases[].level", "text", "level"),
    Field("cases[].op", "text", "op"),
    Field("cases[].dtype", "text", "dtype"),
    Field("cases[].status", "text", "`pass` or `fail`"),
    Field("cases[].kind", "text or null", "as of `failures[].kind`"),
    Field("cases[].rules", "list of texts", "ids of the rules that it shows"),
    Field("cases[].seconds", "number", "it took, with its reference"),
    Field("expected", "object or null", "what came of `--expect` and `--unclaimed`"),
    Field("expected.xfailed.{}", "text", "by name of a failing case: the entry that expects it"),
    Field("expected.failed", "list of texts", "failing cases that no entry expects"),
    Field("expected.xpassed", "list of texts", "entries of which every case passes"),
    Field("expected.errors", "list of texts", "entries that are wrong, a sentence each"),
    Field("expected.unclaimed", "list of texts", "what the device does right and does not declare"),
    Field("expected.reasons.{}", "text", "the vendor's word on an undeclared item, by name"),
)

_CASE = (
    Field("name", "text", "unique in a run"),
    Field("level", "text", "level"),
    Field("op", "text", "op, `programs`, or an area of the runtime contract"),
    Field("dtype", "text", "dtype; empty for none"),
    Field("ir", "text", "the program; empty for a check of the runtime"),
    Field("data", "list", "sets of data: for each input a recipe"),
    Field("data[][].{}", "any", "a recipe's fields that are not the default: kind, seed, layout …"),
    Field("cells", "list", "special values instead of data: for each output its cells"),
    Field("cells[].cells", "any", "operands and result of each cell, as texts"),
    Field("cells[].repeats", "number", "times that each stands in the array"),
    Field("cells[].packed", "boolean", "cells are elements of one array"),
    Field("cells[].rules", "list of texts", "the rule of each cell"),
    Field("bitwise", "boolean", "NaNs must keep their bits"),
    Field("optimize", "boolean", "the device was asked for fast code, not for code in little time"),
    Field("rules", "list of texts", "ids of the rules that it shows"),
    Field("check", "boolean", "it is a check of the runtime, run again by its name"),
)
_PROBLEM = (
    Field("kind", "text", "as of `failures[].kind` in the report"),
    Field("what", "text", "one sentence"),
    Field("data_set", "number", "number of the set of data"),
    Field("fused", "boolean", "in the fused program"),
    Field("wrong", "number", "elements that are wrong"),
    Field("compared", "number", "elements compared"),
    Field("mismatches", "list", "the first wrong elements"),
    Field("mismatches[].output", "number", "number of the output"),
    Field("mismatches[].index", "list of numbers", "place of the element"),
    Field("mismatches[].actual", "text", "what it is"),
    Field("mismatches[].expected", "text", "what the reference has"),
    Field("mismatches[].low", "text", "the least that is allowed"),
    Field("mismatches[].high", "text", "the most that is allowed"),
    Field("mismatches[].rule", "text", "the rule of a special value"),
    Field("mismatches[].operands", "list of texts", "what it is made of, by one instruction"),
    Field("ulps", "list of numbers", "elements by their error, as of `results[].ulps`"),
    Field("rules", "list of texts", "those broken; empty for all of the case's"),
    Field("log", "text", "last words of a process that ended, and its stack"),
    Field("phase", "text", "what a process that hung did: compiling, launching, downloading …"),
)


def _under(prefix: str, fields: Sequence[Field]) -> tuple[Field, ...]:
    return tuple(Field(f"{prefix}.{f.path}", f.type, f.meaning) for f in fields)


FAILURE: Sequence[Field] = (
    Field("format", "number", "changes when a field changes its meaning"),
    Field("suite", "text", "version of the suite"),
    Field("backend", "text", "the device"),
    Field("device.{}", "any", "its product, and details such as its driver's version"),
    Field("run.level", "text", "level of the case"),
    Field("run.seed", "number", "seed of the run"),
    Field("options.skip", "list of texts", "passes left out"),
    Field("options.timeout", "number", "seconds without a sign of life after which a case hangs"),
    Field("nodes", "number", "instructions of the smallest program known"),
    *_under("case", _CASE),
    *_under("problem", _PROBLEM),
    Field(
        "reduced", "object", "the smallest program that fails in the same way, if one was sought"
    ),
    *_under("reduced", _CASE),
    *_under("reduced.problem", _PROBLEM),
    Field("guilty", "list of texts", "passes, or `fusion`, without which it is right"),
    Field("hashes.expected", "text", "SHA-256 of the reference's results"),
    Field("hashes.actual", "text", "SHA-256 of the device's"),
    Field("hashes.error", "text", "class of what the device raised instead"),
    Field("alone", "text", "in a process of its own: `passes`, or hangs in another phase"),
    Field("guilty_kernel", "text", "name of the guilty kernel"),
    Field("source", "text", "what the backend wrote for it"),
    Field("ir_before", "text", "what the guilty thing was given"),
    Field("ir_after", "text", "what it made of that"),
    Field("cause.{}", "any", "all that `conformance explain` found out, by field"),
)


def undocumented(data: Any, fields: Sequence[Field]) -> list[str]:
    """Paths of a document that no field describes.

    >>> undocumented({"level": "ops", "mood": 1}, REPORT)
    ['mood']
    """
    known = {field.path: field for field in fields}
    return list(dict.fromkeys(_unknown(data, "", known)))


def _unknown(data: Any, path: str, known: Mapping[str, Field]) -> Iterator[str]:
    field = known.get(path)
    if field is not None and field.type == "any":
        return
    if isinstance(data, dict):
        for key, value in data.items():
            inner = [f"{path}.{name}".removeprefix(".") for name in (key, "{}")]
            holds = [p for p in inner if any(_within(p, each) for each in known)]
            if not holds:
                yield inner[0]
            else:
                yield from _unknown(value, holds[0], known)
    elif isinstance(data, list):
        if field is not None and field.type.startswith("list of"):
            return
        for value in data:
            yield from _unknown(value, f"{path}[]", known)


def _within(path: str, field: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}["))
