"""Random primitives on random kernels keep every value."""

from __future__ import annotations

from collections.abc import Callable

from growing import _numbers, grown, launches
from hypothesis import given
from hypothesis import strategies as st
from schedules import assert_equal_values, is_exact

from bringup.dtypes import i32, u8
from bringup.errors import ScheduleError
from bringup.kernel.form import Kernel
from bringup.kernel.limits import Limits
from bringup.loops import Func, lower_kernel, parse_func
from bringup.loops.form import Alloc, Let, Load, Store, statements
from bringup.loops.schedule import PRIMITIVES, Schedule, Step, apply
from bringup.loops.schedule.rewrite import loop_names
from bringup.program.plan import overwrites

Draw = Callable[[int], int]


class _Choices:
    """Arguments for primitives from a list of small numbers, most of them of existing loops."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)
        self.fresh = 0

    def below(self, limit: int) -> int:
        return next(self.numbers, 0) % max(limit, 1)

    def loop(self, func: Func) -> str:
        names = loop_names(func)
        return names[self.below(len(names))]

    def loops(self, func: Func, most: int = 3) -> tuple[str, ...]:
        """Distinct loops in any order."""
        names, chosen = list(loop_names(func)), []
        for _ in range(1 + self.below(min(most, len(names)))):
            chosen.append(names.pop(self.below(len(names))))
        return tuple(chosen)

    def name(self) -> str:
        self.fresh += 1
        return f"n{self.fresh}"

    def scalar(self, func: Func) -> str:
        scalars = [str(s.result) for s in statements(func.body) if isinstance(s, Let | Load)]
        return scalars[self.below(len(scalars))] if scalars else "%none"

    def precompute(self, func: Func, loop: str) -> Step:
        layout = ",".join(self.loops(func))
        space = ("scratch", "shared", "register")[self.below(3)]
        pad = 0 if space == "register" else self.below(2)
        at = "." if self.below(3) == 0 else loop
        place = (self.scalar(func), at, self.name(), layout)
        return Step("precompute", place, (("space", space), ("pad", pad)))

    def allocated(self, func: Func) -> str:
        allocs = [s.buffer.name for s in statements(func.body) if isinstance(s, Alloc)]
        return allocs[self.below(len(allocs))] if allocs else "none"

    def step(self, func: Func) -> Step:
        name = list(PRIMITIVES)[self.below(len(PRIMITIVES))]
        loop = self.loop(func)
        match name:
            case "split":
                tail = ("guard", "branch", "peel", "overlap")[self.below(4)]
                args = (loop, self.name(), self.name(), 1 + self.below(5))
                return Step(name, args, (("tail", tail),))
            case "peel":
                return Step(name, (loop, self.below(3), self.below(3)))
            case "specialize":
                return Step(name, (loop, self.below(4), self.loop(func)))
            case "fuse":
                return Step(name, (loop, self.loop(func), self.name()))
            case "bind":
                return Step(name, (loop, ("block", "thread")[self.below(2)]))
            case "set_space":
                buffer = self.allocated(func)
                spaces = ("scratch", "shared", "register", "fragment")
                return Step(name, (buffer, spaces[self.below(4)]))
            case "rfactor":
                folds = [s.buffer.name for s in statements(func.body)
                         if isinstance(s, Store) and s.fold]  # fmt: skip
                buffer = folds[self.below(len(folds))] if folds else "none"
                return Step(name, (loop, buffer, *self.loops(func, 2)))
            case "distribute":
                space = ("register", "scratch")[self.below(2)]
                to = ("parts", "innermost")[self.below(2)]
                scalars = ("keep", "repeat")[self.below(2)]
                options = (("space", space), ("to", to), ("scalars", scalars))
                return Step(name, self.loops(func), options)
            case "reorder":
                return Step(name, self.loops(func))
            case "replicate":
                lanes = 1 << self.below(4)
                return Step(name, (loop, self.name(), *self.loops(func)), (("lanes", lanes),))
            case "keep":
                buffers = list(dict.fromkeys(s.buffer.name for s in statements(func.body)
                                             if isinstance(s, Load | Store)))  # fmt: skip
                return Step(name, (buffers[self.below(len(buffers))], loop))
            case "add_loop":
                return Step(name, (self.name(),))
        return self.other(func, name, loop)

    def other(self, func: Func, name: str, loop: str) -> Step:
        """A step of one of the other primitives."""
        match name:
            case "share":
                return Step(name, (*self.loops(func), self.scalar(func)), (("pad", self.below(2)),))
            case "precompute":
                return self.precompute(func, loop)
            case "narrow":
                return Step(name, (self.scalar(func), ("u8", "i16", "i64")[self.below(3)]))
            case "tensorize":
                return Step(name, (loop, f"{1 + self.below(5)}x{1 + self.below(3)}x2"))
            case "widen":
                return Step(name, (self.allocated(func), ("i32", "i64")[self.below(2)]))
            case "double_buffer":
                later = (self.allocated(func),) if self.below(2) else ()
                args = (loop, 2 + self.below(2), *later)
                return Step(name, args, (("pending", self.below(2)),))
            case "overwrite":
                buffers = [s.buffer.name for s in statements(func.body) if isinstance(s, Store)]
                return Step(name, (buffers[self.below(len(buffers))] if buffers else "none",))
            case "segment":
                around = self.loop(func) if self.below(3) == 0 else loop
                return Step(name, (loop, self.name(), around))
        return Step(name, (loop,))


def _kernels(numbers: list[int]) -> list[Kernel]:
    """The kernels of a random graph of integers, whose folds are exact in any order."""
    made = launches(grown(numbers, (i32, i32, u8)), Limits(), depth=False)
    return [launch.kernel for launch in made if launch.kernel is not None]


def _shared(kernel: Kernel, func: Func) -> dict[str, str]:
    """An input whose memory each output may have, where there is one."""
    shared: dict[str, str] = {}
    for target in kernel.outputs:
        for source in kernel.inputs:
            types = [kernel.buffers[n].type for n in (source, target)]
            free = f"b{source}" not in shared.values() and types[0].nbytes == types[1].nbytes
            if free and types[0].size and overwrites(kernel, source, target):
                shared[f"b{target}"] = f"b{source}"
                break
    return shared


@given(
    st.one_of(_numbers(6, 30), _numbers(35, 60)),
    st.lists(st.integers(0, 5039), min_size=20, max_size=80),
)
def test_random_primitives_keep_values(graph: list[int], numbers: list[int]) -> None:
    choices = _Choices(numbers)
    for kernel in _kernels(graph)[:2]:
        before = lower_kernel(kernel)
        if not is_exact(before) or not loop_names(before):
            continue
        func, done = before, Schedule()
        for _ in range(1 + choices.below(8)):
            step = choices.step(func)
            try:
                func = step(func)
            except ScheduleError:
                continue
            done += Schedule((step,))
        assert str(parse_func(str(func))) == str(func)
        assert str(apply(before, Schedule.parse(str(done)))) == str(func)
        shared = _shared(kernel, before)
        assert_equal_values(before, func)
        if shared:
            assert_equal_values(before, func, shared)
