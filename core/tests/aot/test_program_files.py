"""Functions become files and functions again: the same graphs, values and signatures."""

from __future__ import annotations

import hashlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import bringup as bu
from bringup.errors import (
    BringupError,
    ConversionError,
    OpTypeError,
    ProgramFileError,
    TraceError,
    UnsupportedError,
)
from bringup.tracing.pytree import flatten

RNG = np.random.default_rng(5)
W = bu.asarray(RNG.normal(size=(6, 8)).astype(np.float32))
PARAMS: Any = {"layers": [{"w": W, "b": bu.zeros(8, dtype=bu.float32)}], "scale": 3}
X = RNG.normal(size=(2, 6)).astype(np.float32)


def dense(x: Any) -> Any:
    layer = PARAMS["layers"][0]
    return bu.nn.softmax(x @ layer["w"] + layer["b"]) * PARAMS["scale"]


def bits(tree: Any) -> list[Any]:
    leaves, definition = flatten(tree)
    return [definition, *((leaf.type, np.asarray(leaf).tobytes()) for leaf in leaves)]


def containers(x: Any, pair: Any, *, options: Any) -> Any:
    a, (b, nothing) = pair
    assert nothing is None
    return {"sum": [x + a, (b,)], 1: options["s"] * x, "none": None, "empty": {}}


def loops(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return carry + row, bu.where(row > 0, carry, row)

    carry, rows = bu.scan(body, bu.zeros(3), x)
    branches: list[Any] = [bu.exp, bu.sin, lambda v: v + 1]
    counted = bu.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2), (0, carry))
    return counted, rows, bu.switch(2, branches, carry)


@bu.custom_vjp
def scaled(x: Any) -> Any:
    return x * 2


scaled.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 5,))


def step(state: Any, grads: Any) -> Any:
    return bu.optim.adam(0.1).update(grads, state, {"w": W})


def random(key: Any) -> Any:
    first, second = bu.random.split(key)
    return bu.random.normal(first, (3,)), second


F32 = bu.float32
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "dense": (dense, (X,), {}),
    "containers": (
        containers,
        (np.arange(3.0), [np.float32(2), (np.ones((0, 2), np.int8), None)]),
        {"options": {"s": 2, "t": True}},
    ),
    "loops": (loops, (RNG.normal(size=(4, 3)),), {}),
    "numbers": (lambda x, n, f, b: (x * n + f, b), (X, 2, 0.5, True), {}),
    "complex": (lambda z: (z * 2j, bu.abs(z)), (np.array([1 + 2j, -0.0 + 1j]),), {}),
    "half": (lambda x: (bu.exp(x), x > 0), (X.astype(bu.bfloat16.numpy),), {}),
    "bytes": (lambda x: bu.astype(x, bu.float8_e4m3fn), (X,), {}),
    "optimiser": (step, (bu.optim.adam(0.1).init({"w": W}), {"w": W * 2}), {}),
    "key": (random, (bu.random.key(3),), {}),
    "rules": (lambda x: bu.checkpoint(lambda y: scaled(bu.stop_gradient(y)) + y)(x), (X,), {}),
    "quantised": (lambda x, w: x @ w, (X, bu.quant.quantize(W, axis=-1)), {}),
    "nothing": (lambda: bu.ones(2), (), {}),
    "partial": (partial(lambda p, x: x @ p["w"], {"w": W}), (X,), {}),
    "constants": (lambda x: x + np.arange(6, dtype=np.float32), (X,), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_function_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    fn, args, kwargs = CASES[case]
    digest = bu.save(tmp_path / "f.bringup", fn, *args, **kwargs)
    file = bu.load(tmp_path / "f.bringup")
    assert file.hash == digest
    expected = bits(bu.jit(fn)(*args, **kwargs))
    for _ in range(3):  # the third call may be answered natively
        assert bits(file(*args, **kwargs)) == expected
    [entry] = file.entries.values()
    # Rules of the user's are objects, which a file cannot hold: compare the texts.
    assert str(entry.lower().graph) == str(bu.jit(fn).lower(*args, **kwargs).graph)
    file.verify()


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_function_is_saved_as_the_same_file(case: str, tmp_path: Path) -> None:
    fn, args, kwargs = CASES[case]
    bu.save(tmp_path / "1", fn, *args, **kwargs)
    [entry] = bu.load(tmp_path / "1").entries.values()
    bu.save(tmp_path / "2", entry)
    again = bu.load(tmp_path / "2")
    assert repr(again).partition(":")[2] == repr(bu.load(tmp_path / "1")).partition(":")[2]
    first, second = (bu.load(tmp_path / name).entries for name in ("1", "2"))
    [(name, one)], [(other, two)] = first.items(), second.items()
    assert name == other
    assert str(one.lower().graph) == str(two.lower().graph)


def test_files_are_the_same_wherever_and_whenever_they_are_made(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        source = compile("def f(x): return x * 2", str(tmp_path / folder / "model.py"), "exec")
        module: dict[str, Any] = {}
        exec(source, module)
        bu.save(tmp_path / folder / "m.bringup", module["f"], F32[3])
    one, two = ((tmp_path / folder / "m.bringup").read_bytes() for folder in ("a", "b"))
    assert one == two
    assert b"# model.py:1" in one
    bu.save(tmp_path / "quiet", dense, F32[2, 6], locations=False)
    assert b".py" not in (tmp_path / "quiet").read_bytes()


def test_entries_share_weights_and_are_read_when_they_are_needed(tmp_path: Path) -> None:
    other = bu.asarray(RNG.normal(size=(6, 8)).astype(np.float32))
    path = tmp_path / "model.bringup"
    functions = {
        "one": (dense, F32[1, 6]),
        "many": (dense, F32[2, 6]),
        "plain": (lambda x: x @ other, F32[2, 6]),
    }
    bu.save(path, functions, metadata={"name": "digits", "sizes": [1, 2.5, None, True]})
    file = bu.load(path)
    assert list(file.entries) == ["one", "many", "plain"]
    assert file.metadata == {"name": "digits", "sizes": [1, 2.5, None, True]}
    assert file.weights == {
        "PARAMS.layers.0.w": F32[6, 8],
        "PARAMS.layers.0.b": F32[8],
        "other": F32[6, 8],
    }
    with pytest.raises(BringupError, match="has entries one, many, plain"):
        file(X)
    with pytest.raises(BringupError, match=r"(?s)no entry 'two'.*fix: it has one, many, plain"):
        bu.load(path, entry="two")
    assert bits(bu.load(path, entry="many")(X)) == bits(bu.jit(dense)(X))
    assert bits(file.entries["one"](X[:1])) == bits(bu.jit(dense)(X[:1]))
    damaged = path.read_bytes().replace(np.asarray(other).tobytes(), b"\1" * 192)
    path.write_bytes(damaged)
    half = bu.load(path)
    assert bits(half.entries["many"](X)) == bits(bu.jit(dense)(X))
    for use in (half.verify, lambda: half.entries["plain"](X)):
        with pytest.raises(ProgramFileError, match="damaged: the hash of the array 'other'"):
            use()


def test_signatures_are_those_of_the_functions(tmp_path: Path) -> None:
    def f(x: Any, /, y: Any, *rest: Any, scale: Any = 1.0) -> Any:
        return x, y + rest[0]["a"] * scale

    bu.save(tmp_path / "f", f, F32[2], F32[3], {"a": F32[()]}, scale=F32[3])
    entry = bu.load(tmp_path / "f").entries["f"]
    text = "(argument0: f32[2], argument1: f32[3], argument2: {'a': f32[]}, /, *, scale: f32[3])"
    assert str(inspect.signature(entry)).startswith(text)

    @partial(bu.jit, static_argnums=1, static_argnames="mode")
    def g(x: Any, n: int, y: Any, *, mode: Any) -> Any:
        return x * n + y if mode is max else x

    bu.save(tmp_path / "g", g, F32[2], 3, F32[2], mode=max)
    entry = bu.load(tmp_path / "g").entries["g"]
    assert entry.static == {"n": "3", "mode": "max"}
    assert entry.__doc__ == "g(x: f32[2], y: f32[2]) -> f32[2]"
    assert repr(entry) == f"<load {entry.__doc__}>"
    one, two = (np.full(2, v, np.float32) for v in (1, 2))
    assert entry(one, y=two).tolist() == entry(y=two, x=one).tolist() == [5, 5]
    assert entry.ops == ("add", "constant", "mul")
    assert entry.dtypes == ("f32",)
    bu.save(tmp_path / "again", entry)
    assert bu.load(tmp_path / "again").entries["g"].static == entry.static


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(X), "containers: missing a required argument: 'pair'"),
        (lambda f: f(X, [X, (X, None)], options={"s": 1, "t": True}), "argument x of containers"),
        (
            lambda f: f(np.arange(3.0), [np.float32(2), (X, None)], options={"s": 1, "t": True}),
            r"argument pair\[1\]\[0\] of containers is f32\[2,6\], where i8\[0,2\] was saved",
        ),
        (
            lambda f: f(np.arange(3.0), (1, 2), options={"s": 1, "t": True}),
            r"argument pair of containers is \(\*, \*\), where \[\*, \(\*, None\)\] was saved",
        ),
        (
            lambda f: f(
                np.arange(3.0),
                [np.float32(2), (np.ones((0, 2), np.int8), None)],
                options={"s": 0.5, "t": True},
            ),
            r"argument options\['s'\] of containers is float, where int was saved",
        ),
    ],
)
def test_calls_that_do_not_fit_say_where(call: Any, message: str, tmp_path: Path) -> None:
    fn, args, kwargs = CASES["containers"]
    bu.save(tmp_path / "f", fn, *args, **kwargs)
    with pytest.raises(OpTypeError, match=message):
        call(bu.load(tmp_path / "f"))
    with pytest.raises(ConversionError, match="which has no value"):
        bu.load(tmp_path / "f")(bu.float64[3], *args[1:], **kwargs)


def test_numbers_fit_where_arrays_without_axes_do(tmp_path: Path) -> None:
    bu.save(tmp_path / "f", lambda x, n: x * n, F32[()], bu.int8[()])
    f = bu.load(tmp_path / "f")
    assert f(2.5, 3).item() == 7.5
    assert f(2, np.int8(3)).item() == 6
    with pytest.raises(ConversionError, match="300 is out of range for i8"):
        f(2.5, 300)
    for wrong in (True, 2.0):
        with pytest.raises(OpTypeError, match=r"argument n of lambda is (bool|float), where i8\[]"):
            f(2.5, wrong)


class Layer:
    """Holds an array, as layers do."""

    def __init__(self) -> None:
        self.gain = [W * 2]

    def __call__(self, x: Any) -> Any:
        return x @ self.gain[0]

    def run(self, x: Any) -> Any:
        return x @ self.gain[0]


def test_weights_have_the_names_of_variables(tmp_path: Path) -> None:
    layer, inner = Layer(), {"a b": [W * 3]}
    unset = lambda x: (x @ inner["a b"][0], missing if len(x.shape) > 2 else x)  # noqa: E731
    for fn, name in [
        (layer, "gain.0"),
        (layer.run, "gain.0"),
        (unset, "inner.a b.0"),
        (bu.jit(partial(lambda p, x: x @ p[1], (1, W * 4))), "p.1"),
        (lambda x: x @ (W * 5), "W"),
        (lambda x: dense(x), "weight0"),
    ]:
        bu.save(tmp_path / "f", fn, F32[2, 6])
        assert next(iter(bu.load(tmp_path / "f").weights)) == name.replace(" ", ".")
    if len(inner) > 1:
        missing = 1


def test_transformations_go_through_it(tmp_path: Path) -> None:
    bu.save(tmp_path / "f", lambda x: bu.sum(bu.sin(x @ W)), F32[2, 6])
    f, x = bu.load(tmp_path / "f"), bu.asarray(X)
    direct = bu.grad(lambda x: bu.sum(bu.sin(x @ W)))(x)
    assert bits(bu.grad(f)(x)) == bits(direct)
    assert bits(bu.jit(lambda x: f(x) + 1)(x)) == bits(bu.jit(lambda x: f(x) + 1)(x))
    stacked = bu.stack([x, x + 1])
    np.testing.assert_allclose(bu.vmap(f)(stacked), [f(x), f(x + 1)], rtol=1e-6)
    bu.save(tmp_path / "g", lambda x: bu.sum(scaled(x)), F32[3])
    with pytest.raises(UnsupportedError, match="text does not hold it"):
        bu.grad(bu.load(tmp_path / "g"))(bu.ones(3, dtype=F32))


def test_donated_arguments_stay_donated(tmp_path: Path) -> None:
    f = bu.jit(lambda x, y: x + y, donate_argnums=0)
    bu.save(tmp_path / "f", f, F32[3], F32[3])
    loaded = bu.load(tmp_path / "f")
    for _ in range(3):
        x, y = bu.ones(3, dtype=F32) * 1, bu.ones(3, dtype=F32) * 1
        assert loaded(x, y).tolist() == [2, 2, 2]
        assert x.is_deleted
        assert not y.is_deleted


def test_frozen_functions_stay_frozen(tmp_path: Path) -> None:
    x = bu.asarray(RNG.normal(size=(64, 96)).astype(np.float32))
    params = {"w": bu.asarray(RNG.normal(size=(96, 128)).astype(np.float32)), "s": bu.ones(128)}
    frozen = bu.freeze(lambda p, x: bu.exp(x @ (p["w"] * 2)) * bu.cos(p["s"]), params)
    bu.save(tmp_path / "f", frozen, F32[64, 96])
    file = bu.load(tmp_path / "f")
    assert bits(file(x)) == bits(frozen(x))
    mine, theirs = file.entries["lambda"].lower(x), frozen.lower(x)
    assert [i.op.name for i in mine.graph] == [i.op.name for i in theirs.graph]


def test_what_a_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    @dataclass
    class Point:
        x: Any

    class Pair(NamedTuple):
        a: Any

    path = tmp_path / "f"
    with pytest.raises(ConversionError, match="argument p of lambda is a Point"):
        bu.save(path, lambda p: p.x, Point(F32[2]))
    with pytest.raises(ConversionError, match=r"the result of lambda\['p'\] is a Pair"):
        bu.save(path, lambda x: {"p": Pair(x)}, F32[2])
    with pytest.raises(ConversionError, match=r"has the key \(1, 2\)"):
        bu.save(path, lambda x: {(1, 2): x}, F32[2])
    wrong: list[Any] = [{"a": (1,)}, {1: 2}, {"a": float("nan")}, {"a": object()}]
    for metadata in wrong:
        with pytest.raises(ConversionError, match="is not what JSON gives back"):
            bu.save(path, dense, F32[2, 6], metadata=metadata)
    with pytest.raises(BringupError, match="cannot be called 'a b'"):
        bu.save(path, {"a b": (dense, F32[2, 6])})
    with pytest.raises(OpTypeError, match="stand beside each of them"):
        bu.save(path, {"a": (dense, F32[2, 6])}, F32[2])
    with pytest.raises(OpTypeError, match="a ndarray is no function"):
        bu.save(path, X)
    with pytest.raises(TraceError, match="save outside of it"):
        bu.jit(lambda w: bu.save(path, lambda x: x @ w, F32[2, 6]))(W)
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_while_another_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    bu.save(path, lambda x: x @ W, F32[2, 6])
    before = bu.load(path)
    bu.save(path, lambda x: x @ (W * 2), F32[2, 6])
    assert bits(before(X)) == bits(bu.jit(lambda x: x @ W)(X))
    assert bits(bu.load(path)(X)) == bits(bu.jit(lambda x: x @ (W * 2))(X))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_it_is_a_file_of_the_format_safetensors(tmp_path: Path) -> None:
    odd = bu.asarray(RNG.normal(size=5).astype(np.float32))
    wide = bu.asarray(RNG.normal(size=3))
    flags = bu.asarray(np.arange(7) % 2 == 0)
    path = tmp_path / "f"
    bu.save(path, lambda x: (x @ W, odd, wide, flags, flags, odd + 1), F32[2, 6])
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 64 == 0
    assert header.pop("__metadata__").keys() == {
        *("bringup.program", "sha256", "program", "graph.lambda")
    }
    places = {name: entry["data_offsets"] for name, entry in header.items()}
    assert places == {"W": [0, 192], "wide": [192, 216], "odd": [216, 236], "flags": [236, 243]}
    assert len(data) == 8 + length + 243
    digest = bu.load(path).hash
    unhashed = data[: 8 + length].replace(digest.encode(), b"0" * 64)
    assert hashlib.sha256(unhashed).hexdigest() == digest
    library = pytest.importorskip("safetensors.numpy")
    read = library.load_file(path)
    assert read.keys() == places.keys()
    for name, array in {"W": W, "odd": odd, "wide": wide, "flags": flags}.items():
        np.testing.assert_array_equal(read[name], np.asarray(array))


def test_exports_of_a_file_are_those_of_its_functions(tmp_path: Path) -> None:
    library = bu.jit(dense).export("model", F32[2, 6], target="program")
    assert (library.target, list(library.files)) == ("program", ["model.bringup"])
    [path] = library.write(tmp_path)
    file = bu.load(path)
    assert bits(file(X)) == bits(bu.jit(dense)(X))
    both = bu.export("both", {"a": (dense, F32[2, 6]), "b": (bu.exp, F32[2])}, target="program")
    [path] = both.write(tmp_path)
    assert list(bu.load(path).entries) == ["a", "b"]
    with pytest.raises(BringupError, match=r"(?s)no library can be made for 'z80'.*program"):
        bu.jit(dense).export("model", F32[2, 6], target="z80")


READER = """
import json, sys
import numpy as np
import bringup as bu

file = bu.load("model.bringup", entry="many")
result = file(np.load("x.npy"))
imported = [n for n in ("model", "bringup.c", "bringup.aot.library") if n in sys.modules]
print(json.dumps([np.asarray(result).tolist(), imported]))
"""


def test_another_process_needs_no_source(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    bu.save(
        tmp_path / "there/model.bringup", {"one": (dense, F32[1, 6]), "many": (dense, F32[2, 6])}
    )
    np.save(tmp_path / "there/x.npy", X)
    done = subprocess.run(
        [sys.executable, "-c", READER],
        cwd=tmp_path / "there",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values, imported = json.loads(done.stdout)
    assert values == np.asarray(bu.jit(dense)(X)).tolist()
    assert imported == []


def test_reading_runs_no_code(tmp_path: Path) -> None:
    fn, args, kwargs = CASES["containers"]
    bu.save(tmp_path / "f", fn, *args, **kwargs)
    bu.load(tmp_path / "f")  # modules are imported once
    events: list[str] = []
    watched = ("compile", "exec", "import", "pickle.find_class", "subprocess.Popen", "os.system")

    def hook(event: str, _arguments: Any) -> None:
        if listening and event in watched:
            events.append(event)

    listening = True
    sys.addaudithook(hook)
    file = bu.load(tmp_path / "f")
    listening = False
    assert events == []
    assert list(file.entries) == ["containers"]
