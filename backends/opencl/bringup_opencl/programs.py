"""Programs of a context, whose binaries are kept on disk."""

from __future__ import annotations

from collections.abc import Sequence

from platformdirs import user_cache_path

from bringup.errors import CompileError
from bringup.llvm.host.object_cache import Emitted, ObjectCache, StoredObject, object_key
from bringup_opencl import quirks
from bringup_opencl.driver import cl
from bringup_opencl.machine import Machine, dialect_of


def build(context: cl.Context, machine: Machine, source: str) -> cl.Program:
    """The program of a source, by its binary if that is on disk.  Raises CompileError."""
    flags = list(dialect_of(machine).flags)
    if quirks.why(quirks.UNKEPT, machine.platform, machine.version):
        return _compile(context, source, flags)
    key = object_key(Emitted(source), machine.platform, machine.name, machine.version, *flags)
    objects = ObjectCache(user_cache_path("bringup") / "opencl", limit=256 << 20)
    stored = objects.get(key)
    if stored is not None:
        try:
            binary = cl.Program(context, context.devices, [stored.data])
            return binary.build(options=flags)
        except cl.Error:  # of a driver that calls itself the same and is another one
            pass
    program = _compile(context, source, flags)
    (binary_,) = program.get_info(cl.program_info.BINARIES)
    if binary_:
        objects.put(key, StoredObject(binary_))
    return program


def _compile(context: cl.Context, source: str, flags: Sequence[str]) -> cl.Program:
    program = cl.Program(context, source)
    try:
        return program.build(options=list(flags))
    except cl.RuntimeError as error:
        log = str(error)
        what = f"the OpenCL compiler refuses the source: {log.partition(chr(10))[0]}"
        raise CompileError(what, log=log, source=source) from error
