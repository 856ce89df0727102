"""Backends by name: found by metadata, imported one by one when selected, kept apart.

>>> from bringup.backend import list_backends, load
>>> [status.state for status in list_backends()]            # doctest: +SKIP
['installed', 'installed']
>>> load("nothing")                                         # doctest: +SKIP
BackendError: no backend is named 'nothing'; installed: ...
"""

from __future__ import annotations

from itertools import groupby

from bringup.backend.device import Backend
from bringup.backend.discovery import (
    BackendStatus,
    Candidate,
    accepted,
    candidates,
    clash,
    clash_fix,
    describe,
    select,
    unreadable,
)
from bringup.backend.loading import Outcome, captured, load_silently, with_devices
from bringup.backend.probing import probe_elsewhere
from bringup.locks import ProcessLock

_PARALLEL_PROBES = 4
_Key = tuple[str, str, str, str]

_lock = ProcessLock()
_loaded: dict[_Key, Outcome] = {}


def load(name: str) -> Backend:
    """The backend of that name, imported and checked on the first call; the same object ever after.
    Of several distributions that bring it, core's own.

    Raises BackendError for a name that is unknown (with close matches), brought by two other
    distributions, or whose plugin is broken or incompatible; chained from the plugin's own error.
    """
    candidate = select(name, candidates())
    with _lock:
        outcome = _loaded.get(_key(candidate))
        if outcome is None:
            outcome = load_silently(candidate)
            if outcome.backend is not None:
                _loaded[_key(candidate)] = outcome
    return outcome.require()


def list_backends(probe: bool = False) -> list[BackendStatus]:
    """Every installed backend, by name, one row per distribution that brings it.

    Imports no plugin.
    probe: find out the state of each and its devices, every plugin in an interpreter of its own, so
    that one that crashes or hangs is a state like any other.
    """
    rows: list[BackendStatus] = []
    todo: dict[int, Candidate] = {}
    for _, group in groupby(candidates(), key=lambda c: c.name):
        named = list(group)
        for candidate in named:
            if candidate is not accepted(named):
                rows.append(_duplicate(candidate, named))
                continue
            outcome = _loaded.get(_key(candidate))
            if outcome is not None and outcome.backend is not None:
                with captured():
                    rows.append(with_devices(outcome.status, outcome.backend))
                continue
            rows.append(describe(candidate))
            if probe:
                todo[len(rows) - 1] = candidate
    if todo:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_PARALLEL_PROBES, len(todo))) as pool:
            for row, status in zip(todo, pool.map(probe_elsewhere, todo.values()), strict=True):
                rows[row] = status
    return rows + list(unreadable())


def core_backends() -> tuple[str, ...]:
    """The names of the backends that core's own distribution brings, by metadata alone."""
    return tuple(dict.fromkeys(c.name for c in candidates() if c.is_core))


def _key(candidate: Candidate) -> _Key:
    # Name and version tell apart what a changed sys.path or a new installation brings.
    return (candidate.name, candidate.distribution, candidate.version, candidate.entry.value)


def _duplicate(candidate: Candidate, named: list[Candidate]) -> BackendStatus:
    return BackendStatus(
        candidate.name,
        candidate.distribution,
        candidate.version,
        "duplicate",
        clash(named),
        clash_fix(named),
    )
