"""One plugin, from its entry point to a checked `Backend`; whatever it does wrong stays its own."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

import pluggy

import bringup.backend.plugin as hooks
from bringup.backend.capabilities import API_LEVEL, OPSET, Capabilities, Handshake
from bringup.backend.device import Backend, DeviceInfo, NoHardware
from bringup.backend.discovery import (
    CORE_DISTRIBUTION,
    BackendStatus,
    Candidate,
    State,
    install,
    missing_requirements,
)
from bringup.errors import BackendError, BringupError
from bringup.records import record

_SHOWN_LINES = 5


@record
class Outcome:
    """What became of one plugin: its backend, or why there is none and the plugin's own error."""

    status: BackendStatus
    backend: Backend | None = None
    error: BaseException | None = None

    def require(self) -> Backend:
        """The backend.  Raises BackendError, chained from the plugin's own error."""
        if self.backend is not None:
            return self.backend
        status = self.status
        printed = tuple(f"printed: {line}" for line in status.output.splitlines()[-_SHOWN_LINES:])
        raise BackendError(
            f"backend {status.name!r} of {status.distribution} {status.version} is {status.state}: "
            f"{status.reason}",
            fix=status.fix,
            notes=printed,
        ) from self.error


class Refusal(Exception):
    """A plugin that keeps to Python but not to the seam: state, reason (its text) and fix."""

    def __init__(self, state: State, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.state = state
        self.fix = fix


def load_candidate(candidate: Candidate) -> Outcome:
    """Import the plugin, shake hands, make its backend and check what it says.

    Never raises, KeyboardInterrupt apart.
    """
    status = BackendStatus(candidate.name, candidate.distribution, candidate.version, "installed")
    try:
        return Outcome(status, _make(candidate))
    except KeyboardInterrupt:
        raise
    except Refusal as refusal:
        status = replace(status, state=refusal.state, reason=str(refusal), fix=refusal.fix)
        return Outcome(status)
    except BaseException as error:  # noqa: BLE001  (plugins exit, too)
        fix = _fix(candidate, error)
        status = replace(status, state="broken", reason=sentence(error), fix=fix)
        return Outcome(status, None, error)


def load_silently(candidate: Candidate) -> Outcome:
    """`load_candidate`, with what the plugin prints meanwhile kept in the status."""
    with captured() as printed:
        outcome = load_candidate(candidate)
    return replace(outcome, status=replace(outcome.status, output=printed()))


def with_devices(status: BackendStatus, backend: Backend) -> BackendStatus:
    """The status completed by asking the backend for its devices; never raises."""
    try:
        devices = checked_devices(backend)
    except NoHardware as absent:
        reason = str(absent) or "it reports no devices"
        return replace(status, state="no hardware", reason=reason, devices=())
    except Refusal as refusal:
        return replace(status, state=refusal.state, reason=str(refusal), fix=refusal.fix)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001
        reason = f"devices() raised {sentence(raised)}"
        return replace(status, state="broken", reason=reason, fix=_report(status.distribution))
    return replace(status, state="ready", reason="", fix="", devices=devices)


def checked_devices(backend: Backend) -> tuple[DeviceInfo, ...]:
    """What `Backend.devices` says.  Raises NoHardware if that is nothing."""
    found: Any = backend.devices()
    if not isinstance(found, Sequence) or not all(isinstance(d, DeviceInfo) for d in found):
        raise _wrong("devices()", "a sequence of DeviceInfo", found)
    if not found:
        raise NoHardware("it reports no devices")
    for info in found:
        for part, wanted, got in _unsound(info):
            raise _wrong("devices()", wanted, got, part)
    if len({info.index for info in found}) < len(found):
        raise _wrong("devices()", "one DeviceInfo per index", found)
    return tuple(found)


def _unsound(info: Any) -> Iterator[tuple[str, str, Any]]:
    """Parts of a `DeviceInfo` that are not what is due, and what is."""
    if type(info.index) is not int or info.index < 0:
        yield "DeviceInfo.index", "an integer >= 0", info.index
    if not isinstance(info.product, str):
        yield "DeviceInfo.product", "text", info.product
    if not isinstance(info.details, tuple):
        yield "DeviceInfo.details", "a tuple of pairs of text", info.details
        return
    for number, pair in enumerate(info.details):
        where = f"DeviceInfo.details[{number}]"
        if not isinstance(pair, tuple) or len(pair) != 2:
            yield where, "a pair of texts", pair
            return
        for side, text in enumerate(pair):
            if not isinstance(text, str):
                yield f"{where}[{side}]", "text", text


def _make(candidate: Candidate) -> Backend:
    manager = pluggy.PluginManager("bringup")
    manager.add_hookspecs(hooks)
    # pluggy's own loader walks every distribution again and stops at the first unreadable one.
    manager.register(candidate.entry.load(), name=candidate.name)
    manager.check_pending()
    _check_handshake(candidate, _call(manager.hook.bringup_handshake, "bringup_handshake"))
    backend = _call(manager.hook.bringup_backend, "bringup_backend")
    if not isinstance(backend, Backend):
        raise _wrong("bringup_backend()", "a Backend", backend)
    name: Any = getattr(backend, "name", None)
    if name != candidate.name:
        raise Refusal(
            "broken",
            f"its Backend.name is {name!r}, its entry point is named {candidate.name!r}",
            f"give both one name in {candidate.distribution}",
        )
    capabilities: Any = backend.capabilities()
    if not isinstance(capabilities, Capabilities):
        raise _wrong("capabilities()", "a Capabilities", capabilities)
    return backend


def _call(hook: pluggy.HookCaller, name: str) -> Any:
    if not hook.get_hookimpls():
        raise Refusal(
            "broken", f"it implements no {name}", f"define {name} and mark it with @hookimpl"
        )
    return hook()


def _check_handshake(candidate: Candidate, handshake: Any) -> None:
    if not isinstance(handshake, Handshake):
        raise _wrong("bringup_handshake()", "a Handshake", handshake)
    for what, accepted, ours in (
        ("backend API levels", handshake.api, API_LEVEL),
        ("opsets", handshake.opset, OPSET),
    ):
        if not _is_range(accepted):
            raise _wrong(f"Handshake of {what}", "an inclusive range (low, high)", accepted)
        low, high = accepted
        if low <= ours <= high:
            continue
        older = candidate.distribution if high < ours else CORE_DISTRIBUTION
        raise Refusal(
            "incompatible",
            f"it accepts {what} {low} to {high}, and this {CORE_DISTRIBUTION} has {ours}",
            f"pip install --upgrade {older}",
        )


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(type(n) is int for n in value)
        and value[0] <= value[1]
    )


def _wrong(where: str, wanted: str, got: Any, part: str = "") -> Refusal:
    """part: which one of what was given it is, if not all."""
    return Refusal(
        "broken",
        f"{where} gave {f'{part} {_shown(got)}'.lstrip()} where {wanted} is due",
        f"return {wanted} from the plugin; its types are exported by bringup.backend",
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (Exception, SystemExit):  # noqa: BLE001  (a foreign __repr__)
        text = object.__repr__(value)
    kind = type(value).__name__
    return (text if text.startswith(f"{kind}(") else f"{kind} {text}")[:80]


def sentence(error: BaseException) -> str:
    """An exception in one line: its class and the first line of its text."""
    try:
        text = str(error).strip()
    except (Exception, SystemExit):  # noqa: BLE001  (a foreign __str__)
        text = ""
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _fix(candidate: Candidate, error: BaseException) -> str:
    if isinstance(error, BringupError) and error.fix:
        return error.fix
    missing = missing_requirements(candidate)
    if isinstance(error, ImportError | OSError) and missing:
        return install(missing)
    if isinstance(error, ModuleNotFoundError):
        return (
            f"install the Python module {error.name!r}, or reinstall {candidate.distribution};"
            " a driver is imported where a device is opened, not with the plugin"
        )
    if isinstance(error, ImportError | OSError):
        return f"install the library it needs, or reinstall {candidate.distribution}"
    return _report(candidate.distribution)


def _report(distribution: str) -> str:
    return f"update {distribution}, or report this to its authors"


class _Listener(io.TextIOBase):
    """Keeps what one thread prints while listening; passes everything else on."""

    def __init__(self, name: str, original: TextIO | None, kept: io.StringIO) -> None:
        self._name = name
        self._original = original
        self._kept: io.StringIO | None = kept
        self._thread = threading.get_ident()

    def close_ears(self) -> None:
        """From now on only pass on: a plugin's log handler may hold this object for good."""
        self._kept = None

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._kept is not None and threading.get_ident() == self._thread:
            return self._kept.write(text)
        target = self._target()
        return target.write(text) if target is not None else len(text)

    def flush(self) -> None:
        target = self._target()
        if target is not None:
            target.flush()

    def isatty(self) -> bool:
        target = self._target()
        return target is not None and target.isatty()

    def fileno(self) -> int:
        target = self._target()
        if target is None:
            raise OSError(f"{self._name} is closed")
        return target.fileno()

    def _target(self) -> TextIO | None:
        current: TextIO | None = getattr(sys, self._name)
        return self._original if current is self else current  # type: ignore[comparison-overlap]


@contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Keep what this thread prints inside the block; gives a function that tells it."""
    kept = io.StringIO()
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    listeners = {name: _Listener(name, stream, kept) for name, stream in before.items()}
    for name, listener in listeners.items():
        setattr(sys, name, listener)
    try:
        yield kept.getvalue
    finally:
        for name, listener in listeners.items():
            listener.close_ears()
            if getattr(sys, name) is listener:
                setattr(sys, name, before[name])
