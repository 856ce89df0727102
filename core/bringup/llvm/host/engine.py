"""From LLVM IR text to addresses: compile, keep on disk, load."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
from platformdirs import user_cache_dir

from bringup import config
from bringup.errors import CompileError
from bringup.llvm.host.elf import symbols_of
from bringup.llvm.host.machine import LLVM, host_cpu, host_features, require_runnable
from bringup.llvm.host.object_cache import (
    Deferred,
    Emitted,
    ObjectCache,
    StoredObject,
    object_key,
)
from bringup.records import record

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
#: Objects per LLVM engine, because LLVM frees code only together with its engine.
_SEGMENT = 32


class Code:
    """Loaded machine code, in memory while this object lives.

    addresses: of the exported functions, by the names they had in the text.
    object: the machine code as it is stored.  facts: as in `Emitted`.
    """

    __slots__ = ("__weakref__", "_segment", "addresses", "facts", "object")

    def __init__(self, addresses: Mapping[str, int], segment: object, stored: StoredObject) -> None:
        self.addresses = addresses
        self.object = stored.data
        self.facts = stored.facts
        self._segment = segment


class _Segment:
    """An LLVM engine and the objects it was given.

    dead: receives the LLVM engine at the end.  It is closed later, when no thread uses LLVM:
    closing takes LLVM's lock, and a fork at that moment would leave it locked in the child.
    """

    def __init__(self, machine: llvm.TargetMachine, dead: list[llvm.ExecutionEngine]) -> None:
        self.dead = dead
        # The engine owns the machine; a machine of two engines would be freed twice.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.loaded: dict[str, dict[str, int]] = {}

    def __del__(self) -> None:
        self.dead.append(self.engine)

    def load(self, key: str, data: bytes, exports: Sequence[str]) -> dict[str, int]:
        addresses = self.loaded.get(key)
        if addresses is None:
            self.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self.engine.finalize_object()
            addresses = {n: self.engine.get_function_address(_unique(n, key)) for n in exports}
            self.loaded[key] = addresses
        return addresses


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
        self, text: str | Emitted | Deferred, exports: Sequence[str], level: int | None = None
    ) -> Code:
        """Compile a module, or find it compiled, and load it.

        exports: the functions whose addresses are wanted.  They are renamed on the way, so equal
        names in different texts do not clash.  level: instead of the engine's.
        Raises CompileError with LLVM's message and the text, UnsupportedError if ``BRINGUP_CPU``
        names a CPU whose code cannot run here.
        """
        require_runnable()
        level = self.level if level is None else level
        module = Emitted(text) if isinstance(text, str) else text
        key = self.key(module, exports, level)
        with self._lock:
            while self._dead:
                self._dead.pop().close()
            code = self._loaded.get(key)
        if code is not None:
            return code
        stored = self._stored(key, exports)
        emitted = self._emit(module) if stored is None else None
        with self._lock:
            code = self._loaded.get(key)
            if code is None:
                if stored is None:
                    assert emitted is not None
                    stored = self._compile(emitted, key, exports, level)
                code = self._loaded[key] = self._load(key, stored, exports, module)
            return code

    def _stored(self, key: str, exports: Sequence[str]) -> _Loadable | None:
        """The object of a key on disk, if it is there and what LLVM's loader may be given."""
        stored = None if self.objects is None else self.objects.get(key)
        return None if stored is None else _Loadable.of(stored, key, exports)

    def _emit(self, module: Emitted | Deferred) -> Emitted:
        """The text of a module; meanwhile LLVM sets itself up on another thread, once."""
        if isinstance(module, Emitted):
            return module
        if self.level in self._machines or (os.cpu_count() or 1) < 2:
            return module.make()
        thread = threading.Thread(target=self._compile_first, name="bringup-warm-up")
        thread.start()
        try:
            return module.make()
        finally:
            thread.join()

    def key(self, module: Emitted | Deferred, exports: Sequence[str], level: int) -> str:
        """What the object of a module is found by."""
        parts = (*exports, host_cpu(), host_features(), str(level), _llvm_version())
        return object_key(module, *parts)

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

    def _compile(self, emitted: Emitted, key: str, exports: Sequence[str], level: int) -> _Loadable:
        """Compile a module, and keep its object on disk."""
        with _parsed(emitted.text) as module:
            _rename(module, key, exports)
            stored = StoredObject(self._machine(level).emit_object(module), emitted.facts)
        self.compiled += 1
        loadable = _Loadable.of(stored, key, exports)
        assert loadable is not None
        if self.objects is not None:
            self.objects.put(key, stored)
        return loadable

    def _load(
        self, key: str, loadable: _Loadable, exports: Sequence[str], module: Emitted | Deferred
    ) -> Code:
        if self._segment is None or len(self._segment.loaded) >= _SEGMENT:
            # The first one lets LLVM see the symbols of this process.
            self._segment = _Segment(self._new_machine(self.level), self._dead)
        # LLVM's loader ends the process over a missing symbol.
        unknown = [n for n in loadable.needed if llvm.address_of_symbol(n) is None]
        if unknown:  # pragma: no cover - only wrong emitters
            names = ", ".join(sorted(unknown))
            source = module.text if isinstance(module, Emitted) else module.make().text
            raise CompileError(
                f"compiled code calls what no library here has: {names}", source=source
            )
        addresses = self._segment.load(key, loadable.stored.data, exports)
        return Code(addresses, self._segment, loadable.stored)


@record
class _Loadable:
    """An object that LLVM's loader may be given.

    needed: names that it needs from outside; none are known where objects are no ELF files.
    """

    stored: StoredObject
    needed: frozenset[str]

    @classmethod
    def of(cls, stored: StoredObject, key: str, exports: Sequence[str]) -> _Loadable | None:
        """Check an object; None if it must not be loaded."""
        if llvm.get_object_format() != "ELF":
            return cls(stored, frozenset())  # pragma: no cover - only systems without ELF
        try:
            symbols = symbols_of(stored.data)
        except ValueError:  # pragma: no cover - only objects that LLVM made wrong
            return None
        exported = {_unique(name, key) for name in exports}
        return cls(stored, symbols.undefined) if symbols.defined >= exported else None


@contextmanager
def _parsed(text: str) -> Iterator[llvm.ModuleRef]:
    """A verified module in its own context, because the global one never frees constants."""
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
def _llvm_version() -> str:
    return ".".join(map(str, llvm.llvm_version_info))


@cache
def engine() -> Engine:
    """The process's engine, with the user's cache directory."""
    return Engine(ObjectCache(Path(user_cache_dir("bringup")) / "objects"))
