"""What checks of the runtime contract work with: the device under test (``dut``), arrays on it,
programs, and handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

import bringup as bu
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Device, Handle, NoHardware
from bringup.dtypes import ALL, BY_NAME, DType
from bringup.errors import BackendError
from bringup.ops.table import lookup
from bringup.records import record
from bringup.runtime.compiled import Compiled
from bringup.runtime.devices import OpenDevice, get
from bringup.types import TensorType
from bringup_conformance.cases import NotOffered, Problem
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.choices import Stream
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array, same_bits

#: DLPack's memory of the host, which numpy takes and no other.
_HOST = (1, 0)


@record
class DeviceSummary:
    """What is known of a device before it is opened.

    dtype: what the programs of checks compute in.  dtypes: all that it adds and chooses elements
    of.
    """

    capabilities: Capabilities
    support: Support
    seed: int
    dtype: DType
    dtypes: tuple[DType, ...]

    @property
    def simulated(self) -> bool:
        """Whether counts and sizes have to be small."""
        return self.capabilities.simulated


# What programs compute in: the first that the device adds and multiplies.
_PREFERRED = ("f32", "f16", "bf16", "f64", "i32", "i64", "i16", "u32")


def summary_of(capabilities: Capabilities, support: Support, seed: int) -> DeviceSummary | str:
    """What is known of a device by its declaration, or why nothing can be checked on it."""
    usable = [d for d in map(BY_NAME.__getitem__, _PREFERRED) if _computes(support, d)]
    if not usable:
        return f"it adds and multiplies none of {', '.join(_PREFERRED)}"
    dtypes = tuple(d for d in ALL if d is usable[0] or runs(support, "select", d))
    return DeviceSummary(capabilities, support, seed, usable[0], dtypes)


def runs(support: Support, name: str, dtype: DType) -> bool:
    """Whether a device has an op of a dtype."""
    row = lookup(name)
    leading = dtype if dtype in row.dtypes else row.dtypes[0]
    operands = [leading[4], *[dtype[4]] * ((row.arity or 1) - 1)]
    attrs: dict[str, dict[str, Any]] = {"reduce": {"kind": "add", "dims": (0,)}}
    return support.has(row, operands, attrs.get(name, {}))


def _computes(support: Support, dtype: DType) -> bool:
    return all(runs(support, name, dtype) for name in ("add", "mul"))


#: What shows that rules hold: raises `CheckFailed` if they do not.
Run = Callable[["DeviceFixture"], None]


@record
class ContractCheck:
    """A check of the runtime contract, before it meets a plan.

    rules: those it shows to hold; the first names it.  ops: what the device must have for it.
    needs: a field of `Capabilities` that must be true.
    """

    rules: tuple[str, ...]
    run: Run
    ops: tuple[str, ...]
    needs: str

    @property
    def area(self) -> str:
        """What it is about."""
        return self.rules[0].partition(".")[0]

    @property
    def slug(self) -> str:
        """Its name within the area."""
        return self.rules[0].partition(".")[2]


class ContractChecks(list[ContractCheck]):
    """The checks of a module."""

    def shows(
        self, *rules: str, ops: tuple[str, ...] = ("add", "mul"), needs: str = ""
    ) -> Callable[[Run], Run]:
        """Add the check that this decorates, or is called with; see `ContractCheck`."""

        def add(run: Run) -> Run:
            self.append(ContractCheck(rules, run, ops, needs))
            return run

        return add


class CheckFailed(Exception):
    """A promise does not hold."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class DeviceFixture:
    """An opened device with what checks ask of it."""

    def __init__(self, info: DeviceSummary, target: Target) -> None:
        if not isinstance(target, DeviceTarget):
            raise NotOffered(f"{target.name} is no opened device")
        self.info = info
        self.open: OpenDevice = target.device

    @property
    def device(self) -> Device:
        """The seam."""
        return self.open.device

    @property
    def dtype(self) -> DType:
        """What programs compute in."""
        return self.info.dtype

    @property
    def simulated(self) -> bool:
        """Whether counts and sizes have to be small."""
        return self.info.simulated

    def count(self, full: int, simulated: int) -> int:
        """How often to do something."""
        return simulated if self.simulated else full

    def choices(self, *key: int | str) -> Stream:
        """Decisions of the run's seed."""
        return Stream(self.info.seed, "runtime", *key)

    def on_device(self, device: Device) -> DeviceFixture:
        """The same fixture with another device instead of this one."""
        where = self.open
        other = OpenDevice(where.backend_name, where.index, where.backend, device, where.info)
        return DeviceFixture(self.info, DeviceTarget(other))

    @property
    def by_name(self) -> str | None:
        """The name by which another process finds the device; None for a backend at hand."""
        try:
            return self.open.name if get(self.open.name) is self.open else None
        except BackendError:
            return None

    def neighbour(self) -> DeviceFixture:
        """Another device of the backend: the opened one of that name if there is.

        Raises NotOffered.
        """
        here = self.open
        try:
            infos = [info for info in here.backend.devices() if info.index != here.index]
        except NoHardware as absent:
            raise NotOffered(f"its backend has no hardware: {absent}") from None
        if not infos:
            raise NotOffered("its backend has one device")
        index = infos[0].index
        if self.by_name is not None:
            target = DeviceTarget(get(f"{here.backend_name}:{index}"))
        else:
            target = DeviceTarget.of(here.backend, index)
        return DeviceFixture(self.info, target)

    # ---- data

    def type(self, *shape: int, dtype: DType | None = None) -> TensorType:
        """A type of the working dtype, or another."""
        return TensorType(shape, dtype or self.dtype)

    def small(self, *shape: int, seed: int = 0, dtype: DType | None = None) -> Array:
        """Small integers: sums and products of them are exact."""
        return Recipe("small", self.info.seed * 64 + seed).make(self.type(*shape, dtype=dtype))

    def ramp(self, *shape: int, seed: int = 0, dtype: DType | None = None) -> Array:
        """1, 2, 3, …, over again when the dtype cannot hold more."""
        return Recipe("ramp", self.info.seed * 64 + seed).make(self.type(*shape, dtype=dtype))

    def array(self, host: Array) -> bu.Array:
        """An array on the device."""
        return bu.asarray(host, device=self.open)

    def host(self, array: bu.Array) -> Array:
        """A copy on the host."""
        return np.array(array)

    # ---- programs

    def jit(self, fn: Callable[..., Any], **options: Any) -> Any:
        """The function compiled for the device."""
        return bu.jit(fn, device=self.open, **options)

    def run(self, fn: Callable[..., bu.Array], *inputs: Array) -> Array:
        """The function compiled for the device and called on arrays of the host: its result, on the
        host too.
        """
        return self.host(self.jit(fn)(*map(self.array, inputs)))

    def lower(self, fn: Callable[..., Any], *types: TensorType, donate: Any = ()) -> Compiled:
        """What a call of the function runs."""
        compiled: Compiled = self.jit(fn, donate_argnums=donate).lower(*types)
        return compiled

    # ---- the seam

    @contextmanager
    def handles(self) -> Iterator[Handles]:
        """Handles that are given back at the end."""
        held = Handles(self.device)
        try:
            yield held
        finally:
            held.close()

    # ---- verdicts

    def fail(self, what: str, *rules: str, kind: str = "broken") -> NoReturn:
        """The promise does not hold.  rules: which, if the check is about several."""
        raise CheckFailed(Problem(kind, what, rules=rules))

    def require(self, holds: bool, what: str, *rules: str) -> None:
        """Broken unless something holds."""
        if not holds:
            self.fail(what, *rules)

    def equal(
        self, actual: Array, expected: Array, what: str, *rules: str, kind: str = "broken"
    ) -> None:
        """Broken unless two arrays are of one type and have the same bits, any NaN like another."""
        if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
            self.fail(
                f"{what}: {actual.dtype}{list(actual.shape)} is not"
                f" {expected.dtype}{list(expected.shape)}",
                *rules,
                kind=kind,
            )
        wrong = np.flatnonzero(~same_bits(actual, expected))
        if not wrong.size:
            return
        index = tuple(int(i) for i in np.unravel_index(int(wrong[0]), actual.shape))
        found, right = actual[index], expected[index]
        self.fail(
            f"{what}: {wrong.size} of {actual.size} elements differ, the first at"
            f" {list(index)}: {found!s}, not {right!s}",
            *rules,
            kind=kind,
        )

    def all_equal(
        self,
        results: Any,
        expected: Sequence[Array],
        what: str,
        *rules: str,
        kind: str = "broken",
    ) -> None:
        """Fail unless the results of a call, one or several, are the expected ones."""
        listed = list(results) if isinstance(results, tuple | list) else [results]
        for i, (result, right) in enumerate(zip(listed, expected, strict=True)):
            host = result if isinstance(result, np.ndarray) else self.host(result)
            self.equal(host, right, f"{what}: result {i}", *rules, kind=kind)


class Handles:
    """Memory of a device that somebody has to give back."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.held: list[Handle] = []

    def alloc(self, nbytes: int) -> Handle:
        """New memory."""
        return self.own(self.device.alloc(nbytes))

    def own(self, handle: Handle) -> Handle:
        """Take over the duty to give it back."""
        self.held.append(handle)
        return handle

    def put(self, array: Array) -> Handle:
        """New memory with the elements of an array."""
        handle = self.alloc(array.nbytes)
        self.fill(handle, array)
        return handle

    def fill(self, handle: Handle, array: Array) -> None:
        """Upload to the start."""
        if array.nbytes:
            self.device.upload(handle, as_bytes(array))

    def get(self, handle: Handle, type_: TensorType) -> Array:
        """Download the start."""
        out = np.empty(type_.shape, type_.dtype.numpy)
        if out.nbytes:
            self.device.download(handle, out.reshape(-1).view(np.uint8).data)
        return out

    def bytes(self, handle: Handle, nbytes: int) -> Array:
        """The first bytes."""
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            self.device.download(handle, out.data)
        return out

    def run(
        self, compiled: Compiled, inputs: Sequence[Handle], donated: frozenset[int] = frozenset()
    ) -> list[Handle]:
        """Call a program; the results are held, donated inputs no longer."""
        assert compiled.executable is not None
        for position in donated:
            self.release(inputs[position])
        results = list(compiled.executable(inputs))
        self.held += results
        return results

    def release(self, handle: Handle) -> None:
        """Leave it to somebody else."""
        self.held = [h for h in self.held if h is not handle]

    def free(self, handle: Handle) -> None:
        """Give it back now."""
        self.release(handle)
        if not self.device.refcounted_handles:
            self.device.free(handle)

    def close(self) -> None:
        """Give all back."""
        while self.held:
            handle = self.held.pop()
            if not self.device.refcounted_handles:
                self.device.free(handle)


class _OnHost:
    """An array of any device, for who asks with no word of where: host memory is asked for.

    older: by the first version of the protocol, which cannot say that memory is read-only.
    """

    def __init__(self, array: bu.Array, *, older: bool) -> None:
        self._array = array
        self._older = older

    def __dlpack__(self, **asked: Any) -> Any:
        if self._older:
            asked.pop("max_version", None)
        return self._array.__dlpack__(**{**asked, "dl_device": _HOST})

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST


def by_dlpack(array: bu.Array, *, older: bool = False) -> Array:
    """What another library of the host is handed out: the memory itself if the host sees it, else
    a copy.
    """
    return np.from_dlpack(_OnHost(array, older=older))


def as_bytes(array: Array) -> memoryview:
    """The elements in row-major order, as bytes."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data
