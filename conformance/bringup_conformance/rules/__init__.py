"""The rules a device is held to, each with an id that tests carry and reports name."""

from __future__ import annotations
