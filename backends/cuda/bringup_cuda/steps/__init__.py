"""Op steps on NVIDIA GPUs: ops on whole buffers that are no loop nest of a kernel.

`render_step` gives the commands of a step; every launch takes pointers to what it reads and writes.
Results never depend on the order in which blocks or threads run: atomics only combine integers, or
values whose fold is the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from bringup.backend.capabilities import Claims, RowClaims
from bringup.dtypes import STORED
from bringup.graph import attrs_key
from bringup.program.program import KernelStep, OpStep

if TYPE_CHECKING:
    from bringup_cuda.commands import Argument, Command
    from bringup_cuda.lower import Emission

#: The emitter of each op that has one: a module of this package, and its function.
EMITTERS = {
    "attention": ("attention", "render"),
    "cholesky": ("factoring", "render_cholesky"),
    "cumulative": ("cumulative", "render"),
    "dynamic_update_slice": ("scattering", "render_update"),
    "lu": ("factoring", "render_lu"),
    "qr": ("reflecting", "render"),
    "scatter": ("scattering", "render"),
    "sort": ("sorting", "render"),
    "triangular_solve": ("factoring", "render_triangular_solve"),
}

Render = Callable[["Emission", OpStep], "Sequence[Command]"]

#: What was rendered for a program: equal steps share kernels.
_rendered: WeakKeyDictionary[Emission, dict[Hashable, tuple[OpStep, Sequence[Command]]]]
_rendered = WeakKeyDictionary()


def render_step(emission: Emission, step: KernelStep | OpStep) -> Sequence[Command] | None:
    """The commands of an op step, None for a step that has no emitter here; no command if its
    results have no element.
    """
    if not isinstance(step, OpStep) or step.op.name not in EMITTERS:
        return None
    if not any(slot.type.size for slot in step.results):  # pragma: no cover - folded before
        return []
    known = _rendered.setdefault(emission, {})
    # Where two operands or results are one memory decides what is copied.
    places = tuple(step.slots.index(slot) for slot in step.slots)
    key = step.op.name, attrs_key(step.attrs), tuple(s.type for s in step.slots), places
    if key in known:
        return [_moved(command, known[key][0], step) for command in known[key][1]]
    module, function = EMITTERS[step.op.name]
    render: Render = getattr(import_module(f"{__name__}.{module}"), function)
    known[key] = step, render(emission, step)
    return known[key][1]


def _moved(command: Command, before: OpStep, step: OpStep) -> Command:
    """A command of one step as one of another that differs in its slots alone."""
    from bringup_cuda.commands import Clear, Copy, Launch, Scratch

    def at(argument: Argument) -> Argument:
        if isinstance(argument, Scratch):
            return argument
        return step.slots[before.slots.index(argument)]

    if isinstance(command, Launch):
        return Launch(command.kernel, tuple(map(at, command.arguments)), step)
    if isinstance(command, Clear):
        return Clear(at(command.target), command.nbytes)
    assert isinstance(command, Copy), f"{command} is no command of an op step"
    return Copy(at(command.source), at(command.target), command.nbytes)


def claims() -> Claims:
    """Claims for `Capabilities.ops`: what `render_step` renders."""
    return RowClaims(dict.fromkeys(EMITTERS, frozenset(STORED)))


__all__ = ["claims", "render_step"]
