"""How close two results must be: the one place where it is decided.

An element may differ by some units in the last place of its own magnitude and of the largest beside it: the largest
magnitude among the elements that share an index with it along some axis, so that scores are not judged by the scale of
boxes in the same tensor. Beyond that it may differ by a multiple of the model's own rounding, where samples of it are
given (check.noise): what the original gives when inputs, weights or the engine's order of summing are moved by as
little as a unit in the last place. Integers, booleans and strings must be equal, NaN and infinity must stand in the
same places, except where the samples show that the original does not decide them. Maps of one kind in a sequence are
rows of an array, of the type that ONNX has for them: in Python their numbers are of float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MULTIPLE = 10.0  # of the model's own rounding, that a result may differ by
# Relative spacing of the numbers of a type, and how many such units any result may differ by.
SPACING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
UNITS = {"float64": 32, "float32": 32, "float16": 4, "bfloat16": 4}
LIMITS = {kind: UNITS[kind] * SPACING[kind] for kind in SPACING}
ROUGH = 1e-3  # relative, for two runs that are compared once, without samples of the rounding
# Of quantized bytes that an engine rounds to the other step: its float32 product of at most 2**8 steps is off by up to
# 2**-16 of one, and so far from a tie on either side lies this share of numbers that are spread evenly.
TIES = 2.0**-15
FEWEST = 16  # elements whose largest magnitude is a scale


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays are apart; `reason` is None when they count as equal."""

    max_abs: float
    max_rel: float  # relative to the element and the largest beside it
    reason: str | None
    rounding: float = 0.0  # the largest multiple of the model's own rounding; 0 where that was not asked for


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
    if expected.size == 0 or (expected.dtype.kind in "biufc" and expected.tobytes() == found.tobytes()):
        return EQUAL
    if expected.dtype.name in SPACING:
        with np.errstate(over="ignore"):
            return _floats(expected, found, samples, LIMITS[expected.dtype.name] if limit is None else limit, nature)
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


def _distance(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How far numbers are from others, in the place of the first ones: each array is twice a large output."""
    np.subtract(some, others, out=some)
    return np.asarray(np.abs(some, out=some))


def _floats(
    expected: np.ndarray, found: np.ndarray, samples: list[np.ndarray], limit: float, nature: Nature
) -> Difference:
    kind = expected.dtype
    one, other = expected.astype(np.float64), found.astype(np.float64)
    undecided = np.zeros(one.shape, bool)
    for sample in samples:
        undecided |= ~_alike(one, sample.astype(np.float64))
    apart = ~_alike(one, other) & ~undecided
    if nature.summed:
        apart &= np.isfinite(one) | np.isfinite(other)
    if apart.any():
        nan = bool((np.isnan(one) != np.isnan(other))[apart].any())
        return replace(EQUAL, reason=f"{'NaN' if nan else 'infinity'} stands in other places")
    unusable = ~(np.isfinite(one) & np.isfinite(other) & ~undecided)
    one[unusable], other[unusable] = 0, 0
    distance = _distance(other, one)
    scale = np.abs(one)
    scale = scale + largest_beside(scale)
    if nature.bounded:
        scale = np.maximum(scale, SPACING[kind.name] / max(limit, SPACING[kind.name]))
    relative = np.divide(distance, scale, out=np.where(distance > 0, np.inf, 0.0), where=scale > 0)
    max_abs, max_rel = float(np.max(distance)), float(np.max(relative))
    del other, relative
    beyond = np.maximum(distance - limit * scale, 0.0)
    if not beyond.any():
        return Difference(max_abs, max_rel, None)
    noise = np.zeros(one.shape)
    for sample in samples:
        moved = sample.astype(np.float64)
        moved[unusable] = 0
        np.maximum(noise, _distance(moved, one), out=noise)
    if nature.stepped and np.count_nonzero(beyond) <= MULTIPLE * np.count_nonzero(noise > limit * scale):
        # Which elements stand beside a tie is luck: as many others may be as far off as the samples are anywhere.
        beyond = np.where(distance <= np.max(noise) + limit * scale, 0.0, beyond)
    noise = _levelled(noise, scale)
    multiples = np.divide(beyond, noise, out=np.where(beyond > 0, np.inf, 0.0), where=noise > 0)
    rounding = float(np.max(multiples))
    if rounding <= MULTIPLE:
        return Difference(max_abs, max_rel, None, rounding)
    reason = f"off by {max_rel:.1e}, more than {limit:.0e} for {kind}"
    if samples:
        times = "far more than" if not np.isfinite(rounding) or rounding > 1e6 else f"{rounding:.0f} x"
        reason += f", and {times} the model's own rounding"
    return Difference(max_abs, max_rel, reason, rounding)


def _levelled(noise: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How far a sample moves one element is a matter of luck: the mean square of all stands in for less."""
    shares = np.divide(noise, scale, out=np.zeros(noise.shape), where=scale > 0)
    return np.asarray(np.maximum(noise, float(np.sqrt(np.mean(shares**2))) * scale))


def rounding_of(expected: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """How far rounding moves each of these finite floats, `noise` being how far the samples of it are at most."""
    magnitude = np.abs(expected.astype(np.float64))
    return _levelled(noise, magnitude + largest_beside(magnitude))


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where both are finite, or the same infinity, or both NaN."""
    finite = np.isfinite(one) & np.isfinite(other)
    return np.asarray(finite | (one == other) | (np.isnan(one) & np.isnan(other)))


def largest_beside(magnitude: np.ndarray) -> np.ndarray:
    """Of each element, the least over all axes of the largest magnitude among those that share its index there.

    Axes along which fewer than `FEWEST` elements share an index tell nothing; where all do, the whole is taken.
    """
    found = np.full(magnitude.shape, np.max(magnitude))
    for axis, size in enumerate(magnitude.shape):
        if size < 2 or magnitude.size // size < FEWEST:
            continue
        rest = tuple(other for other in range(magnitude.ndim) if other != axis)
        found = np.minimum(found, np.max(magnitude, axis=rest, keepdims=True))
    return found
