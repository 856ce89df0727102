from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.errors import CompileError
from bringup.llvm.host.elf import symbols_of
from bringup.llvm.host.engine import Code, Engine, engine
from bringup.llvm.host.object_cache import (
    Deferred,
    Emitted,
    ObjectCache,
    StoredObject,
    digest_of_sources,
)


def adder(constant: int) -> str:
    """`f(x) = x + constant`, through a helper whose name every such module uses."""
    return f"""
@table = constant i64 {constant}
define i64 @helper(i64 %x) noinline {{
  %c = load i64, ptr @table
  %y = add i64 %x, %c
  ret i64 %y
}}
define i64 @f(i64 %x) {{
  %y = call i64 @helper(i64 %x)
  ret i64 %y
}}
"""


def call(code: Code, x: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.addresses["f"])(x)
    return result


def test_equal_names_in_different_modules_do_not_clash() -> None:
    codes = [engine().compile_native(adder(k), ("f",)) for k in range(100)]
    assert [call(code, 5) for code in codes] == [5 + k for k in range(100)]


def test_equal_text_is_loaded_once() -> None:
    first = engine().compile_native(adder(1000), ("f",))
    assert engine().compile_native(adder(1000), ("f",)) is first


def test_code_goes_with_its_last_user() -> None:
    made = Engine(None)
    codes = [made.compile_native(adder(k), ("f",)) for k in range(70)]
    segments = {id(c._segment): weakref.ref(c._segment.engine) for c in codes}  # type: ignore[attr-defined]
    assert len(segments) == 3
    del codes
    gc.collect()
    assert call(made.compile_native(adder(3), ("f",)), 4) == 7
    assert [r() is None for r in segments.values()] == [True, True, False]


def test_a_second_process_finds_the_object(tmp_path: Path) -> None:
    first = Engine(ObjectCache(tmp_path))
    assert call(first.compile_native(adder(7), ("f",)), 1) == 8
    second = Engine(ObjectCache(tmp_path))
    assert call(second.compile_native(adder(7), ("f",)), 1) == 8
    assert (first.compiled, second.compiled) == (1, 0)


def test_what_stands_on_disk_is_not_emitted_again(tmp_path: Path) -> None:
    emitted: list[int] = []

    def deferred(number: int, source: str) -> Deferred:
        def make() -> Emitted:
            emitted.append(number)
            return Emitted(adder(number), b"facts of %d" % number)

        return Deferred(source, make)

    for source, number, result in (("a", 7, 8), ("a", 9, 8), ("b", 9, 10)):
        code = Engine(ObjectCache(tmp_path)).compile_native(deferred(number, source), ("f",))
        assert call(code, 1) == result
        assert code.facts == b"facts of %d" % (result - 1)
    assert emitted == [7, 9]


def test_sources_change_with_every_file(tmp_path: Path) -> None:
    def digest() -> str:
        return digest_of_sources.__wrapped__(tmp_path)

    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.py").write_text("x = 1")
    seen = [digest()]
    (inner / "a.py").write_text("x = 12")
    seen.append(digest())
    os.utime(inner / "a.py", ns=(1, 1))
    seen.append(digest())
    (tmp_path / "b.py").write_text("")
    seen.append(digest())
    (tmp_path / "b.py").rename(inner / "b.py")
    seen.append(digest())
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "c.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert digest() == seen[-1]
    assert len(set(seen)) == len(seen)
    with pytest.raises(OSError, match="absent"):
        digest_of_sources(tmp_path / "absent")


def test_a_damaged_object_is_compiled_again(tmp_path: Path) -> None:
    Engine(ObjectCache(tmp_path)).compile_native(adder(7), ("f",))
    (path,) = tmp_path.rglob("*.o")
    path.write_bytes(path.read_bytes()[:-1])
    again = Engine(ObjectCache(tmp_path))
    assert call(again.compile_native(adder(7), ("f",)), 1) == 8
    assert again.compiled == 1


def test_the_key_depends_on_text_level_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Engine(None)
    asked = [(adder(1), ("f",), 2), (adder(2), ("f",), 2), (adder(1), ("f",), 3)]
    keys = {
        made.key(Emitted(text), *rest) for text, *rest in (*asked, (adder(1), ("f", "helper"), 2))
    }
    for name in ("host_cpu", "host_features", "_llvm_version"):
        with monkeypatch.context() as patch:
            patch.setattr(f"bringup.llvm.host.engine.{name}", lambda: "another")
            keys.add(made.key(Emitted(adder(1)), ("f",), 2))
    monkeypatch.setattr("bringup.llvm.host.object_cache.VERSION", "another")
    keys.add(made.key(Emitted(adder(1)), ("f",), 2))
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("text", "log"),
    [
        ("define void @f( {", "expected type"),
        ("define i32 @f() {\n  ret i64 0\n}", "doesn't match"),
        ("define void @f() {\n  br label %x\nx:\n  %y = add i32 %z, 1\n  ret void\n}", "undefined"),
        (
            "define i32 @f() {\n  %a = add i32 %b, 1\n  %b = add i32 1, 1\n  ret i32 %a\n}",
            "dominate",
        ),
    ],
)
def test_refused_text_is_an_error_with_log_and_source(text: str, log: str) -> None:
    with pytest.raises(CompileError) as caught:
        engine().compile_native(text, ("f",))
    assert log in caught.value.log
    assert caught.value.source == text


def test_a_missing_export_is_an_error() -> None:
    with pytest.raises(CompileError, match="does not define g"):
        engine().compile_native(adder(1), ("f", "g"))


def test_a_missing_library_function_is_an_error_not_an_abort() -> None:
    text = (
        "declare void @no_such_function()\n"
        "define void @f() {\n call void @no_such_function()\n ret void\n}"
    )
    with pytest.raises(CompileError, match="no_such_function"):
        engine().compile_native(text, ("f",))


CALLING = (
    "declare i64 @labs(i64)\ndefine i64 @f(i64 %x) {\n %y = call i64 @labs(i64 %x)\n ret i64 %y\n}"
)


def test_library_functions_are_found() -> None:
    assert call(engine().compile_native(CALLING, ("f",)), -4) == 4


def test_library_functions_are_found_by_the_first_code_of_a_process() -> None:
    program = (
        "from bringup.llvm.host.engine import Engine\n"
        f"print(len(Engine(None).compile_native({CALLING!r}, ('f',)).addresses))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_names_of_an_object() -> None:
    code = engine().compile_native(CALLING, ("f",))
    symbols = symbols_of(code.object)
    assert symbols.undefined == {"labs"}
    assert len([name for name in symbols.defined if name.startswith("f.")]) == 1


@pytest.mark.parametrize("body", [b"", b"MZ....", b"\x7fELF\x02\x01" + bytes(100), b"garbage" * 99])
def test_garbage_with_a_right_checksum_is_compiled_again(tmp_path: Path, body: bytes) -> None:
    objects = ObjectCache(tmp_path)
    objects.put(Engine(objects).key(Emitted(adder(7)), ("f",), 2), StoredObject(body))
    made = Engine(objects)
    assert call(made.compile_native(adder(7), ("f",)), 1) == 8
    assert made.compiled == 1
    again = Engine(objects)
    assert call(again.compile_native(adder(7), ("f",)), 1) == 8
    assert again.compiled == 0


def test_an_object_of_other_functions_is_compiled_again(tmp_path: Path) -> None:
    objects = ObjectCache(tmp_path)
    engine_ = Engine(objects)
    other = engine_.compile_native(adder(1), ("f",)).object
    objects.put(engine_.key(Emitted(adder(2)), ("f",), 2), StoredObject(other))
    assert call(engine_.compile_native(adder(2), ("f",)), 1) == 3


def test_no_damage_to_the_tables_of_an_object_ends_the_process(
    python: Callable[..., object],
) -> None:
    """What passes the check is loaded in a child, whose death would be seen."""
    python(f"""
import os, random, struct
from bringup.llvm.host.elf import symbols_of
from bringup.llvm.host.engine import engine
from bringup.llvm.host.engine import llvm

good = engine().compile_native({adder(5)!r}, ("f",)).object
table, = struct.unpack_from("<Q", good, 40)
stride, rows = struct.unpack_from("<HH", good, 58)
places = [*range(64), *range(table, table + stride * rows)]
for row in range(rows):
    _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", good, table + row * stride)
    if kind in (2, 3, 4):
        places += range(offset, offset + size)
draw = random.Random(0)
loaded = 0
for trial in range(600):
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 2, 3))):
        data[draw.choice(places)] = draw.choice((0, 1, 2, 127, 128, 255, draw.randrange(256)))
    try:
        names = symbols_of(bytes(data))
    except ValueError:
        continue
    if any(llvm.address_of_symbol(name) is None for name in names.undefined):
        continue
    loaded += 1
    child = os.fork()
    if not child:
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        loader = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        loader.add_object_file(llvm.ObjectFileRef.from_data(bytes(data)))
        loader.finalize_object()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, trial
assert loaded > 100
""")


def test_threads_may_compile_at_once(tmp_path: Path) -> None:
    made = Engine(ObjectCache(tmp_path))
    results: dict[int, int] = {}

    def work(first: int) -> None:
        for k in range(first, first + 10):
            results[k] = call(made.compile_native(adder(k % 25), ("f",)), k)

    threads = [threading.Thread(target=work, args=(10 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: k + k % 25 for k in range(40)}


@pytest.mark.parametrize("cpu", ["", "x86-64"])
def test_a_fork_during_compilation_leaves_the_child_working(
    python: Callable[..., object], cpu: str
) -> None:
    """Also in the first compilation, which asks LLVM what a CPU that is named has."""
    if cpu and platform.machine() != "x86_64":
        pytest.skip("x86-64 alone")
    python(
        """
import os, sys, threading
os.environ["BRINGUP_CPU"] = "{cpu}"
sys.path.insert(0, {folder!r})
from test_engine import adder, call
from bringup.llvm.host.engine import Engine
made = Engine(None)
stop = False
def compile():
    k = 0
    while not stop:
        made.compile_native(adder(k := k + 1), ("f",))
thread = threading.Thread(target=compile)
thread.start()
for k in range(10):
    child = os.fork()
    if not child:
        os._exit(call(made.compile_native(adder(-k), ("f",)), 2 * k) - k)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
""".replace("{cpu}", cpu).replace("{folder!r}", repr(str(Path(__file__).parent)))
    )


def test_assembly_of_other_cpus() -> None:
    text = """
define void @f(ptr %p) {
  %x = load <16 x float>, ptr %p
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %p
  ret void
}"""
    assert "zmm" in engine().assembly(text, "x86-64-v4")
    narrow = engine().assembly(text, "x86-64")
    assert "xmm" in narrow
    assert "ymm" not in narrow


def test_whoever_calls_llvm_knows_its_lock() -> None:
    root = Path(__file__).parents[3]
    sources = [*(root / "core/bringup").rglob("*.py"), *(root / "backends").rglob("*.py")]
    callers = {
        path.relative_to(root).as_posix(): re.search(r"^ *(with|self._lock =) LLVM\b", text, re.M)
        for path in sources
        if "tests" not in path.parts
        and "import llvmlite.binding" in (text := path.read_text(encoding="utf-8"))
    }
    assert len(callers) >= 4
    assert [path for path, knows in callers.items() if not knows] == []
