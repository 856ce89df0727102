"""From LLVM IR text to addresses: compile, keep on disk, load."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
from platformdirs import user_cache_dir

from bringup import config
from bringup.errors import CompileError
from bringup.llvm.host.elf import symbols_of
from bringup.llvm.host.machine import LLVM, host_cpu, host_features, require_runnable
from bringup.llvm.host.object_cache import ObjectCache
from bringup.records import record
from bringup.version import VERSION

# Of a kernel's shape: LLVM's passes and tables for vectors and loops are set up by it.
_FIRST = """
define void @first(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %sum = phi <16 x float> [zeroinitializer, %entry], [%more, %loop]
  %q = getelementptr float, ptr %p, i64 %i
  %x = load <16 x float>, ptr %q, align 4
  %more = fadd <16 x float> %sum, %x
  %next = add i64 %i, 16
  %on = icmp slt i64 %next, %n
  br i1 %on, label %loop, label %done
done:
  store <16 x float> %more, ptr %p, align 4
  ret void
}
"""
#: Loaded objects of one LLVM engine.  LLVM frees code only with its engine.
_SEGMENT = 32


class Code:
    """Loaded machine code, in memory while this object lives.

    addresses: of the exported functions, by the names they had in the text.
    """

    __slots__ = ("__weakref__", "_segment", "addresses", "object")

    def __init__(self, addresses: Mapping[str, int], segment: object, data: bytes) -> None:
        self.addresses = addresses
        self.object = data
        self._segment = segment


@record
class Deferred:
    """A module whose text is made only if its object is not on disk.

    source: everything that the text depends on.
    """

    source: str
    make: Callable[[], str]


class _Segment:
    """An LLVM engine and the objects it was given.

    dead: the list that receives the LLVM engine in the end, to be closed where no thread is in
    LLVM: closing takes LLVM's lock, which a fork at that moment would leave locked in the child.
    """

    def __init__(self, machine: llvm.TargetMachine, dead: list[llvm.ExecutionEngine]) -> None:
        self.dead = dead
        # The engine takes the machine: one shared by two engines is freed twice.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.loaded: dict[str, dict[str, int]] = {}

    def __del__(self) -> None:
        self.dead.append(self.engine)

    def load(self, key: str, data: bytes, exports: Sequence[str]) -> dict[str, int]:
        found = self.loaded.get(key)
        if found is None:
            self.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self.engine.finalize_object()
            found = {n: self.engine.get_function_address(_unique(n, key)) for n in exports}
            self.loaded[key] = found
        return found


class Engine:
    """Compiles for the host and loads; safe to call from several threads.

    objects: the cache on disk, or None for none.  level: of LLVM's code generator, 0 to 3; None for
    what ``BRINGUP_OPT`` says.
    """

    def __init__(self, objects: ObjectCache | None, level: int | None = None) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.level = config.level("BRINGUP_OPT") if level is None else level
        self.objects = objects
        #: Objects compiled by this engine, not counting those found on disk.
        self.compiled = 0
        self._target = llvm.Target.from_default_triple()
        self._machines: dict[int, llvm.TargetMachine] = {}
        self._segment: _Segment | None = None
        self._dead: list[llvm.ExecutionEngine] = []
        self._loaded: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
        self._lock = LLVM
        self._warming: threading.Thread | None = None

    def warm_up(self) -> None:
        """Let LLVM set itself up on another thread, while the first program is still in Python.

        Raises UnsupportedError if ``BRINGUP_CPU`` names a CPU whose code cannot run here.
        """
        require_runnable()
        self._warming = threading.Thread(target=self._compile_first, name="bringup-warm-up")
        self._warming.start()

    def _compile_first(self) -> None:
        with self._lock, _parsed(_FIRST) as module:
            self._machine(self.level).emit_object(module)

    def _machine(self, level: int) -> llvm.TargetMachine:
        machine = self._machines.get(level)
        if machine is None:
            machine = self._machines[level] = self._new_machine(level)
        return machine

    def _new_machine(self, level: int) -> llvm.TargetMachine:
        # The code model that `jit` selects holds wherever the loader finds room for code and data.
        return self._target.create_target_machine(
            cpu=host_cpu(), features=host_features(), opt=level, jit=True
        )

    def compile_native(
        self, text: str | Deferred, exports: Sequence[str], level: int | None = None
    ) -> Code:
        """Compile a module, or find it compiled, and load it.

        exports: the functions whose addresses are wanted.  They are renamed on the way, so equal
        names in different texts do not clash.  level: instead of the engine's.
        Raises CompileError with LLVM's message and the text, UnsupportedError as `warm_up`.
        """
        require_runnable()
        level = self.level if level is None else level
        warming = self._warming
        if warming is not None:
            warming.join()
            self._warming = None
        with self._lock:
            key = self.key(text if isinstance(text, str) else text.source, exports, level)
            while self._dead:
                self._dead.pop().close()
            found = self._loaded.get(key)
            if found is not None:
                return found
            data = None if self.objects is None else self.objects.get(key)
            needed = None if data is None else _undefined(data, key, exports)
            if data is None or needed is None:
                data = self._compile(_text(text), key, exports, level)
                needed = _undefined(data, key, exports)
                assert needed is not None
                if self.objects is not None:
                    self.objects.put(key, data)
            code = self._load(key, data, exports, needed, text)
            self._loaded[key] = code
            return code

    def key(self, text: str, exports: Sequence[str], level: int) -> str:
        """What an object depends on, hashed.  text: of the module, or the source it is made of."""
        parts = (text, *exports, host_cpu(), host_features(), str(level), _versions())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def assembly(self, text: str, cpu: str = "", features: str = "") -> str:
        """Assembly of a module for the host, or for another CPU of the host's architecture."""
        with self._lock, _parsed(text) as module:
            machine = self._target.create_target_machine(
                cpu=cpu or host_cpu(),
                features=features if cpu else host_features(),
                opt=self.level,
                reloc="pic",
                codemodel="small",
            )
            return str(machine.emit_assembly(module))

    def symbol(self, name: str, address: int) -> None:
        """Make an address known to modules loaded from now on, under a name."""
        with self._lock:
            llvm.add_symbol(name, address)

    def _compile(self, text: str, key: str, exports: Sequence[str], level: int) -> bytes:
        with _parsed(text) as module:
            _rename(module, key, exports)
            data: bytes = self._machine(level).emit_object(module)
        self.compiled += 1
        return data

    def _load(
        self,
        key: str,
        data: bytes,
        exports: Sequence[str],
        needed: frozenset[str],
        text: str | Deferred,
    ) -> Code:
        # LLVM's loader ends the process over a missing symbol.
        unknown = [n for n in needed if llvm.address_of_symbol(n) is None]
        if unknown:  # pragma: no cover - only wrong emitters
            names = ", ".join(sorted(unknown))
            raise CompileError(
                f"compiled code calls what no library here has: {names}", source=_text(text)
            )
        if self._segment is None or len(self._segment.loaded) >= _SEGMENT:
            self._segment = _Segment(self._new_machine(self.level), self._dead)
        return Code(self._segment.load(key, data, exports), self._segment, data)


def _undefined(data: bytes, key: str, exports: Sequence[str]) -> frozenset[str] | None:
    """Names that an object needs from outside, unknown where objects are no ELF files; None for one
    that LLVM's loader must not be given.
    """
    if llvm.get_object_format() != "ELF":
        return frozenset()  # pragma: no cover - only systems without ELF
    try:
        symbols = symbols_of(data)
    except ValueError:  # pragma: no cover - only objects that LLVM made wrong
        return None
    wanted = {_unique(name, key) for name in exports}
    return symbols.undefined if symbols.defined >= wanted else None


def _text(text: str | Deferred) -> str:
    return text if isinstance(text, str) else text.make()


@contextmanager
def _parsed(text: str) -> Iterator[llvm.ModuleRef]:
    """A checked module in a context of its own: the global one keeps every constant for ever."""
    with closing(llvm.create_context()) as context:
        try:
            module = llvm.parse_assembly(text, context)
            # In this order even if an error's traceback keeps both: a module needs its context.
            with closing(module):
                module.verify()
                yield module
        except RuntimeError as error:  # pragma: no cover - only wrong emitters
            raise CompileError("LLVM refused a module", log=str(error), source=text) from None


def _rename(module: llvm.ModuleRef, key: str, exports: Sequence[str]) -> None:
    """Give exported functions names of this module alone and hide everything else.

    The loader takes the first definition of a name it finds, be it of another module.
    """
    functions = {f.name: f for f in module.functions if not f.is_declaration}
    missing = [name for name in exports if name not in functions]
    if missing:  # pragma: no cover - only wrong emitters
        raise CompileError(f"a module does not define {', '.join(missing)}", source=str(module))
    for name, function in functions.items():
        if name in exports:
            function.name = _unique(name, key)
        else:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"


def _unique(name: str, key: str) -> str:
    return f"{name}.{key[:24]}"


@cache
def _versions() -> str:
    return f"bringup {VERSION} llvm {'.'.join(map(str, llvm.llvm_version_info))}"


@cache
def engine() -> Engine:
    """The process's engine, with the user's cache directory."""
    return Engine(ObjectCache(Path(user_cache_dir("bringup")) / "objects"))
