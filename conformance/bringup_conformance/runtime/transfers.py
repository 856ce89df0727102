"""Bytes between host and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

import bringup as bu
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture, Handles, by_dlpack
from bringup_conformance.runtime.programs import long_chain, long_transfers, pattern

CHECKS = ContractChecks()

#: Elements: none, one, tails, a block and more, more than 256 KiB of any dtype.
_SIZES = (0, 1, 2, 3, 17, 257, 1025, 8200)
_LARGE = 262_147
#: DLPack's numbers of host memory and of CUDA's; ROCm's streams begin with 0.
_WITHOUT_STREAM_0 = (1, 2)


@CHECKS.shows("transfer.round-trip")
def _round_trip(dut: DeviceFixture) -> None:
    """Every dtype's bit patterns, NaN payloads among them, by the interface and at the seam."""
    for dtype in dut.info.dtypes:
        for n in _SIZES:
            x = Recipe("every", dut.info.seed + n).make(dut.type(n, dtype=dtype))
            actual = dut.host(dut.array(x))
            _same_bytes(dut, actual, x, f"{dtype}[{n}] there and back")
            dut.require(actual.dtype == x.dtype, f"{x.dtype} came back as {actual.dtype}")
        _handed_out(dut, Recipe("every").make(dut.type(17, dtype=dtype)))
    for nbytes in long_transfers(dut):
        data = pattern(nbytes)
        with dut.handles() as held:
            dut.equal(held.bytes(held.put(data), nbytes), data, f"{nbytes} bytes there and back")
    for dtype in {d.itemsize: d for d in dut.info.dtypes}.values():
        n = _LARGE // dtype.itemsize
        x = Recipe("every").make(dut.type(n, dtype=dtype))
        _same_bytes(dut, dut.host(dut.array(x)), x, f"{dtype}[{n}] there and back")


def _handed_out(dut: DeviceFixture, x: Array) -> None:
    """By DLPack of both versions, dropped untaken and taken; for stream 0, which has no meaning for
    host memory and two for CUDA's.
    """
    array = dut.array(x)
    try:
        array.__dlpack__(max_version=(1, 0))
        array.__dlpack__()
    except BufferError:
        # DLPack has no floats of 8 bits, and that of numpy no bf16.
        dut.require(x.dtype.kind not in "biuf", f"{x.dtype} is handed out to nobody")
        return
    if x.dtype.kind in "biuf":
        for older in (False, True):
            _same_bytes(dut, by_dlpack(array, older=older), x, f"{x.dtype} by DLPack")
    if array.__dlpack_device__()[0] not in _WITHOUT_STREAM_0:
        return
    with suppress(BufferError):
        array.__dlpack__(stream=0)
        dut.fail("a stream was waited for that DLPack has no name for")


def _same_bytes(dut: DeviceFixture, actual: Array, right: Array, what: str) -> None:
    """Equal in every bit, that of NaNs too."""
    dut.equal(_bytes(actual), _bytes(right), f"{what}, as bytes")


def _bytes(array: Array) -> Array:
    return np.frombuffer(np.asarray(array, order="C").tobytes(), np.uint8)


@CHECKS.shows("transfer.source-reusable")
def _source_reusable(dut: DeviceFixture) -> None:
    """Host memory is overwritten right behind uploads, conversions and calls, with work before."""
    n = dut.count(100_003, 5003)
    x = dut.small(n)
    other = np.full(n, 77, x.dtype)
    with dut.handles() as held:
        busy = dut.array(dut.small(n, seed=5))
        uploads = []
        for _ in range(4):
            busy = long_chain(dut, busy, 3)
            source = x.copy()
            uploads.append(held.put(source))
            source[...] = other
        for handle in uploads:
            actual = held.get(handle, dut.type(n))
            dut.equal(actual, x, "memory whose source was overwritten after the upload")
    for nbytes in long_transfers(dut):
        with dut.handles() as held:
            source, right = pattern(nbytes), pattern(nbytes)
            handle = held.put(source)
            source[...] = 255
            what = f"{nbytes} bytes whose source was overwritten after the upload"
            dut.equal(held.bytes(handle, nbytes), right, what)
    double = dut.jit(lambda a: a + a)
    for way in ("asarray", "call"):
        source = x.copy()
        result = double(dut.array(source) if way == "asarray" else source)
        source[...] = other
        dut.equal(dut.host(result), x + x, f"a {way} whose source was overwritten at once")


@CHECKS.shows("transfer.source-kept")
def _source_kept(dut: DeviceFixture) -> None:
    for dtype in dut.info.dtypes:
        x = Recipe("every").make(dut.type(1000, dtype=dtype))
        before = x.copy()
        x.flags.writeable = False
        array = dut.array(x)
        dut.host(array)
        _same_bytes(dut, x, before, f"the source of {dtype}[1000]")


@CHECKS.shows("transfer.target-own")
def _target_own(dut: DeviceFixture) -> None:
    """Downloads and numpy arrays keep their content through later work in the same memory."""
    x = dut.small(4099)
    step = dut.jit(lambda a: a * 2 + 1, donate_argnums=0)
    two, one = np.array(2, x.dtype), np.array(1, x.dtype)
    current, right = dut.array(x), x
    downloads: list[tuple[Array, Array]] = []
    for _ in range(4):
        downloads.append((np.asarray(current), right))
        current, right = step(current), right * two + one
    with dut.handles() as held:
        handle = held.put(x)
        out = held.get(handle, dut.type(4099))
        held.fill(handle, right)
        dut.device.synchronize()
        downloads.append((out, x))
        for _ in range(4):
            held.put(np.zeros(x.nbytes, np.uint8))
    for n, (seen, expected) in enumerate(downloads):
        dut.equal(np.array(seen), expected, f"array {n} of the host after later work")


@CHECKS.shows("transfer.prefix")
def _prefix(dut: DeviceFixture) -> None:
    """Downloads of the first bytes; uploads of them that leave the rest, around word sizes."""
    whole = (np.arange(1000) % 251).astype(np.uint8)
    with dut.handles() as held:
        handle = held.put(whole)
        for nbytes in (1, 2, 3, 4, 7, 8, 9, 100, 511, 999):
            out = np.full(nbytes + 8, 0xEE, np.uint8)
            dut.device.download(handle, out[:nbytes].data)
            dut.equal(out[:nbytes], whole[:nbytes], f"the first {nbytes} bytes")
            dut.require(
                bool((out[nbytes:] == 0xEE).all()),
                f"a download of {nbytes} bytes wrote more of the host's memory",
            )
            held.fill(handle, whole[::-1][:nbytes])
            right = whole.copy()
            right[:nbytes] = whole[::-1][:nbytes]
            actual = held.bytes(handle, 1000)
            dut.equal(actual, right, f"memory after an upload of its first {nbytes} bytes")
            held.fill(handle, whole)


@CHECKS.shows("transfer.zero-bytes")
def _zero_bytes(dut: DeviceFixture) -> None:
    """Nothing moves, into nothing and into memory that holds something."""
    data = np.arange(100, dtype=np.uint8)
    empty = memoryview(b"")
    with dut.handles() as held:
        full, none = held.put(data), held.alloc(0)
        for target in (full, none):
            dut.device.upload(target, empty)
            dut.device.download(target, memoryview(bytearray()))
            dut.device.copy(target, full, 0)
        dut.device.copy(full, none, 0)
        dut.equal(held.bytes(full, 100), data, "memory after transfers of 0 bytes")
    for shape in ((0,), (0, 3), (3, 0, 2)):
        x = np.zeros(shape, dut.dtype.numpy)
        actual = dut.host(dut.array(x) + 1)
        dut.require(actual.shape == shape, f"an array of shape {shape} became {actual.shape}")


@CHECKS.shows("transfer.copy-exact")
def _copy_exact(dut: DeviceFixture) -> None:
    """Copies of all lengths, queued behind each other, between memory of different sizes."""
    for nbytes in (1, 2, 4, 7, 8, 9, 64, 100, 4096, 4099, *long_transfers(dut)):
        with dut.handles() as held:
            source_data = pattern(nbytes + 5)
            target_data = np.full(nbytes + 9, 0x77, np.uint8)
            source, target = held.put(source_data), held.put(target_data)
            dut.device.copy(target, source, nbytes)
            right = target_data.copy()
            right[:nbytes] = source_data[:nbytes]
            actual = held.bytes(target, right.size)
            dut.equal(actual, right, f"the target of a copy of {nbytes} bytes")
            actual = held.bytes(source, source_data.size)
            dut.equal(actual, source_data, f"the source of a copy of {nbytes} bytes")
    with dut.handles() as held:
        _copied_onwards(dut, held)


def _copied_onwards(dut: DeviceFixture, held: Handles) -> None:
    """A copy of a copy, with the sources overwritten behind them."""
    data = dut.ramp(777, dtype=dut.dtype)
    first, second, third = held.put(data), held.alloc(data.nbytes), held.alloc(data.nbytes)
    dut.device.copy(second, first, data.nbytes)
    held.fill(first, np.zeros(data.nbytes, np.uint8))
    dut.device.copy(third, second, data.nbytes)
    held.fill(second, np.ones(data.nbytes, np.uint8))
    dut.equal(held.get(third, dut.type(777)), data, "a copy of a copy")


def _views(dut: DeviceFixture, kind: str) -> Iterator[tuple[str, Array]]:
    """Host arrays of one kind of layout, with its name."""
    x = dut.ramp(12, 14)
    y = dut.ramp(6, 5, 8)
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


def _layouts(kind: str) -> Callable[[DeviceFixture], None]:
    def check(dut: DeviceFixture) -> None:
        double = dut.jit(lambda a: a + a)
        for name, view in _views(dut, kind):
            dense = np.array(view, order="C")
            dut.equal(dut.host(dut.array(view)), dense, f"{name}: asarray")
            dut.equal(dut.host(double(view)), dense + dense, f"{name}: argument of a call")
            dut.equal(dut.host(dut.array(view) + view), dense + dense, f"{name}: operand")
            dut.equal(view, dense, f"{name}: the source afterwards")
            if view.flags.aligned:
                moved = bu.from_dlpack(_writeable(view), device=dut.open)
                dut.equal(dut.host(moved), dense, f"{name}: by DLPack")
                dut.equal(np.array(by_dlpack(moved)), dense, f"{name}: back by DLPack")

    return check


def _writeable(view: Array) -> Array:
    """What DLPack takes: only arrays that say they may be written to."""
    if view.flags.writeable:
        return view
    return np.lib.stride_tricks.as_strided(view, view.shape, view.strides, writeable=True)


@CHECKS.shows("transfer.between-devices")
def _between_devices(dut: DeviceFixture) -> None:
    """There and back, of each dtype and of none; then results of long work, given away at once."""
    other = dut.neighbour()
    for n in (0, 1031):
        for dtype in dut.info.dtypes:
            x = Recipe("every").make(dut.type(n, dtype=dtype))
            array = dut.array(x)
            there = array.to(other.open)
            back = there.to(dut.open)
            for what, actual in (("moved", there), ("moved back", back), ("its source", array)):
                _same_bytes(dut, dut.host(actual), x, f"{dtype}[{n}], {what}")
    x, rounds = dut.small(1031), dut.count(24, 8)
    slow = dut.jit(lambda a: long_chain(dut, a, rounds))
    step, again = (b.jit(lambda a: a + 1, donate_argnums=0) for b in (dut, other))
    right = dut.host(slow(dut.array(x)))
    for _ in range(3):
        result = slow(dut.array(x))
        there = result.to(other.open)
        dut.require(there.device is other.open, f"what was moved is on {there.device}")
        one, two = step(result), again(there.to(dut.open).to(other.open))
        for what, array, wanted in (
            ("what was moved", there, right),
            ("its source, one step on", one, right + np.array(1, x.dtype)),
            ("what was moved thrice, one step on", two, right + np.array(1, x.dtype)),
        ):
            dut.equal(dut.host(array), wanted, what)


CHECKS.shows("transfer.strided-source")(_layouts("strided"))
CHECKS.shows("transfer.reversed-source")(_layouts("reversed"))
CHECKS.shows("transfer.broadcast-source")(_layouts("broadcast"))
CHECKS.shows("transfer.offset-source")(_layouts("offset"))
