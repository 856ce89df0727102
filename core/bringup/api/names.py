"""Public namespaces: what they list, what is imported late, and what they say of other names."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from bringup.api.boundary import guarded
from bringup.errors import MissingAttributeError

#: Namespaces below `bringup`, searched for a name that another of them lacks.
_SPACES = (
    "nn",
    "linalg",
    "random",
    "special",
    "fft",
    "optim",
    "prune",
    "quant",
    "tree",
    "amp",
    "debug",
    "lax",
    "nn.init",
)


def publish(
    own: dict[str, Any], called: str = "bringup", later: Mapping[str, str] | None = None
) -> None:
    """Make a module a public namespace: its functions are `guarded`, ``dir`` lists ``__all__``, and
    a name that is missing gets an answer.

    own: the globals of the module, with ``__all__``.
    called: what users call it.
    later: names that are imported when they are first asked for, and the module each is in, which
    ends in a colon where the name stands for the module itself.
    """
    names: Sequence[str] = own["__all__"]
    for name in names:
        if isinstance(own.get(name), FunctionType):
            own[name] = guarded(own[name], name, own["__name__"])

    def get(name: str) -> object:
        home = (later or {}).get(name)
        if home is not None:
            module = importlib.import_module(home.rstrip(":"))
            found = module if home.endswith(":") else getattr(module, name)
            return own.setdefault(
                name,
                guarded(found, name, own["__name__"]) if isinstance(found, FunctionType) else found,
            )
        if name.startswith("_"):
            raise AttributeError(f"module {called!r} has no attribute {name!r}")
        raise _missing(name, names, called)

    own["__getattr__"] = guarded(get)
    own["__dir__"] = lambda: list(names)


def _missing(name: str, names: Sequence[str], called: str) -> MissingAttributeError:
    """The error for a name that a public namespace does not have."""
    space = called.removeprefix("bringup").lstrip(".")
    close = [f"{called}.{n}" for n in (f"vector_{name}", f"matrix_{name}") if n in names]
    fix = _answer(name, space) or _suggestion(name, names, lambda n: f"{called}.{n}", close)
    return MissingAttributeError(
        f"{called} has no {name!r}",
        fix=fix or f"names are those of the Python array API standard; dir({called}) lists them",
    )


def missing_attribute(x: Any, what: str, name: str, kind: str = "Array") -> MissingAttributeError:
    """The error for an attribute that an object of ours does not have.

    what: how the message calls the object.
    kind: the section of the table of foreign names that is about such objects.
    """
    own = [n for n in dir(type(x)) if not n.startswith("_")]
    space = importlib.import_module("bringup")
    function = kind == "Array" and name in space.__all__ and callable(getattr(space, name))
    return MissingAttributeError(
        f"{what} has no attribute {name!r}",
        fix=(f"use bringup.{name}(x, …)" if function else None)
        or _answer(name, kind)
        or _suggestion(name, own, lambda n: f"x.{n}")
        or f"there are {', '.join(own)}",
    )


def _answer(name: str, space: str) -> str | None:
    """What the table of foreign names says of one, or where else of ours it is."""
    from bringup.api import foreign

    rows = [row for row in foreign.table() if row.name == name]
    own = next((row.fix for row in rows if row.space == space), None)
    if own is not None:
        return own
    root = importlib.import_module("bringup")
    for other in ("", *_SPACES):
        module = root
        for part in other.split(".") if other else ():
            module = getattr(module, part)
        if other != space and name in module.__all__:
            return f"use bringup.{other + '.' if other else ''}{name}"
    return rows[0].fix if rows else None


def _suggestion(
    name: str, names: Sequence[str], shown: Callable[[str], str], close: Sequence[str] = ()
) -> str | None:
    found = close or [shown(n) for n in difflib.get_close_matches(name, names, n=2, cutoff=0.8)]
    return f"use {' or '.join(found)}" if found else None
