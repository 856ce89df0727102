"""What is rendered for Template, which needs no device."""

from __future__ import annotations

import bringup as bu


def test_softmax_is_one_kernel() -> None:
    softmax = bu.jit(lambda x: bu.nn.softmax(x, axis=-1))
    lowered = softmax.lower(bu.float32[40, 200], target="template")
    assert len(lowered.kernels) == 1
    assert lowered.kernels[0].name in lowered.source
