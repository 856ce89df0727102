"""Compiled objects on disk: core's cache, under the name that this backend knows it by."""

from __future__ import annotations

from bringup.runtime.objects import ObjectCache

__all__ = ["ObjectCache"]
