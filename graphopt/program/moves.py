"""One packed form of a constant as moves out of another one, found from where the elements lie in both.

Packing an array of numbers tells where every element goes. What is equal in strides becomes a loop: runs of the most
frequent step are taken together by their length, and so are the runs' starts, from the inside to the outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from kernels.emit.making import DEPTH, Move, Stride

MOST_MOVES = 512  # for a constant; one that would take more is stored
_SAMPLE = 1 << 14  # steps of which the most frequent one is looked for
Array = npt.NDArray[np.generic]
Form = Callable[[Array], Array]
Places = npt.NDArray[np.int64]


def moves_between(shape: tuple[int, ...], one: Form, other: Form, element: int) -> tuple[Move, ...] | None:
    """Moves that make the other form of a constant of this shape, whose elements have so many bytes, out of one form.

    Offsets are from the starts of the forms; bytes that no move writes are zeros. None where forms are no arrangements
    of the elements, or where too many moves would be needed.
    """
    count = int(np.prod(shape))
    if not 0 < count < 1 << 31:
        return None
    numbers = np.arange(1, count + 1, dtype=np.int32).reshape(shape)
    held, wanted = one(numbers), other(numbers)
    if held.dtype != np.int32 or wanted.dtype != np.int32:
        return None
    place = np.full(count + 1, -1, np.int64)
    place[held] = np.arange(held.size)
    targets = np.flatnonzero(wanted).astype(np.int64)
    sources = place[wanted[targets]]
    if sources.size == 0 or sources.min() < 0:
        return None
    moves: list[Move] = []
    for source, target, loops in _nests(sources, targets, DEPTH + 1):
        if len(moves) == MOST_MOVES:
            return None
        moves.append(_move(source, target, loops, element))
    return tuple(moves)


def _move(source: int, target: int, loops: tuple[Stride, ...], element: int) -> Move:
    """With the elements that lie side by side as one piece."""
    size = element
    if loops and loops[-1][1:] == (1, 1):
        size, loops = element * loops[-1][0], loops[:-1]
    scaled = tuple((often, step * element, stride * element) for often, step, stride in loops)
    return Move(source * element, target * element, size, scaled)


def _nests(sources: Places, targets: Places, depth: int) -> Iterator[tuple[int, int, tuple[Stride, ...]]]:
    """Starts and loops, the outermost first; with no loops left each element is one of its own."""
    if sources.size == 1 or depth == 0:
        yield from ((int(a), int(b), ()) for a, b in zip(sources.tolist(), targets.tolist(), strict=True))
        return
    steps, strides = np.diff(sources), np.diff(targets)
    step, stride = _usual(steps, strides)
    first = np.concatenate([[0], np.flatnonzero((steps != step) | (strides != stride)) + 1])
    lengths = np.diff(np.concatenate([first, [sources.size]]))
    if first.size == sources.size:  # nothing is repeated
        depth = 1
    for length in np.unique(lengths).tolist():
        starts = first[lengths == length]
        loop = ((int(length), step, stride),) if length > 1 else ()
        for source, target, loops in _nests(sources[starts], targets[starts], depth - 1):
            yield source, target, (*loops, *loop)


def _usual(steps: Places, strides: Places) -> tuple[int, int]:
    """The most frequent pair among the first ones."""
    pairs = np.stack([steps[:_SAMPLE], strides[:_SAMPLE]], axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    step, stride = found[np.argmax(counts)].tolist()
    return int(step), int(stride)


def moved(moves: tuple[Move, ...], source: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """What the moves write into zeros."""
    found = np.zeros(size, np.uint8)
    for one in moves:
        shape = (*(loop[0] for loop in one.loops), one.size)
        views = (
            np.lib.stride_tricks.as_strided(given[start:], shape, (*(loop[place] for loop in one.loops), 1))
            for given, start, place in ((source, one.source, 1), (found, one.target, 2))
        )
        here, there = views
        there[...] = here
    return found
