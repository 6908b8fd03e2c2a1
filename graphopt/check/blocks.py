"""Arrays in blocks, whose float64 numbers stay in a cache: what a check compares may be as large as the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

BLOCK = 1 << 16  # elements
FEWEST = 16  # elements whose largest magnitude is a scale
Block = tuple[slice, ...]


def blocks_of(shape: tuple[int, ...]) -> Iterator[Block]:
    """Slices that cut an array of this shape, of one dim or more, into parts of at most `BLOCK` elements, and some."""
    if 0 in shape:
        return
    axis = next(one for one in range(len(shape)) if math.prod(shape[one + 1 :]) <= BLOCK)
    step = BLOCK // max(1, math.prod(shape[axis + 1 :]))
    for leading in np.ndindex(shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*(slice(one, one + 1) for one in leading), slice(start, start + step))


class Beside:
    """The largest magnitude beside each element of an array, found block by block.

    It is the least over all axes of the largest among those that share the element's index there. Axes along which
    fewer than `FEWEST` elements share an index tell nothing; where all do, the whole is taken.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._whole = 0.0
        self._rows = {
            axis: np.zeros([size if other == axis else 1 for other in range(len(shape))])
            for axis, size in enumerate(shape)
            if size >= 2 and math.prod(shape) // size >= FEWEST
        }

    def take(self, block: Block, magnitude: np.ndarray) -> None:
        """Take the magnitudes of a block into account."""
        self._whole = max(self._whole, float(np.max(magnitude)))
        for axis, rows in self._rows.items():
            rest = tuple(other for other in range(magnitude.ndim) if other != axis)
            place = _place(block, axis)
            rows[place] = np.maximum(rows[place], np.max(magnitude, axis=rest, keepdims=True))

    def of(self, block: Block) -> np.ndarray | float:
        """What is largest beside each element of a block; it broadcasts with the block."""
        found: np.ndarray | float = self._whole
        for axis, rows in self._rows.items():
            found = np.minimum(found, rows[_place(block, axis)])
        return found


def _place(block: Block, axis: int) -> Block:
    """Where a block lies in an array that has this axis alone, and 1 along all others."""
    return tuple(one if number == axis else slice(None) for number, one in enumerate(block))


def squares_of(noise: np.ndarray | float, scale: np.ndarray) -> float:
    """The sum of the squares of noise in parts of the scale.

    What is all noise, as a row of which nearly nothing is left, tells of itself alone.
    """
    shares = np.divide(noise, scale, out=np.zeros(scale.shape), where=(scale > 0) & (noise <= scale))
    return float(np.vdot(shares, shares))


def raise_to(noise: np.ndarray, one: np.ndarray, moved: np.ndarray) -> None:
    """Let noise be no less than how far numbers are from others, where that is finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(np.subtract(moved, one, dtype=np.float64))
    np.maximum(noise, distance, out=noise, where=np.isfinite(distance))


def level(expected: np.ndarray, noise: np.ndarray, multiple: float) -> None:
    """Put a multiple of how far rounding moves each of these floats in the place of how far samples are at most.

    How far a sample moves one element is a matter of luck: the mean square of all stands in for less. It is 0 where
    a number is not finite.
    """
    beside, blocks, squares = Beside(expected.shape), tuple(blocks_of(expected.shape)), 0.0

    def magnitude(block: Block) -> np.ndarray:
        found = np.abs(expected[block].astype(np.float64))
        return np.where(np.isfinite(found), found, 0.0)

    for block in blocks:
        beside.take(block, magnitude(block))
    for block in blocks:
        squares += squares_of(noise[block], magnitude(block) + beside.of(block))
    root = float(np.sqrt(squares / max(expected.size, 1)))
    for block in blocks:
        found = multiple * np.maximum(noise[block], root * (magnitude(block) + beside.of(block)))
        noise[block] = np.where(np.isfinite(expected[block]), found, 0.0)
