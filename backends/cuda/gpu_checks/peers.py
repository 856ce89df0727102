"""Frameworks on one card, each as something that uploads, makes callable, waits and gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

import bringup as bu
from bringup.runtime.compiler import forget
from bringup_cuda.runtime.device import CudaDevice
from gpu_checks.rows import Row, Way

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


class Peer(Protocol):
    """One framework.  slow: it compiles for seconds."""

    name: str
    slow: bool

    def way(self, row: Row) -> Way | None:
        """How it says a program, None if it does not."""
        ...

    def ready(self, way: Way) -> Call:
        """The program to call on uploaded operands."""
        ...

    def upload(self, array: Array) -> Any:
        """An operand on the device."""
        ...

    def wait(self, result: Any) -> None:
        """Until the work before it is done."""
        ...

    def download(self, result: Any) -> Array:
        """In f64."""
        ...


class Ours:
    """bringup on the device under test."""

    name = "bringup"
    slow = False

    def __init__(self, device: str) -> None:
        with bu.device(device) as opened:
            self.device = opened

    def way(self, row: Row) -> Way | None:
        """See `Peer`."""
        return row.ours

    def ready(self, way: Way) -> Call:
        """See `Peer`."""
        compiled: Call = bu.jit(way(bu))
        return compiled

    def upload(self, array: Array) -> Any:
        """See `Peer`."""
        return bu.asarray(array, device=self.device)

    def wait(self, result: Any) -> None:
        """See `Peer`."""
        self.device.device.synchronize()

    def download(self, result: Any) -> Array:
        """See `Peer`."""
        return np.asarray(result).astype(np.float64)


class Warps(Ours):
    """bringup again, for the matrix products that it gives to warpgroups where the device has them:
    with code that does without.
    """

    name = "bringup, mma.sync"

    @property
    def _cuda(self) -> CudaDevice:
        return cast(CudaDevice, self.device.device)

    def way(self, row: Row) -> Way | None:
        """See `Peer`."""
        has = self._cuda.architecture.endswith("a")
        return row.ours if has and row.kind in ("matmul", "fused") else None

    def ready(self, way: Way) -> Call:
        """See `Peer`.  The first call compiles, for the architecture that the device then says."""
        compiled, device = super().ready(way), self._cuda
        whole, ready = device.architecture, False

        def run(*operands: Any) -> Any:
            nonlocal ready
            if ready:
                return compiled(*operands)
            # Programs are kept by device, whatever it says.
            forget()
            device.architecture, ready = whole.rstrip("a"), True
            try:
                return compiled(*operands)
            finally:
                device.architecture = whole
                forget()

        return run


class Torch:
    """PyTorch, eager or compiled."""

    def __init__(self, module: Any, compiled: bool) -> None:
        self.name = "torch, compiled" if compiled else "torch"
        self.slow = compiled
        self._torch = module

    def way(self, row: Row) -> Way | None:
        """See `Peer`."""
        return row.torch

    def ready(self, way: Way) -> Call:
        """See `Peer`."""
        eager: Call = way(self._torch)
        if not self.slow:
            return eager

        # A builtin cannot be compiled, what calls it can.
        def called(*operands: Any) -> Any:
            return eager(*operands)

        self._torch.compiler.reset()
        compiled: Call = self._torch.compile(called, dynamic=False)
        return compiled

    def upload(self, array: Array) -> Any:
        """See `Peer`."""
        if array.dtype.name == "bfloat16":
            bits = self._torch.from_numpy(array.view(np.int16))
            return bits.cuda().view(self._torch.bfloat16)
        return self._torch.from_numpy(array).cuda()

    def wait(self, result: Any) -> None:
        """See `Peer`."""
        self._torch.cuda.synchronize()

    def download(self, result: Any) -> Array:
        """See `Peer`."""
        return np.asarray(result.double().cpu().numpy())


class Jax:
    """JAX, under its ``jit``."""

    name = "jax"
    slow = False

    def __init__(self, module: Any) -> None:
        self._jax = module

    def way(self, row: Row) -> Way | None:
        """See `Peer`."""
        return row.jax

    def ready(self, way: Way) -> Call:
        """See `Peer`."""
        compiled: Call = self._jax.jit(way(self._jax))
        return compiled

    def upload(self, array: Array) -> Any:
        """See `Peer`."""
        return self._jax.device_put(array)

    def wait(self, result: Any) -> None:
        """See `Peer`.  Work runs in the order it was queued."""
        result.block_until_ready()

    def download(self, result: Any) -> Array:
        """See `Peer`."""
        return np.asarray(result).astype(np.float64)


def find(emulated: bool) -> tuple[list[Peer], dict[str, str]]:
    """The frameworks that see a GPU, eager before compiled; and of each the version, or why it is
    not there.
    """
    peers: list[Peer] = []
    said: dict[str, str] = {}
    if emulated:
        return peers, {"peers": "an emulated device has none"}
    for name, make in (("torch", _torch), ("jax", _jax)):
        try:
            found, version = make()
        except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
            said[name] = f"not there: {type(error).__name__}: {error}"[:300]
            continue
        peers += found
        said[name] = version
    return peers, said


def _torch() -> tuple[Sequence[Peer], str]:
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("it sees no GPU")
    # Products of f32 in f32, as ours.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    return [Torch(torch, False), Torch(torch, True)], str(torch.__version__)


def _jax() -> tuple[Sequence[Peer], str]:
    jax: Any = import_module("jax")
    if jax.default_backend() != "gpu":
        raise RuntimeError("it sees no GPU")
    return [Jax(jax)], str(jax.__version__)
