"""The seam as a list: what backends may use of core, and whether a change of it narrows it.

``python core/tests/backend/seam.py`` writes the list of this API level anew, unless something in it
goes or is narrowed: that needs a new level.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from bringup.backend import API_LEVEL, Backend, Device

#: Modules, and their names where not all that they list is meant.
SEAM: dict[str, tuple[str, ...]] = {
    "bringup.backend": (),
    "bringup.c": (),
    "bringup.dtypes": (
        *("ALL", "FLOATS", "INTS", "STORED", "DType", "as_dtype"),
        *("bool_", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
        *("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64"),
    ),
    "bringup.errors": (),
    "bringup.graph": ("Graph", "Instr", "Literal", "Operation", "Value"),
    "bringup.kernel": (),
    "bringup.llvm.choices": (),
    "bringup.loops": (),
    "bringup.loops.schedule": ("Schedule", "Scheduled"),
    "bringup.ops.table": ("lookup",),
    "bringup.types": ("TensorType",),
}
#: What is newer than the promise, see docs/reference/stability.md.
OUTSIDE = ("bringup.backend.Backend.link", "bringup.backend.Backend.link_targets")
#: Written by those who implement a backend: core calls them, so that nothing may be added either.
IMPLEMENTED = (Backend, Device)
FILE = Path(__file__).with_name(f"seam-{API_LEVEL}.txt")


def current() -> dict[str, str]:
    """What each name of the seam is: a kind, and how it is called."""
    found: dict[str, str] = {}
    classes: dict[type, str] = {}
    for module_name, chosen in SEAM.items():
        module = importlib.import_module(module_name)
        for name in chosen or module.__all__:
            value, path = getattr(module, name), f"{module_name}.{name}"
            if inspect.isclass(value) and value in classes:
                found[path] = f"same as {classes[value]}"
                continue
            found[path] = _said(value)
            if inspect.isclass(value):
                classes[value] = path
                found |= {f"{path}.{member}": said for member, said in _members(value)}
    return {path: said for path, said in sorted(found.items()) if path not in OUTSIDE}


def _said(value: Any) -> str:
    if inspect.isclass(value):
        abstract = inspect.isabstract(value) or getattr(value, "_is_protocol", False)
        plain = value.__init__ in (object.__init__, Exception.__init__)
        return "abstract class" if abstract else f"class {'()' if plain else _signature(value)}"
    if inspect.isroutine(value):
        return f"function {_signature(value)}"
    return f"constant {type(value).__name__}"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Public methods, properties and fields, those of bases of ours among them."""
    own = {field.name: field.type for field in fields(kind)} if is_dataclass(kind) else {}
    yield from ((name, f"field {type_}") for name, type_ in own.items() if name[0] != "_")
    for name in dir(kind):
        place = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or name in own or not place.__module__.startswith("bringup"):
            continue
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            yield name, "property"
        elif isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            given = issubclass(kind, IMPLEMENTED) or getattr(kind, "_is_protocol", False)
            word = "implemented method" if given else "method"
            word = f"abstract {word}" if getattr(value, "__isabstractmethod__", False) else word
            yield name, f"{word} {_signature(getattr(kind, name))}"
        else:
            yield name, f"attribute of type {type(value).__name__}"


def _signature(function: Any) -> str:
    """Parameters and annotations; of a default, that there is one."""
    signature = inspect.signature(function)
    parameters = [
        p if p.default is p.empty else p.replace(default=...) for p in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters)).replace("Ellipsis", "...")
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def listed(file: Path = FILE) -> dict[str, str]:
    """The list of a level."""
    rows = (line.partition(": ") for line in file.read_text("utf-8").splitlines())
    return {path: said for path, _, said in rows}


def narrowed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What a backend that was written before could rely on, and cannot any more."""
    found = []
    for path, old in before.items():
        new = after.get(path)
        if new is None:
            found.append(f"{path} is gone")
        elif old != new and not _as_wide(old, new):
            found.append(f"{path} was {old}, and is {new}")
    for path, new in after.items():
        owner = path.rpartition(".")[0]
        if path not in before and owner in before and new.startswith("abstract implemented"):
            found.append(f"{path} has to be written, and had not")
    return found


def _as_wide(old: str, new: str) -> bool:
    """Whether all uses of what was one thing are right of another."""
    (old_kind, old_call), (new_kind, new_call) = (_parted(text) for text in (old, new))
    if old_kind == f"abstract {new_kind}":  # there is a default now
        old_kind = new_kind
    if old_kind != new_kind or not old_call or not new_call:
        return False
    if "implemented" in old_kind:
        return old_call == new_call
    was, now = (_parameters(text) for text in (old_call, new_call))
    positional = [name for name, (kind, _, _) in was.items() if kind == "positional"]
    kept = [name for name, (kind, _, _) in now.items() if kind == "positional"]
    if kept[: len(positional)] != positional or _result(old_call) != _result(new_call):
        return False
    for name, (_, optional, annotation) in was.items():
        if name not in now or now[name][2] != annotation or (optional and not now[name][1]):
            return False
    return all(optional for name, (_, optional, _) in now.items() if name not in was)


def _parted(said: str) -> tuple[str, str]:
    kind, bracket, call = said.partition("(")
    return kind.strip(), bracket + call


def _function(call: str) -> ast.FunctionDef:
    (function,) = ast.parse(f"def f{call}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function


def _result(call: str) -> str:
    returns = _function(call).returns
    return "" if returns is None else ast.unparse(returns)


def _parameters(call: str) -> dict[str, tuple[str, bool, str]]:
    """By name: whether it may be given by position, whether it has a default, its annotation."""
    arguments = _function(call).args
    ordered = [*arguments.posonlyargs, *arguments.args]
    first = len(ordered) - len(arguments.defaults)
    rows = [(arg, "positional", n >= first) for n, arg in enumerate(ordered)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    rows += [(arg, "named", default is not None) for arg, default in pairs]
    rows += [(arg, "rest", True) for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return {
        arg.arg: (kind, optional, "" if arg.annotation is None else ast.unparse(arg.annotation))
        for arg, kind, optional in rows
    }


def main() -> None:
    """Write the list, if nothing in it is narrowed."""
    after = current()
    problems = narrowed(listed(), after) if FILE.exists() else []
    if problems:
        sys.exit("\n".join([*problems, f"this needs API level {API_LEVEL + 1}"]))
    FILE.write_text("".join(f"{path}: {said}\n" for path, said in after.items()), "utf-8")


if __name__ == "__main__":
    main()
