"""sin, cos and tan as functions of C: `bringup.maths.circular`, and its reduction far from 0."""

from __future__ import annotations

from bringup.c.library import PREFIX, Family, Library
from bringup.c.maths import Statements, Term
from bringup.dtypes import DType, f32, f64, u32, u64
from bringup.maths.arctangent import HALF_PI
from bringup.maths.circular import LIMIT, cosine, reduce_near, sine, words_of


def _define(lib: Library, name: str, dtype: DType) -> str:
    """The text of sin, cos or tan.  n is the nearest multiple of pi/2; its last bits say which
    function of the rest the result is, and its sign.
    """
    op = name.rpartition("_")[0]
    m = Statements(lib, dtype)
    x = Term("x", m.float)
    size = m.abs(x)
    n, r, low = (Term(text, type_) for text, type_ in _reduced(m, size))
    square = m.mul(r, r)
    parts = (sine(m, r, low, square), cosine(m, r, low, square))
    last = m.shift_left(n, m.width - 1)
    odd = m.negative(last)
    sign = m.and_(m.bits(x), m.i(-1 << (m.width - 1)))
    if op == "tan":
        value = m.div(m.select(odd, parts[1], parts[0]), m.select(odd, parts[0], parts[1]))
        sign = m.xor(sign, last)
    else:
        value = m.select(odd, *(reversed(parts) if op == "sin" else parts))
        # sin is negative for n = 2 and 3 modulo 4, cos for 1 and 2.
        quarter = m.int_add(n, m.i(1)) if op == "cos" else n
        second = m.shift_left(m.shift_right(quarter, 1), m.width - 1)
        sign = m.xor(sign, second) if op == "sin" else second
    value = m.from_bits(m.xor(m.bits(value), sign))
    finite = m.test("olt", size, m.c(float("inf")))
    result = m.select(finite, value, m.sub(x, x))
    return lib.function(name, m.float, [f"{m.float} x"], m.body(result))


def _reduced(m: Statements, size: Term) -> tuple[tuple[str, str], ...]:
    """Names and types of n, r and what r lacks."""
    near = reduce_near(m, size)
    named = tuple(zip(("n", "r", "low"), (m.int, m.float, m.float), strict=True))
    for (name, type_), value in zip(named, near, strict=True):
        m.lines.append(f"{type_} {name} = {value.text};")
    call = m.lib.call(f"far_{m.dtype.name}", size.text)
    record = f"{PREFIX}far_{m.dtype.name}_result"
    m.lines.append(f"if ({size.text} >= {m.c(LIMIT[m.width]).text}) {{")
    m.lines.append(f"  const {record} far = {call};")
    m.lines += [f"  {name} = far.{name};" for name, _ in named]
    m.lines.append("}")
    return named


def _far(lib: Library, name: str, dtype: DType) -> str:
    """The record of n, r and low, and the function that gives them for large numbers."""
    m = Statements(lib, dtype)
    record = f"{PREFIX}{name}_result"
    fields = f"{m.int} n; {m.float} r; {m.float} low;"
    body = _far_f32(m) if dtype is f32 else _far_f64(m)
    body += [f"{record} far;", "far.n = n;", "far.r = r;", "far.low = low;", "return far;"]
    text = lib.function(name, record, [f"{m.float} x"], body)
    return f"typedef struct {{ {fields} }} {record};\n\n{text}"


def _table(lib: Library, width: int, count: int) -> str:
    """Words of 2/pi, and the window of it that matters for a number of this exponent."""
    suffix = lib.dialect.suffixes[f"u{width}"]
    words = ", ".join(f"{word:#x}{suffix}" for word in words_of(width, count))
    return f"const {lib.dialect.types[f'u{width}']} words[{count}] = {{{words}}};"


def _window(word: str, width: int) -> list[str]:
    """Three words from bit ``start`` on."""
    shifted = [
        f"const {word} w{k} = (words[index + {k}] << shift)"
        f" | ((words[index + {k + 1}] >> 1) >> ({width - 1} - shift));"
        for k in range(3)
    ]
    head = [f"const {word} index = start / {width}u;", f"const {word} shift = start % {width}u;"]
    return [*head, *shifted]


def _product(m: Statements, high: str, low: str) -> list[str]:
    """R and low: pi/2 times an unevaluated sum."""
    half_pi, half_pi_low = (m.c(part) for part in HALF_PI[m.width])
    first = len(m.lines)
    r, rest = m.two_product(Term(high, m.float), half_pi)
    more = m.muladd(Term(high, m.float), half_pi_low, m.mul(Term(low, m.float), half_pi))
    rest = m.add(rest, more)
    return [*m.lines[first:], f"{m.float} r = {r.text};", f"{m.float} low = {rest.text};"]


def _far_f32(m: Statements) -> list[str]:
    """A fixed-point number of 64 bits, 62 of them behind the point."""
    lib = m.lib
    word, wide, long = lib.type(u32), lib.type(u64), lib.dialect.types["i64"]
    suffix = lib.dialect.suffixes["u64"]
    body = [
        _table(lib, 32, 8),
        f"const {word} pattern = {lib.bits('x', f32)};",
        f"const {wide} factor = (pattern & 0x7fffffu) | 0x800000u;",
        f"const {word} start = ((pattern >> 23) & 0xffu) - 120u;",
        *_window(word, 32),
        f"const {wide} total = ((factor * w0) << 32) + factor * w1 + ((factor * w2) >> 32);",
        f"const {m.int} n = ({m.int})((total + (1{suffix} << 61)) >> 62);",
        f"const {long} fraction = ({long})(total - (({wide})n << 62));",
        f"const {m.float} top = ({m.float})fraction;",
        f"const {m.float} bottom = ({m.float})(fraction - ({long})top);",
        f"const {m.float} high = top * {lib.real(2.0**-62, f32)};",
        f"const {m.float} rest = bottom * {lib.real(2.0**-62, f32)};",
    ]
    return [*body, *_product(m, "high", "rest")]


def _far_f64(m: Statements) -> list[str]:
    """A fixed-point number of 128 bits, 126 of them behind the point, in two words."""
    lib = m.lib
    wide, suffix = lib.type(u64), lib.dialect.suffixes["u64"]
    high = [lib.call("high_u64", "factor", word) for word in ("w1", "w2")]
    zeros = [lib.call("clz_u64", word) for word in ("top", "bottom")]
    scale = lib.from_bits(f"(972{suffix} - zeros) << 52", f64)  # 2^(-51 - zeros)
    return [
        _table(lib, 64, 20),
        f"const {wide} pattern = {lib.bits('x', f64)};",
        f"const {wide} factor = (pattern & {(1 << 52) - 1:#x}{suffix}) | {1 << 52:#x}{suffix};",
        f"const {wide} start = ((pattern >> 52) & 0x7ffu) - 1013u;",
        *_window(wide, 64),
        f"const {wide} last = {high[1]};",
        f"{wide} bottom = factor * w1 + last;",
        f"{wide} top = factor * w0 + {high[0]} + (bottom < last);",
        f"const {m.int} n = ({m.int})((top + (1{suffix} << 61)) >> 62);",
        f"top -= ({wide})n << 62;",
        "const bool below = top >> 63 != 0;",
        "bottom = below ? 0 - bottom : bottom;",
        "top = below ? ~top + (bottom == 0) : top;",
        f"const {wide} zeros = top != 0 ? {zeros[0]} : 64u + {zeros[1]};",
        f"const {wide} count = zeros & 63u;",
        "const bool short_ = zeros >= 64u;",
        f"const {wide} leading = short_ ? bottom : top;",
        f"const {wide} following = short_ ? 0 : bottom;",
        f"const {wide} word = (leading << count) | ((following >> 1) >> (63u - count));",
        f"const {wide} digits = ((word & 0x7ffu) << 42) | ((following << count) >> 22);",
        f"const {m.float} scale = {scale};",
        f"const {m.float} high = ({m.float})(word >> 11) * scale;",
        f"const {m.float} rest = ({m.float})digits * {lib.real(2.0**-53, f64)} * scale;",
        *_product(m, "high", "rest"),
        "r = below ? -r : r;",
        "low = below ? -low : low;",
    ]


def _high_word(lib: Library, name: str, dtype: DType) -> str:
    """The upper half of the product of two 64-bit words, from products of their halves."""
    word = lib.type(dtype)
    half = f"0xffffffff{lib.dialect.suffixes['u64']}"
    body = [
        f"const {word} low = (x & {half}) * (y & {half});",
        f"const {word} one = (x >> 32) * (y & {half}) + (low >> 32);",
        f"const {word} two = (x & {half}) * (y >> 32) + (one & {half});",
        "return (x >> 32) * (y >> 32) + (one >> 32) + (two >> 32);",
    ]
    return lib.function(name, word, (f"{word} x", f"{word} y"), body)


#: The ops that this module defines.
CIRCULAR = ("sin", "cos", "tan")
#: What `Library` takes.
CIRCULAR_FAMILIES: dict[str, Family] = {
    **dict.fromkeys(CIRCULAR, _define),
    "far": _far,
    "high": _high_word,
}

__all__ = ["CIRCULAR", "CIRCULAR_FAMILIES"]
