"""Objects of pycuda's that must not be given back.

Their destructors make the context current.  Where the driver refuses that, in a child of fork for
one, pycuda ends the process; where it refuses the rest, pycuda writes a warning for each.  So what
belongs to a device that is lost stays until the process ends, and the driver has it back then.
"""

from __future__ import annotations

import ctypes

_hold = ctypes.pythonapi.Py_IncRef


def keep(thing: object) -> None:
    """Never let it go, not even when the interpreter ends."""
    _hold(ctypes.py_object(thing))


__all__ = ["keep"]
