"""The plugin of ``level1-ops``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bringup.backend import (
    Backend,
    BufferView,
    Capabilities,
    DeviceInfo,
    Handshake,
    OpsDevice,
    SimpleBackend,
    claims,
    current_step,
    hookimpl,
)
from bringup.dtypes import STORED
from bringup.ops.table import lookup
from bringup_level1.memory import HANDSHAKE, Memory, array

NAMES = """
    floor exp log sqrt sin add mul div max and or xor shl shr compare.eq compare.lt select convert
    bitcast iota reshape transpose broadcast_in_dim slice pad reduce.add reduce.max
""".split()  # noqa: SIM905
FIXED = {"compare": "direction", "reduce": "kind"}


def run(claim: str, *views: BufferView, out: BufferView, **attrs: Any) -> None:
    """One op, by its reference."""
    assert current_step() is not None
    name, _, kind = claim.partition(".")
    if kind:
        attrs[FIXED[name]] = kind
    operands = [array(view).reshape(view.type.shape) for view in views]
    with np.errstate(all="ignore"):
        array(out)[:] = np.ravel(lookup(name).reference(*operands, **attrs))


FUNCTIONS = {name: partial(run, name) for name in NAMES}


class OpsOfLevel1(Memory, OpsDevice):
    """A function for each op."""

    capabilities = Capabilities(ops=claims(["constant", *FUNCTIONS], STORED), simulated=True)
    ops = FUNCTIONS


@hookimpl
def bringup_handshake() -> Handshake:
    """Level 1."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Two devices."""
    devices = [DeviceInfo(n, "numpy", (("version", np.__version__),)) for n in range(2)]
    return SimpleBackend(
        "level1-ops", lambda _index: OpsOfLevel1(), OpsOfLevel1.capabilities, devices
    )
