"""The device behind the backend seam: an opened GPU that compiles programs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from bringup.backend import Capabilities, Device
from bringup.backend.dispatch import ArrayLayout, Dispatcher
from bringup.locks import ProcessLock
from bringup.program.program import Program
from bringup_cuda.codegen.compile import compile_program
from bringup_cuda.driver import errors, protocol
from bringup_cuda.runtime.dlpack import CudaExchange
from bringup_cuda.runtime.executable import CudaExecutable
from bringup_cuda.runtime.gpu import Gpu
from bringup_cuda.runtime.memory import Block
from bringup_cuda.runtime.modules import LoadedModule


class CudaDevice(Gpu, Device):
    """One GPU.  architecture: of the code that is made for it, such as ``sm_90``."""

    refcounted_handles = False

    def __init__(
        self,
        library: protocol.Library,
        index: int,
        name: str,
        capabilities: Capabilities,
        architecture: str,
    ) -> None:
        super().__init__(library, index, name)
        self.capabilities = capabilities
        self.architecture = architecture
        self._loading = ProcessLock()
        self._exchange = CudaExchange(self, library.dlpack) if library.dlpack else None
        _opened.add(self)

    def copy(self, target: Block, source: Block, nbytes: int) -> None:
        """Queue a copy behind programs."""
        if not nbytes:
            return
        with self.driver_calls():
            self.copy_within(target.address, source.address, nbytes)
        target.used = source.used = self.streams.tick()

    def adopt(self, source: Device, handle: Block, nbytes: int) -> Block | None:
        """Copy another device's memory, if it has the same driver; None if not."""
        same_driver = isinstance(source, CudaDevice) and source.driver is self.driver
        if not same_driver or self.extras is None:  # pragma: no cover - only beside other backends
            return None
        assert isinstance(source, CudaDevice)
        return self.copy_from_peer(source, handle, nbytes)

    def exchange(self) -> CudaExchange | None:
        """DLPack, for libraries that can reach the device's memory."""
        return self._exchange

    def compile(self, program: Program) -> CudaExecutable:
        """Load a program.  Raises CompileError, UnsupportedError."""
        self.check_usable()
        compiled = compile_program(program, self.architecture, self.library.image)
        module = self._load(compiled.image)
        with self.driver_calls():
            return CudaExecutable(self, program, compiled, module)

    def dispatcher(self, layout: ArrayLayout, slow: Callable[..., Any]) -> Dispatcher | None:
        """A table for repeated calls, if an error of queued work loses the device: then core need
        not know which call failed.
        """
        if not self.library.survives_errors:  # pragma: no cover on cuda-emulated - only drivers
            from bringup.runtime.python_dispatch import CallCache

            return CallCache(self, layout, slow)
        return None

    def _load(self, image: bytes) -> LoadedModule:
        """The module of some code, which programs share; the caller releases it."""
        with self._loading:
            loaded = self.modules.get(image)
            if loaded is not None:
                # First of all, since the garbage collector may release it any time.
                loaded.users += 1
                if loaded.module is not None:
                    return loaded
            module = self._load_image(image)
            loaded = LoadedModule(module, self.driver, self.streams.wait_for_programs)
            loaded.users += 1
            self.modules = {k: m for k, m in self.modules.items() if m.users}
            self.modules[image] = loaded
        return loaded

    def _load_image(self, image: bytes) -> Any:
        logs: list[str] = []

        def on_message(
            _: bool, info: str, problems: str
        ) -> None:  # pragma: no cover on cuda-emulated - only drivers
            logs.extend(text.strip("\0\n ") for text in (problems, info))

        try:
            with self.activated():
                return self.driver.module_from_buffer(image, [], on_message)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            if self.lost is not None or errors.is_sticky(error) or errors.is_out_of_memory(error):
                raise self.failed(error) from error
            log = "\n".join(filter(None, logs)) or str(error)
            raise errors.load_error(error, log, image.decode(errors="replace")) from error
        except UnicodeDecodeError as error:  # pragma: no cover on cuda-emulated - only drivers
            # pycuda decodes the log, which the driver did not write before it failed.
            with self.driver_calls():
                self.driver.Context.synchronize()
            raise errors.load_error(error, "", image.decode(errors="replace")) from error


#: Devices that are open in this process.
_opened: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _after_fork() -> None:  # pragma: no cover - only children of a fork
    for device in _opened:
        device.mark_lost(errors.Forked())


if hasattr(os, "register_at_fork"):  # pragma: no branch - only systems without fork
    os.register_at_fork(after_in_child=_after_fork)
