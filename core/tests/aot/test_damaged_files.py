"""Program files that are damaged, forged, too new, or beyond a device are refused with a reason."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.aot.program_file import DIGEST_AT, FORMAT
from bringup.backend import OPSET
from bringup.errors import BringupError, ProgramFileError
from bringup.version import VERSION

HERE = Path(__file__).parent
RNG = np.random.default_rng(3)
W = bu.asarray(RNG.normal(size=(4, 4)).astype(np.float32))
FLAGS = bu.asarray(np.arange(20) % 3 == 0)
X = RNG.normal(size=(2, 4)).astype(np.float32)


def model(x: Any, *, options: Any) -> Any:
    y = bu.scan(lambda c, row: (c + row, bu.tanh(row @ W)), bu.zeros(4, dtype=bu.float32), x)
    return {"y": y, "flags": bu.where(FLAGS, options["s"], 0.5)}


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    bu.save(tmp_path / "good", model, X, options={"s": 2.0}, metadata={"name": "tiny"})
    return (tmp_path / "good").read_bytes()


def used(data: bytes, path: Path) -> None:
    """Load a file and read everything in it."""
    path.write_bytes(data)
    bu.load(path).verify()


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def forged(header: bytes, data: bytes) -> bytes:
    """A file with this header in place of its own, and the hash that belongs to it."""
    length = int.from_bytes(data[:8], "little")
    header = header.ljust(-(-(8 + len(header)) // 64) * 64 - 8)
    head = len(header).to_bytes(8, "little") + header
    head = head[:DIGEST_AT] + b"0" * 64 + head[DIGEST_AT + 64 :]
    digest = hashlib.sha256(head).hexdigest().encode()
    return head[:DIGEST_AT] + digest + head[DIGEST_AT + 64 :] + data[8 + length :]


def changed(data: bytes, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> bytes:
    """A file whose header and program were changed by somebody who knows how hashes are made."""
    header = header_of(data)
    texts = header["__metadata__"]
    program = json.loads(texts["program"])
    change(program, header)
    texts["program"] = json.dumps(program)
    return forged(json.dumps(header, separators=(",", ":")).encode(), data)


def test_a_forged_file_with_nothing_changed_is_read(good: bytes, tmp_path: Path) -> None:
    used(changed(good, lambda program, header: None), tmp_path / "f")


def test_every_changed_bit_is_noticed(good: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "f"
    for place in range(len(good)):
        flipped = bytearray(good)
        flipped[place] ^= 1 << rng.randrange(8)
        with pytest.raises(ProgramFileError, match=r"damaged|no program file|of form"):
            used(bytes(flipped), path)


def test_files_that_end_early_or_late_are_noticed(good: bytes, tmp_path: Path) -> None:
    for length in range(0, len(good), 7):
        with pytest.raises(ProgramFileError, match=r"damaged|no program file"):
            used(good[:length], tmp_path / "f")
    with pytest.raises(ProgramFileError, match="damaged: the arrays have"):
        used(good + b"\0", tmp_path / "f")
    with pytest.raises(ProgramFileError, match="damaged: its header has 18446744073709551615"):
        used(b"\xff" * 8 + good[8:], tmp_path / "f")


def test_forged_headers_are_read_or_refused(good: bytes, tmp_path: Path) -> None:
    """The text of the header is changed at random, under a hash that is right."""
    rng = random.Random(2)
    length = int.from_bytes(good[:8], "little")
    start = DIGEST_AT + 64 - 8
    refused = 0
    for _ in range(1500):
        header = bytearray(good[8 : 8 + length].rstrip())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(start, len(header))
            piece = rng.choice(
                [b"", b"[", b"]", b"{", b"}", b"0", b"-1", b"9" * 5000, b"null", b"a"]
            )
            header[at : at + rng.randrange(3)] = piece
        try:
            used(forged(bytes(header), good), tmp_path / "f")
        except ProgramFileError:
            refused += 1
    assert refused > 1000


def entry(program: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = program["entries"]["model"]
    return result


def text(header: dict[str, Any], old: str, new: str) -> None:
    texts = header["__metadata__"]
    assert old in texts["graph.model"]
    texts["graph.model"] = texts["graph.model"].replace(old, new)


deep: Any = None
for _ in range(230):
    deep = {"tuple": [deep]}


@pytest.mark.parametrize(
    "change",
    [
        lambda p, h: p.pop("entries"),
        lambda p, h: p.update(entries=[1]),
        lambda p, h: p.update(metadata=3),
        lambda p, h: p.update(opset="new"),
        lambda p, h: p.update(arrays={}),
        lambda p, h: entry(p).update(arguments=deep),
        lambda p, h: entry(p).update(arguments={"tuple": [{"tuple": []}, {"dict": []}]}),
        lambda p, h: entry(p).update(result={"os.system": [["ls"], []]}),
        lambda p, h: entry(p).update(result={"random.Key": [[], []]}),
        lambda p, h: entry(p).update(result={"dict": [["a", "f32[]"], ["a", "f32[]"]]}),
        lambda p, h: entry(p).update(result="f32[2]"),
        lambda p, h: entry(p).update(weights=["W", "W"]),
        lambda p, h: entry(p).update(donated=[7]),
        lambda p, h: entry(p).update(donated=["a"]),
        lambda p, h: entry(p).update(parameters=[["x", "either"], ["x", "name"]]),
        lambda p, h: entry(p).update(parameters=[["x", "name"], ["options", "either"]]),
        lambda p, h: entry(p).update(parameters=[["import os", "either"], ["options", "name"]]),
        lambda p, h: text(h, "graph model", "graph model(%0: f32[2]) {} graph other"),
        lambda p, h: text(h, "tanh", "tanhh"),
        lambda p, h: text(h, "dims=(", "dims=(9" * 3 + "("),
        lambda p, h: text(h, "f32[4]", "f32[999999999999999999999]"),
        lambda p, h: text(h, "(%0", "(" * 5000),
        lambda p, h: h["W"].update(data_offsets=[0, 1 << 60]),
        lambda p, h: h["W"].update(shape=[1 << 60]),
        lambda p, h: h["W"].update(shape=[-4, -4]),
        lambda p, h: h["W"].update(shape=["4", 4]),
        lambda p, h: h["W"].update(dtype="COMPLEX"),
        lambda p, h: h.pop("FLAGS"),
        lambda p, h: h.update(W=[1]),
        lambda p, h: h["__metadata__"].update(extra={}),
        lambda p, h: h["__metadata__"].pop("graph.model"),
    ],
)
def test_forged_programs_are_refused(change: Any, good: bytes, tmp_path: Path) -> None:
    with pytest.raises(ProgramFileError, match="is damaged: "):
        used(changed(good, change), tmp_path / "f")


def test_bools_are_zero_or_one(good: bytes, tmp_path: Path) -> None:
    flags = np.asarray(FLAGS).tobytes()
    wrong = flags[:-1] + b"\2"
    digests = [hashlib.sha256(data).hexdigest() for data in (flags, wrong)]
    header = header_of(good)
    header["__metadata__"]["program"] = header["__metadata__"]["program"].replace(*digests)
    data = forged(json.dumps(header, separators=(",", ":")).encode(), good.replace(flags, wrong))
    with pytest.raises(ProgramFileError, match="'FLAGS' has bytes that are no bools"):
        used(data, tmp_path / "f")


def test_later_versions_are_named(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(ProgramFileError) as caught:
        used(changed(good, lambda p, _: p.update(opset=OPSET + 1, bringup="9.9")), path)
    assert caught.value.what == (
        f"{path} needs opset {OPSET + 1}, and bringup {VERSION} has opset {OPSET}"
    )
    assert caught.value.fix == "install bringup 9.9, which wrote it, or a later one"
    with pytest.raises(ProgramFileError, match=rf"of form {FORMAT + 1}, and bringup .* reads form"):
        used(good.replace(b'program":"1"', b'program":"2"', 1), path)

    def later(program: dict[str, Any], _: Any) -> None:
        program["bringup"] = "9.9"
        entry(program)["ops"].append("fold.twice")

    with pytest.raises(ProgramFileError, match=r"entry model of .* has the op fold.twice, which"):
        used(changed(good, later), path)


def test_other_files_are_no_program_files(tmp_path: Path) -> None:
    path = tmp_path / "f"
    np.savez(path.with_suffix(".npz"), X)
    for data in (b"", b"\0" * 7, b"PK", path.with_suffix(".npz").read_bytes(), b"{}" * 50):
        with pytest.raises(ProgramFileError, match="is no program file"):
            used(data, path)
    with pytest.raises(ProgramFileError, match="cannot be read: No such file"):
        bu.load(tmp_path / "nothing")
    with pytest.raises(ProgramFileError, match=r"cannot be read: (Is a directory|Permission)"):
        bu.load(tmp_path)


SMALL = """
from bringup.backend import *
from bringup.dtypes import f32

class Small(Backend):
    name = {name!r}
    def devices(self): raise NoHardware("it exists on paper")
    def capabilities(self, target=""): return Capabilities(kernels=claims(["add", "mul"], (f32,)))
    def open(self, index): raise AssertionError("opened")
    def lower(self, program, target=""): return Lowered("", "")

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return Small()
"""


def test_what_is_beyond_a_device_is_named_with_its_line(install: Any, tmp_path: Path) -> None:
    install("small", SMALL)

    def wide(x: Any) -> Any:
        y = x * 2
        return bu.sort(y)

    line = wide.__code__.co_firstlineno + 2
    bu.save(
        tmp_path / "f", {"wide": (wide, bu.float32[8]), "fits": (lambda x: x + x, bu.float32[8])}
    )
    file = bu.load(tmp_path / "f")
    assert file.entries["fits"].lower(target="small").kernels
    with pytest.raises(BringupError) as caught:
        file.entries["wide"].lower(target="small")
    assert type(caught.value).__name__ == "UnsupportedError"
    assert caught.value.location is not None
    assert (caught.value.location.file, caught.value.location.line) == (Path(__file__).name, line)


def test_a_file_of_form_1_is_read_for_ever() -> None:
    """The file was written when the form was new, by ``write_format1.py`` beside it."""
    file = bu.load(HERE / "format1.bringup")
    assert file.hash == "b00ec1022aaa24463e7fad4e02b63a3f0292122a0157f13246b20baee21948e0"
    assert file.metadata == {"name": "first", "numbers": [1, 2.5, None, True]}
    assert list(file.entries) == ["predict", "recurrent", "draw"]
    file.verify()
    expected = np.load(HERE / "format1.npz")
    x = expected["x"]
    got = file.entries["predict"](x, scale=2.0)
    np.testing.assert_allclose(got["y"], expected["predict"], rtol=1e-5)
    assert np.asarray(got["top"]).tolist() == expected["top"].tolist()
    np.testing.assert_allclose(file.entries["recurrent"](x), expected["recurrent"], rtol=1e-5)
    key, drawn = file.entries["draw"](bu.random.key(7))
    np.testing.assert_array_equal(drawn, expected["drawn"])
    assert isinstance(key, bu.random.Key)
