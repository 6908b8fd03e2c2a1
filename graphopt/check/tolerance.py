"""How close two results must be, by type: the one place where tolerances are written.

The error of an element is |a - b| / (|a| + 0.01 max|a|): relative for what matters, and forgiving for elements far
below the tensor's largest. Integers, booleans and strings must be equal. NaN and infinity must stand in the same
places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLOOR = 0.01  # share of the largest magnitude that counts as small

# float32: folding a normalisation into weights moves each element by some 1e-7, and fifty layers of a network
# amplify that to 1e-4 at most (measured over the zoo); a wrong rewrite is off by far more than 1e-3.
# float64: models mix float32 parts in, so its limit is not that of double arithmetic.
# float16 and bfloat16: a few units in the last place, amplified likewise.
LIMITS = {"float16": 3e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-3}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays are apart; `reason` is None when they count as equal."""

    max_abs: float
    max_rel: float
    reason: str | None


def compare(expected: object, found: object) -> Difference:
    """Compare two outputs: arrays, sequences of them, maps, or absent optionals."""
    if expected is None or found is None:
        return Difference(0.0, 0.0, None if expected is found else "one of the two is absent")
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            return Difference(0.0, 0.0, "the maps have different keys")
        return compare(list(expected.values()), list(found.values()))
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(expected) != len(found):
            return Difference(0.0, 0.0, f"a sequence has {len(found)} elements, it had {len(expected)}")
        parts = [compare(one, other) for one, other in zip(expected, found, strict=True)]
        reason = next((part.reason for part in parts if part.reason is not None), None)
        return Difference(
            max((part.max_abs for part in parts), default=0.0),
            max((part.max_rel for part in parts), default=0.0),
            reason,
        )
    return _arrays(np.asarray(expected), np.asarray(found))


def _arrays(expected: np.ndarray, found: np.ndarray) -> Difference:
    if expected.dtype != found.dtype:
        return Difference(0.0, 0.0, f"the type is {found.dtype}, it was {expected.dtype}")
    if expected.shape != found.shape:
        return Difference(0.0, 0.0, f"the shape is {list(found.shape)}, it was {list(expected.shape)}")
    if expected.size == 0:
        return Difference(0.0, 0.0, None)
    limit = LIMITS.get(expected.dtype.name)
    if limit is None:
        equal = expected == found
        if bool(np.all(equal)):
            return Difference(0.0, 0.0, None)
        count = int(np.size(equal) - np.count_nonzero(equal))
        return Difference(0.0, 0.0, f"{count} of {expected.size} elements differ ({expected.dtype} must be equal)")
    one, other = expected.astype(np.float64), found.astype(np.float64)
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return Difference(0.0, 0.0, "NaN stands in other places")
    infinite = np.isinf(one) | np.isinf(other)
    if not np.array_equal(one[infinite], other[infinite]):
        return Difference(0.0, 0.0, "infinity stands in other places")
    usable = np.isfinite(one)
    one, other = one[usable], other[usable]
    if one.size == 0:
        return Difference(0.0, 0.0, None)
    distance = np.abs(one - other)
    scale = np.abs(one) + FLOOR * float(np.max(np.abs(one)))
    relative = np.divide(distance, scale, out=np.where(distance > 0, np.inf, 0.0), where=scale > 0)
    max_abs, max_rel = float(np.max(distance)), float(np.max(relative))
    if max_rel > limit:
        return Difference(max_abs, max_rel, f"off by {max_rel:.1e}, more than {limit:.0e} for {expected.dtype}")
    return Difference(max_abs, max_rel, None)
