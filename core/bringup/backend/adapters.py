"""Depths 1 and 2: a vendor gives functions or kernels, and gets programs compiled and run.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from bringup.backend.adapters_run import Call, StepsExecutable, dense_bytes, device_error
from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, BufferView, Device, DeviceInfo
from bringup.backend.vendor_errors import is_vendor_error
from bringup.dtypes import DType, as_dtype
from bringup.errors import BackendError, BringupError, CompileError, UnsupportedError
from bringup.graph import Literal
from bringup.kernel.form import Kernel
from bringup.ops.table import all_ops, find, opdef
from bringup.program.program import ControlStep, KernelStep, OpStep, Program, Step

#: ``function(*operands: BufferView, out: BufferView | tuple[BufferView, ...], **attrs)``
OpFunction = Callable[..., object]


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
        return StepsExecutable(self, program, [self._bind(step) for step in program.steps])

    def _bind(self, step: Step) -> Call:
        if isinstance(step, ControlStep):
            raise UnsupportedError(
                f"{type(self).__name__} runs step by step, and the program holds a {step.name}",
                location=step.location,
                fix=f"leave {step.name!r} out of Capabilities.ops: core runs it on the device",
            )
        return self._bind_op(step) if isinstance(step, OpStep) else self._bind_kernel(step)

    def _bind_op(self, step: OpStep) -> Call:
        op = opdef(step)
        claim = op.claim(step.attrs)
        attrs = dict(step.attrs)
        function = self.ops.get(claim)
        if function is None:
            function = self.ops.get(op.name)
        elif op.variant is not None:
            del attrs[op.variant]
        if function is None:
            literal = step.attrs.get("value")
            # `upload` reaches the start of a buffer alone, not the middle of the arena.
            if isinstance(literal, Literal) and step.results[0].space == "output":
                return Call(step, self._upload_constant(literal))
            raise UnsupportedError(
                f"{claim}: {type(self).__name__} has no function for it",
                location=step.location,
                fix=f"add {claim!r} to the table of ops, or do not claim it in Capabilities.ops",
            )
        return Call(step, _op_runner(function, len(step.operands), len(step.results), attrs))

    def _upload_constant(self, literal: Literal) -> Callable[[list[BufferView]], None]:
        data = dense_bytes(literal)

        def run(views: list[BufferView]) -> None:
            self.upload(views[0].handle, data)

        return run

    def _bind_kernel(self, step: KernelStep) -> Call:
        raise UnsupportedError(
            f"{type(self).__name__} takes ops, and the program holds kernel {step.name}",
            location=step.location,
            fix="leave Capabilities.kernels empty, or derive from KernelsDevice",
        )


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
    row-major; shapes and dtypes are in ``view.type``.  The result shares no memory with an operand,
    except that `scatter` and `dynamic_update_slice`, if claimed, may be given their first operand
    as result, to be changed where it stands.  Functions are not called for results without
    elements.  What a function raises reaches the user as a DeviceError
    with op, types and the user's line; see `current_step` for work that fails later.

    >>> class Toy(OpsDevice):                               # doctest: +SKIP
    ...     ops = {"add": add, "reduce.max": lambda x, out, dims: ...}
    ...     capabilities = Capabilities(ops=claims(ops, ["f32", "i32"]))
    """

    ops: Mapping[str, OpFunction]


class KernelsDevice(_StepsDevice):
    """Depth 2: the six byte methods, and ``render``, ``load``, ``launch``; ``ops`` may be mixed in.

    ``Capabilities.kernels`` says what may stand in a kernel.  Equal kernels are rendered and loaded
    once, and kept as long as a program uses them.

    >>> class Chip(KernelsDevice):                          # doctest: +SKIP
    ...     def render(self, kernel): return my_source(kernel)
    ...     def load(self, source, name): return my_driver.module(source).function(name)
    ...     def launch(self, loaded, kernel, views): loaded(kernel.points, *views)
    """

    @abstractmethod
    def render(self, kernel: Kernel) -> str | bytes:
        """The kernel in the device's language.  Raises UnsupportedError, CompileError."""

    @abstractmethod
    def load(self, source: str | bytes, name: str) -> object:
        """Something `launch` can use, made of a rendered kernel.  Raises CompileError."""

    @abstractmethod
    def launch(self, loaded: Any, kernel: Kernel, views: list[BufferView]) -> None:
        """Run a loaded kernel on views, one per buffer of the kernel that is no tile, in order.

        Not called if every output is without elements.  May return before the work is done if
        the device is declared asynchronous.
        """

    def _bind_kernel(self, step: KernelStep) -> Call:
        loaded = self._loaded(step)
        kernel = step.kernel

        def run(views: list[BufferView]) -> None:
            self.launch(loaded.handle, kernel, views)

        return Call(step, run, loaded.source)

    def _loaded(self, step: KernelStep) -> _Loaded:
        # Subclasses need not call an __init__ of ours.
        cache: WeakValueDictionary[Kernel, _Loaded]
        cache = self.__dict__.setdefault("_loaded_kernels", WeakValueDictionary())
        key = replace(step.kernel, name="", source=())
        found = cache.get(key)
        if found is None:
            found = cache[key] = self._render_and_load(step)
        return found

    def _render_and_load(self, step: KernelStep) -> _Loaded:
        kernel = step.kernel
        try:
            source = self.render(kernel)
        except BringupError as error:
            device_error(error, step)
            raise
        except Exception as error:
            if not is_vendor_error(error):
                raise
            raise _compile_error("render", error, str(kernel), step) from error
        text = source if isinstance(source, str) else str(kernel)
        try:
            return _Loaded(text, self.load(source, kernel.name))
        except BringupError as error:
            device_error(error, step)
            if isinstance(error, CompileError):
                error.source = error.source or text
            raise
        except Exception as error:
            if not is_vendor_error(error):
                raise
            raise _compile_error("load", error, text, step) from error


class _Loaded:
    """A loaded kernel with its source text; weakly held by the cache, strongly by executables."""

    __slots__ = ("__weakref__", "handle", "source")

    def __init__(self, source: str, handle: object) -> None:
        self.source = source
        self.handle = handle


def _compile_error(what: str, error: Exception, source: str, step: KernelStep) -> CompileError:
    raised = CompileError(
        f"{what} of kernel {step.name} failed: {type(error).__name__}: {error}",
        log=str(error),
        source=source,
    )
    raised.location = step.location
    return raised


class SimpleBackend(Backend):
    """A backend made of parts, for a plugin that needs no class of its own.

    name: the entry point's.
    open: makes the device of an index.
    capabilities: of every device and target, or a function that gives them, for a plugin whose
    device module imports a driver: such a module is best imported when it is first needed.
    devices: those present, or a function that finds them (or raises `NoHardware`); one device named
    after the backend if omitted.

    >>> SimpleBackend("toy", lambda index: Toy(), Capabilities()).devices()
    (DeviceInfo(index=0, product='toy', details=()),)
    """

    def __init__(
        self,
        name: str,
        open: Callable[[int], Device],
        capabilities: Capabilities | Callable[[], Capabilities],
        devices: Sequence[DeviceInfo] | Callable[[], Sequence[DeviceInfo]] | None = None,
    ) -> None:
        self.name = name
        self._open = open
        self._capabilities = capabilities
        self._devices = devices if devices is not None else (DeviceInfo(0, name),)

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices given, or found by the function given."""
        return self._devices() if callable(self._devices) else self._devices

    def capabilities(self, target: str = "") -> Capabilities:
        """The capabilities given, or those of the function given, whatever the target."""
        return self._capabilities() if callable(self._capabilities) else self._capabilities

    def open(self, index: int) -> Device:
        """What the function given makes of the index."""
        return self._open(index)
