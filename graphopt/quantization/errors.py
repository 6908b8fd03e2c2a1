"""How far outputs are from those of the model in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Error:
    """Over all feeds, of the output that is furthest off."""

    rms: float  # root mean square of the difference, in shares of that of the output
    largest: float  # difference, in shares of the output's largest element


def error_of(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> Error:
    """The error of runs, each its outputs in order; outputs that hold no floats do not count.

    An element that is infinite or NaN on one side alone is infinitely far off.
    """
    rms, largest = 0.0, 0.0
    for place in range(len(wanted[0]) if wanted else 0):
        pairs = [(one[place], other[place]) for one, other in zip(wanted, found, strict=True)]
        if pairs[0][0].dtype.kind != "f":
            continue
        squares, total, distance, most = 0.0, 0.0, 0.0, 0.0
        for one, other in pairs:
            first, second = one.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
            usable = np.isfinite(first)
            if first.size != second.size or (usable != np.isfinite(second)).any():
                return Error(math.inf, math.inf)
            difference = first[usable] - second[usable]
            squares, total = squares + float(difference @ difference), total + float(first[usable] @ first[usable])
            distance = max(distance, float(np.abs(difference).max(initial=0.0)))
            most = max(most, float(np.abs(first[usable]).max(initial=0.0)))
        rms = max(rms, math.sqrt(squares / total) if total else 0.0 if not squares else math.inf)
        largest = max(largest, distance / most if most else 0.0 if not distance else math.inf)
    return Error(rms, largest)
