"""Devices by name, and what the array API standard asks a library about itself."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from bringup.api.datatypes import isdtype
from bringup.api.promotion import DEFAULT_INT, scalar_dtype
from bringup.backend.registry import list_backends
from bringup.dtypes import COMPLEX, COMPLEX_OF, STORED, DType
from bringup.errors import ConversionError
from bringup.runtime.devices import DeviceSpec, OpenDevice, get, use


def device(spec: DeviceSpec) -> AbstractContextManager[OpenDevice]:
    """Make a device the default inside a ``with`` block, for this thread or task alone.

    spec: ``"name"``, ``"name:index"``, or an open device.
    Raises BackendError for an unknown one.

    >>> with bu.device(bu.devices()[0]) as device:
    ...     bu.zeros(3).device is device
    True
    """
    return use(get(spec))


def devices() -> list[str]:
    """The names of the devices that can be opened, each found out in an interpreter of its own.
    An array's device equals its name.

    >>> bu.zeros(2).device in bu.devices()
    True
    """
    return [
        f"{status.name}:{info.index}" if info.index else status.name
        for status in list_backends(probe=True)
        if status.state == "ready"
        for info in status.devices
    ]


#: The version of the standard the names and semantics follow.
API_VERSION = "2024.12"


def namespace(api_version: str | None) -> Any:
    """The public module.  Raises ConversionError for a version that is not supported."""
    if api_version not in (None, API_VERSION):
        raise ConversionError(
            f"version {api_version} of the array API standard is not supported",
            fix=f"ask for {API_VERSION}",
        )
    return sys.modules["bringup"]


class NamespaceInfo:
    """The answers of ``__array_namespace_info__()``."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on data, outside traced functions; dimensions as a
        device takes.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> OpenDevice:
        """The device of arrays made without ``device=``."""
        return get()

    def default_dtypes(self, *, device: DeviceSpec = None) -> dict[str, DType]:
        """The dtypes of Python scalars and of indices."""
        return {
            "real floating": scalar_dtype("float"),
            "complex floating": scalar_dtype("complex"),
            "integral": DEFAULT_INT,
            "indexing": DEFAULT_INT,
        }

    def devices(self) -> list[str]:
        """As `devices`."""
        return devices()

    def dtypes(self, *, device: DeviceSpec = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes a device takes, by their long names."""
        claims = get(device).capabilities
        known = {d for table in (claims.ops, claims.kernels) for ds in table.values() for d in ds}
        known |= {COMPLEX_OF[d] for d in known & COMPLEX_OF.keys()}
        result = [d for d in STORED + COMPLEX if d in known]
        return {d.long_name: d for d in result if kind is None or isdtype(d, kind)}


def array_namespace_info() -> NamespaceInfo:
    """The object the standard calls ``__array_namespace_info__()``.

    >>> bu.__array_namespace_info__().default_dtypes()["integral"]
    i64
    """
    return NamespaceInfo()
