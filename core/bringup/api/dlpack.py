"""DLPack: arrays to and from other libraries, through host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.creation import copy_of, from_host
from bringup.api.place import DeviceSpec
from bringup.errors import ConversionError
from bringup.graph import user_location

#: What `__dlpack_device__` says: arrays are handed out in host memory, whatever device they are on.
HOST = (1, 0)


def export(
    x: Array,
    *,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """The capsule of an array: its own memory, read-only, where the host sees it, else a copy.

    Raises BufferError if ``copy=False`` cannot be had, as the protocol says.
    """
    if dl_device not in (None, HOST):
        raise BufferError(f"arrays are handed out in host memory only, not on device {dl_device}")
    host = x._exported("a DLPack capsule of")
    shared = not host.flags.writeable
    if copy is False and not shared:
        raise BufferError(f"the host does not see the memory of {x.device}: leave out copy=False")
    if copy or (shared and (max_version is None or max_version < (1, 0))):
        # Older versions of the protocol cannot say that memory is read-only.
        host = host.copy()
    if max_version is None:
        return host.__dlpack__()
    return host.__dlpack__(max_version=max_version)


def from_dlpack(x: Any, /, *, device: DeviceSpec = None, copy: bool | None = None) -> Array:
    """An array with the content of any object with ``__dlpack__`` in host memory; always a copy.

    Raises ConversionError for ``copy=False`` and for memory the host does not see.

    >>> import numpy as np
    >>> bu.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    if isinstance(x, Array):
        moved = x if device is None else x.to(device)
        if copy is False and moved is not x:
            raise ConversionError(
                f"{x.type} does not move to {moved.device} without a copy",
                location=user_location(),
                fix="leave out copy=False",
            )
        return copy_of(x) if copy and moved is x else moved
    if copy is False:
        raise ConversionError("from_dlpack copies always", fix="leave out copy=False")
    try:
        host = np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise ConversionError(
            f"a {type(x).__name__} hands out no host memory: {error}",
            fix="copy it to the host first",
        ) from error
    return from_host(host, device)
