"""How many iterations of a routine a block has: by the work of one, and so that blocks are not too many.

Sizes that only a run knows count as the greatest that they have.
"""

from __future__ import annotations

from kernels.routine.grammar import For, Routine, RoutineStep, When, While, values_of
from kernels.size import as_size, bound
from kernels.tensor.expression import Number
from kernels.tensor.work import work

UNKNOWN_TRIPS = 16  # of a loop whose bounds are computed
BLOCK_WORK = 1 << 16  # units of work that a block has at least
MOST_BLOCKS = 64


def grain_of(routine: Routine) -> int:
    """Iterations of a block at least."""
    if routine.grain is not None:
        return routine.grain
    each = max(1, _work(routine.shared.body))
    return max(1, BLOCK_WORK // each, -(-bound(routine.shared.count) // MOST_BLOCKS))


def _work(body: tuple[RoutineStep, ...]) -> int:
    total = 0
    for one in body:
        own = sum(work(value) for value in values_of(one)) + 1
        match one:
            case For(_, Number(start, _), Number(stop, _), inside):
                total += own + max(0, _most(stop) - _most(start)) * _work(inside)
            case For(_, _, _, inside) | While(_, inside):
                total += own + UNKNOWN_TRIPS * _work(inside)
            case When(_, inside, otherwise):
                total += own + max(_work(inside), _work(otherwise))
            case _:
                total += own
    return total


def _most(value: float) -> int:
    size = as_size(value)
    return int(value) if size is None else size.bound
