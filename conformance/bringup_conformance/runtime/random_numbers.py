"""Random numbers: a function of their key alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import bringup as bu
from bringup.dtypes import u32
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup
from bringup_conformance.cases import NotOffered
from bringup_conformance.execution.targets import DeviceTarget, missing_from
from bringup_conformance.oracle.numbers import Array
from bringup_conformance.runtime.fixture import ContractChecks, DeviceFixture

CHECKS = ContractChecks()

_WORDS = u32[2]


def _needs(dut: DeviceFixture) -> None:
    row = lookup("threefry2x32")
    reason = dut.info.support.reason(row, [u32[4]] * 4, {})
    if reason is not None:
        raise NotOffered(reason)


def _bits(shape: tuple[int, ...]) -> Callable[[bu.Array], bu.Array]:
    return lambda words: bu.random.bits(bu.random.Key(words), shape)


def _key(seed: int) -> Array:
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


@CHECKS.shows("random.same-key")
def _same_key(dut: DeviceFixture) -> None:
    """The bits of the reference: compiled, anew, recorded, op by op, and inside of a program."""
    _needs(dut)
    for shape in ((7,), (1025,), (33, 5)):
        fn = _bits(shape)
        graph = bu.trace(fn, _WORDS)
        for seed in (0, 42, (1 << 63) + 12345):
            words = _key(seed)
            right = np.array(evaluate(graph, [words])[0])
            array = dut.array(words)
            compiled = dut.jit(fn)
            results = {"compiled": compiled(array), "called again": compiled(array)}
            results["compiled anew"] = dut.jit(fn)(array)
            results["in a program"] = dut.jit(lambda w, fn=fn: bu.flip(bu.flip(fn(w))) ^ 0)(array)
            results["beside other uses"] = dut.jit(lambda w, fn=fn: (fn(w) + 1, fn(w)))(array)[1]
            with bu.device(dut.open):
                results["recorded"] = fn(array)
            for how, result in results.items():
                where = f"bits of key {seed} of shape {shape}, {how}"
                dut.equal(dut.host(result), right, where, kind="unstable")
            apart = DeviceTarget(dut.open).compile(graph, fuse=False)([words])[0]
            dut.equal(apart, right, f"bits of key {seed}, op by op", kind="unstable")


@CHECKS.shows("random.keys-apart")
def _split_apart(dut: DeviceFixture) -> None:
    """Keys made by splitting and folding in are those of the reference, and all different."""
    _needs(dut)
    words = _key(7)

    def split(key: bu.Array) -> bu.Array:
        return bu.random.split(bu.random.Key(key), 50).data

    right = np.array(evaluate(bu.trace(split, _WORDS), [words])[0])
    children = dut.run(split, words)
    dut.equal(children, right, "fifty keys of one")
    seen = {row.tobytes() for row in children} | {words.tobytes()}
    for n in (0, 1, 2, 1 << 31):

        def fold(key: bu.Array, n: int = n) -> bu.Array:
            return bu.random.fold_in(bu.random.Key(key), n).data

        right = np.array(evaluate(bu.trace(fold, _WORDS), [words])[0])
        folded = dut.run(fold, words)
        dut.equal(folded, right, f"a key with {n} folded in")
        seen.add(folded.tobytes())
    dut.require(len(seen) == 55, f"{55 - len(seen)} of 55 keys are the same as others")
    _one_program(dut, words)
    first, second = (dut.run(_bits((200,)), w) for w in children[:2])
    alike = int((first == second).sum())
    dut.require(alike < 3, f"{alike} of 200 words of two split keys are equal")


def _one_program(dut: DeviceFixture, words: Array) -> None:
    """All that one key is used for, side by side on equal shapes."""

    def fn(given: bu.Array) -> tuple[bu.Array, ...]:
        key = bu.random.Key(given)
        bits, keys = bu.random.bits(key, (50,)), bu.random.split(key, 50).data
        return bits, keys, bu.random.bits(bu.random.fold_in(key, 1), (50,))

    right = evaluate(bu.trace(fn, _WORDS), [words])
    for i, (actual, expected) in enumerate(zip(dut.jit(fn)(dut.array(words)), right, strict=True)):
        dut.equal(dut.host(actual), np.array(expected), f"use {i} of one key in a program")


@CHECKS.shows("random.uniform-range")
def _uniform_range(dut: DeviceFixture) -> None:
    """Uniform numbers are in [0, 1), use the lowest bit they have, and fill both halves."""
    _needs(dut)
    count = dut.count(40_000, 6000)
    tried = 0
    for dtype in (d for d in dut.info.dtypes if d.is_float):

        def fn(words: bu.Array, dtype: object = dtype) -> bu.Array:
            return bu.random.uniform(bu.random.Key(words), (count,), dtype=dtype)

        if missing_from(dut.info.capabilities, bu.trace(fn, _WORDS)) is not None:
            continue
        tried += 1
        actual = dut.run(fn, _key(3)).astype(np.float64)
        low, high = float(actual.min()), float(actual.max())
        dut.require(low >= 0 and high < 1, f"uniform {dtype} lies in [{low}, {high}]")
        digits = np.finfo(dtype.numpy).nmant if dtype.name != "bf16" else 7
        last = np.floor(actual * 2.0**digits) % 2
        share = float(last.mean())
        dut.require(0.4 < share < 0.6, f"uniform {dtype}: {share:.0%} have bit {digits} set")
        middle = float(actual.mean())
        dut.require(0.47 < middle < 0.53, f"uniform {dtype} has the mean {middle:.3f}")
    if not tried:
        raise NotOffered("it makes no uniform numbers of any dtype")


@CHECKS.shows("random.normal-finite")
def _normal_finite(dut: DeviceFixture) -> None:
    """Normal numbers are finite, of both signs, and spread as they should be."""
    _needs(dut)
    if not dut.dtype.is_float:
        raise NotOffered("it computes in no float")
    count = dut.count(40_000, 6000)

    def fn(words: bu.Array) -> bu.Array:
        return bu.random.normal(bu.random.Key(words), (count,), dtype=dut.dtype)

    if missing_from(dut.info.capabilities, bu.trace(fn, _WORDS)) is not None:
        raise NotOffered(f"it makes no normal numbers of {dut.dtype}")
    actual = dut.run(fn, _key(11)).astype(np.float64)
    dut.require(bool(np.isfinite(actual).all()), "a normal number is not finite")
    mean, deviation = float(actual.mean()), float(actual.std())
    dut.require(
        abs(mean) < 0.08 and abs(deviation - 1) < 0.08,
        f"normal numbers have mean {mean:.3f} and deviation {deviation:.3f}",
    )
