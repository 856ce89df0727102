"""Contraction kernels as commands of a stream: one launch, or two where sums are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.kernel.contraction import size
from bringup.kernel.form import Kernel
from bringup.kernel.index import Axis, Expr
from bringup.kernel.split import SplitFold, split_fold
from bringup.llvm.simt import SimtKernel
from bringup.llvm.steps.params import AttentionSizes
from bringup.program.program import KernelStep, OpStep
from bringup_cuda.commands import Clear, Command, Launch
from bringup_cuda.contraction.attention import emit_attention
from bringup_cuda.contraction.attention_plan import plan_attention
from bringup_cuda.contraction.emit import emit_contraction
from bringup_cuda.contraction.planning import Planned, plan
from bringup_cuda.lower import Emission, emit_once


def render(emission: Emission, step: KernelStep | OpStep) -> Sequence[Command] | None:
    """The commands of a kernel that sums products over rows and columns; None for others."""
    if not isinstance(step, KernelStep):
        return None
    planned = plan(step.kernel, emission.target)
    if planned is None:
        return None
    split = cut(planned)
    if split is None:
        return [Launch(_emit(emission, planned, {}), step.slots, step)]
    whole = plan(split.partial, emission.target, split.clips)
    assert whole is not None, "a part of a contraction is one"
    scratch = tuple(emission.scratch(t.nbytes) for t in split.scratch)
    count = len(step.kernel.buffers)
    parts_ = frozenset(range(count, count + len(scratch)))
    kernels = [
        _emit(emission, whole, split.clips),
        emit_once(emission, split.final, {}, parts_),
    ]
    return [Launch(kernel, (*step.slots, *scratch), step) for kernel in kernels]


def render_attention(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``attention``."""
    form = AttentionSizes.of(step)
    (result,) = step.results
    if not form.batch * form.queries * form.values:  # pragma: no cover - folded before
        return []
    if not form.keys:
        return [Clear(result, result.type.nbytes)]
    key = f"attention {form}"
    found = emission.known.get(key)
    if found is None:
        planned = plan_attention(form, emission.target)
        name = emission.name("attention")
        found = emission.known[key] = emit_attention(emission.module, planned, name)
    return [Launch(found, step.slots, step)]


def cut(planned: Planned) -> SplitFold | None:
    """The kernel in two if its plan says so and an axis is long enough."""
    kernel, inner, count = planned.made.kernel, planned.made.inner, planned.parts
    longest = max(a.size for a in inner)
    if count < 2 or longest < 2 * count:
        return None
    depth = planned.plans[0].layout.depth
    rest = size(inner) // longest
    least = max(1, depth // rest)
    chunk = -(-longest // count)
    chunk = -(-chunk // least) * least
    return _cut(kernel, chunk * rest)


def _cut(kernel: Kernel, elements: int) -> SplitFold | None:
    points = kernel.points
    return split_fold(kernel, chunk_elements=elements * min(points, 64), max_points=points)


def _emit(emission: Emission, planned: Planned, clips: Mapping[Axis, Expr]) -> SimtKernel:
    """The function of a contraction, which equal ones share."""
    kernel = planned.made.kernel
    stops = "".join(f"{axis} < {stop}\n" for axis, stop in clips.items())
    key = f"contraction\n{stops}" + str(kernel).split("\n", 1)[-1]
    found = emission.known.get(key)
    if found is None:
        name = emission.name(kernel.name)
        found = emission.known[key] = emit_contraction(emission.module, planned, name)
    return found
