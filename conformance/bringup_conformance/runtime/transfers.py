"""Bytes between host and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

import bringup as bu
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.bench import Bench, Handles, Promise, by_dlpack
from bringup_conformance.runtime.programs import long_chain, long_transfers, pattern

#: Elements: none, one, tails, a block and more, more than 256 KiB of any dtype.
_SIZES = (0, 1, 2, 3, 17, 257, 1025, 8200)
_LARGE = 262_147
#: DLPack's numbers of host memory and of CUDA's; ROCm's streams begin with 0.
_WITHOUT_STREAM_0 = (1, 2)


def _round_trip(bench: Bench) -> None:
    """Every dtype's bit patterns, NaN payloads among them, by the interface and at the seam."""
    for dtype in bench.facts.dtypes:
        for n in _SIZES:
            x = Recipe("every", bench.facts.seed + n).make(bench.type(n, dtype=dtype))
            found = bench.host(bench.array(x))
            _same_bytes(bench, found, x, f"{dtype}[{n}] there and back")
            bench.require(found.dtype == x.dtype, f"{x.dtype} came back as {found.dtype}")
        _handed_out(bench, Recipe("every").make(bench.type(17, dtype=dtype)))
    for nbytes in long_transfers(bench):
        data = pattern(nbytes)
        with bench.handles() as held:
            bench.equal(held.bytes(held.put(data), nbytes), data, f"{nbytes} bytes there and back")
    for dtype in {d.itemsize: d for d in bench.facts.dtypes}.values():
        n = _LARGE // dtype.itemsize
        x = Recipe("every").make(bench.type(n, dtype=dtype))
        _same_bytes(bench, bench.host(bench.array(x)), x, f"{dtype}[{n}] there and back")


def _handed_out(bench: Bench, x: Array) -> None:
    """By DLPack of both versions, dropped untaken and taken; for stream 0, which has no meaning for
    host memory and two for CUDA's.
    """
    array = bench.array(x)
    try:
        array.__dlpack__(max_version=(1, 0))
        array.__dlpack__()
    except BufferError:
        # DLPack has no floats of 8 bits, and that of numpy no bf16.
        bench.require(x.dtype.kind not in "biuf", f"{x.dtype} is handed out to nobody")
        return
    if x.dtype.kind in "biuf":
        for older in (False, True):
            _same_bytes(bench, by_dlpack(array, older=older), x, f"{x.dtype} by DLPack")
    if array.__dlpack_device__()[0] not in _WITHOUT_STREAM_0:
        return
    with suppress(BufferError):
        array.__dlpack__(stream=0)
        bench.broken("a stream was waited for that DLPack has no name for")


def _same_bytes(bench: Bench, found: Array, right: Array, what: str) -> None:
    """Equal in every bit, that of NaNs too."""
    bench.equal(_bytes(found), _bytes(right), f"{what}, as bytes")


def _bytes(array: Array) -> Array:
    return np.frombuffer(np.asarray(array, order="C").tobytes(), np.uint8)


def _source_reusable(bench: Bench) -> None:
    """Host memory is overwritten right behind uploads, conversions and calls, with work before."""
    n = bench.count(100_003, 5003)
    x = bench.small(n)
    other = np.full(n, 77, x.dtype)
    with bench.handles() as held:
        busy = bench.array(bench.small(n, seed=5))
        kept = []
        for _ in range(4):
            busy = long_chain(bench, busy, 3)
            source = x.copy()
            kept.append(held.put(source))
            source[...] = other
        for handle in kept:
            found = held.get(handle, bench.type(n))
            bench.equal(found, x, "memory whose source was overwritten after the upload")
    for nbytes in long_transfers(bench):
        with bench.handles() as held:
            source, right = pattern(nbytes), pattern(nbytes)
            handle = held.put(source)
            source[...] = 255
            what = f"{nbytes} bytes whose source was overwritten after the upload"
            bench.equal(held.bytes(handle, nbytes), right, what)
    double = bench.jit(lambda a: a + a)
    for way in ("asarray", "call"):
        source = x.copy()
        result = double(bench.array(source) if way == "asarray" else source)
        source[...] = other
        bench.equal(bench.host(result), x + x, f"a {way} whose source was overwritten at once")


def _source_kept(bench: Bench) -> None:
    for dtype in bench.facts.dtypes:
        x = Recipe("every").make(bench.type(1000, dtype=dtype))
        before = x.copy()
        x.flags.writeable = False
        array = bench.array(x)
        bench.host(array)
        _same_bytes(bench, x, before, f"the source of {dtype}[1000]")


def _target_own(bench: Bench) -> None:
    """Downloads and numpy arrays keep their content through later work in the same memory."""
    x = bench.small(4099)
    step = bench.jit(lambda a: a * 2 + 1, donate_argnums=0)
    two, one = np.array(2, x.dtype), np.array(1, x.dtype)
    current, right = bench.array(x), x
    kept: list[tuple[Array, Array]] = []
    for _ in range(4):
        kept.append((np.asarray(current), right))
        current, right = step(current), right * two + one
    with bench.handles() as held:
        handle = held.put(x)
        out = held.get(handle, bench.type(4099))
        held.fill(handle, right)
        bench.device.synchronize()
        kept.append((out, x))
        for _ in range(4):
            held.put(np.zeros(x.nbytes, np.uint8))
    for n, (seen, expected) in enumerate(kept):
        bench.equal(np.array(seen), expected, f"array {n} of the host after later work")


def _prefix(bench: Bench) -> None:
    """Downloads of the first bytes; uploads of them that leave the rest, around word sizes."""
    whole = (np.arange(1000) % 251).astype(np.uint8)
    with bench.handles() as held:
        handle = held.put(whole)
        for nbytes in (1, 2, 3, 4, 7, 8, 9, 100, 511, 999):
            out = np.full(nbytes + 8, 0xEE, np.uint8)
            bench.device.download(handle, out[:nbytes].data)
            bench.equal(out[:nbytes], whole[:nbytes], f"the first {nbytes} bytes")
            bench.require(
                bool((out[nbytes:] == 0xEE).all()),
                f"a download of {nbytes} bytes wrote more of the host's memory",
            )
            held.fill(handle, whole[::-1][:nbytes])
            right = whole.copy()
            right[:nbytes] = whole[::-1][:nbytes]
            found = held.bytes(handle, 1000)
            bench.equal(found, right, f"memory after an upload of its first {nbytes} bytes")
            held.fill(handle, whole)


def _zero_bytes(bench: Bench) -> None:
    """Nothing moves, into nothing and into memory that holds something."""
    data = np.arange(100, dtype=np.uint8)
    empty = memoryview(b"")
    with bench.handles() as held:
        full, none = held.put(data), held.alloc(0)
        for target in (full, none):
            bench.device.upload(target, empty)
            bench.device.download(target, memoryview(bytearray()))
            bench.device.copy(target, full, 0)
        bench.device.copy(full, none, 0)
        bench.equal(held.bytes(full, 100), data, "memory after transfers of 0 bytes")
    for shape in ((0,), (0, 3), (3, 0, 2)):
        x = np.zeros(shape, bench.dtype.numpy)
        found = bench.host(bench.array(x) + 1)
        bench.require(found.shape == shape, f"an array of shape {shape} became {found.shape}")


def _copy_exact(bench: Bench) -> None:
    """Copies of all lengths, queued behind each other, between memory of different sizes."""
    for nbytes in (1, 2, 4, 7, 8, 9, 64, 100, 4096, 4099, *long_transfers(bench)):
        with bench.handles() as held:
            source_data = pattern(nbytes + 5)
            target_data = np.full(nbytes + 9, 0x77, np.uint8)
            source, target = held.put(source_data), held.put(target_data)
            bench.device.copy(target, source, nbytes)
            right = target_data.copy()
            right[:nbytes] = source_data[:nbytes]
            found = held.bytes(target, right.size)
            bench.equal(found, right, f"the target of a copy of {nbytes} bytes")
            found = held.bytes(source, source_data.size)
            bench.equal(found, source_data, f"the source of a copy of {nbytes} bytes")
    with bench.handles() as held:
        _copied_onwards(bench, held)


def _copied_onwards(bench: Bench, held: Handles) -> None:
    """A copy of a copy, with the sources overwritten behind them."""
    data = bench.ramp(777, dtype=bench.dtype)
    first, second, third = held.put(data), held.alloc(data.nbytes), held.alloc(data.nbytes)
    bench.device.copy(second, first, data.nbytes)
    held.fill(first, np.zeros(data.nbytes, np.uint8))
    bench.device.copy(third, second, data.nbytes)
    held.fill(second, np.ones(data.nbytes, np.uint8))
    bench.equal(held.get(third, bench.type(777)), data, "a copy of a copy")


def _views(bench: Bench, kind: str) -> Iterator[tuple[str, Array]]:
    """Host arrays of one kind of layout, with its name."""
    x = bench.ramp(12, 14)
    y = bench.ramp(6, 5, 8)
    raw = np.zeros(x.nbytes + 9, np.uint8)
    yield from {
        "strided": (
            ("transposed", x.T),
            ("column-major", np.asfortranarray(x)),
            ("every second column", x[:, ::2]),
            ("every third row", x[::3]),
            ("axes turned", y.transpose(2, 0, 1)),
            ("one axis of three stepped", y[:, 1::2, :]),
            ("a diagonal", np.diagonal(x)),
            ("a real part", (x + 1j * x).real.astype(x.dtype)),
        ),
        "reversed": (
            ("rows reversed", x[::-1]),
            ("columns reversed", x[:, ::-1]),
            ("all reversed", y[::-1, ::-1, ::-1]),
            ("stepped backwards", x[::-2, 10:2:-3]),
            ("reversed and turned", x[::-1].T),
        ),
        "broadcast": (
            ("a row for all", np.broadcast_to(x[0], (5, 14))),
            ("a column for all", np.broadcast_to(x[:, :1], (12, 7))),
            ("one element for all", np.broadcast_to(x[3, 4], (3, 4))),
        ),
        "offset": (
            ("all but the first row", x[1:]),
            ("a window", x[3:9, 2:7]),
            ("one byte off", _shifted(x, raw, 1)),
            ("half a word off", _shifted(x, raw, max(x.itemsize // 2, 1))),
            ("a 0-d element", x[5, 5:6].reshape(())),
            ("no elements", x[4:4]),
        ),
    }[kind]


def _shifted(x: Array, raw: Array, offset: int) -> Array:
    moved = raw[offset : offset + x.nbytes].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def _layouts(kind: str) -> Callable[[Bench], None]:
    def check(bench: Bench) -> None:
        double = bench.jit(lambda a: a + a)
        for name, view in _views(bench, kind):
            dense = np.array(view, order="C")
            bench.equal(bench.host(bench.array(view)), dense, f"{name}: asarray")
            bench.equal(bench.host(double(view)), dense + dense, f"{name}: argument of a call")
            bench.equal(bench.host(bench.array(view) + view), dense + dense, f"{name}: operand")
            bench.equal(view, dense, f"{name}: the source afterwards")
            if view.flags.aligned:
                moved = bu.from_dlpack(_writeable(view), device=bench.open)
                bench.equal(bench.host(moved), dense, f"{name}: by DLPack")
                bench.equal(np.array(by_dlpack(moved)), dense, f"{name}: back by DLPack")

    return check


def _writeable(view: Array) -> Array:
    """What DLPack takes: only arrays that say they may be written to."""
    if view.flags.writeable:
        return view
    return np.lib.stride_tricks.as_strided(view, view.shape, view.strides, writeable=True)


def _between_devices(bench: Bench) -> None:
    """There and back, of each dtype and of none; then results of long work, given away at once."""
    other = bench.neighbour()
    for n in (0, 1031):
        for dtype in bench.facts.dtypes:
            x = Recipe("every").make(bench.type(n, dtype=dtype))
            array = bench.array(x)
            there = array.to(other.open)
            back = there.to(bench.open)
            for what, found in (("moved", there), ("moved back", back), ("its source", array)):
                _same_bytes(bench, bench.host(found), x, f"{dtype}[{n}], {what}")
    x, rounds = bench.small(1031), bench.count(24, 8)
    slow = bench.jit(lambda a: long_chain(bench, a, rounds))
    step, again = (b.jit(lambda a: a + 1, donate_argnums=0) for b in (bench, other))
    right = bench.host(slow(bench.array(x)))
    for _ in range(3):
        result = slow(bench.array(x))
        there = result.to(other.open)
        bench.require(there.device is other.open, f"what was moved is on {there.device}")
        one, two = step(result), again(there.to(bench.open).to(other.open))
        for what, array, wanted in (
            ("what was moved", there, right),
            ("its source, one step on", one, right + np.array(1, x.dtype)),
            ("what was moved thrice, one step on", two, right + np.array(1, x.dtype)),
        ):
            bench.equal(bench.host(array), wanted, what)


PROMISES: tuple[Promise, ...] = (
    Promise(("transfer.round-trip",), _round_trip),
    Promise(("transfer.source-reusable",), _source_reusable),
    Promise(("transfer.source-kept",), _source_kept),
    Promise(("transfer.target-own",), _target_own),
    Promise(("transfer.prefix",), _prefix),
    Promise(("transfer.between-devices",), _between_devices),
    Promise(("transfer.zero-bytes",), _zero_bytes),
    Promise(("transfer.copy-exact",), _copy_exact),
    Promise(("transfer.strided-source",), _layouts("strided")),
    Promise(("transfer.reversed-source",), _layouts("reversed")),
    Promise(("transfer.broadcast-source",), _layouts("broadcast")),
    Promise(("transfer.offset-source",), _layouts("offset")),
)
