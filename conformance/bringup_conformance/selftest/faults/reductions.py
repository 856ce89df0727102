"""Faults of reductions."""

from __future__ import annotations

from bringup_conformance.selftest.corpus import Fault

FAULTS: tuple[Fault, ...] = ()
