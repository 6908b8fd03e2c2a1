"""How many bytes each step of an order needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints


def profile(arrays: Arrays, order: Ints) -> tuple[Ints, Ints]:
    """For an order of all operators, by step: bytes needed while the operator runs, and bytes live before it."""
    return _profile(
        order, arrays.reads.start, arrays.reads.items, arrays.makes.start, arrays.makes.items,
        np.diff(arrays.users.start), arrays.size, arrays.kept, arrays.workspace, arrays.reused,
        arrays.inputs_size() - arrays.unread, arrays.unread,
    )  # fmt: skip


def peak(arrays: Arrays, order: Ints) -> int:
    """The most bytes that a step of an order of all operators needs."""
    needed, _ = profile(arrays, order)
    return int(needed.max(initial=arrays.inputs_size() if not arrays.count else 0))


@compiled
def _profile(
    order: Ints, read_start: Ints, reads: Ints, make_start: Ints, makes: Ints, waiting: Ints, size: Ints,
    kept: NDArray[np.bool_], workspace: Ints, reused: Ints, live: int, unread: int,
) -> tuple[Ints, Ints]:  # fmt: skip
    left = waiting.copy()
    needed, lives = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    for step in range(len(order)):
        operator = order[step]
        lives[step] = live
        for at in range(make_start[operator], make_start[operator + 1]):
            live += size[makes[at]]
        needed[step] = live + workspace[operator] + (unread if step == 0 else 0)
        ended = 0
        for at in range(make_start[operator], make_start[operator + 1]):
            if left[makes[at]] == 0 and not kept[makes[at]]:
                live -= size[makes[at]]
        for at in range(read_start[operator], read_start[operator + 1]):
            value = reads[at]
            left[value] -= 1
            if left[value] == 0 and not kept[value]:
                live -= size[value]
                ended += size[value]
        needed[step] -= min(reused[operator], ended)
    return needed, lives
