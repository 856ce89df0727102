"""Depths 1 and 2: a vendor gives functions or a renderer, and gets programs compiled and run.

A whole device whose memory is host memory, of one op:

>>> import numpy as np
>>> from bringup.backend import Capabilities, OpsDevice, claims
>>> def host(view):
...     data = np.frombuffer(view.handle, view.type.dtype.numpy, view.type.size, view.offset)
...     return data.reshape(view.type.shape)
>>> def add(a, b, out):
...     host(out)[...] = host(a) + host(b)
>>> class Toy(OpsDevice):
...     ops = {"add": add}
...     capabilities = Capabilities(ops=claims(ops, ["f32"]))
...     def alloc(self, nbytes): return bytearray(nbytes)
...     def free(self, handle): handle.clear()
...     def upload(self, handle, data): handle[: len(data)] = data
...     def download(self, handle, out): out[:] = handle[: len(out)]
...     def copy(self, target, source, nbytes): target[:nbytes] = source[:nbytes]
...     def synchronize(self): pass

Core hands it programs; this is one, ``x + y`` on two buffers:

>>> from bringup.dtypes import f32
>>> from bringup.ops.table import lookup
>>> from bringup.program.program import OpStep, Program, Slot
>>> x, y = Slot("input", 0, 0, f32[2]), Slot("input", 1, 0, f32[2])
>>> step = OpStep(lookup("add"), {}, (x, y), (Slot("output", 0, 0, f32[2]),))
>>> run = Toy().compile(Program("main", (x.type, y.type), (f32[2],), (step,)))
>>> [z] = run([bytearray(np.float32([1, 2])), bytearray(np.float32([10, 20]))])
>>> np.frombuffer(z, np.float32)
array([11., 22.], dtype=float32)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from bringup import config
from bringup.backend.adapters_run import Call, StepsExecutable, dense_bytes, device_error
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, BufferView, Device, DeviceInfo, Lowered
from bringup.backend.launches import (
    Planned,
    PlannedLaunch,
    Renderable,
    StepLaunches,
    copies_before,
    joined,
    places_of_runs,
)
from bringup.backend.vendor_errors import REPORT, describe_error, is_vendor_error, vendor_call
from bringup.dtypes import DType, as_dtype, u8
from bringup.errors import BackendError, BringupError, CompileError, UnsupportedError
from bringup.graph import Literal
from bringup.integers import round_up
from bringup.kernel.form import Kernel
from bringup.ops.table import all_ops, find, opdef
from bringup.program.program import (
    ControlStep,
    KernelStep,
    LoopStep,
    OpStep,
    Program,
    Slot,
    Step,
)
from bringup.target import UNKNOWN, Target
from bringup.types import TensorType

if TYPE_CHECKING:  # importing bringup loads nothing of loops but their targets
    from bringup.loops.form import Func
    from bringup.loops.schedule import Schedule, Scheduled

#: ``function(*operands, out=result, **attrs)`` on views of buffers; see `OpsDevice`.
OpFunction = Callable[..., object]
_Code = TypeVar("_Code", bound=Renderable)


def claims(names: Iterable[str], dtypes: Iterable[DType | str]) -> dict[str, frozenset[DType]]:
    """The claims of `Capabilities` for these names, each with all these dtypes.

    names: ops (``"reduce"`` claims every kind) or single claims (``"reduce.add"``); the table of an
    `OpsDevice` will do.
    dtypes: of every operand and result, so ``bool`` belongs to comparisons.  `bringup.dtypes.ALL`
    are those that ops compute with, `bringup.dtypes.STORED` have the floats of 8 bits beside them:
    claimed with these, an op takes of them what its row does.
    Raises BackendError for a name that no op has.

    >>> claims(["exp", "reduce.add"], ["f32"])
    {'exp': frozenset({f32}), 'reduce.add': frozenset({f32})}
    """
    kinds = frozenset(map(as_dtype, dtypes))
    return {claim: kinds for name in names for claim in _expand(name)}


def _expand(name: str) -> tuple[str, ...]:
    row = find(name)
    if row is not None:
        return row.claims
    row = find(name.partition(".")[0])
    if row is not None and name in row.claims:
        return (name,)
    import difflib

    known = dict.fromkeys(c for op in all_ops() for c in (op.name, *op.claims))
    close = difflib.get_close_matches(name, known, n=3)
    raise BackendError(
        f"a device claims {name!r}, and no op has that name",
        fix=f"use {' or '.join(map(repr, close))}" if close else "list the names: bringup ops",
    )


class _StepsDevice(Device):
    """A device that runs a program step by step."""

    #: Functions by claim (``"reduce.add"``, called without the attribute that the claim fixes) or
    #: by op (``"reduce"``, called with all attributes).
    ops: Mapping[str, OpFunction] = {}

    def compile(self, program: Program) -> StepsExecutable:
        """Bind every step, upload the constants.  Raises UnsupportedError, CompileError."""
        calls, constants = self._bind(program)
        return StepsExecutable(self, replace(program, constants=constants), calls)

    def _bind(self, program: Program) -> tuple[list[Call], tuple[Literal, ...]]:
        """The calls of a program, and all constants that they take."""
        calls = []
        for step in program.steps:
            if isinstance(step, KernelStep):
                raise UnsupportedError(
                    f"{type(self).__name__} takes ops, and the program holds kernel {step.name}",
                    location=step.location,
                    fix="leave Capabilities.kernels empty, or derive from KernelsDevice or "
                    "LoopsDevice",
                )
            if isinstance(step, ControlStep):
                raise self._no_control(step)
            calls.append(self._bind_op(step))
        return calls, program.constants

    def _no_control(self, step: ControlStep) -> UnsupportedError:
        return UnsupportedError(
            f"{type(self).__name__} runs step by step, and the program holds a {step.name}",
            location=step.location,
            fix=f"leave {step.name!r} out of Capabilities.ops, and Limits.loop_runs at 0 if it "
            "takes ops alone: core runs it on the device",
        )

    def _bind_op(self, step: OpStep) -> Call:
        op = opdef(step)
        claim = op.claim(step.attrs)
        attrs = dict(step.attrs)
        function = self._function_of(step)
        if claim in self.ops and op.variant is not None:
            del attrs[op.variant]
        if function is None:
            literal = step.attrs.get("value")
            # `upload` reaches the start of a buffer alone, not the middle of the arena.
            if isinstance(literal, Literal) and step.results[0].space == "output":
                return Call((step,), self._upload_constant(literal), step.slots)
            raise UnsupportedError(
                f"{claim}: {type(self).__name__} has no function for it",
                location=step.location,
                fix=f"add {claim!r} to the table of ops, or do not claim it in Capabilities.ops",
            )
        run = _op_runner(function, len(step.operands), len(step.results), attrs)
        return Call((step,), run, step.slots)

    def _function_of(self, step: OpStep) -> OpFunction | None:
        """The function of an op in the device's table."""
        claim = opdef(step).claim(step.attrs)
        return self.ops.get(claim, self.ops.get(step.op.name))

    def _upload_constant(self, literal: Literal) -> Callable[[list[BufferView]], None]:
        data = dense_bytes(literal)

        def run(views: list[BufferView]) -> None:
            assert not views[0].offset
            with vendor_call(self, "upload"):
                self.upload(views[0].handle, data)

        return run


def _op_runner(
    function: OpFunction, operands: int, results: int, attrs: Mapping[str, Any]
) -> Callable[[list[BufferView]], None]:
    def run(views: list[BufferView]) -> None:
        out = views[operands] if results == 1 else tuple(views[operands:])
        function(*views[:operands], out=out, **attrs)

    return run


class OpsDevice(_StepsDevice):
    """Depth 1: the six byte methods, and ``ops``, a function per op the device has.

    A function is called as ``function(*operands, out=result, **attrs)``; operands and result are
    `BufferView`, ``out`` a tuple of them if the op has several results.  All are dense and
    row-major; shapes and dtypes are in ``view.type``.  ``attrs`` holds every attribute of the op,
    those that the program leaves out by their defaults, but not the one that the claim fixes: the
    function of ``"reduce.add"`` gets no ``kind``.  `constant` needs neither a function nor a claim:
    core uploads it.  The result shares no memory with an operand,
    except that `scatter` and `dynamic_update_slice`, if claimed, may be given their first operand
    as result, to be changed where it stands.  Functions are not called for results without
    elements.  What a function raises reaches the user as a DeviceError
    with op, types and the user's line; see `current_step` for work that fails later.

    >>> class Toy(OpsDevice):                               # doctest: +SKIP
    ...     ops = {"add": add, "reduce.max": lambda x, out, dims: ...}
    ...     capabilities = Capabilities(ops=claims(ops, ["f32", "i32"]))
    """

    ops: Mapping[str, OpFunction]


def _slots_behind(
    types: Sequence[TensorType], start: int, alignment: int
) -> tuple[list[Slot], int]:
    """Slots of the arena from an offset on, one behind the other, and where the next would be."""
    slots, end = [], round_up(start, alignment)
    for type_ in types:
        slots.append(Slot("arena", 0, end, type_))
        end = round_up(end + type_.nbytes, alignment)
    return slots, end


class RenderingDevice(_StepsDevice, Generic[_Code]):
    """Depth 2, whatever is rendered: what `KernelsDevice` and `LoopsDevice` have in common.

    ``Capabilities.kernels`` says what may stand in a kernel.  Code that differs in its name alone
    is rendered and loaded once, and kept as long as a program uses it.
    """

    @abstractmethod
    def lower_step(self, step: KernelStep) -> _Code:
        """What is rendered of a step's kernel."""

    @abstractmethod
    def render(self, code: _Code, /) -> str | bytes:
        """The code in the device's language.  Raises UnsupportedError, CompileError."""

    def load(self, source: str | bytes, name: str) -> object:
        """Something `launch` can use, made of what was rendered.  Raises CompileError.

        A device has this method or `build`.
        """
        what = f"{type(self).__name__} has neither `load` nor `build`"
        raise BackendError(what, fix="write one of the two")

    @abstractmethod
    def launch(self, loaded: Any, code: _Code, views: list[BufferView], /) -> None:
        """Run what was loaded."""

    def build(self, codes: Sequence[_Code]) -> Iterable[tuple[str | bytes, object]]:
        """What `render` and `load` give for each code, which are called for one after the other.

        For a compiler that takes long to start, which may get all of them at once: ``codes`` are
        those of one program that are not loaded yet, and have different names.  A source that
        several have in common is shown once.  Raises UnsupportedError, CompileError.
        """
        for code in codes:
            with _errors_of("render", [code.name], str(code)):
                source = self.render(code)
            with _errors_of("load", [code.name], _text(source, code)):
                loaded = self.load(source, code.name)
            yield source, loaded

    def build_quickly(self, codes: Sequence[_Code]) -> Iterable[tuple[str | bytes, object]]:
        """`build` in little time, of code that may be slow; by default the same.

        For programs with ``optimize=False``, which are called a few times: most of the suite's
        above smoke.  Programs to be called often get none of this code.
        """
        return self.build(codes)

    def scratch_bytes(self, code: _Code, /) -> int:
        """Bytes of device memory that a launch needs beside its buffers; none by default.

        `launch` then gets one more view, the last, of type ``u8[scratch_bytes]``, aligned as
        buffers are.  It holds anything at first, and the next launch gets the same memory.
        """
        return 0

    def _launches(self, program: Program, number: int) -> StepLaunches[_Code] | None:
        """What a step launches; None for an op that has a function."""
        step = program.steps[number]
        if not isinstance(step, KernelStep):
            return None
        return StepLaunches([(self.lower_step(step), range(len(step.slots)))])

    def _joined(
        self, program: Program, planned: Sequence[Planned[_Code]]
    ) -> Sequence[Planned[_Code]]:
        """What a program launches, with several launches as one where that is better."""
        return planned

    def _bind(self, program: Program) -> tuple[list[Call], tuple[Literal, ...]]:
        flat, constants = self._planned(program, program.arena_bytes)
        planned = self._joined(program, flat)
        launches = {id(each.code): each for each in planned if isinstance(each, PlannedLaunch)}
        keys = {number: each.code.content for number, each in launches.items()}
        pairs = [(each.steps[0], each.code) for each in launches.values()]
        loaded = self._load_all([*keys.values()], pairs, program.optimize)
        joins = len(planned) < len(flat)
        calls = [
            each if isinstance(each, Call) else self._call(each, loaded[keys[id(each.code)]], joins)
            for each in planned
        ]
        return calls, constants

    def _planned(
        self, program: Program, behind: int, prefix: str = ""
    ) -> tuple[list[Planned[_Code]], tuple[Literal, ...]]:
        """What a program launches and calls, that of its loops for each run, and its constants.

        behind: where the arena of the whole program ends.  prefix: of the names of code.
        """
        planned: list[Planned[_Code]] = []
        constants = program.constants
        for number, step in enumerate(program.steps):
            if isinstance(step, LoopStep) and self._takes(step):
                inner = f"{prefix}s{number}_"
                body, more = self._planned(step.body, behind, inner)
                for copy in copies_before(program, step, inner):
                    with _located_at(copy), _errors_of("lowering", [copy.name], str(copy.kernel)):
                        own = StepLaunches([(self.lower_step(copy), range(2))])
                    planned += self._step_launches(copy, own, behind, "")
                for place in places_of_runs(step, len(constants), behind):
                    planned += [each.placed(place) for each in body]
                constants += more
                continue
            if isinstance(step, ControlStep):
                raise self._no_control(step)
            text = str(step.kernel) if isinstance(step, KernelStep) else step.name
            with _located_at(step), _errors_of("lowering", [step.name], text):
                launches = self._launches(program, number)
            if launches is not None:
                planned += self._step_launches(step, launches, behind, prefix)
            else:
                assert isinstance(step, OpStep)
                planned.append(self._bind_op(step))
        return planned, constants

    def _takes(self, step: LoopStep) -> bool:
        runs = self.capabilities.limits.loop_runs
        return step.trips is not None and 0 < step.trips <= runs

    def _step_launches(
        self, step: KernelStep | OpStep, each: StepLaunches[_Code], behind: int, prefix: str
    ) -> Iterator[PlannedLaunch[_Code]]:
        # Steps run one after the other, so all have the same piece behind the planned slots.
        temporaries, end = _slots_behind(each.temporaries, behind, self.capabilities.alignment)
        slots = (*step.slots, *temporaries)
        for code, numbers in each.launches:
            named: Any = code
            if prefix:
                named = replace(named, name=prefix + code.name)
            yield PlannedLaunch((step,), named, tuple([slots[n] for n in numbers]), end)

    def _call(self, each: PlannedLaunch[_Code], code: _Loaded, joins: bool) -> Call:
        """joins: whether the program launches some functions together."""
        slots = each.slots
        if code.scratch:
            slots = (*slots, Slot("arena", 0, each.end, TensorType((code.scratch,), u8)))
        run = partial(self.launch, code.handle, each.code)
        text = partial(self._rendered, each.code) if joins else None
        return Call(each.steps, run, slots, code.source, code, text)

    def _rendered(self, code: _Code) -> str:
        return _text(self.render(code), code)

    def _load_all(
        self, keys: Sequence[str], pairs: Sequence[tuple[Step, _Code]], optimize: bool
    ) -> dict[str, _Loaded]:
        """All code, loaded, by its content.  keys: the contents."""
        same = type(self).build_quickly is RenderingDevice.build_quickly
        fast = optimize or same
        # Subclasses need not call an __init__ of ours.
        cache: WeakValueDictionary[tuple[str, bool], _Loaded]
        cache = self.__dict__.setdefault("_loaded_code", WeakValueDictionary())
        loaded: dict[str, _Loaded] = {}
        missing: dict[str, tuple[Step, _Code]] = {}
        for key, pair in zip(keys, pairs, strict=True):
            found = cache.get((key, True)) or cache.get((key, fast))
            if found is None:
                missing.setdefault(key, pair)
            else:
                loaded[key] = found
        build = self.build if fast else self.build_quickly
        for key, built in zip(missing, self._build(build, [*missing.values()]), strict=True):
            loaded[key] = cache[key, fast] = built
        return loaded

    def _build(
        self,
        build: Callable[[Sequence[_Code]], Iterable[tuple[str | bytes, object]]],
        pairs: Sequence[tuple[Step, _Code]],
    ) -> list[_Loaded]:
        if not pairs:
            return []
        codes = [code for _, code in pairs]
        names = [code.name for code in codes]
        only = pairs[0][0] if len(pairs) == 1 else None
        with _located_at(only), _errors_of("build", names, "\n\n".join(map(str, codes))):
            results = iter(build(codes))
        loaded = []
        for step, code in pairs:
            with _located_at(step), _errors_of("build", [code.name], str(code)):
                result = next(results, None)
                scratch = self.scratch_bytes(code)
            if result is None:
                what = f"{type(self).__name__}.build gave nothing for kernel {code.name}"
                raise CompileError(what, fix=REPORT, source=str(code))
            source, handle = result
            loaded.append(_Loaded(_text(source, code), handle, scratch))
        return loaded


class KernelsDevice(RenderingDevice[Kernel]):
    """Depth 2: the six byte methods, and ``render``, ``load``, ``launch``; ``ops`` may be mixed in.

    ``Capabilities.kernels`` says what may stand in a kernel.  Equal kernels are rendered and loaded
    once, and kept as long as a program uses them.

    >>> class Chip(KernelsDevice):                          # doctest: +SKIP
    ...     def render(self, kernel): return my_source(kernel)
    ...     def load(self, source, name): return my_driver.module(source).function(name)
    ...     def launch(self, loaded, kernel, views): loaded(kernel.points, *views)
    """

    def lower_step(self, step: KernelStep) -> Kernel:
        """The kernel itself."""
        return step.kernel

    @abstractmethod
    def render(self, kernel: Kernel, /) -> str | bytes:
        """The kernel in the device's language.  Raises UnsupportedError, CompileError."""

    @abstractmethod
    def launch(self, loaded: Any, kernel: Kernel, views: list[BufferView], /) -> None:
        """Run a loaded kernel on views, one per buffer of the kernel that is no tile, in order.

        Not called if every output is without elements.  May return before the work is done if
        the device is declared asynchronous.
        """


class LoopsDevice(RenderingDevice["Func"]):
    """Depth 2 by loops: a renderer of `bringup.loops.Func` in place of one of kernels.

    Core lowers each kernel to a function: nested loops over flat buffers, one scalar op at a time.
    ``schedule`` changes the loops to what the machine likes, ``render`` writes them in its
    language.  Ops of the op library are functions of loops, too: the device has those that
    ``Capabilities.ops`` claims and ``ops`` has no function for, see `LibraryClaims`.  The rest is
    as in `KernelsDevice`.

    target: the row of the machine.  The library makes about as many iterations of parallel loops as
    it has threads where a step has fewer.

    >>> class Chip(LoopsDevice):                            # doctest: +SKIP
    ...     def render(self, func): return my_source(func)
    ...     def load(self, source, name): return my_driver.module(source).function(name)
    ...     def launch(self, loaded, func, views): loaded(*views)
    """

    target: Target = UNKNOWN

    def schedule(self, func: Func) -> Schedule:
        """The steps to apply to loops before `render` gets them; none by default.

        The loops are those of a kernel, whose grid is ``g0, g1, …``, or a function of the op
        library, which names them otherwise.
        Give the `SimpleBackend` the same function, so that dumps show the steps.
        """
        from bringup.loops.schedule import Schedule

        return Schedule()

    def scheduled(self, step: KernelStep) -> Scheduled:
        """The loops of a kernel and their steps; by default those of `schedule`.

        For a device that chooses by the kernel, as `bringup.llvm.choices.ChosenLoopsDevice` does
        from the row of the machine.  A step's own schedule, ``step.schedule``, goes before the
        choice.  The backend's method ``scheduled`` has to do the same.
        """
        return scheduled_loops(step, self.schedule)

    def lower_step(self, step: KernelStep) -> Func:
        """The scheduled loops; verified before and after under ``BRINGUP_CHECK``."""
        return self.scheduled(step).after

    def _launches(self, program: Program, number: int) -> StepLaunches[Func] | None:
        step = program.steps[number]
        if not isinstance(step, OpStep) or self._function_of(step):
            return super()._launches(program, number)
        from bringup.program.loops import numbered_loops

        loops = numbered_loops(program, number, self.target)
        if loops is None:
            return None
        funcs = [scheduled_func(func, self.schedule).after for func in loops.funcs]
        launches = list(zip(funcs, loops.numbers, strict=True))
        return StepLaunches(launches, [buffer.type for buffer in loops.temporaries])

    def _joined(
        self, program: Program, planned: Sequence[Planned[Func]]
    ) -> Sequence[Planned[Func]]:
        return joined(program, planned, self.target, self.capabilities.limits.buffers)

    @abstractmethod
    def render(self, func: Func, /) -> str | bytes:
        """The function in the device's language.  Raises UnsupportedError, CompileError."""

    @abstractmethod
    def launch(self, loaded: Any, func: Func, views: list[BufferView], /) -> None:
        """Run a loaded function on views, one per parameter, in order; then one of scratch memory
        if it `scratch_bytes` asks for any.

        Not called if every output is without elements.  May return before the work is done if
        the device is declared asynchronous.
        """


def scheduled_loops(
    step: KernelStep, schedule: Callable[[Func], Schedule] | None = None
) -> Scheduled:
    """The loops of a kernel and the schedule of the step, or that of a function if it has none.

    Raises as `scheduled_func`.
    """
    from bringup.loops import lower_kernel

    return scheduled_func(lower_kernel(step.kernel), schedule, step.schedule)


def scheduled_func(
    func: Func, schedule: Callable[[Func], Schedule] | None, steps: Schedule | None = None
) -> Scheduled:
    """Loops with steps, by default those that ``schedule`` gives for them.

    Both are verified under ``BRINGUP_CHECK``.  Raises ScheduleError for steps that do not fit the
    loops.
    """
    from bringup.loops import verify_func
    from bringup.loops.schedule import Schedule, Scheduled

    check = config.level("BRINGUP_CHECK")
    if check:
        verify_func(func)
    if steps is None:
        steps = Schedule() if schedule is None else schedule(func)
    scheduled = Scheduled.of(func, steps)
    if check:
        verify_func(scheduled.after)
    return scheduled


class _Loaded:
    """Loaded code with its source text; weakly held by the cache, strongly by executables."""

    __slots__ = ("__weakref__", "handle", "scratch", "source")

    def __init__(self, source: str, handle: object, scratch: int) -> None:
        self.source = source
        self.handle = handle
        self.scratch = scratch


def _text(source: str | bytes, code: Renderable) -> str:
    """The source as text; the code itself where that is none."""
    return source if isinstance(source, str) else str(code)


@contextmanager
def _located_at(step: Step | None) -> Iterator[None]:
    """Errors of ours that are raised inside gain the line and the text of the step."""
    try:
        yield
    except BringupError as error:
        if step is not None:
            device_error(error, step)
        raise


@contextmanager
def _errors_of(what: str, names: Sequence[str], source: str) -> Iterator[None]:
    """Errors of a vendor's code become CompileError, and each CompileError has a source.

    what: is done inside.  names: of the kernels that it is done with.
    """
    try:
        yield
    except BringupError as error:
        error.call = error.call or what
        if isinstance(error, CompileError):
            error.source = error.source or source
        raise
    except Exception as error:
        if not is_vendor_error(error):
            raise
        kernels = f"kernel{'s' * (len(names) > 1)} {', '.join(names)}"
        raised = CompileError(
            f"{what} of {kernels} failed: {describe_error(error)}", log=str(error), source=source
        )
        raised.call = what
        raise raised from error


class SimpleBackend(Backend):
    """A backend made of parts, for a plugin that needs no class of its own.

    name: the entry point's.
    open: makes the device of an index.
    capabilities: of every device and target, or a function that gives them, for a plugin whose
    device module imports a driver: such a module is best imported when it is first needed.
    devices: those present, or a function that finds them (or raises `NoHardware`); one device named
    after the backend if omitted.
    render: as that of a `LoopsDevice`, for its source without a device: `bringup dump --target toy
    --level source`, ``jit(f).lower(x, target="toy").source``.
    render_kernel: as that of a `KernelsDevice`, for the same.
    schedule: likewise; dumps show its steps.  target: likewise.  The backend of a device that
    chooses by the kernel is `bringup.llvm.choices.ChosenLoopsBackend`, or a class with its own
    ``scheduled``.
    schedule_tables: the folder of tables that is shipped.

    >>> SimpleBackend("toy", lambda index: Toy(), Capabilities()).devices()
    (DeviceInfo(index=0, product='toy', details=()),)
    """

    def __init__(
        self,
        name: str,
        open: Callable[[int], Device],
        capabilities: Capabilities | Callable[[], Capabilities],
        devices: Sequence[DeviceInfo] | Callable[[], Sequence[DeviceInfo]] | None = None,
        *,
        render: Callable[[Func], str] | None = None,
        render_kernel: Callable[[Kernel], str] | None = None,
        schedule: Callable[[Func], Schedule] | None = None,
        target: Target = UNKNOWN,
        schedule_tables: Path | None = None,
    ) -> None:
        self.name = name
        self._open = open
        self._capabilities = capabilities
        self._devices = devices if devices is not None else (DeviceInfo(0, name),)
        self._render = render
        self._render_kernel = render_kernel
        self._schedule = schedule
        self._target = target
        self._tables = schedule_tables

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices given, or found by the function given."""
        return self._devices() if callable(self._devices) else self._devices

    def capabilities(self, target: str = "") -> Capabilities:
        """The capabilities given, or those of the function given, whatever the target."""
        return self._capabilities() if callable(self._capabilities) else self._capabilities

    def target(self, name: str = "") -> Target:
        """The row given, whatever the name."""
        return self._target

    def schedule_tables(self) -> Path | None:
        """The folder given."""
        return self._tables

    def open(self, index: int) -> Device:
        """What the function given makes of the index."""
        return self._open(index)

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled | None:
        """The loops of a kernel and the steps of the function given; None without a renderer."""
        return None if self._render is None else scheduled_loops(step, self._schedule)

    def scheduled_step(
        self, step: OpStep, target: str = "", *, prefix: str = "", in_place: bool = False
    ) -> Sequence[Scheduled]:
        """Those of the library and the steps of the function given; none without a renderer."""
        from bringup.program.loops import step_loops

        loops = step_loops(step, prefix, self.target(target), in_place=in_place)
        if self._render is None or loops is None:
            return ()
        return [scheduled_func(func, self._schedule) for func in dict.fromkeys(loops.funcs)]

    def lower(self, program: Program, target: str = "") -> Lowered:
        """What the function given renders of the kernel or the loops of each step, equal ones once;
        no assembly.

        Raises UnsupportedError if none was given.
        """
        if self._render_kernel is not None:
            kernels = {kernel.content: kernel for kernel in reversed(program.kernels)}
            return Lowered("\n\n".join(map(self._render_kernel, reversed(kernels.values()))), "")
        if self._render is None:
            return super().lower(program, target)
        from bringup.program.loops import program_loops

        loops = (self.scheduled(step, target) for step in program.kernel_steps)
        after = (each.after for each in loops if each is not None)

        def scheduled(func: Func) -> Func:
            return scheduled_func(func, self._schedule).after

        funcs = list(program_loops(program, after, self.target(target), scheduled))
        different = {func.content: func for func in reversed(funcs)}
        return Lowered("\n\n".join(map(self._render, reversed(different.values()))), "")
