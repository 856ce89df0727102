"""Control flow: branches, and structured loops and conditionals on top of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.llvm._emitter import Emitter
from bringup.llvm._module import Block, Phi
from bringup.llvm._types import Type, Val, const, i1


class Loop:
    """A counted loop being built.

    index: the induction variable.
    carried: the loop-carried values at the start of an iteration; after the loop, the same names
    hold the final ones.
    """

    __slots__ = ("_next", "body", "carried", "exit", "index")

    def __init__(self, index: Phi, carried: tuple[Phi, ...], body: Block, exit: Block) -> None:
        self.index = index
        self.carried = carried
        self.body = body
        self.exit = exit
        self._next: tuple[Val, ...] | None = None

    @property
    def following(self) -> tuple[Val, ...]:
        """The carried values of the next iteration."""
        assert self._next is not None or not self.carried, "the body did not call Loop.next"
        return self._next or ()

    def next(self, *values: Val) -> None:
        """Give the carried values of the next iteration, in order."""
        assert len(values) == len(self.carried), "one value per carried phi"
        self._next = values


class ControlBuilder(Emitter):
    """Branches, phis, and the structured forms."""

    __slots__ = ()

    def phi(self, type: Type) -> Phi:
        """A phi at the head of the current block; give its edges with ``add_incoming``."""
        self.function.value_count += 1
        made = Phi(f"%.{self.function.value_count}", type)
        self.block.phis.append(made)
        return made

    def br(self, target: Block, meta: str = "") -> None:
        """Jump."""
        self.terminate(f"br label %{target.name}{meta}")

    def cond_br(self, condition: Val, then: Block, otherwise: Block, meta: str = "") -> None:
        """Jump to ``then`` if the scalar ``condition`` holds, else to ``otherwise``."""
        self.terminate(f"br {condition}, label %{then.name}, label %{otherwise.name}{meta}")

    def switch(self, value: Val, default: Block, cases: Sequence[tuple[int, Block]]) -> None:
        """Jump to the block of the matching case."""
        arms = " ".join(f"{const(value.type, k)}, label %{b.name}" for k, b in cases)
        self.terminate(f"switch {value}, label %{default.name} [ {arms} ]")

    def ret(self, value: Val | None = None) -> None:
        """Return."""
        self.terminate("ret void" if value is None else f"ret {value}")

    def unreachable(self) -> None:
        """Say that control never gets here."""
        self.terminate("unreachable")

    def branch_weights(self, likely: bool) -> str:
        """The ``meta`` of a ``cond_br`` whose condition almost always (or never) holds."""
        first, second = (2000, 1) if likely else (1, 2000)
        node = self.module.metadata(f'!{{!"branch_weights", i32 {first}, i32 {second}}}')
        return f", !prof {node}"

    @contextmanager
    def loop(
        self,
        start: Val,
        stop: Val,
        step: Val | int = 1,
        carried: Sequence[Val] = (),
        *,
        meta: str = "",
        flags: str = "nsw",
    ) -> Iterator[Loop]:
        """Build ``for (i = start; i < stop; i += step)``, signed; the block is the body.

        carried: initial values of loop-carried values; the body must then call ``Loop.next``.
        meta: on the back edge (``!llvm.loop``).  Afterwards the builder stands behind the loop.

        >>> from bringup.llvm.text import Builder, Module, i64
        >>> f = Module().function("triangle", i64, [("n", i64)])
        >>> b = Builder(f.block("entry"))
        >>> with b.loop(const(i64, 0), f.args[0], carried=[const(i64, 0)]) as loop:
        ...     loop.next(b.add(loop.carried[0], loop.index))
        >>> b.ret(loop.carried[0])
        """
        entry, header = self.block, self.function.block("loop")
        body, done = self.function.block("body"), self.function.block("done")
        self.br(header)
        self.position(header)
        index = self.phi(start.type)
        loop = Loop(index, tuple(self.phi(v.type) for v in carried), body, done)
        more = self.emit(i1, f"icmp slt {index}, {stop.text}")
        self.cond_br(more, body, done)
        self.position(body)
        yield loop
        if not self.block.terminated:
            by = const(start.type, step) if isinstance(step, int) else step
            after = self.binary("add", index, by, flags)
            self._enter((index, *loop.carried), (after, *loop.following), self.block)
            self.br(header, meta)
        self._enter((index, *loop.carried), (start, *carried), entry)
        self.position(done)

    def _enter(self, phis: Sequence[Phi], values: Sequence[Val], block: Block) -> None:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)

    @contextmanager
    def while_loop(
        self,
        carried: Sequence[Val],
        condition: Callable[[tuple[Phi, ...]], Val],
    ) -> Iterator[Loop]:
        """Build ``while (condition(carried))``; the block is the body and calls ``Loop.next``."""
        entry, header = self.block, self.function.block("while")
        body, done = self.function.block("body"), self.function.block("done")
        self.br(header)
        self.position(header)
        phis = tuple(self.phi(v.type) for v in carried)
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, entry)
        loop = Loop(phis[0], phis, body, done)
        self.cond_br(condition(phis), body, done)
        self.position(body)
        yield loop
        assert loop._next is not None, "the body did not call Loop.next"
        for phi, value in zip(phis, loop._next, strict=True):
            phi.add_incoming(value, self.block)
        self.br(header)
        self.position(done)

    @contextmanager
    def if_then(self, condition: Val, likely: bool | None = None) -> Iterator[None]:
        """Build ``if (condition) { … }``; the block is the taken side."""
        then, after = self.function.block("then"), self.function.block("after")
        self.cond_br(condition, then, after, "" if likely is None else self.branch_weights(likely))
        self.position(then)
        yield
        if not self.block.terminated:
            self.br(after)
        self.position(after)

    def cond(
        self,
        condition: Val,
        then: Callable[[], Val | Sequence[Val] | None],
        otherwise: Callable[[], Val | Sequence[Val] | None],
        likely: bool | None = None,
    ) -> tuple[Val, ...]:
        """Branch, build one side each with the callables, and merge what they return.

        >>> from bringup.llvm.text import Builder, Module, i1, i32
        >>> f = Module().function("pick", i32, [("c", i1), ("x", i32)])
        >>> b = Builder(f.block("entry"))
        >>> c, x = f.args
        >>> b.ret(b.cond(c, lambda: b.mul(x, x), lambda: x)[0])
        """
        sides = self.function.block("then"), self.function.block("else")
        after = self.function.block("merge")
        self.cond_br(condition, *sides, "" if likely is None else self.branch_weights(likely))
        ends: list[tuple[Block, tuple[Val, ...]]] = []
        for side, build in zip(sides, (then, otherwise), strict=True):
            self.position(side)
            made = build()
            values = () if made is None else (made,) if isinstance(made, Val) else tuple(made)
            ends.append((self.block, values))
            self.br(after)
        self.position(after)
        phis = tuple(self.phi(v.type) for v in ends[0][1])
        for block, values in ends:
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, block)
        return phis
