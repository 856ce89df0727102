"""Modules, functions and blocks of LLVM IR text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters, digits

from bringup.llvm.text.types import Type, Val, array, pointer, scalar_text
from bringup.records import record

#: What names are made of that stand without quotes.
_PLAIN = frozenset(f"{ascii_letters}{digits}-$._")


def _symbol(name: str) -> str:
    is_plain = _PLAIN.issuperset(name) and name[:1] not in digits
    return f"@{name}" if is_plain else f'@"{name}"'


@record
class Callee:
    """A function that can be called: its symbol and signature."""

    name: str
    ret: Type
    params: tuple[Type, ...]

    @property
    def symbol(self) -> str:
        """The spelling in IR, with ``@``."""
        return _symbol(self.name)

    @property
    def pointer(self) -> Val:
        """The function's address."""
        return Val(self.symbol, pointer())


class Phi(Val):
    """A phi: an operand like any other, whose incoming edges are added as they become known."""

    __slots__ = ("_incoming",)

    def __init__(self, text: str, type: Type) -> None:
        super().__init__(text, type)
        self._incoming: list[str] = []

    def add_incoming(self, value: Val, block: Block) -> None:
        """Add an edge: the phi is ``value`` if control comes from ``block``."""
        assert value.type is self.type, f"phi of {self.type} gets {value}"
        self._incoming.append(f"[ {value.text}, %{block.name} ]")

    def render(self) -> str:
        """The instruction's line."""
        return f"  {self.text} = phi {self.type.text} {', '.join(self._incoming)}"


class Block:
    """A basic block.  Blocks are printed in the order in which builders first come to them."""

    __slots__ = ("function", "lines", "name", "phis", "placed", "terminated")

    def __init__(self, function: Function, name: str) -> None:
        self.function = function
        self.name = name
        self.phis: list[Phi] = []
        self.lines: list[str] = []
        self.placed = False
        self.terminated = False

    def render(self) -> str:
        """The block's text, label first."""
        return "\n".join([f"{self.name}:", *(p.render() for p in self.phis), *self.lines])


class Function:
    """A function with a body.  ``args`` are the parameters as operands."""

    def __init__(
        self,
        module: Module,
        callee: Callee,
        params: Sequence[tuple[str, Type, str]],
        head: str,
        tail: str,
    ) -> None:
        self.module = module
        self.callee = callee
        self.args = tuple(Val(f"%{name}", type) for name, type, _ in params)
        self.blocks: list[Block] = []
        self._params = ", ".join(
            f"{t.text} {a} %{n}" if a else f"{t.text} %{n}" for n, t, a in params
        )
        self._head = head
        self._tail = tail
        self._block_count = 0
        self.value_count = 0

    @property
    def name(self) -> str:
        """The function's name, without ``@``."""
        return self.callee.name

    def block(self, name: str = "block") -> Block:
        """A new block; the first one that is placed is the entry.  Names are made unique."""
        self._block_count += 1
        return Block(self, f"{name}.{self._block_count}")

    def place(self, block: Block) -> None:
        """Print ``block`` after the blocks placed so far."""
        block.placed = True
        self.blocks.append(block)

    def __str__(self) -> str:
        head = f"define {self._head}{self.callee.symbol}({self._params}){self._tail} {{"
        return "\n".join([head, *(b.render() for b in self.blocks), "}"])


Param = tuple[str, Type] | tuple[str, Type, str]


class Module:
    """A module under construction; ``str(module)`` is LLVM IR text.

    triple: LLVM's; left out of the text when empty.

    >>> from bringup.llvm.text import Builder, Module, i32
    >>> m = Module()
    >>> f = m.function("twice", i32, [("x", i32)])
    >>> b = Builder(f.block("entry"))
    >>> b.ret(b.add(f.args[0], f.args[0]))
    >>> print(f)
    define i32 @twice(i32 %x) {
    entry.1:
      %.1 = add i32 %x, %x
      ret i32 %.1
    }
    """

    def __init__(self, triple: str = "") -> None:
        self.triple = triple
        #: Functions that the target has instructions for, in place of what emitters write out:
        #: ``maximum(b, x, y)`` and ``minimum`` of f32, as in IEEE 754-2019, ``f32_to_bf16(b, x)``,
        #: to nearest even, and ``rem(b, x, y)`` of f32 and f64, exact, if the target does not
        #: compile ``frem`` to that, and ``fma(b, x, y, z)`` if it has no such instruction.
        self.native: dict[str, Callable[..., Val]] = {}
        #: ``shared_math(b, instr, operands)``: a call of a function of the module for one of many
        #: transcendental instructions, or None; see `bringup.llvm.scalar`.
        self.shared_math: Callable[..., Val | None] | None = None
        #: Whether LLVM compiles a choice between f16.  Without arithmetic of f16 on AArch64 it ends
        #: the process at some; their bits are chosen instead.
        self.selects_halves = True
        #: The most lanes of 8 bits that LLVM gathers at once.  It ends the process at more than 4 of
        #: SVE that are widened to 16 bits.
        self.gathered_bytes = 64
        self.functions: dict[str, Function] = {}
        self._declared: dict[str, tuple[Callee, str]] = {}
        self._globals: dict[str, str] = {}
        self._metadata: list[str] = []
        self._metadata_names: dict[str, str] = {}
        self._named_metadata: dict[str, list[str]] = {}

    def function(
        self,
        name: str,
        ret: Type,
        params: Sequence[Param],
        attrs: str = "",
        *,
        calling_convention: str = "",
        linkage: str = "",
    ) -> Function:
        """Start a function definition.

        params: ``(name, type)`` or ``(name, type, attributes)``.
        attrs: function attributes or a group from ``attributes``.
        calling_convention: such as ``ptx_kernel``.
        linkage: such as ``internal``.
        """
        assert name not in self.functions, f"{name} is already defined"
        full = [(p[0], p[1], p[2] if len(p) == 3 else "") for p in params]
        callee = Callee(name, ret, tuple(t for _, t, _ in full))
        words = " ".join(w for w in (linkage, calling_convention, ret.text) if w)
        function = Function(self, callee, full, f"{words} ", f" {attrs}" if attrs else "")
        self.functions[name] = function
        return function

    def declare(self, name: str, ret: Type, param_types: Sequence[Type], attrs: str = "") -> Callee:
        """The external function ``name``; declaring it twice is the same as once."""
        declared = self._declared.get(name)
        if declared is None:
            callee = Callee(name, ret, tuple(param_types))
            inner = ", ".join(t.text for t in param_types)
            text = f"declare {ret.text} {callee.symbol}({inner}){' ' if attrs else ''}{attrs}"
            declared = self._declared[name] = (callee, text)
        return declared[0]

    def global_constant(
        self,
        name: str,
        element: Type,
        data: Sequence[float],
        align: int = 64,
        address_space: int = 0,
    ) -> Val:
        """A private read-only array of numbers and a pointer to it."""
        inner = ", ".join(f"{element.text} {scalar_text(element, v)}" for v in data)
        return self.global_variable(
            name,
            array(element, len(data)),
            f"[{inner}]",
            align=align,
            linkage="private unnamed_addr",
            address_space=address_space,
            constant=True,
        )

    def global_variable(
        self,
        name: str,
        type: Type,
        initialiser: str = "zeroinitializer",
        *,
        align: int = 0,
        linkage: str = "internal",
        address_space: int = 0,
        constant: bool = False,
    ) -> Val:
        """A global variable and a pointer to it.  initialiser: LLVM text; empty for external."""
        assert name not in self._globals, f"{name} is already defined"
        space = f"addrspace({address_space}) " if address_space else ""
        kind = "constant" if constant else "global"
        words = " ".join(w for w in (linkage, f"{space}{kind}", type.text, initialiser) if w)
        suffix = f", align {align}" if align else ""
        self._globals[name] = f"{_symbol(name)} = {words}{suffix}"
        return Val(_symbol(name), pointer(address_space))

    def metadata(self, body: str, *, distinct: bool = False) -> str:
        """The metadata node with this body (``!{i32 1}``), as ``!n``; equal nodes are shared."""
        if not distinct and body in self._metadata_names:
            return self._metadata_names[body]
        name = f"!{len(self._metadata)}"
        # A distinct node may refer to itself, spelled !self.
        text = f"distinct {body.replace('!self', name)}" if distinct else body
        self._metadata.append(f"{name} = {text}")
        if not distinct:
            self._metadata_names[body] = name
        return name

    def named_metadata(self, name: str, node: str) -> None:
        """Append ``node`` to the module-level list ``!name``."""
        self._named_metadata.setdefault(name, []).append(node)

    def loop_hints(self, *hints: str) -> str:
        """What to pass as ``meta`` of a loop: hints such as ``llvm.loop.unroll.disable``."""
        nodes = [self.metadata('!{!"' + hint + '"}') for hint in hints]
        body = ", ".join(["!self", *nodes])
        return f", !llvm.loop {self.metadata(f'!{{{body}}}', distinct=True)}"

    def __str__(self) -> str:
        parts = []
        if self.triple:
            parts.append(f'target triple = "{self.triple}"')
        parts += self._globals.values()
        parts += (str(f) for f in self.functions.values())
        parts += (text for name, (_, text) in self._declared.items() if name not in self.functions)
        parts += (
            f"!{name} = !{{{', '.join(nodes)}}}" for name, nodes in self._named_metadata.items()
        )
        parts += self._metadata
        return "\n".join(parts) + "\n"
