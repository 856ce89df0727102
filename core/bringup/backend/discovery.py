"""What is installed, from metadata alone: nothing of a plugin is imported here."""

from __future__ import annotations

import importlib.util
from dataclasses import field
from typing import Literal

from bringup.backend.device import DeviceInfo
from bringup.backend.metadata import Entry, installed
from bringup.backend.plugin import GROUP
from bringup.errors import BackendError
from bringup.records import record

#: The distribution core itself is part of; the backends in it are the candidates for the default.
CORE_DISTRIBUTION = "bringup"

State = Literal["installed", "ready", "no hardware", "incompatible", "broken", "duplicate"]


@record
class Candidate:
    """One entry point of the group: a backend's name, and the distribution that brings it."""

    name: str
    distribution: str
    version: str
    entry: Entry
    requires: tuple[str, ...] = ()

    @property
    def is_core(self) -> bool:
        """Whether it comes with core itself."""
        return self.distribution == CORE_DISTRIBUTION

    def __str__(self) -> str:
        return f"{self.name!r} ({self.distribution} {self.version})"


@record
class BackendStatus:
    """What is known of one backend.

    state: ``installed`` if nothing was tried yet; ``ready``; ``no hardware``; ``incompatible`` with
    this core; ``broken``; ``duplicate`` if several distributions bring the name.
    reason, fix: one sentence each, empty if there is nothing to say.
    output: what the plugin printed while it was loaded.
    devices: those it can open, if it was asked.
    """

    name: str
    distribution: str
    version: str
    state: State
    reason: str = ""
    fix: str = ""
    output: str = ""
    devices: tuple[DeviceInfo, ...] = field(default=())


def candidates() -> tuple[Candidate, ...]:
    """Every backend the metadata on ``sys.path`` tells of, by name; equal names side by side.

    A distribution whose metadata cannot be read is passed over, as any error in it would hide all
    others; see `unreadable`.  A distribution found twice on the path counts once, the first as
    imports would.
    """
    found: dict[str, list[Candidate]] = {}
    for each in installed(GROUP):
        if each.entries and each.name not in found:
            found[each.name] = [
                Candidate(entry.name, each.name, each.version, entry, each.requires)
                for entry in each.entries
            ]
    rows = [candidate for own in found.values() for candidate in own]
    return tuple(sorted(rows, key=lambda c: (c.name, c.distribution)))


def unreadable() -> tuple[BackendStatus, ...]:
    """The distributions that mean to bring a backend, in metadata that cannot be read."""
    fix = "write its entry points as name = module, and reinstall it"
    return tuple(
        BackendStatus(
            each.name,
            each.name,
            each.version,
            "broken",
            f"its metadata cannot be read: {each.fault}",
            fix,
        )
        for each in installed(GROUP)
        if each.fault
    )


def select(name: str, among: tuple[Candidate, ...]) -> Candidate:
    """The one candidate of that name.

    Raises BackendError for an unknown name, naming the known ones, and for a name that several
    distributions bring, none of them core's own.
    """
    import difflib

    named = [c for c in among if c.name == name]
    if not named:
        known = list(dict.fromkeys(c.name for c in among))
        close = difflib.get_close_matches(name, known, n=3)
        raise BackendError(
            f"no backend is named {name!r}; installed: {', '.join(known) or 'none'}",
            fix=f"use {' or '.join(map(repr, close))}"
            if close
            else f"install the package that brings it, such as bringup-{name}",
        )
    only = accepted(named)
    if only is None:
        raise BackendError(f"backend {name!r} is refused: {clash(named)}", fix=clash_fix(named))
    return only


def accepted(named: list[Candidate]) -> Candidate | None:
    """Of candidates of one name the only one, or the one that comes with core: no other
    distribution takes that name from it.
    """
    own = [c for c in named if c.is_core] or named
    return own[0] if len(own) == 1 else None


def clash(named: list[Candidate]) -> str:
    """The sentence about candidates of one name."""
    owners = " and ".join(f"{c.distribution} {c.version}" for c in named)
    return f"{owners} all bring it" if len(named) > 2 else f"{owners} both bring it"


def clash_fix(named: list[Candidate]) -> str:
    """What to do about candidates of one name."""
    others = [c.distribution for c in named if not c.is_core]
    if len(others) < len(named):
        return f"its name is taken by bringup's own: pip uninstall {' '.join(others)}"
    return f"uninstall all but one: pip uninstall {' or '.join(others)}"


def missing_requirements(candidate: Candidate) -> tuple[str, ...]:
    """The requirements of its distribution that are not installed in the version asked for."""
    import importlib.metadata

    from packaging.requirements import InvalidRequirement, Requirement

    missing: list[str] = []
    for text in candidate.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier}")
    return tuple(missing)


def describe(candidate: Candidate) -> BackendStatus:
    """The status as far as metadata tells it: ``installed``, or ``broken`` without its package."""
    package = candidate.entry.module.partition(".")[0]
    missing = missing_requirements(candidate)
    state: State = "installed"
    reason = fix = ""
    if not _findable(package):
        state, reason = "broken", f"its package {package} cannot be found"
        fix = f"reinstall it: pip install --force-reinstall {candidate.distribution}"
    elif missing:
        reason = f"it requires {', '.join(missing)}, not installed"
        fix = install(missing)
    return BackendStatus(
        candidate.name, candidate.distribution, candidate.version, state, reason, fix
    )


def install(requirements: tuple[str, ...]) -> str:
    """The command that installs the requirements."""
    return "pip install " + " ".join(f'"{r}"' for r in requirements)


def _findable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
