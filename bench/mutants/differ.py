"""Whether a changed model gives other results than its original, clearly beyond rounding; no code of the check.

Two guards keep rounding out. An element counts as changed when it is off by more than a hundredth of itself and of a
hundredth of the tensor's largest (float32; see `LIMITS`), ten times what rewrites are allowed. And the change must be
ten times as large as what the original's own result moves when ONNX Runtime optimizes it, and when its inputs move by
one unit in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LIMITS = {"float64": 1e-6, "float32": 1e-2, "float16": 5e-2, "bfloat16": 2e-1}
FLOOR = 0.01  # share of the largest magnitude below which errors are not relative to the element
MARGIN = 10.0  # times the original's own noise
NEAR_OVERFLOW = 0.1  # share of a type's largest number from which rounding decides about infinity


def change(expected: Any, found: Any, noisy: Sequence[Any] = ()) -> str:
    """How results changed, in a few words; empty where they did not. `noisy`: the original's results with noise."""
    if expected is None or found is None:
        return "" if expected is found else "one of the two is absent"
    if isinstance(expected, dict) and isinstance(found, dict):
        if sorted(map(str, expected)) != sorted(map(str, found)):
            return "the maps have other keys"
        return _each([(expected[key], found[key], [other[key] for other in noisy]) for key in expected])
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(expected) != len(found):
            return f"{len(found)} values for {len(expected)}"
        if any(len(other) != len(expected) for other in noisy):
            return ""
        pairs = enumerate(zip(expected, found, strict=True))
        return _each([(one, other, [noise[place] for noise in noisy]) for place, (one, other) in pairs])
    return _arrays(np.asarray(expected), np.asarray(found), [np.asarray(other) for other in noisy])


def _each(parts: Sequence[tuple[Any, Any, list[Any]]]) -> str:
    for one, other, noise in parts:
        said = change(one, other, noise)
        if said:
            return said
    return ""


def _arrays(expected: np.ndarray, found: np.ndarray, noisy: list[np.ndarray]) -> str:
    if any(other.shape != expected.shape or other.dtype != expected.dtype for other in noisy):
        return ""  # noise alone changes the dims
    if expected.dtype != found.dtype:
        return f"type {found.dtype} for {expected.dtype}"
    if expected.shape != found.shape:
        return f"shape {list(found.shape)} for {list(expected.shape)}"
    limit = LIMITS.get(expected.dtype.name)
    if limit is None:
        other_places = np.asarray(expected != found)
        for other in noisy:
            other_places = other_places & (other == expected)
        count = int(np.count_nonzero(other_places))
        return f"{count} of {expected.size} elements" if count else ""
    if expected.size == 0:
        return ""
    largest = float(np.finfo(expected.dtype).max) if expected.dtype.kind == "f" else 3e38
    one, other = expected.astype(np.float64), found.astype(np.float64)
    noises = [noise.astype(np.float64) for noise in noisy]
    steady = np.ones(one.shape, bool)
    for noise in noises:
        steady &= np.isfinite(noise) == np.isfinite(one)
    count = int(np.count_nonzero((np.isnan(one) != np.isnan(other)) & steady))
    if count:
        return f"NaN in {count} other places"
    # Infinite on one side only, where the other is far from overflow; or infinities of two signs.
    apart = (np.isinf(one) | np.isinf(other)) & ~np.isnan(one) & (one != other) & steady
    apart &= np.minimum(np.abs(one), np.abs(other)) < NEAR_OVERFLOW * largest
    apart |= np.isinf(one) & np.isinf(other) & (one != other) & steady
    if apart.any():
        return f"infinity in {int(np.count_nonzero(apart))} other places"
    usable = np.isfinite(one) & np.isfinite(other) & steady
    if not usable.any():
        return ""
    distance = np.abs(one - other)
    allowed = limit * (np.abs(one) + FLOOR * float(np.abs(one[usable]).max()))
    for noise in noises:
        allowed = np.maximum(allowed, MARGIN * np.abs(noise - one))
    beyond = usable & (distance > allowed) & (distance > np.finfo(np.float32).tiny)
    if not beyond.any():
        return ""
    place = np.unravel_index(int(np.argmax(np.where(beyond, distance, -1.0))), one.shape)
    return f"{one[place]:.6g} became {other[place]:.6g}, {int(np.count_nonzero(beyond))} of {one.size} elements"
