"""What LLVM made of a program's code, kept on disk: PTX by a key of all it depends on.

The driver keeps what its own compiler makes of the PTX, in ``~/.nv/ComputeCache``.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from bringup.llvm.host.object_cache import ObjectCache
from bringup_cuda.surface import Image


def image_of(text: str, architecture: str, image: Image) -> bytes:
    """LLVM IR as what a driver loads.  Raises CompileError."""
    return text.encode() + b"\0" if image == "llvm" else _ptx(text, architecture)


def _ptx(text: str, architecture: str) -> bytes:  # pragma: no cover on cuda-emulated - only drivers
    objects, key = ptx_cache(), _key(text, architecture)
    found = objects.get(key)
    if found is None:
        from bringup_cuda.lower import to_ptx

        found = to_ptx(text, architecture).encode() + b"\0"
        objects.put(key, found)
    return found


@cache
def ptx_cache() -> ObjectCache:  # pragma: no cover on cuda-emulated - only drivers
    """The directory of this user."""
    from platformdirs import user_cache_dir

    return ObjectCache(Path(user_cache_dir("bringup")) / "ptx", limit=128 << 20)


def _key(text: str, architecture: str) -> str:  # pragma: no cover on cuda-emulated - only drivers
    import llvmlite

    import bringup

    digest = hashlib.sha256(text.encode())
    for part in (architecture, bringup.__version__, llvmlite.__version__, _options()):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def _options() -> str:  # pragma: no cover on cuda-emulated - only drivers
    from bringup_cuda.lower import PTX_FEATURE

    return PTX_FEATURE
