"""What a backend wrote for a program: its source, and what its compiler made of that."""

from __future__ import annotations

from bringup.backend.adapters import KernelsDevice
from bringup.errors import UnsupportedError
from bringup.program.program import Program
from bringup.runtime.devices import OpenDevice
from bringup_conformance.execution.running import told

#: Characters of a text that a failure keeps.
MOST = 100_000


def texts(device: OpenDevice, program: Program) -> tuple[str, str]:
    """Source and assembly; empty where the backend shows none.

    A device that renders kernels is asked itself, as it may differ from its backend.
    """
    source, asm = "", ""
    try:
        lowered = device.backend.lower(program)
        source, asm = lowered.source, lowered.asm
    except UnsupportedError:
        pass
    except Exception as error:  # noqa: BLE001  (showing a source is no reason to fail)
        source = f"not shown: {told(error)}"
    if isinstance(device.device, KernelsDevice):
        try:
            rendered = [device.device.render(kernel) for kernel in dict.fromkeys(program.kernels)]
        except Exception as error:  # noqa: BLE001  (what it raises is shown instead)
            return f"render raises {told(error)}", asm
        if rendered and all(isinstance(text, str) for text in rendered):
            source = "\n".join(map(str, rendered))
    return source[:MOST], asm[:MOST]
