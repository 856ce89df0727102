"""The boundary between a user's code and ours: what an error that crosses it shows.

An error of ours that names no line gets the user's.  A traceback keeps the frames of the user's
code; ``BRINGUP_TRACEBACK=full`` keeps ours as well.  An error that is a defect of ours keeps all
frames.

A public namespace is a module whose functions are such boundaries; it answers for names that it
does not have.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from types import FunctionType
from typing import Any, TypeVar

from bringup import config
from bringup.errors import BringupError, MissingAttributeError, OpTypeError
from bringup.graph import NOT_USERS, user_location

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

#: Guarded functions of public modules by what they call, so that aliases stay one function.
_PUBLISHED: dict[Any, Any] = {}
_MARK = "__bringup_boundary__"


def guarded(fn: F, called: str = "", module: str = "") -> F:
    """`fn`, with errors that show the user's frames alone and explain arguments it does not take.

    called: how an error of an instruction calls the function, by default as the IR does.
    module: where users find it under its name, so that pickles do too.
    The result has the signature, the name and the globals of `fn`.
    """
    if getattr(fn, _MARK, None) == id(fn) or fn in _PUBLISHED:
        published: F = _PUBLISHED.get(fn, fn)
        return published
    boundary = _boundary(fn, called, _explained, _user_traceback)
    # Use the globals of `fn`: tools find the module of a function by them.
    wrapper: Any = FunctionType(
        boundary.__code__, fn.__globals__, boundary.__name__, None, boundary.__closure__
    )
    update_wrapper(wrapper, fn)
    setattr(wrapper, _MARK, id(wrapper))  # of its own, because `functools.wraps` copies attributes
    if module:
        wrapper.__module__ = module
        _PUBLISHED[fn] = wrapper
    result: F = wrapper
    return result


def guarded_methods(cls: C) -> C:
    """A class whose own methods, and the properties that raise, are `guarded`; a decorator.

    Methods that another function made, as operators are, handle their errors themselves.  A
    constructor is guarded if users call it: if the class or the constructor says what it raises.
    """
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and not name.endswith("__"):
            continue
        if name == "__init__" and "Raises" not in f"{cls.__doc__} {value.__doc__}":
            continue
        if isinstance(value, FunctionType) and value.__name__ == name:
            setattr(cls, name, guarded(value))
        elif isinstance(value, property) and "Raises" in (value.__doc__ or ""):
            assert value.fget is not None
            setattr(cls, name, property(guarded(value.fget), doc=value.__doc__))
    return cls


def _boundary(
    fn: Callable[..., Any],
    called: str,
    explained: Callable[..., Exception],
    users: Callable[..., Any],
) -> FunctionType:
    """explained, users: the functions below, which the globals of `fn` do not have."""

    def boundary(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (raised again)
            shown = explained(error, fn, called, args, kwargs)
            try:
                raise shown
            except Exception:
                # This frame is entered a second time; a bare raise adds no third.
                assert shown.__traceback__ is not None
                shown.__traceback__ = shown.__traceback__.tb_next
                shown.__traceback__ = users(shown, fn, args)
                raise
            finally:
                # The error's traceback holds this frame, which must not hold the error in turn: a
                # cycle would keep the memory of arguments until it is searched for.
                del shown

    return boundary  # type: ignore[return-value]


def hide(error: Exception, called: str) -> None:
    """Make an error that an operator is about to raise again show the user's code alone.

    called: what the user calls the instruction at fault, if the operator is in the user's code; in
    ours the function that it is a part of has the name.
    """
    frame, our_files = sys._getframe(1), {__file__, sys._getframe(1).f_code.co_filename}
    while frame.f_back is not None and frame.f_code.co_filename in our_files:
        frame = frame.f_back
    _add_call_site(error, "" if frame.f_code.co_filename.startswith(NOT_USERS) else called)
    error.__traceback__ = _user_traceback(error)


def _add_call_site(error: Exception, called: str) -> None:
    """Tell an error of ours what the user called, if that has a name, and on which line."""
    if not isinstance(error, BringupError):
        return
    op, colon, message = error.what.partition(": ")
    if called and colon and (op == error.op or (error.instruction or "").startswith(f"{op}(")):
        error.what, error.op = f"{called}: {message}", None
    if error.location is None:
        error.location = user_location()


def _user_traceback(error: BaseException, *callables: Any, seen: set[int] | None = None) -> Any:
    """The traceback of an error without our frames, unless they are wanted or needed.

    callables: what the user gave us to call, and sequences of it.
    seen: ids of the errors that were asked about before; causes may form a circle.
    """
    seen = set() if seen is None else seen
    seen.add(id(error))
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    if config.text("BRINGUP_TRACEBACK") == "full" or not entries:
        return error.__traceback__
    innermost = entries[-1].tb_frame.f_code.co_filename
    if innermost.startswith(NOT_USERS) and not isinstance(error, BringupError):
        # A bug of ours, unless we called a function of the user's with arguments it does not take.
        names = [re.escape(name) for name in _names(callables)]
        if not re.match(rf"({'|'.join(names)})\(\) (takes|got|missing) ", str(error)):
            return error.__traceback__
    user_entries = [e for e in entries if not e.tb_frame.f_code.co_filename.startswith(NOT_USERS)]
    following = None
    for entry in reversed(user_entries):
        entry.tb_next, following = following, entry
    for cause in (error.__cause__, error.__context__):
        if cause is not None and cause.__traceback__ is not None and id(cause) not in seen:
            cause.__traceback__ = _user_traceback(cause, seen=seen)
    return following


def _names(callables: Any) -> Iterator[str]:
    for function in callables:
        if isinstance(function, list | tuple):
            yield from _names(function)
        elif callable(function):
            inner = inspect.unwrap(function)
            if not inspect.getmodule(inner) or hasattr(inner, "__qualname__"):
                yield inner.__qualname__


def _explained(
    error: Exception,
    fn: Callable[..., Any],
    called: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Exception:
    """The error itself, or ours for arguments that `fn` does not take."""
    _add_call_site(error, called)
    entry = error.__traceback__
    if type(error) is not TypeError or entry is None or entry.tb_next is not None:
        return error
    try:
        signature = inspect.signature(fn)
        signature.bind(*args, **kwargs)
    except TypeError as refused:
        name = fn.__name__
        shown = f"{name}({_bare_parameters(signature)})"
        explained = OpTypeError(
            f"{name}: {refused}",
            location=user_location(),
            notes=(f"it is {shown}",),
            fix=_argument_fix(name, signature, args, kwargs),
        )
        explained.__suppress_context__ = True
        return explained
    return error


def _bare_parameters(signature: inspect.Signature) -> str:
    """The parameters without their annotations."""
    bare = [
        p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"
    ]
    return str(inspect.Signature(bare))[1:-1]


def _argument_fix(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    from bringup.api.foreign_names import PARAMETERS

    parameters = signature.parameters
    by_position = [p for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    named = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    for keyword in kwargs:
        if keyword not in parameters:
            close = [n for n in PARAMETERS.get(keyword, ()) if n in parameters]
            close = close or difflib.get_close_matches(keyword, parameters, n=1)
            if not close:
                return f"leave out {keyword}=, which it does not have"
            if parameters[close[0]] in by_position:
                return f"give it by position, as {close[0]}, not by name"
            return f"write {close[0]}= instead of {keyword}="
        if parameters[keyword] in by_position:
            return f"give {keyword} by position, not by name"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters.values() if p.kind in kinds]
    extra = args[len(positional) :]
    if not extra:
        needed = [p.name for p in parameters.values() if p.default is p.empty and p.name != "self"]
        return f"give it {', '.join(needed)}"
    integers = all(type(x) is int for x in extra)
    if positional[-1:] in (["shape"], ["axes"], ["repetitions"]) and integers:
        arguments = [*positional[:-1], repr(args[len(positional) - 1 :])]
        return f"give {positional[-1]} as one tuple: {name}({', '.join(arguments)})"
    if len(extra) <= len(named):
        named_arguments = [f"{n}={_literal(x)}" for n, x in zip(named, extra, strict=False)]
        return f"name what comes after: {name}({', '.join([*positional, *named_arguments])})"
    return f"give it {len(positional)} at most"


def _literal(value: Any) -> str:
    """A short value as it is written, else an ellipsis."""
    plain = isinstance(value, bool | int | float | str | tuple | None)
    return repr(value) if plain and len(repr(value)) < 20 else "…"


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
    namespace: dict[str, Any], called: str = "bringup", later: Mapping[str, str] | None = None
) -> None:
    """Make a module a public namespace: its functions are `guarded`, ``dir`` lists ``__all__``, and
    a name that is missing gets an answer.

    namespace: the globals of the module, with ``__all__``.
    called: what users call it.
    later: names that are imported when they are first asked for, and the module each is in, which
    ends in a colon where the name stands for the module itself.
    """
    names: Sequence[str] = namespace["__all__"]
    for name in names:
        if isinstance(namespace.get(name), FunctionType):
            namespace[name] = guarded(namespace[name], name, namespace["__name__"])

    def get(name: str) -> object:
        home = (later or {}).get(name)
        if home is not None:
            module = importlib.import_module(home.rstrip(":"))
            result = module if home.endswith(":") else getattr(module, name)
            return namespace.setdefault(
                name,
                guarded(result, name, namespace["__name__"])
                if isinstance(result, FunctionType)
                else result,
            )
        if name.startswith("_"):
            raise AttributeError(f"module {called!r} has no attribute {name!r}")
        raise _missing(name, names, called)

    namespace["__getattr__"] = guarded(get)
    namespace["__dir__"] = lambda: list(names)


def _missing(name: str, names: Sequence[str], called: str) -> MissingAttributeError:
    """The error for a name that a public namespace does not have."""
    space = called.removeprefix("bringup").lstrip(".")
    close = [f"{called}.{n}" for n in (f"vector_{name}", f"matrix_{name}") if n in names]
    fix = _known_fix(name, space) or _suggestion(name, names, lambda n: f"{called}.{n}", close)
    return MissingAttributeError(
        f"{called} has no {name!r}",
        fix=fix or f"names are those of the Python array API standard; dir({called}) lists them",
    )


def missing_attribute(x: Any, label: str, name: str, kind: str = "Array") -> MissingAttributeError:
    """The error for an attribute that an object of ours does not have.

    label: how the message calls the object.
    kind: the section of the table of foreign names that is about such objects.
    """
    attributes = [n for n in dir(type(x)) if not n.startswith("_")]
    space = importlib.import_module("bringup")
    function = kind == "Array" and name in space.__all__ and callable(getattr(space, name))
    return MissingAttributeError(
        f"{label} has no attribute {name!r}",
        fix=(f"use bringup.{name}(x, …)" if function else None)
        or _known_fix(name, kind)
        or _suggestion(name, attributes, lambda n: f"x.{n}")
        or f"there are {', '.join(attributes)}",
    )


def _known_fix(name: str, space: str) -> str | None:
    """The fix for a missing name: from the table of foreign names, or the namespace that has it."""
    from bringup.api import foreign_names

    rows = [row for row in foreign_names.table() if row.name == name]
    fix = next((row.fix for row in rows if row.space == space), None)
    if fix is not None:
        return fix
    root = importlib.import_module("bringup")
    for other_space in ("", *_SPACES):
        module = root
        for part in other_space.split(".") if other_space else ():
            module = getattr(module, part)
        if other_space != space and name in module.__all__:
            return f"use bringup.{other_space + '.' if other_space else ''}{name}"
    return rows[0].fix if rows else None


def _suggestion(
    name: str, names: Sequence[str], shown: Callable[[str], str], close: Sequence[str] = ()
) -> str | None:
    result = close or [shown(n) for n in difflib.get_close_matches(name, names, n=2, cutoff=0.8)]
    return f"use {' or '.join(result)}" if result else None
