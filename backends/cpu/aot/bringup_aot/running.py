"""Programs that run: each answers calls, until it is stopped or one fails."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Timer
from typing import Any, Protocol

from bringup.errors import DeviceError, OutOfMemoryError

#: A call of a program of the suite takes much less, emulated as well.
_SECONDS = 300
#: The status of runner.c where arguments, results and the arena have no room.
_NO_MEMORY = 3


class Running(Protocol):
    """A program that waits for calls."""

    def call(self, data: bytes, size: int) -> bytes:
        """What it writes, of what it reads.  Raises DeviceError; the program is over then."""

    def stop(self) -> None:
        """End it, whatever it does."""


class Process:
    """A program as a process, or in the process of an emulator, which reads and writes pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        # A pipe would have to be read while the process runs.
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with this object
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=self._errors)
        self.stop = weakref.finalize(self, _end, self._process)

    def call(self, data: bytes, size: int) -> bytes:
        """See Running.  Raises OutOfMemoryError too."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        alarm = Timer(_SECONDS, process.kill)
        alarm.start()
        try:
            with suppress(BrokenPipeError):  # it ended, which the read tells
                process.stdin.write(data)
                process.stdin.flush()
            written = process.stdout.read(size)
        finally:
            alarm.cancel()
        if len(written) == size:
            return written
        status = process.wait()
        if status == _NO_MEMORY:
            raise OutOfMemoryError("arguments, results and the arena do not fit the memory there")
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-500:]
        raise DeviceError(f"the program ended with status {status}", notes=(said,))


def _end(process: Popen[bytes]) -> None:
    process.kill()
    process.communicate()


class Module:
    """A module of WebAssembly in this process, which a call reads and writes files of."""

    def __init__(self, program: Path) -> None:
        import wasmtime

        self._folder = TemporaryDirectory(prefix="bringup-aot-")
        self._module = wasmtime.Module.from_file(_engine(), str(program))

    def call(self, data: bytes, size: int) -> bytes:
        """See Running."""
        import wasmtime

        written, read = (Path(self._folder.name) / name for name in ("written", "read"))
        read.write_bytes(data)
        store = wasmtime.Store(_engine())
        system = wasmtime.WasiConfig()
        system.stdin_file, system.stdout_file = str(read), str(written)
        store.set_wasi(system)
        linker = wasmtime.Linker(_engine())
        linker.define_wasi()
        start: Any = linker.instantiate(store, self._module).exports(store)["_start"]
        try:
            start(store)
        except wasmtime.ExitTrap as stopped:
            if stopped.code:
                raise DeviceError(f"the module ended with status {stopped.code}") from None
        except wasmtime.Trap as trap:
            raise DeviceError(f"the module stopped: {trap.message}") from None
        return written.read_bytes()

    def stop(self) -> None:
        """Nothing runs between calls."""
        self._folder.cleanup()


@cache
def _engine() -> Any:
    import wasmtime

    return wasmtime.Engine()
