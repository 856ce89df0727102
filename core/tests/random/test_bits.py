"""The generators give the published words, on every device."""

from __future__ import annotations

import numpy as np
import pytest

import bringup as bu
from bringup.api.apply import apply_all
from bringup.ops.table import lookup

# tests/kat_vectors of Random123 1.14.0 (D. E. Shaw Research,
# https://github.com/DEShawResearch/random123), the lines "philox4x32 10" and "threefry2x32 20":
# counter, key, result.
KNOWN = """
threefry2x32 00000000 00000000 00000000 00000000 6b200159 99ba4efe
threefry2x32 ffffffff ffffffff ffffffff ffffffff 1cb996fc bb002be7
threefry2x32 243f6a88 85a308d3 13198a2e 03707344 c4923a9c 483df7a0
philox4x32 00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
philox4x32 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
philox4x32 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""
VECTORS = [line.split() for line in KNOWN.split("\n") if line]


def parts(texts: list[str]) -> tuple[list[np.ndarray], list[int]]:
    """Operands, key first, and results."""
    words = [int(text, 16) for text in texts]
    results = (len(words) - 2) // 2
    counter, key, wanted = words[:results], words[results:-results], words[-results:]
    return [np.array(w, np.uint32) for w in (*key, *counter)], wanted


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v[0]}-{v[1]}")
def test_the_reference_gives_the_published_words(vector: list[str]) -> None:
    operands, wanted = parts(vector[1:])
    assert [int(w) for w in lookup(vector[0]).reference(*operands)] == wanted


@pytest.mark.parametrize("device", [d for d in bu.devices() if ":" not in d])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v[0]}-{v[1]}")
def test_every_device_gives_the_published_words(vector: list[str], device: str) -> None:
    operands, wanted = parts(vector[1:])
    arrays = [bu.asarray(x, device=device) for x in operands]
    assert [int(w) for w in apply_all(vector[0], arrays)] == wanted


@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32"])
def test_elements_are_words_of_their_number(impl: str) -> None:
    """What `bits` promises: element i is the first word of counter i under the key."""
    key = bu.random.key(0x0123456789ABCDEF, impl=impl)
    number = np.arange(1000, dtype=np.uint32)
    zero = np.zeros_like(number)
    words = [np.full_like(number, w) for w in (0x01234567, 0x89ABCDEF)]
    counter = [zero, number] if impl == "threefry2x32" else [number, zero, zero, zero]
    first, second, *_ = lookup(impl).reference(*words, *counter)
    assert np.array_equal(bu.random.bits(key, 1000), first)
    wide = np.asarray(bu.random.bits(key, (10, 100), dtype=bu.uint64))
    expected = first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64)
    assert np.array_equal(wide.reshape(-1), expected)
    for narrow in (bu.uint8, bu.uint16):
        got = np.asarray(bu.random.bits(key, 1000, dtype=narrow))
        assert np.array_equal(got, first.astype(narrow.numpy))


@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32"])
def test_no_counter_repeats(impl: str) -> None:
    """The generators permute their counters, so 64-bit words of threefry cannot repeat at all.

    Philox gives half of its block here: 10^5 of 2^64 words repeat with probability 3e-10.
    """
    key = bu.random.key(5, impl=impl)
    words = np.asarray(bu.random.bits(key, 100_000, dtype=bu.uint64))
    assert len(np.unique(words)) == words.size
    children = np.asarray(bu.random.split(key, 100_000).data).view(np.uint64)[:, 0]
    folded = [np.asarray(bu.random.fold_in(key, i).data).view(np.uint64)[0] for i in range(50)]
    everything = np.concatenate(
        [
            words.view(np.uint32).reshape(-1, 2)[:, ::-1].copy().view(np.uint64)[:, 0],
            children,
            folded,
        ]
    )
    assert len(np.unique(everything)) == everything.size, "elements, splits and folds never meet"
