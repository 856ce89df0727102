"""`freeze`: what it computes once, what it keeps, what it shares, and what it refuses."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import ConversionError, OpTypeError, TraceError
from bringup.runtime import compiler

nn = bu.nn
f32, f64 = bu.float32, bu.float64
Host = np.ndarray[Any, Any]


def drawn(*shape: int, seed: int = 0) -> Host:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def block_params(taken: int = 3, count: int = 5, size: int = 3) -> dict[str, Host]:
    return {
        "w": drawn(count, taken, size, size, seed=1),
        "b": drawn(count, seed=2),
        "gain": drawn(count, seed=3),
        "bias": drawn(count, seed=4),
        "mean": drawn(count, seed=5),
        "var": np.abs(drawn(count, seed=6)) + np.float32(0.5),
    }


def block(p: Any, x: bu.Array) -> bu.Array:
    """Convolution, bias, batch norm of known statistics, activation."""
    y = nn.conv(x, p["w"]) + bu.reshape(p["b"], (-1, 1, 1))
    return nn.relu(nn.batch_norm(y, p["gain"], p["bias"], mean=p["mean"], var=p["var"]))


def exact(p: dict[str, Host], x: Host) -> tuple[Host, Host]:
    """The result in f64, and the sum of the absolute values of all that is added up in it."""
    wide = {name: value.astype(np.float64)[:, None, None] for name, value in p.items()}
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    weights = p["w"].astype(np.float64)
    scale = wide["gain"] / np.sqrt(wide["var"] + 1e-5)
    sums = [np.einsum("nchwij,ocij->nohw", f(windows), f(weights)) for f in (lambda a: a, np.abs)]
    shifts = [wide["b"] * scale, -wide["mean"] * scale, wide["bias"]]
    value = sums[0] * scale + sum(shifts)
    return np.maximum(value, 0), sums[1] * np.abs(scale) + sum(map(np.abs, shifts))


def test_a_block_with_batch_norm_is_one_convolution_within_the_bound_that_is_stated() -> None:
    p, x = block_params(), drawn(2, 3, 7, 6)
    frozen = bu.freeze(block, p)
    found = np.asarray(frozen(x)).astype(np.float64)
    value, magnitude = exact(p, x)
    # 27 products; b, -mean, *scale, +bias; the scale itself is off by four roundings.
    roundoff = 2.0**-24
    terms = (27 + 4 + 1 + 4) * roundoff
    assert np.all(np.abs(found - value) <= terms / (1 - terms) * magnitude)
    plain = np.asarray(bu.jit(block)(p, x)).astype(np.float64)
    assert np.all(np.abs(plain - value) <= terms / (1 - terms) * magnitude)
    assert not np.array_equal(plain, found), "the bound shows nothing if nothing was folded"
    names = [instr.op.name for instr in frozen.lower(x).graph.instrs]
    assert names == ["convolution", "broadcast_in_dim", "add", "relu"]
    assert frozen.lower(x, target="cpu").cost().kernels == 1


def test_what_depends_on_parameters_alone_is_not_in_the_program() -> None:
    def fn(p: Any, x: bu.Array) -> bu.Array:
        weights = bu.linalg.inv(p["a"]) @ bu.exp(p["b"])
        return x @ weights

    p = {"a": np.eye(4, dtype=np.float32) * 2, "b": drawn(4, 4)}
    frozen = bu.freeze(fn, p)
    x = drawn(3, 4)
    assert [i.op.name for i in frozen.lower(x).graph.instrs] == ["dot_general"]
    # `inv` of 2 I is exact, and so is halving.
    wanted = np.asarray(bu.asarray(x) @ (bu.exp(bu.asarray(p["b"])) / 2))
    assert np.array_equal(np.asarray(frozen(x)), wanted)


def test_constants_are_computed_once_and_shared_between_signatures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bringup.api import deferred

    runs: list[str] = []
    execute = deferred.execute

    def counted(compiled: Any, *rest: Any) -> Any:
        runs.append(compiled.graph.name)
        return execute(compiled, *rest)

    monkeypatch.setattr(deferred, "execute", counted)
    frozen = bu.freeze(block, block_params())
    for batch in (1, 2, 2, 3):
        frozen(drawn(batch, 3, 5, 5))
    assert runs == ["block"]
    one, two = (frozen._entries[key].function.captured for key in list(frozen._entries)[:2])
    assert all(a is b for a, b in zip(one, two, strict=True))
    assert len(one) == 2


def test_a_view_of_a_parameter_shares_its_memory() -> None:
    table = whole(6, 4)
    frozen = bu.freeze(lambda e, i: bu.take(e, i, axis=0) @ e.T, table)
    compiled = frozen.lower(bu.asarray([1, 2]))
    assert [v.type for v in compiled.graph.inputs] == [bu.int64[2], f32[6, 4]]
    assert frozen(bu.asarray([1, 2])).tolist() == (table[1:3] @ table.T).tolist()


def test_a_parameter_that_nothing_changes_is_not_copied() -> None:
    w = bu.asarray(drawn(4, 4))
    frozen = bu.freeze(lambda p, x: x @ p["w"] + bu.exp(p["b"]), {"w": w, "b": drawn(4)})
    frozen(drawn(2, 4))
    (entry,) = frozen._entries.values()
    captured = entry.function.captured
    assert [x.type for x in captured] == [f32[4, 4], f32[4]]
    assert captured[0]._buffer is w._buffer


def test_constants_of_forgotten_signatures_are_freed() -> None:
    frozen = bu.freeze(lambda p, x, n: bu.exp(p) * n + x, bu.ones(3), static_argnums=1)
    for n in range(5):
        frozen(bu.ones(3), n)
    assert len(frozen._constants) == 5
    frozen._entries.clear()
    gc.collect()
    assert len(frozen._constants) == 0


def test_complex_parameters_are_pairs() -> None:
    z = bu.asarray([1 + 2j, 3j])
    frozen = bu.freeze(lambda p, x: bu.sum(p * p * x), z)
    assert frozen(bu.asarray([1.0, 2j])).item() == bu.sum(z * z * bu.asarray([1.0, 2j])).item()


def test_a_constant_that_repeats_is_kept_without_the_copies() -> None:
    frozen = bu.freeze(lambda p, x: x + (p + 1)[:, None], bu.asarray([1.0, 2.0], dtype=f32))
    assert [v.type for v in frozen.lower(f32[2, 1000]).graph.inputs] == [f32[2, 1000], f32[2]]
    assert frozen(np.zeros((2, 2), np.float32)).tolist() == [[2, 2], [3, 3]]
    empty = bu.freeze(lambda p, x: x + bu.broadcast_to(p + 1, (0, 4)), bu.asarray(1.0, dtype=f32))
    assert empty(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_numbers_stay_python_numbers_and_containers_any_containers() -> None:
    @dataclass
    class Layer:
        weights: Any
        slope: float
        rest: tuple[Any, ...]

    def fn(p: Layer, x: bu.Array) -> bu.Array:
        assert isinstance(p.slope, float)
        return (x @ p.weights + p.rest[0]["b"]) * p.slope

    layer = Layer(drawn(2, 2), 2.0, ({"b": drawn(2)},))
    frozen = bu.freeze(fn, layer)
    x = np.eye(2, dtype=np.float32)
    assert np.array_equal(np.asarray(frozen(x)), (layer.weights + layer.rest[0]["b"]) * 2)
    assert bu.freeze(lambda p, x: x + 1, None)(x).dtype == f32


def test_parameters_are_kept_as_they_were() -> None:
    host = drawn(3)
    frozen = bu.freeze(lambda p, x: p + x, host)
    wanted = host + 1
    host[:] = 0
    assert np.array_equal(np.asarray(frozen(np.ones(3, np.float32))), wanted)
    p = bu.asarray(wanted)
    frozen = bu.freeze(lambda p, x: p + x, p)
    step = bu.jit(lambda p: p * 0, donate_argnums=0)
    step(p)
    assert p.is_deleted
    assert np.array_equal(np.asarray(frozen(np.zeros(3, np.float32))), wanted)


def whole(*shape: int) -> bu.Array:
    """Numbers of which no order of additions rounds anything."""
    return bu.asarray(np.round(2 * drawn(*shape)))


def scaled(p: Any, x: bu.Array) -> bu.Array:
    return nn.relu(nn.conv(x, p["w"]) * column(p["s"]) - column(p["b"]))


def column(v: bu.Array) -> bu.Array:
    return bu.reshape(v, (-1, 1, 1))


def test_it_is_part_of_what_is_around_it() -> None:
    p = {"w": whole(5, 3, 3, 3), "s": whole(5), "b": whole(5)}
    frozen = bu.freeze(scaled, p)
    x = whole(2, 3, 5, 5)
    alone = np.asarray(scaled(p, x))
    assert np.array_equal(np.asarray(frozen(x)), alone)
    assert np.array_equal(np.asarray(bu.jit(lambda x: frozen(x))(x)), alone)
    assert bu.jit(lambda x: frozen(x) * 2).lower(x, target="cpu").cost().kernels == 1
    assert np.array_equal(np.asarray(bu.vmap(frozen)(x[:, None]))[:, 0], alone)
    slope = bu.grad(lambda x: bu.sum(frozen(x)))(x)
    assert slope.tolist() == bu.grad(lambda x: bu.sum(scaled(p, x)))(x).tolist()
    again = bu.freeze(lambda q, x: frozen(x) * q, 2.0)
    assert np.array_equal(np.asarray(again(x)), 2 * alone)
    fused, unfused = frozen._alike(fuse=True), frozen._alike(fuse=False)  # what compare runs
    assert np.array_equal(np.asarray(fused(x)), alone)
    assert repr(unfused) == "<freeze scaled: 0 signatures>"


def test_a_jit_function_and_options_of_jit() -> None:
    @bu.jit
    def fn(p: bu.Array, cache: bu.Array, at: int) -> bu.Array:
        return cache + p * at

    frozen = bu.freeze(
        lambda p, cache, *, twice: fn(p, cache, 2 if twice else 1),
        bu.ones(4),
        donate_argnums=0,
        static_argnames="twice",
    )
    cache = bu.zeros(4)
    assert frozen(cache, twice=True).tolist() == [2] * 4
    assert cache.is_deleted
    assert repr(frozen) == "<freeze lambda: 1 signatures>"


def test_lowering_needs_no_hardware_and_unfused_code_is_more_launches() -> None:
    frozen = bu.freeze(block, block_params(), fuse=False)
    compiled = frozen.lower(f32[1, 3, 5, 5], target="cpu")
    assert compiled.executable is None
    assert compiled.cost().kernels > 1


def test_effects_run_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(p: bu.Array, x: bu.Array) -> bu.Array:
        bu.debug.print("p is {}", p)
        return p * 2 + x

    frozen = bu.freeze(fn, bu.asarray(1.0))
    for _ in range(3):
        assert frozen(bu.asarray(1.0)).item() == 3
    assert capsys.readouterr().out.count("p is 1.0") == 3


def test_a_value_of_the_trace_around_is_no_constant() -> None:
    around: list[bu.Array] = []
    frozen = bu.freeze(lambda p, x: x * around[-1] * bu.exp(p), bu.asarray(0.0))

    @bu.jit
    def scaled(s: bu.Array) -> bu.Array:
        around.append(s)
        return frozen(bu.asarray([2.0, 3.0]))

    assert scaled(bu.asarray(5.0)).tolist() == [10, 15]
    assert scaled(bu.asarray(7.0)).tolist() == [14, 21]
    assert repr(frozen) == "<freeze lambda: 0 signatures>"


def test_parameters_on_two_devices_are_an_error() -> None:
    with bu.device("cpu"):
        elsewhere = bu.ones(2)
    frozen = bu.freeze(lambda p, x: p[0] + p[1] + x, (bu.ones(2), elsewhere))
    with pytest.raises(OpTypeError, match="different devices: reference and cpu"):
        frozen(np.ones(2))
    moved = bu.freeze(lambda p, x: p[0] + p[1] + x, (bu.ones(2), elsewhere), device="cpu")
    assert moved(np.ones(2)).device == "cpu"
    with pytest.raises(OpTypeError, match="an argument is on reference, not on cpu"):
        moved(bu.ones(2))


def test_threads_share_one_function() -> None:
    frozen = bu.freeze(block, block_params())
    x = drawn(2, 3, 5, 5)
    wanted = np.asarray(bu.freeze(block, block_params())(x))
    found: list[Host] = []
    threads = [
        threading.Thread(target=lambda: found.append(np.asarray(frozen(x)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(one, wanted) for one in found)


def test_the_caches_may_be_cleared() -> None:
    frozen = bu.freeze(block, block_params())
    x = drawn(1, 3, 5, 5)
    wanted = np.asarray(frozen(x))
    compiler.forget()
    frozen._entries.clear()
    assert np.array_equal(np.asarray(frozen(x)), wanted)


def test_mistakes() -> None:
    x = bu.ones(2)
    with pytest.raises(OpTypeError, match="freeze: int is no function"):
        bu.freeze(3, x)  # type: ignore[arg-type]
    with pytest.raises(ConversionError, match=r"freeze: params\['w'\] is a str, which is no array"):
        bu.freeze(lambda p, x: x, {"w": "zeros"})
    with pytest.raises(ConversionError, match="params is the type f32\\[2\\], which has no value"):
        bu.freeze(lambda p, x: x, f32[2])
    with pytest.raises(TraceError, match="nothing has one while a function is traced"):
        bu.jit(lambda p: bu.freeze(lambda p, x: p + x, p)(x))(x)
    with pytest.raises(OpTypeError, match="freeze: donate_argnums=1: lambda has 1 parameters"):
        bu.freeze(lambda p, x: x, x, donate_argnums=1)
    gone = bu.asarray([1.0])
    bu.jit(lambda p: p + 1, donate_argnums=0)(gone)
    with pytest.raises(bu.errors.DeletedBufferError):
        bu.freeze(lambda p, x: p + x, gone)
