"""Op steps on NVIDIA GPUs: ops on whole buffers that are no loop nest of a kernel.

`render_step` gives the commands of a step; every launch takes pointers to what it reads and writes.
Results never depend on the order in which blocks or threads run: atomics only combine integers, or
values whose fold is the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bringup.backend.capabilities import Claims, RowClaims
from bringup.dtypes import STORED
from bringup.program.program import KernelStep, OpStep

if TYPE_CHECKING:
    from bringup_cuda.commands import Command
    from bringup_cuda.lower import Emission

#: The emitter of each op that has one: a module of this package, and its function.
EMITTERS = {
    "attention": ("attention", "render"),
    "cholesky": ("factoring", "render_cholesky"),
    "cumulative": ("cumulative", "render"),
    "dynamic_update_slice": ("scattering", "render_update"),
    "lu": ("factoring", "render_lu"),
    "scatter": ("scattering", "render"),
    "sort": ("sorting", "render"),
    "triangular_solve": ("factoring", "render_triangular_solve"),
}

Render = Callable[["Emission", OpStep], "Sequence[Command]"]


def render_step(emission: Emission, step: KernelStep | OpStep) -> Sequence[Command] | None:
    """The commands of an op step, None for a step that has no emitter here; no command if its
    results have no element.
    """
    if not isinstance(step, OpStep) or step.op.name not in EMITTERS:
        return None
    if not any(slot.type.size for slot in step.results):
        return []
    module, function = EMITTERS[step.op.name]
    render: Render = getattr(import_module(f"{__name__}.{module}"), function)
    return render(emission, step)


def claims() -> Claims:
    """Claims for `Capabilities.ops`: what `render_step` renders."""
    return RowClaims(dict.fromkeys(EMITTERS, frozenset(STORED)))


__all__ = ["claims", "render_step"]
