"""Input arrays as recipes: a seed, a kind, a few overrides and a memory layout make the whole
array, the same everywhere.

Elements are not drawn one by one: a thousand floats drawn by Hypothesis hold a handful of distinct
values, so that a tail that is dropped or repeated would hardly ever show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bringup.dtypes import STORED, DType, bool_, f64
from bringup.ops.special_values import special_value
from bringup.ops.structures import STRUCTURES
from bringup.ops.table import OpDef
from bringup.records import record
from bringup.types import TensorType
from bringup_conformance.generate.choices import derive
from bringup_conformance.oracle.numbers import Array, format_of, nan_patterns, nearest

Interval = tuple[float, float]

#: Kinds that show what they are for where all operands of an instruction have them.
TOGETHER = ("near", "extremes")
LAYOUTS = ("dense", "column", "reversed", "strided", "offset")
#: Texts of `bringup.ops.special_values` that the kind ``special`` sprinkles over an array.
SPECIAL_FLOATS = (
    "nan", "inf", "-inf", "0.0", "-0.0", "SUBNORMAL", "-SUBNORMAL", "TINY", "1", "-1", "0.5", "1e4",
)  # fmt: skip
SPECIAL_INTEGERS = ("INT_MIN", "INT_MAX", "0", "1", "-1", "2", "BITS")
#: Of the floats that anything may be converted to.
_PRECISIONS = sorted({format_of(dtype).precision for dtype in STORED if dtype.is_float})


@record
class Recipe:
    """How to make an array of any type.

    kind: a name of `KINDS`.  overrides: (flat index, text of `bringup.ops.special_values`) pairs;
    indices beyond the array are ignored.  layout: a name of `LAYOUTS`: how the array lies in the
    host's memory, its values being the same.
    interval, nonzero: the values an operand may have, as in a row's domain.  matrix: the name of a
    structure that the matrices of the last two dimensions have, as there.
    """

    kind: str = "ramp"
    seed: int = 0
    overrides: tuple[tuple[int, str], ...] = ()
    layout: str = "dense"
    interval: Interval | None = None
    nonzero: bool = False
    matrix: str = ""

    @classmethod
    def for_operand(
        cls, row: OpDef, position: int, kind: str, seed: int, layout: str = "dense"
    ) -> Recipe:
        """Data of a kind in the domain of an operand of a row."""
        domain = row.domain
        interval = domain.intervals[min(position, len(domain.intervals) - 1)]
        nonzero, matrix = position in domain.nonzero, domain.matrix(position)
        return cls(kind, seed, (), layout, interval, nonzero, matrix)

    def make(self, type_: TensorType) -> Array:
        """The array.

        >>> from bringup.dtypes import f32
        >>> Recipe("ramp").make(f32[4])
        array([1., 2., 3., 4.], dtype=float32)
        """
        array = KINDS[self.kind](_Drawing(self, type_))
        if self.matrix:
            wide = np.asarray(array, np.float64).reshape(type_.shape)
            array = nearest(STRUCTURES[self.matrix](wide), type_.dtype)
        flat = np.ascontiguousarray(array).reshape(-1)
        for index, text in self.overrides:
            if index < flat.size:
                flat[index] = special_value(text, type_.dtype)
        return laid_out(flat.reshape(type_.shape), self.layout)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads; what has its default is left out."""
        plain = Recipe()
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value != getattr(plain, name)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Read `to_json`'s data.  Raises TypeError for unknown fields, ValueError for unknown
        names.
        """
        fields = dict(data)
        fields["overrides"] = tuple((int(i), str(t)) for i, t in fields.get("overrides", ()))
        interval = fields.get("interval")
        fields["interval"] = None if interval is None else (float(interval[0]), float(interval[1]))
        recipe = cls(**fields)
        if recipe.kind not in KINDS or recipe.layout not in LAYOUTS:
            raise ValueError(
                f"no recipe of kind {recipe.kind!r} and layout {recipe.layout!r} is known"
            )
        return recipe


@record
class _Drawing:
    """A recipe about to fill an array of a type."""

    recipe: Recipe
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def words(self, name: str = "") -> Array:
        """64 random bits an element, which depend on nothing but the recipe, the type and the name
        (splitmix64).
        """
        key = np.uint64(derive(self.recipe.seed, self.recipe.kind, str(self.type), name))
        z = key + np.arange(1, self.type.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))

    def uniform(self, low: float, high: float, name: str = "") -> Array:
        """Doubles from ``low`` to ``high``."""
        return low + (high - low) * ((self.words(name) >> np.uint64(11)) * 2.0**-53)

    def range(self, low: int, high: int, name: str = "") -> Array:
        """64-bit integers from ``low`` to ``high``, ends included."""
        return low + (self.words(name) % np.uint64(high - low + 1)).astype(np.int64)

    def signs(self) -> Array:
        """1 or −1."""
        return self.range(0, 1, "signs") * 2 - 1

    def count(self) -> Array:
        return np.arange(self.type.size, dtype=np.int64)

    def floats(self, values: Array) -> Array:
        """Doubles moved into the recipe's interval and rounded to the dtype."""
        interval = self.recipe.interval
        if interval is not None:
            values = _folded(values, interval)
        limit = float(min(format_of(self.dtype).largest, 1e300))
        if interval is not None:
            return _kept_inside(nearest(np.clip(values, -limit, limit), self.dtype), interval)
        return nearest(np.clip(values, -limit, limit), self.dtype)

    def integers(self, values: Array) -> Array:
        """64-bit integers wrapped to the dtype, moved into the recipe's interval."""
        dtype = self.dtype.numpy
        if self.dtype is bool_:
            return np.asarray(values & 1 != 0)
        if self.recipe.interval is not None:
            low, high = (int(end) for end in self.recipe.interval)
            values = low + values % (high - low + 1)
        made = values.astype(dtype)
        if self.recipe.nonzero:
            made = np.where(made == 0, dtype.type(1), made)
        return made

    def either(self, floats: Callable[[], Array], integers: Callable[[], Array]) -> Array:
        if not self.dtype.is_float:
            return self.integers(integers())
        values = self.floats(floats())
        if self.recipe.nonzero:
            values = np.where(values == 0, self.dtype.numpy.type(1), values)
        return values


def _folded(values: Array, interval: Interval) -> Array:
    """Values outside an interval brought into it without piling up at its ends."""
    low, high = interval
    width = high - low
    if not np.isfinite(width) or width == 0:
        return np.clip(values, low, high)
    outside = (values < low) | (values > high)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(outside, low + np.mod(values - low, width), values))


def _kept_inside(values: Array, interval: Interval) -> Array:
    with np.errstate(over="ignore"):
        low, high = (values.dtype.type(end) for end in interval)
    return np.asarray(np.minimum(np.maximum(values, low), high))


def _ramp(draw: _Drawing) -> Array:
    """1, 2, 3, …: unique while the dtype holds them, and exact in sums."""
    period = 1 << min(draw.dtype.bits - 1, 40)
    if draw.dtype.is_float:
        period = 1 << format_of(draw.dtype).precision
    count = (draw.count() + draw.recipe.seed % 7) % period + 1
    return draw.either(lambda: count.astype(np.float64), lambda: count)


def _falling(draw: _Drawing) -> Array:
    """A ramp from its end to its beginning."""
    return _ramp(draw)[::-1].copy()


def _signed(draw: _Drawing) -> Array:
    """Both signs, full significands, magnitudes of order one; all values of an integer dtype."""
    return draw.either(lambda: draw.uniform(-4.0, 4.0), lambda: draw.words().view(np.int64))


def _negative(draw: _Drawing) -> Array:
    """Nothing but negative numbers; large ones if unsigned."""
    return draw.either(lambda: -draw.uniform(0.5, 8.0), lambda: -draw.range(1, 100))


def _positive(draw: _Drawing) -> Array:
    """Nothing but positive numbers of order one."""
    return draw.either(lambda: draw.uniform(0.25, 8.0), lambda: draw.range(1, 100))


def _small(draw: _Drawing) -> Array:
    """Small integers: sums and products of them are exact in any order."""
    values = draw.range(-4 if draw.dtype.is_signed else 0, 4)
    return draw.either(lambda: values.astype(np.float64), lambda: values)


def _units(draw: _Drawing) -> Array:
    """Powers of two near one, both signs: products of them are exact."""
    signs = draw.signs()
    return draw.either(
        lambda: signs * np.ldexp(1.0, draw.range(-1, 1).astype(np.int32)), lambda: signs
    )


def _wide(draw: _Drawing) -> Array:
    """Magnitudes over a third of the exponent range, both signs."""
    signs = draw.signs()
    if not draw.dtype.is_float:
        bits = np.minimum(draw.range(1, draw.dtype.bits, "bits"), 62)
        return draw.integers(signs * (draw.range(0, 2**62 - 1) >> (62 - bits)))
    reach = -format_of(draw.dtype).low // 3
    exponents = draw.range(-reach, reach, "exponents").astype(np.int32)
    return draw.either(lambda: signs * np.ldexp(draw.uniform(1.0, 2.0), exponents), draw.count)


def _ties(draw: _Drawing) -> Array:
    """Three values, so that extremes and keys occur many times."""
    values = draw.range(0, 2)
    return draw.either(lambda: values * 1.5 + 0.5, lambda: values + 1)


def _orthogonal(draw: _Drawing) -> Array:
    """Matrices in the last two dimensions whose singular values are all equal: a part of three
    times two reflections.
    """
    if draw.type.rank < 2 or not draw.type.size:
        return _signed(draw)
    *stack, m, n = draw.type.shape
    size = max(m, n)
    vectors = _Drawing(draw.recipe, f64[2, *stack, size]).uniform(-1.0, 1.0).reshape(2, -1, size)
    values = np.broadcast_to(3.0 * np.eye(size), (vectors.shape[1], size, size))
    for v in vectors:
        shares = 2.0 * v / (v * v).sum(axis=1, keepdims=True)
        values = values - (values * v[:, None, :]).sum(axis=2, keepdims=True) * shares[:, None, :]
    wanted = values[:, :m, :n].reshape(-1)
    return draw.either(lambda: wanted, lambda: np.rint(wanted).astype(np.int64))


def _onehot(draw: _Drawing) -> Array:
    """Zeros but for one element in every 61, each another."""
    count = draw.count()
    period = min(61, max(draw.type.size, 1))
    hot = count % period == draw.recipe.seed % period
    values = np.where(hot, count % 97 + 1, 0)
    return draw.either(lambda: values.astype(np.float64), lambda: values)


def _special(draw: _Drawing) -> Array:
    """NaN, infinities, both zeros, subnormals and extremes among ordinary numbers."""
    made = _signed(draw)
    texts: tuple[str, ...] = SPECIAL_FLOATS if draw.dtype.is_float else SPECIAL_INTEGERS
    if draw.dtype is bool_:
        return made
    if draw.dtype.kind == "uint":
        texts = tuple(t for t in texts if not t.startswith("-"))
    values = np.array([special_value(t, draw.dtype) for t in texts], draw.dtype.numpy)
    choice = draw.range(0, 3 * len(texts) - 1, "special")
    return np.where(choice < len(texts), values[np.minimum(choice, len(texts) - 1)], made)


def _nans(draw: _Drawing) -> Array:
    """NaN of either sign, with every sort of payload, among special values."""
    values = _special(draw)
    return _with_nans(draw, values) if draw.dtype.is_float else values


def _with_nans(draw: _Drawing, values: Array) -> Array:
    """A third of the elements, or one of sixteen so that lines hold a single one, replaced by NaN
    whose payload is the least, all ones, the least or random without the quiet bit, or random.
    """
    patterns = nan_patterns(draw.dtype, draw.words("payload"))
    which = draw.range(0, (3, 16)[draw.recipe.seed % 2] * len(patterns) - 1, "which")
    chosen = np.choose(np.minimum(which, len(patterns) - 1), patterns)
    return np.where(which < len(patterns), chosen.view(values.dtype), values)


def _near(draw: _Drawing) -> Array:
    """Neighbours: recipes whose seeds differ in the last four bits make numbers that are equal or
    at most two steps apart, and so are each four elements in a row; half of the magnitudes are
    those of the dtype, the others lie below.
    """
    if draw.dtype is bool_:
        return _signed(draw)
    shared = _Drawing(Recipe("near", draw.recipe.seed >> 4), draw.type)
    four, bits = draw.count() >> 2, draw.dtype.bits
    words, steps = shared.words()[four], draw.range(-1, 1, f"step {draw.recipe.seed}")
    if not draw.dtype.is_float:
        shifts = np.maximum(shared.range(66 - 2 * bits, 62, "shift")[four], 64 - bits)
        if draw.dtype.is_signed:
            return draw.integers((words.view(np.int64) >> shifts) + steps)
        return draw.integers((words >> shifts.astype(np.uint64)).view(np.int64) + steps)
    if draw.recipe.interval is not None:
        return _stepped(draw.floats(shared.uniform(-4.0, 4.0)[four]), steps, draw.recipe.interval)
    word = np.dtype(f"u{draw.dtype.itemsize}")
    largest = np.asarray(format_of(draw.dtype).largest).astype(draw.dtype.numpy).view(word)
    sizes = (words % np.uint64(int(largest) - 1)).astype(np.int64) + 1 + steps
    signs = (words >> np.uint64(63)).astype(word) << word.type(bits - 1)
    return np.asarray((sizes.astype(word) | signs).view(draw.dtype.numpy))


def _stepped(values: Array, steps: Array, interval: Interval) -> Array:
    """Floats moved up or down to the next one, in an interval."""
    with np.errstate(over="ignore", under="ignore"):  # beside the largest, beside 0
        beside = np.nextafter(values, np.where(steps < 0, -np.inf, np.inf).astype(values.dtype))
    return _kept_inside(np.where(steps == 0, values, beside), interval)


def _extremes(draw: _Drawing) -> Array:
    """Nothing but the least and the greatest number."""
    greatest = draw.range(0, 1) == 1
    if draw.dtype is bool_:
        return np.asarray(greatest)
    if draw.dtype.is_float:
        largest = format_of(draw.dtype).largest
        return _up_to_largest(draw, np.where(greatest, largest, -largest))
    if draw.recipe.interval is not None:
        return draw.integers(np.where(greatest, -1, 0))
    info = np.iinfo(draw.dtype.numpy)
    values = np.where(greatest, draw.dtype.numpy.type(info.max), draw.dtype.numpy.type(info.min))
    return np.asarray(
        np.where(values == 0, values.dtype.type(1), values) if draw.recipe.nonzero else values
    )


def _large(draw: _Drawing) -> Array:
    """The largest number over n, of both signs, n being up to four times the number of elements:
    sums of them overflow half-way, though the end need not.
    """
    signs = draw.signs()
    doublings = draw.range(0, max(draw.type.size, 1).bit_length(), "doublings")
    if draw.dtype.is_float:
        parts = np.ldexp(draw.uniform(1.0, 2.0), doublings.astype(np.int32))
        return _up_to_largest(draw, signs * (format_of(draw.dtype).largest / parts))
    largest = 1 if draw.dtype is bool_ else min(int(np.iinfo(draw.dtype.numpy).max), 2**63 - 1)
    return draw.integers(signs * (largest >> np.minimum(doublings, 62)))


def _tiny(draw: _Drawing) -> Array:
    """Subnormal numbers and the smallest normal ones, of both signs, so that whole vectors hold
    nothing else; of integers a ramp.
    """
    signs = draw.signs()
    if not draw.dtype.is_float:
        return draw.integers(draw.count())
    form = format_of(draw.dtype)
    exponents = form.low + draw.range(-form.precision, 2, "exponents").astype(np.int32)
    return draw.floats(signs * np.ldexp(draw.uniform(1.0, 2.0), exponents))


def _up_to_largest(draw: _Drawing, values: Array) -> Array:
    """Wide numbers that do not overflow, in the recipe's interval."""
    interval = draw.recipe.interval
    if interval is None:
        return nearest(values, draw.dtype)
    limit = format_of(draw.dtype).largest
    ends = [max(interval[0], -limit), min(interval[1], limit)]
    return _kept_inside(nearest(np.clip(values, *ends), draw.dtype), interval)


def _every(draw: _Drawing) -> Array:
    """Every bit pattern of a dtype of up to 16 bits in order, and over again; random ones else."""
    if draw.dtype is bool_ or draw.recipe.interval is not None:
        return _signed(draw)
    word = np.dtype(f"u{draw.dtype.itemsize}")
    patterns = draw.count() if draw.dtype.bits <= 16 else draw.words()
    return np.asarray(patterns.astype(word).view(draw.dtype.numpy))


def _slow(draw: _Drawing) -> Array:
    """Every bit pattern of a dtype of up to 16 bits, each so often that ``every`` passes once."""
    if draw.dtype is bool_ or draw.dtype.bits > 16 or draw.recipe.interval is not None:
        return _signed(draw)
    word = np.dtype(f"u{draw.dtype.itemsize}")
    return np.asarray((draw.count() >> draw.dtype.bits).astype(word).view(draw.dtype.numpy))


def _spaced(draw: _Drawing) -> Array:
    """Bit patterns at equal distances through the whole dtype; the seed says where they begin."""
    if draw.dtype is bool_ or draw.recipe.interval is not None:
        return _signed(draw)
    bits = draw.dtype.bits
    step = max((1 << bits) // max(draw.type.size, 2), 1)
    first = np.uint64(derive(draw.recipe.seed, "spaced") % step)
    patterns = draw.count().astype(np.uint64) * np.uint64(step) + first
    word = np.dtype(f"u{draw.dtype.itemsize}")
    return np.asarray(patterns.astype(word).view(draw.dtype.numpy))


def _inner(draw: _Drawing) -> Array:
    """Bit patterns at equal distances, those of a float's last binade moved to the one below."""
    values = _spaced(draw)
    if not draw.dtype.is_float or draw.recipe.interval is not None:
        return values
    word = np.dtype(f"u{draw.dtype.itemsize}").type
    patterns, form = values.view(word), format_of(draw.dtype)
    low = word(form.precision - 1)
    field = (patterns << word(1)) >> (low + word(1))
    last = int(np.array(form.largest, draw.dtype.numpy).view(word)) >> int(low)
    return np.asarray(np.where(field == last, patterns - (word(1) << low), patterns)).view(
        values.dtype
    )


def _constant(draw: _Drawing) -> Array:
    """One value everywhere, which depends on the seed."""
    value = (1, 2, 0, -1, 3)[draw.recipe.seed % 5]
    size = draw.type.size
    return draw.either(lambda: np.full(size, float(value)), lambda: np.full(size, value))


def _last(draw: _Drawing) -> Array:
    """Nothing but the last element."""
    values = np.where(draw.count() == draw.type.size - 1, 3, 0)
    return draw.either(lambda: values.astype(np.float64), lambda: values)


def _gap(draw: _Drawing) -> Array:
    """Ones, or all bits, but for the last element."""
    values = np.where(draw.count() == draw.type.size - 1, 0, 1 if draw.dtype is bool_ else -1)
    return draw.either(lambda: np.abs(values).astype(np.float64), lambda: values)


def _halfway(draw: _Drawing) -> Array:
    """Numbers in the middle of two of a narrower float, or the least bit beside it."""
    precision = format_of(draw.dtype).precision if draw.dtype.is_float else draw.dtype.bits - 1
    narrow = [p for p in _PRECISIONS if p + 2 < precision] or [max(precision - 3, 1)]
    bits = np.array(narrow)[draw.range(0, len(narrow) - 1, "precision")]
    odd = (draw.words("significand").view(np.int64) & ((1 << bits) - 1)) | (1 << (bits - 1))
    middle, beside = 2 * odd + 1, np.fmod(draw.range(-1, 2, "beside"), 2)
    if draw.dtype.is_float:
        wide = np.ldexp(middle.astype(np.float64), (draw.range(-8, 8) - bits).astype(np.int32))
        return draw.floats(wide * (1.0 + beside * 2.0 ** (1 - precision)))
    room = np.maximum(precision - bits - 1, 1)
    return draw.integers((middle << draw.range(0, 1 << 20) % room) + beside)


KINDS: dict[str, Callable[[_Drawing], Array]] = {
    "ramp": _ramp,
    "falling": _falling,
    "signed": _signed,
    "negative": _negative,
    "positive": _positive,
    "small": _small,
    "units": _units,
    "wide": _wide,
    "ties": _ties,
    "onehot": _onehot,
    "orthogonal": _orthogonal,
    "special": _special,
    "nans": _nans,
    "near": _near,
    "extremes": _extremes,
    "large": _large,
    "tiny": _tiny,
    "constant": _constant,
    "every": _every,
    "slow": _slow,
    "spaced": _spaced,
    "inner": _inner,
    "last": _last,
    "gap": _gap,
    "halfway": _halfway,
}


def laid_out(array: Array, layout: str) -> Array:
    """An equal array that lies otherwise in memory: other strides, a negative one, gaps, an odd
    start.

    >>> laid_out(np.arange(3), "reversed").strides
    (-8,)
    """
    if layout == "column":
        return np.asfortranarray(array) if array.ndim > 1 else array
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if layout == "strided" and array.ndim:
        spaced = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        spaced[..., ::2] = array
        return spaced[..., ::2]
    if layout == "offset":
        buffer = np.zeros(array.nbytes + array.itemsize, np.uint8)
        shifted = buffer[array.itemsize :].view(array.dtype).reshape(array.shape)
        shifted[...] = array
        return shifted
    return array
