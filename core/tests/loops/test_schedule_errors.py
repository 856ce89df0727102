"""What schedules refuse: unknown names, and whatever could change a value."""

from __future__ import annotations

import pytest

from bringup.errors import ParseError, ScheduleError
from bringup.loops import parse_func
from bringup.loops.schedule import Schedule, Step, apply

COPY = "%0: f32 = x[i]\n y[i] = %0"


def loop(body: str) -> str:
    return f"func f(x: in f32[10], y: out f32[10]) {{\nfor i in 10 {{\n{body}\n}}\n}}"


STENCIL = loop("%0: f32 = y[i + -1] if 1 <= i < 10\n y[i] = %0")
SUM = loop("%0: f32 = x[i]\n y[0] add= %0")
WAVE = """func f(y: out f32[16]) {
for i in 3 {
for j in 3 {
%0: f32 = y[4*i + j + 1]
y[4*i + j + 4] = %0
}
}
}"""
SIBLINGS = """func f(y: out f32[12]) {
for i in 3 {
for j in 4 {
%0: f32 = 0.0
y[4*i + j] = %0
}
for k in 4 {
%1: f32 = y[k]
y[4*i + k] = %1
}
}
}"""
THREADS = """func f(x: in f32[64], y: out f32[64]) {
for b in 2 block {
alloc s: shared f32[32]
for t in 32 thread {
%0: f32 = x[32*b + t]
s[t] = %0
barrier
%1: f32 = s[-1*t + 31]
y[32*b + t] = %1
}
}
}"""

BLOCK_COPY = """func f(x: in f32[8], y: out f32[8]) {
for b in 2 block {
for i in 4 parallel {
%0: f32 = x[4*b + i]
y[4*b + i] = %0
}
}
}"""
ROW_SUMS = """func f(x: in f32[8], y: out f32[2]) {
for b in 1 block {
for i in 2 parallel {
%9: f32 = 0.0
y[i] = %9
for j in 4 {
%0: f32 = x[4*i + j]
y[i] add= %0
}
}
}
}"""

REFUSED: dict[str, tuple[str, str, str]] = {
    "a loop of a layout that is outside": (
        WAVE.replace("y[4*i + j + 1]", "x[4*i + j + 1]").replace("f(y", "f(x: in f32[20], y"),
        "precompute %0 i t i,j",
        "there is no loop i round it",
    ),
    "a scalar of another loop": (
        loop(COPY),
        "precompute %7 . t i",
        "%7 is not computed in .",
    ),
    "a scalar first that is written meanwhile": (
        STENCIL,
        "precompute %0 . t i",
        "y may be written there",
    ),
    "a scalar first that depends on more": (
        WAVE.replace("y[4*i + j + 1]", "x[4*i + j + 1]").replace("f(y", "f(x: in f32[16], y"),
        "precompute %0 . t i",
        "it depends on loop j",
    ),
    "a fold at another place, as data says": (
        """func f(p: in i32[2], x: in f32[4], y: inout f32[8]) {
%a: i32 = p[0]
%b: i32 = p[1]
for i in 4 {
%0: f32 = -0.0
y[i + d0[0:4]](%a) = %0
}
for j in 4 {
%1: f32 = x[j]
y[j + d0[0:4]](%b) add= %1
}
}""",
        "overwrite y",
        "nothing folds into each element of y",
    ),
    "a fold into what is not neutral": (SUM, "overwrite y", "nothing folds into each element of y"),
    "what stands beside one of two loops": (
        SIBLINGS.replace("for k", "for j").replace("[k]", "[j]").replace("+ k]", "+ j]"),
        "sink j",
        "there are several loops j in a block",
    ),
    "a narrower dtype that does not hold all": (
        loop(
            "%0: f32 = x[i]\n %1: f64 = convert(%0) {dtype=f64}\n"
            "%2: f32 = convert(%1) {dtype=f32}\n y[i] = %2"
        ),
        "narrow %1 f16",
        "f16 does not hold every f32",
    ),
    "segments across iterations that meet": (
        """func f(x: in f32[24], y: out f32[40]) {
for k in 2 {
for o in 5 {
for i in 4 {
%0: f32 = x[6*(4*o + i)//5 + (4*o + i)%5 + k]
y[4*o + k] = %0
}
}
}
}""",
        "reorder o k i\nsegment i s k",
        "iterations of loop i meet at elements of y",
    ),
    "an unknown loop": (loop(COPY), "split j a b 4", "there is no loop j"),
    "a name that exists": (SIBLINGS, "split i j b 4", "a loop j exists already"),
    "a name for both halves": (loop(COPY), "split i a a 4", "a loop a exists already"),
    "an empty block": (loop(COPY), "split i a b 0", "blocks of 0 iterations"),
    "an unknown tail": (loop(COPY), "split i a b 4 tail=none", "there is no tail 'none'"),
    "a part that is the whole": (loop(COPY), "specialize i 10 i", "first 10 are not a part"),
    "a loop that is not round another": (SIBLINGS, "specialize j 2 k", "there is no loop k"),
    "two bodies of threads that meet": (THREADS, "specialize b 1 b", "threads meet inside loop b"),
    "a fold twice": (SUM, "split i a b 4 tail=overlap", "folds into y"),
    "a read of what an iteration wrote": (
        STENCIL,
        "split i a b 4 tail=overlap",
        "may be the same memory",
    ),
    "a read of a parameter that may share memory": (
        loop(COPY),
        "split i a b 4 tail=overlap",
        "reads x and writes y",
    ),
    "no whole block": (loop(COPY), "split i a b 16 tail=overlap", "less than one block"),
    "the last block of a loop that ends early": (
        loop(COPY),
        "split i a b 4\nsplit b c d 3 tail=peel",
        "ends early, so it has no last block",
    ),
    "threads that do not all meet": (THREADS, "split t a c 5", "threads meet inside loop t"),
    "threads apart from those that they meet": (THREADS, "peel t 1 0", "none of them can be apart"),
    "a block of threads apart": (THREADS, "split t a c 5 tail=peel", "whose last block is apart"),
    "nothing between the seams": (loop(COPY), "peel i 5 5", "leave none"),
    "a negative seam": (loop(COPY), "peel i -1 0", "a negative number"),
    "the last iterations of a loop that ends early": (
        loop(COPY),
        "split i a b 4\npeel b 0 1",
        "its last iterations are not known",
    ),
    "a nest with more in it": (SIBLINGS, "fuse i j l", "does not hold loop j alone"),
    "two kinds": (
        loop(COPY),
        "split i a b 5\nparallelize a\nfuse a b i",
        "loop a is parallel and loop b serial",
    ),
    "a store past the end": (
        loop(COPY),
        "split i a b 4\npad b",
        "no loop b that ends early writes private memory alone",
    ),
    "an order that moves a read before a write": (WAVE, "reorder j i", "their order matters"),
    "a nest that is not there": (SIBLINGS, "reorder j k", "no nest has all of the loops"),
    "a nest with siblings": (SIBLINGS, "reorder j i", "is not all that is left inside loop i"),
    "a loop named twice": (SIBLINGS, "reorder i i", "names a loop twice"),
    "parts that need one another": (SIBLINGS, "distribute i", "needs what another one does"),
    "no loops": (SIBLINGS, "distribute", "no loops to distribute"),
    "a nest that is not distributed": (SIBLINGS, "distribute j k", "no nest has all of the loops"),
    "unknown nests": (SIBLINGS, "distribute i to=all", "there are no nests 'all'"),
    "bound loops": (THREADS, "distribute b", "loop b is bound"),
    "lanes that need one another": (STENCIL, "vectorize i", "touch the same elements of y"),
    "two vector loops": (
        loop(COPY),
        "split i a b 5\nvectorize b\nvectorize a",
        "holds a vector loop",
    ),
    "parallel folds": (SUM, "parallelize i", "touch the same elements of y"),
    "threads that need one another": (STENCIL, "bind i thread", "touch the same elements of y"),
    "lanes of other threads": (
        loop(COPY),
        "split i a b 5\nbind b thread",
        "thread loop b is in no block loop",
    ),
    "a parallel loop of registers": (
        SUM,
        "split i a b 5\nrfactor a y b\nparallelize b",
        "counts registers of y.a",
    ),
    "a name that is a kind of loop": (loop(COPY), "split i vector b 5", "cannot be called vector"),
    "a buffer that nobody allocates": (SUM, "set_space r shared", "allocates no buffer r"),
    "an unknown space": (THREADS, "set_space s global", "nothing is allocated in 'global'"),
    "another kind for a block that shares memory": (
        THREADS.replace("thread ", ""),
        "unroll b",
        "s is in no block",
    ),
    "shared memory of no block": (
        SUM,
        "split i a b 5\nrfactor a y b\nset_space y.a shared",
        "is in no block",
    ),
    "registers of a loop": (
        THREADS,
        "set_space s register",
        "is indexed by t, which is not written out",
    ),
    "a scalar that is not there": (BLOCK_COPY, "share i %1", "loop i computes no %1"),
    "no scalars to share": (BLOCK_COPY, "share i", "no loops or no scalars"),
    "shared memory outside of a block": (
        BLOCK_COPY.replace("for b in 2 block", "for b in 2 parallel"),
        "share i %0",
        "v0 is in no block",
    ),
    "a nest with a fold": (ROW_SUMS, "share i j %0", "no perfect nest"),
    "an unknown kind of thread": (loop(COPY), "bind i warp", "cannot be bound to 'warp'"),
    "no fold": (loop(COPY), "split i a b 5\nrfactor a y b", "nothing folds into y"),
    "an unknown loop within": (SUM, "split i a b 5\nrfactor a y c", "no loop c within loop a"),
    "a fold whose element depends on another loop": (
        loop("for j in 4 {\n%0: f32 = x[j]\n y[i] add= %0\n}"),
        "rfactor i y j",
        "depends on the loops i",
    ),
    "no fold in all of the loops": (
        loop("for j in 4 {\n%0: f32 = x[j]\n y[0] add= %0\n}"),
        "peel j 1 0\nrfactor i y j j.first",
        "nothing folds into y in all of the loops j, j.first",
    ),
    "a fold that is read": (
        loop("for j in 4 {\n%0: f32 = y[0]\n y[0] add= %0\n}"),
        "rfactor i y j",
        "does more with y than folds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, steps, message = REFUSED[name]
    *before, last = Schedule.parse(steps).steps
    func = apply(parse_func(text), before)
    with pytest.raises(ScheduleError) as caught:
        last(func)
    assert message in caught.value.what
    assert caught.value.instruction == str(last)
    assert caught.value.fix


def test_an_unknown_loop_has_a_suggestion() -> None:
    func = parse_func(loop(COPY))
    with pytest.raises(ScheduleError) as caught:
        apply(func, Schedule.parse("split i i.outer i.inner 4\nvectorize i.iner"))
    assert str(caught.value).splitlines() == [
        "there is no loop i.iner in f",
        "  loops: i.outer, i.inner",
        "  in instruction: vectorize i.iner",
        "  fix: did you mean i.inner?",
    ]


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("twist i", "line 1: there is no primitive twist", "use add_loop, bind, "),
        ("\nsplit i a", "line 2: split: missing a required argument", "write split loop outer"),
        ("split i a b 4 size=5", "multiple values for argument 'size'", "[tail=guard]"),
        ("unroll i by=2", "unexpected keyword argument 'by'", "write unroll loops…"),
    ],
)
def test_wrong_steps(text: str, message: str, fix: str) -> None:
    with pytest.raises(ParseError) as caught:
        Schedule.parse(text)
    assert message in caught.value.what
    assert fix in (caught.value.fix or "")


def test_text_comes_back() -> None:
    text = "split g0 g0.o g0.i 8 tail=peel\nreorder a b c\nbind a block"
    schedule = Schedule.parse(f"# a comment\n\n{text}  # and one more\n")
    assert str(schedule) == text
    assert Schedule.parse(str(schedule)) == schedule
    assert schedule == Schedule(
        (Step("split", ("g0", "g0.o", "g0.i", 8), (("tail", "peel"),)),)
    ) + (Schedule.parse("reorder a b c\nbind a block"))
