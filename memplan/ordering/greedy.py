"""Orders by simple rules, from which the search starts: the operator that leaves least behind next, and depth first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints


def greedy_orders(arrays: Arrays) -> list[Ints]:
    """Several orders that can be executed, in a fixed sequence; the given order is the first."""
    given = np.arange(arrays.count, dtype=np.int64)
    return [given, _depth_first(arrays), _forward(arrays), _backward(arrays)]


def _depth_first(arrays: Arrays) -> Ints:
    """From each operator that nothing follows: first what it needs, the operand that takes the most to make first.

    Sethi and Ullman's rule for trees, taken as a rule of thumb for graphs: an operand's need is that of its own
    operands when they are made one after the other, largest first.
    """
    need = np.zeros(arrays.count, np.int64)
    own = np.array([arrays.size[arrays.makes[one]].sum() for one in range(arrays.count)], np.int64)
    operands: list[list[int]] = []
    for one in range(arrays.count):
        first = sorted(
            (int(other) for other in arrays.before[one]), key=lambda other: (own[other] - need[other], other)
        )
        operands.append(first)
        held = most = 0
        for other in first:
            most = max(most, held + int(need[other]))
            held += int(own[other])
        need[one] = max(most, held + int(own[one] + arrays.workspace[one]))
    order: list[int] = []
    done = np.zeros(arrays.count, np.bool_)
    for last in range(arrays.count):
        if len(arrays.behind[last]):
            continue
        stack = [(last, 0)]
        while stack:
            one, at = stack.pop()
            if done[one]:
                continue
            if at < len(operands[one]):
                stack.append((one, at + 1))
                stack.append((operands[one][at], 0))
            else:
                done[one] = True
                order.append(one)
    return np.array(order, np.int64)


def _forward(arrays: Arrays) -> Ints:
    return _least_growth(
        arrays.before.start, arrays.behind.start, arrays.behind.items, arrays.reads.start, arrays.reads.items,
        arrays.makes.start, arrays.makes.items, np.diff(arrays.users.start), arrays.size, arrays.kept, arrays.workspace,
    )  # fmt: skip


def _backward(arrays: Arrays) -> Ints:
    return _least_growth_from_the_end(
        arrays.behind.start, arrays.before.start, arrays.before.items, arrays.reads.start, arrays.reads.items,
        arrays.makes.start, arrays.makes.items, arrays.size, arrays.kept, arrays.maker,
    )[::-1].copy()  # fmt: skip


@compiled
def _least_growth(
    before_start: Ints, behind_start: Ints, behind: Ints, read_start: Ints, reads: Ints, make_start: Ints, makes: Ints,
    waiting: Ints, size: Ints, kept: NDArray[np.bool_], workspace: Ints,
) -> Ints:  # fmt: skip
    """Of what can run, what leaves the fewest bytes more behind; then what needs the fewest; then the latest made."""
    count = len(before_start) - 1
    left = waiting.copy()
    missing = before_start[1:] - before_start[:-1]
    ready, ages = np.empty(count, np.int64), np.zeros(count, np.int64)
    many = 0
    for one in range(count):
        if missing[one] == 0:
            ready[many] = one
            many += 1
    order = np.empty(count, np.int64)
    for step in range(count):
        best, best_growth, best_need, best_age = -1, np.int64(0), np.int64(0), np.int64(0)
        for place in range(many):
            one = ready[place]
            growth = np.int64(0)
            need = workspace[one]
            for at in range(make_start[one], make_start[one + 1]):
                need += size[makes[at]]
                if left[makes[at]] > 0 or kept[makes[at]]:
                    growth += size[makes[at]]
            for at in range(read_start[one], read_start[one + 1]):
                if left[reads[at]] == 1 and not kept[reads[at]]:
                    growth -= size[reads[at]]
            age = -ages[one]
            better = growth < best_growth or (
                growth == best_growth and (need < best_need or (need == best_need and age < best_age))
            )
            if best < 0 or better:
                best, best_growth, best_need, best_age = place, growth, need, age
        one = ready[best]
        many -= 1
        ready[best] = ready[many]
        order[step] = one
        for at in range(read_start[one], read_start[one + 1]):
            left[reads[at]] -= 1
        for at in range(behind_start[one], behind_start[one + 1]):
            other = behind[at]
            missing[other] -= 1
            if missing[other] == 0:
                ready[many] = other
                ages[other] = step
                many += 1
    return order


@compiled
def _least_growth_from_the_end(
    behind_start: Ints, before_start: Ints, before: Ints, read_start: Ints, reads: Ints, make_start: Ints, makes: Ints,
    size: Ints, kept: NDArray[np.bool_], maker: Ints,
) -> Ints:  # fmt: skip
    """The same from the last step to the first: what a step reads has to be there before it, what it makes has not."""
    count = len(before_start) - 1
    live = kept.copy()
    missing = behind_start[1:] - behind_start[:-1]
    ready = np.empty(count, np.int64)
    many = 0
    for one in range(count):
        if missing[one] == 0:
            ready[many] = one
            many += 1
    order = np.empty(count, np.int64)
    for step in range(count):
        best, best_growth, best_need = -1, np.int64(0), np.int64(0)
        for place in range(many):
            one = ready[place]
            growth, need = np.int64(0), np.int64(0)
            for at in range(make_start[one], make_start[one + 1]):
                if live[makes[at]]:
                    growth -= size[makes[at]]
                else:
                    need += size[makes[at]]
            for at in range(read_start[one], read_start[one + 1]):
                if not live[reads[at]] and maker[reads[at]] >= 0:
                    growth += size[reads[at]]
                    need += size[reads[at]]
            if best < 0 or growth < best_growth or (growth == best_growth and need < best_need):
                best, best_growth, best_need = place, growth, need
        one = ready[best]
        many -= 1
        ready[best] = ready[many]
        order[step] = one
        for at in range(make_start[one], make_start[one + 1]):
            live[makes[at]] = False
        for at in range(read_start[one], read_start[one + 1]):
            live[reads[at]] = True
        for at in range(before_start[one], before_start[one + 1]):
            other = before[at]
            missing[other] -= 1
            if missing[other] == 0:
                ready[many] = other
                many += 1
    return order
