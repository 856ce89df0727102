"""Functions of Python that C calls while an exception may be raised, and that leave it as it is.

A consumer of DLPack that refuses a capsule sets an exception and lets go of the capsule.  A
callback of `ctypes` would start with that exception as if it were its own, fail by it and clear it:
the consumer would then fail without a reason.  So what C is given is native and puts it aside.
"""

from __future__ import annotations

import ctypes
from typing import Any

from bringup.llvm.host.engine import engine
from bringup_cuda.keeping import keep

_TEXT = """
declare void @bringup.py.fetch(ptr, ptr, ptr)
declare void @bringup.py.restore(ptr, ptr, ptr)
declare i32 @bringup.py.ensure()
declare void @bringup.py.release(i32)

define void @call(ptr %function, ptr %argument) {
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %state = call i32 @bringup.py.ensure()
  call void @bringup.py.fetch(ptr %type, ptr %value, ptr %trace)
  call void %function(ptr %argument)
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %trace
  call void @bringup.py.restore(ptr %t, ptr %v, ptr %b)
  call void @bringup.py.release(i32 %state)
  ret void
}
"""
_ENTRY = """
declare void @bringup.py.%(name)s(ptr)

define void @%(name)s(ptr %%argument) {
  call void @call(ptr @bringup.py.%(name)s, ptr %%argument)
  ret void
}
"""
_HELPERS = {
    "fetch": "PyErr_Fetch",
    "restore": "PyErr_Restore",
    "ensure": "PyGILState_Ensure",
    "release": "PyGILState_Release",
}


def sheltered(**functions: Any) -> dict[str, int]:
    """Addresses of ``void (*)(void *)`` that call functions of `ctypes`, by name.

    They stay to the end of the process: some are called after modules were emptied.
    """
    text = _TEXT + "".join(_ENTRY % {"name": name} for name in functions)
    for short, name in _HELPERS.items():
        engine().symbol(f"bringup.py.{short}", _address(getattr(ctypes.pythonapi, name)))
    for name, function in functions.items():
        engine().symbol(f"bringup.py.{name}", _address(function))
    code = engine().compile_native(text, list(functions))
    for kept in (code, *functions.values()):
        keep(kept)
    return dict(code.addresses)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


__all__ = ["sheltered"]
