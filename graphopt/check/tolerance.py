"""How close two results must be: the one place where it is decided.

An element may differ by some units in the last place of its own magnitude and of the largest beside it: the largest
magnitude among the elements that share an index with it along some axis, so that scores are not judged by the scale of
boxes in the same tensor. Numbers so small that these units are subnormal are judged as if they were normal. Beyond that
it may differ by a multiple of the model's own rounding, where samples of it are given (check.noise): what the original
gives when inputs, weights or the engine's order of summing are moved by as little as a unit in the last place.
Integers, booleans and strings must be equal, NaN and infinity must stand in the same places, except where the samples
show that the original does not decide them. Maps of one kind in a sequence are rows of an array, of the type that ONNX
has for them: in Python their numbers are of float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphopt.check.blocks import Beside, Block, blocks_of, raise_to, squares_of

MULTIPLE = 10.0  # of the model's own rounding, that a result may differ by
# Relative spacing of the numbers of a type, and how many such units any result may differ by.
SPACING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
UNITS = {"float64": 32, "float32": 32, "float16": 4, "bfloat16": 4}
LIMITS = {kind: UNITS[kind] * SPACING[kind] for kind in SPACING}
# A unit in the last place of less is no normal number, and programs may take such numbers for zero. Those of float16
# are ordinary numbers in the float32 in which they are computed.
LEAST = {kind: 2.0**-126 / SPACING[kind] for kind in ("float32", "bfloat16")} | {
    "float64": 2.0**-1022 / SPACING["float64"]
}
ROUGH = 1e-3  # relative, for two runs that are compared once, without samples of the rounding
# Of quantized bytes that an engine rounds to the other step: its float32 product of at most 2**8 steps is off by up to
# 2**-16 of one, and so far from a tie on either side lies this share of numbers that are spread evenly.
TIES = 2.0**-15


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays are apart; `reason` is None when they count as equal."""

    max_abs: float
    max_rel: float  # relative to the element and the largest beside it
    reason: str | None
    rounding: float = 0.0  # the largest multiple of the model's own rounding; 0 where that was not asked for

    def beside(self, other: Difference) -> Difference:
        """The larger of both in everything, with the reason of the other."""
        return Difference(
            max(self.max_abs, other.max_abs), max(self.max_rel, other.max_rel), other.reason,
            max(self.rounding, other.rounding),
        )  # fmt: skip


EQUAL = Difference(0.0, 0.0, None)


@dataclass(frozen=True, slots=True)
class Nature:
    """What is known of an output from the operators behind it."""

    summed: bool = False  # behind sums of products: the order of summing decides between an infinity and NaN
    bounded: bool = False  # of a function whose range is 1, which is computed to a unit of that
    stepped: bool = False  # behind numbers that are rounded to steps, of which a tie takes one or the other


PLAIN = Nature()


def without_subnormals(value: object) -> object:
    """The value with zeros for subnormal numbers, as programs may give them."""
    if isinstance(value, (list, tuple)):
        return [without_subnormals(one) for one in value]
    if isinstance(value, dict):
        return {key: without_subnormals(one) for key, one in value.items()}
    if isinstance(value, float):  # in a map: of float32
        return 0.0 if abs(value) < np.finfo(np.float32).tiny else value
    if isinstance(value, np.ndarray) and value.dtype in (np.float16, np.float32, np.float64):
        return np.where(np.abs(value) < np.finfo(value.dtype).tiny, np.copysign(value.dtype.type(0), value), value)
    return value


def compare(
    expected: object,
    found: object,
    *,
    samples: Sequence[object] = (),
    limit: float | None = None,
    nature: Nature = PLAIN,
) -> Difference:
    """Compare two outputs: arrays, sequences of them, maps, or absent optionals.

    `samples` are other results of the model that `expected` is from, which differ by its own rounding. `limit` takes
    the place of the type's allowance.
    """
    if expected is None or found is None:
        return EQUAL if expected is found else replace(EQUAL, reason="one of the two is absent")
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            return replace(EQUAL, reason="the maps have different keys")
        rows = [
            list(map(_in_map, one.values())) if isinstance(one, dict) else [] for one in (expected, found, *samples)
        ]
        return compare(rows[0], rows[1], samples=rows[2:], limit=limit, nature=nature)
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        tables = [_table(one, expected) for one in (expected, found, *samples)]
        if tables[0] is not None and tables[1] is not None:
            known = [one for one in tables[2:] if one is not None]
            return _arrays(tables[0], tables[1], known, limit, nature)
        return _sequences(expected, found, samples, limit, nature)
    return _arrays(np.asarray(expected), np.asarray(found), [np.asarray(one) for one in samples], limit, nature)


def _in_map(value: object) -> object:
    """A map's value; a float in the type of ZipMap's, ONNX's one operator that gives maps."""
    return np.float32(value) if isinstance(value, float) else value


def _table(value: object, like: Sequence[object]) -> np.ndarray | None:
    """Maps from the keys of those in `like` to floats, a row each; None for any other sequence."""
    keys = list(like[0]) if like and isinstance(like[0], dict) else None
    if not keys or not isinstance(value, (list, tuple)) or len(value) != len(like):
        return None
    if not all(isinstance(one, dict) and list(one) == keys for one in value):
        return None
    rows = [list(one.values()) for one in value]
    return np.array(rows, np.float32) if all(isinstance(one, float) for row in rows for one in row) else None


def _sequences(
    expected: Sequence[object], found: Sequence[object], samples: Sequence[object], limit: float | None, nature: Nature
) -> Difference:
    lists = [one for one in samples if isinstance(one, (list, tuple))]
    if len(expected) != len(found):
        if any(len(one) != len(expected) for one in lists):
            return EQUAL
        return replace(EQUAL, reason=f"a sequence has {len(found)} elements, it had {len(expected)}")
    kept = [one for one in lists if len(one) == len(expected)]
    parts = [
        compare(one, other, samples=[sample[position] for sample in kept], limit=limit, nature=nature)
        for position, (one, other) in enumerate(zip(expected, found, strict=True))
    ]
    return Difference(
        max((part.max_abs for part in parts), default=0.0),
        max((part.max_rel for part in parts), default=0.0),
        next((part.reason for part in parts if part.reason is not None), None),
        max((part.rounding for part in parts), default=0.0),
    )


def _arrays(
    expected: np.ndarray, found: np.ndarray, samples: list[np.ndarray], limit: float | None, nature: Nature
) -> Difference:
    if expected.dtype != found.dtype:
        return replace(EQUAL, reason=f"the type is {found.dtype}, it was {expected.dtype}")
    if expected.shape != found.shape:
        if any(one.shape != expected.shape for one in samples):
            return EQUAL  # the original's own rounding decides the shape
        return replace(EQUAL, reason=f"the shape is {list(found.shape)}, it was {list(expected.shape)}")
    samples = [one for one in samples if one.shape == expected.shape and one.dtype == expected.dtype]
    if expected.size == 0:
        return EQUAL
    if expected.dtype.name in SPACING:
        floats = _Floats(expected, found, limit, nature)
        for one in samples:
            floats.add(one)
        return floats.difference()
    if expected.dtype.kind == "c":
        pairs = [np.stack([one.real, one.imag]) for one in (expected, found, *samples)]
        return _arrays(pairs[0], pairs[1], pairs[2:], limit, nature)
    if nature.stepped and expected.dtype in (np.int8, np.uint8):
        apart = np.abs(expected.astype(np.int16) - found.astype(np.int16))
        if apart.max() == 1 and np.count_nonzero(apart) <= max(1, TIES * apart.size):
            return EQUAL
    return _exact(expected, found, samples)


def _exact(expected: np.ndarray, found: np.ndarray, samples: list[np.ndarray]) -> Difference:
    """Elements that must be equal, unless about as many of the original's own are not decided."""
    count = int(np.count_nonzero(expected != found))
    undecided = sum((one != expected for one in samples), np.zeros(expected.shape, bool))
    if count <= MULTIPLE * int(np.count_nonzero(undecided)):
        return EQUAL
    reason = f"{count} of {expected.size} elements differ ({expected.dtype} must be equal)"
    return replace(EQUAL, reason=reason)


class _Floats:
    """Two float arrays of one type and shape, and how far samples of the first one's rounding are from it.

    They are worked on in blocks whose float64 numbers stay in a cache: outputs may be as large as the model.
    """

    def __init__(self, expected: np.ndarray, found: np.ndarray, limit: float | None, nature: Nature) -> None:
        self._kind = expected.dtype, expected.shape
        self._expected, self._found, self._nature = np.atleast_1d(expected), np.atleast_1d(found), nature
        self._spacing = SPACING[expected.dtype.name]
        self._limit = LIMITS[expected.dtype.name] if limit is None else limit
        self._least = LEAST.get(expected.dtype.name, 0.0)
        self._blocks = tuple(blocks_of(self._expected.shape))
        self._noise: np.ndarray | None = None  # how far samples are at most
        self._undecided: np.ndarray | None = None  # where a sample is infinite or NaN otherwise

    def add(self, sample: object) -> None:
        """Take a sample into account; one of another type or shape tells nothing."""
        if not isinstance(sample, np.ndarray) or (sample.dtype, sample.shape) != self._kind:
            return
        sample = np.atleast_1d(sample)
        if self._noise is None:
            self._noise = np.zeros(sample.shape)
        for block in self._blocks:
            one, moved = self._expected[block].astype(np.float64), sample[block].astype(np.float64)
            apart = ~_alike(one, moved)
            if apart.any():
                if self._undecided is None:
                    self._undecided = np.zeros(sample.shape, bool)
                self._undecided[block] |= apart
            raise_to(self._noise[block], one, moved)

    def difference(self) -> Difference:
        """How far the second is from the first, by the samples that were added."""
        if np.array_equal(self._expected, self._found):
            return EQUAL
        beside, apart, nan = Beside(self._expected.shape), False, False
        for block in self._blocks:
            one, _, elsewhere = self._pair(block)
            beside.take(block, np.abs(one))
            if elsewhere.any():
                apart = True
                given, made = self._expected[block][elsewhere], self._found[block][elsewhere]
                nan |= bool((np.isnan(given) != np.isnan(made)).any())
        if apart:
            return replace(EQUAL, reason=f"{'NaN' if nan else 'infinity'} stands in other places")
        limit, stepped = self._limit, self._nature.stepped
        max_abs = max_rel = most = squares = 0.0
        beyond = moved = 0
        for block in self._blocks:
            distance, scale, noise = self._distances(block, beside)
            max_abs, max_rel = max(max_abs, float(np.max(distance))), max(max_rel, self._relative(distance, scale))
            beyond += int(np.count_nonzero(distance > limit * scale))
            if self._noise is not None:
                squares += squares_of(noise, scale)
                most = max(most, float(np.max(noise)))
                moved += int(np.count_nonzero(noise > limit * scale)) if stepped else 0
        if not beyond:
            return Difference(max_abs, max_rel, None)
        rounding, told, level = 0.0, 0.0, float(np.sqrt(squares / self._expected.size))
        excused = stepped and beyond <= MULTIPLE * moved
        for block in self._blocks:
            distance, scale, noise = self._distances(block, beside)
            over = np.maximum(distance - limit * scale, 0.0)
            if excused:  # which elements stand beside a tie is luck: others may be as far off as samples are anywhere
                over = np.where(distance <= most + limit * scale, 0.0, over)
            noise = np.maximum(noise, level * scale)
            multiples = np.divide(over, noise, out=np.where(over > 0, np.inf, 0.0), where=noise > 0)
            rounding = max(rounding, float(np.max(multiples)))
            measured = (noise <= scale) & (scale > self._least)
            told = max(told, self._relative(np.where(measured, distance, 0.0), scale))
        if rounding <= MULTIPLE:
            return Difference(max_abs, told, None, rounding)  # what is nothing but noise has no scale to be told by
        reason = f"off by {max_rel:.1e}, more than {limit:.0e} for {self._expected.dtype.name}"
        if self._noise is not None:
            times = "far more than" if not np.isfinite(rounding) or rounding > 1e6 else f"{rounding:.0f} x"
            reason += f", and {times} the model's own rounding"
        return Difference(max_abs, max_rel, reason, rounding)

    def _relative(self, distance: np.ndarray, scale: np.ndarray) -> float:
        """The largest distance in parts of the scale; infinite where something lies beside nothing but zeros."""
        is_zero = scale <= self._least
        found = np.divide(distance, scale, out=np.where(distance > self._limit * scale, np.inf, 0.0), where=~is_zero)
        return float(np.max(found))

    def _pair(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both in float64, with zeros where they are not to be compared, and where they are of different kinds."""
        one, other = self._expected[block].astype(np.float64), self._found[block].astype(np.float64)
        apart, finite = ~_alike(one, other), np.isfinite(one)
        unusable = ~(finite & np.isfinite(other))
        if self._undecided is not None:
            apart &= ~self._undecided[block]
            unusable |= self._undecided[block]
        if self._nature.summed:
            apart &= finite | np.isfinite(other)
        one[unusable], other[unusable] = 0, 0
        return one, other, apart

    def _distances(self, block: Block, beside: Beside) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
        """How far elements are apart, what they are measured by, and how far samples are."""
        one, other, _ = self._pair(block)
        distance, scale = np.abs(other - one), np.abs(one)
        scale += beside.of(block)
        if self._least:
            scale = np.maximum(scale, self._least)
        if self._nature.bounded:
            scale = np.maximum(scale, self._spacing / max(self._limit, self._spacing))
        if self._noise is None:
            return distance, scale, 0.0
        noise = self._noise[block]
        return distance, scale, noise if self._undecided is None else np.where(self._undecided[block], 0.0, noise)


class Compared:
    """Two outputs, as `compare` has them, whose samples come one after the other and are not kept if they are large."""

    def __init__(self, expected: object, found: object, *, limit: float | None = None, nature: Nature = PLAIN) -> None:
        self._expected, self._found, self._limit, self._nature = expected, found, limit, nature
        self._samples: list[object] = []
        self._floats: _Floats | None = None
        if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray) or not expected.size:
            return
        if (expected.dtype, expected.shape) == (found.dtype, found.shape) and expected.dtype.name in SPACING:
            self._floats = _Floats(expected, found, limit, nature)

    def add(self, sample: object) -> None:
        """Take another result of the model into account."""
        if self._floats is None:
            self._samples.append(sample)
        else:
            self._floats.add(sample)

    def difference(self) -> Difference:
        """The difference, by the samples so far."""
        if self._floats is not None:
            return self._floats.difference()
        return compare(self._expected, self._found, samples=self._samples, limit=self._limit, nature=self._nature)


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where both are finite, or the same infinity, or both NaN."""
    finite = np.isfinite(one) & np.isfinite(other)
    return np.asarray(finite | (one == other) | (np.isnan(one) & np.isnan(other)))
