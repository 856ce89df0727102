"""The loop of a stage, shared by the members of a group, for `bringup.llvm.simt_group`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from bringup.kernel.form import Fold, Stage
from bringup.kernel.index import Axis, Expr
from bringup.llvm.body import Frame, accumulate, finish, start
from bringup.llvm.simt_body import Copy, SimtBody
from bringup.llvm.simt_frame import Bases, steps_of
from bringup.llvm.text import Val
from bringup.records import record

if TYPE_CHECKING:
    from bringup.llvm.simt_group import GroupEmitter

#: Fold results so far, by fold.
Partial = list[list[Val]]


@record(eq=False)
class Point:
    """A grid point of this thread.  alive: whether it is its own; None means yes."""

    bases: Bases
    alive: Val | None
    registers: list[Val]


class LoopEmitter:
    """The loop of one stage, shared by members: several positions at once, then one, then elements
    that fill no vector.
    """

    def __init__(
        self,
        owner: GroupEmitter,
        stage: Stage,
        point: Point,
        lane: tuple[Axis | None, int],
    ) -> None:
        self.owner, self.stage, self.point, self.lane = owner, stage, point, lane
        self.b, self.f, self.g = owner.b, owner.frame, owner.grouping
        self.body = owner.body_of(stage, point, lane)
        self.body.emit(range(1), [Copy(point.bases, point.alive)])
        self.over_lanes = self.g.lane is None and lane[1] > 1
        self.width = lane[1] if self.over_lanes else 1
        alone = len(stage.axes) == 1
        self.clip = {a: owner.clips[a] for a in stage.axes if a in owner.clips}
        #: Elements of the loop, where they are not a number of the kernel.
        self.limit: Val | None = None
        if alone and self.clip:
            size = stage.axes[0].size
            stop = self._stop(self.body, self.clip.pop(stage.axes[0]))
            self.limit = self.b.intrinsic("llvm.smin", self.f.index, (stop, self.f.number(size)))
        wide = {stage.axes[-1]: self.width} if self.over_lanes else {}
        self.parts = steps_of(stage.axes, wide)

    def run(self) -> Partial:
        """Emit it; the parts of each fold that this thread has."""
        f, b, g = self.f, self.b, self.g
        span = g.members * g.copies
        steps = prod(count for _, count, _ in self.parts)
        total: Val = f.number(steps)
        if self.limit is not None:
            total = b.binary("udiv", self.limit, f.number(self.width)) if self.width > 1 else (
                self.limit)  # fmt: skip
        lanes = self.body.lanes
        accs = [[start(fold, lanes, False)] * g.chains(lanes) for fold in self.stage.folds]
        main: Val = f.number(0)
        if g.copies > 1 and steps >= span:
            main = f.number(steps // span * span) if self.limit is None else (
                b.sub(total, b.binary("urem", total, f.number(span))))  # fmt: skip
            accs = self._steps(f.number(0), main, g.copies, accs)
        if self.limit is not None or steps % span or g.copies == 1:
            ones = self._steps(main, total, 1, [some[:1] for some in accs])
            accs = [one + some[1:] for one, some in zip(ones, accs, strict=True)]
        parts = [self._trimmed(some) for some in accs]
        last = self.stage.axes[-1]
        if self.over_lanes and (self.limit is not None or last.size % self.width):
            parts = self._tail(total, parts)
        return parts

    def _stop(self, body: SimtBody, stop: Expr) -> Val:
        return body.scalar(stop, (0,), Frame({}, (), None, 1, None))

    def _trimmed(self, some: list[Val]) -> list[Val]:
        """Without accumulators that nothing was added to."""
        return [v for v in some if not v.is_constant] or some[:1]

    def _steps(self, first: Val, stop: Val, copies: int, accs: Partial) -> Partial:
        """Positions from ``first`` to ``stop``, ``copies`` of each member at once."""
        f, b, g = self.f, self.b, self.g
        flat = [v for some in accs for v in some]
        with b.loop(b.add(first, self.owner.member), stop, g.members * copies, flat) as loop:
            at = [b.add(loop.index, f.number(g.members * k), "nuw nsw") for k in range(copies)]
            after = self._at(self.body, [f.split(x, self.parts) for x in at],
                             _grouped(list(loop.carried), accs))  # fmt: skip
            loop.next(*(v for some in after for v in some))
        return _grouped(list(loop.carried), accs)

    def _at(self, body: SimtBody, bases: Sequence[Bases], accs: Partial) -> Partial:
        """One step of some copies, which are skipped where a clipped loop has ended."""
        copies = [Copy({**self.point.bases, **each}, self.point.alive) for each in bases]
        levels = range(1, len(self.stage.axes) + 1)
        if not self.clip:
            return self._fold(body, body.emit(levels, copies), accs)
        result: Partial = [list(some) for some in accs]
        for k, copy in enumerate(copies):
            body.copies = [copy]
            here = self._within(body, copy)
            before = [[some[k % len(some)]] for some in result]

            def run(copy: Copy = copy, before: Partial = before) -> list[Val]:
                made = self._fold(body, body.emit(levels, [copy]), before)
                return [some[0] for some in made]

            merged = self.b.cond(here, run, partial(list, chain(*before)))
            for some, value in zip(result, merged, strict=True):
                some[k % len(some)] = value
        return result

    def _within(self, body: SimtBody, copy: Copy) -> Val:
        result: Val | None = None
        for axis, stop in self.clip.items():
            here = self.b.icmp("slt", copy.bases[axis], self._stop(body, stop))
            result = here if result is None else self.b.and_(result, here)
        assert result is not None
        return result

    def _fold(self, body: SimtBody, frame: Frame, accs: Partial) -> Partial:
        result: Partial = []
        folds = [
            (s, v)
            for s, v in zip(self.stage.sinks, self.stage.body.outputs, strict=True)
            if isinstance(s, Fold)
        ]
        for (fold, value), some in zip(folds, accs, strict=True):
            made = list(some)
            for k, position in enumerate(frame.positions()):
                acc = made[k % len(made)]
                made[k % len(made)] = accumulate(body, fold, value, position, acc, body.lanes, None)
            result.append(made)
        self.owner.store(self.stage, body, frame)
        return result

    def _tail(self, whole: Val, parts: Partial) -> Partial:
        """Elements after the last whole vector, a member each; the parts then have no lanes."""
        f, b = self.f, self.b
        axis = self.stage.axes[0]
        body = self.owner.body_of(self.stage, self.point, (None, 1))
        body.emit(range(1), [Copy(self.point.bases, self.point.alive)])
        at = b.add(b.mul(whole, f.number(self.width)), self.owner.member)
        end = self.limit if self.limit is not None else f.number(axis.size)
        before = [
            [finish(b, fold, some, across=True)]
            for fold, some in zip(self.stage.folds, parts, strict=True)
        ]

        def run() -> list[Val]:
            made = self._at(body, [{axis: at}], before)
            return [some[0] for some in made]

        merged = b.cond(b.icmp("slt", at, end), run, lambda: [some[0] for some in before])
        return [[value] for value in merged]


def _grouped(flat: list[Val], like: Partial) -> Partial:
    rest = iter(flat)
    return [[next(rest) for _ in some] for some in like]


__all__ = ["LoopEmitter", "Partial", "Point"]
