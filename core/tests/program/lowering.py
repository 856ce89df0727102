"""Functions to programs for a device that exists on paper and takes everything into kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Never

import bringup as bu
from bringup.backend import Backend, Capabilities, DeviceInfo, NoHardware
from bringup.kernel.form import Kernel
from bringup.kernel.limits import Limits
from bringup.llvm.claims import emitter_claims
from bringup.runtime.compiler import Compiled, Options, lower_graph
from bringup.types import TensorType


class Paper(Backend):
    """A description and no device.  chunk: the length of chunks of every fold, 0 for whole ones."""

    name = "paper"

    def __init__(self, capabilities: Capabilities, chunk: int = 0) -> None:
        self.described, self.chunk = capabilities, chunk

    def devices(self) -> Sequence[DeviceInfo]:
        return ()

    def capabilities(self, target: str = "") -> Capabilities:
        return self.described

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        return self.chunk

    def open(self, index: int) -> Never:
        raise NoHardware("the device exists on paper")


KERNELS = Capabilities(kernels=emitter_claims())


def lower(
    fn: Callable[..., Any],
    *types: TensorType,
    fuse: bool = True,
    donated: Sequence[int] = (),
    limits: Limits | None = None,
    donation: bool = True,
    chunk: int = 0,
) -> Compiled:
    """``fn`` for arguments of these types, through every pass, fusion and planning.

    fuse: False makes a launch of every instruction.  donated: arguments that may be overwritten.
    chunk: as of `Paper`.
    """
    described = replace(KERNELS, limits=limits or Limits(), donation=donation)
    return lower_graph(
        bu.trace(fn, *types),
        Paper(described, chunk),
        donated=frozenset(donated),
        options=Options(fuse=fuse),
    )
