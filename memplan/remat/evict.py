"""Runs within a budget by eviction: what is dropped is decided while the operators run, and known uses decide.

The operators run in a base order. Where a step would need more than the budget, values leave until it does not: those
first whose bytes are not used for longest, measured by the time that making them again takes. A use of a value that is
not there runs its operator again, and those of its missing operands before it.

The time of making a value again counts its operator, those of operands that are not there and have no use of their own
to come in full, and those of operands that will be made again anyway by a share.

Source: the rule is that of Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, with the known next use in
place of the last one (Belady).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Ints
from memplan.ordering.runs import Tables

LONGEST = 6  # times as many runs as operators: more is no plan
FARTHEST = 96  # operators that are looked at to see what making a value again takes
UNREACHABLE = 1e30


@dataclass(frozen=True, slots=True)
class Rule:
    """Which value leaves: largest size ** `size` x distance of the next use ** `distance` / time."""

    size: float = 1.0
    distance: float = 1.0
    shared: float = 0.3  # share of the time of operands that will be made again anyway
    fitting: bool = False  # whether bytes count only as far as they are missing


RULES = tuple(
    Rule(distance=distance, shared=shared, fitting=fitting)
    for distance in (0.5, 1.0)
    for shared in (0.0, 0.3, 1.0)
    for fitting in (False, True)
)


def evict(
    graph: Tables, order: Ints, uses: tuple[Ints, Ints], weight: NDArray[np.float64], budget: int, rule: Rule
) -> tuple[Ints, int]:
    """The runs of `order` within `budget` bytes, none where a step does not find room; and looks at operators taken.

    `uses` as `memplan.remat.replay.uses_in` gives them; a value's `weight` multiplies the wish to let it go.
    """
    looks = np.full(1, len(order) + len(uses[1]), np.int64)
    runs = _evict(
        order, uses[0], uses[1], weight, budget, rule.size, rule.distance, rule.shared, rule.fitting, graph, looks
    )
    return runs, int(looks[0])


@compiled
def _time_again(
    value: int, shared: float, there: NDArray[np.bool_], gone: NDArray[np.bool_], used: Ints, use_start: Ints,
    mark: Ints, stamp: int, stack: Ints, any_gone: bool, graph: Tables, looks: Ints,
) -> float:  # fmt: skip
    """Nanoseconds to make a value again, with operands that are not there."""
    read_start, reads, _, _, maker, _, kept, _, time = graph[:9]
    total = float(time[maker[value]])
    stack[0] = maker[value]
    mark[maker[value]] = stamp
    height, seen = 1, 1
    while height:
        height -= 1
        looks[0] += 1
        one = stack[height]
        for at in range(read_start[one], read_start[one + 1]):
            operand = reads[at]
            if gone[operand]:
                return UNREACHABLE
            if there[operand] or mark[maker[operand]] == stamp:
                continue
            mark[maker[operand]] = stamp
            seen += 1
            if seen > FARTHEST:
                return UNREACHABLE if any_gone else total
            is_wanted = used[operand] < use_start[operand + 1] or kept[operand]
            total += time[maker[operand]] * (shared if is_wanted else 1.0)
            if is_wanted and shared == 0.0 and not any_gone:
                continue
            stack[height] = maker[operand]
            height += 1
    return total


@compiled
def _is_needed_again(
    value: int, there: NDArray[np.bool_], used: Ints, use_start: Ints, step: int, mark: Ints, stamp: int, stack: Ints,
    maker: Ints, begun: Ints, make_start: Ints, makes: Ints, kept: NDArray[np.bool_], user_start: Ints, users: Ints,
) -> bool:  # fmt: skip
    """Whether making a missing value that has uses to come again would read `value`, directly or through others."""
    stack[0] = value
    height = 1
    while height:
        height -= 1
        operand = stack[height]
        for at in range(user_start[operand], user_start[operand + 1]):
            one = users[at]
            if begun[one] == 0 or mark[one] == stamp:
                continue
            mark[one] = stamp
            for place in range(make_start[one], make_start[one + 1]):
                made = makes[place]
                if there[made]:
                    continue
                if used[made] < use_start[made + 1] or kept[made]:
                    return True
                stack[height] = made
                height += 1
    return False


@compiled
def _evict(
    order: Ints, use_start: Ints, uses: Ints, weight: NDArray[np.float64], budget: int, by_size: float,
    by_distance: float, shared: float, fitting: bool, graph: Tables, looks: Ints,
) -> Ints:  # fmt: skip
    read_start, reads, make_start, makes, maker, size, kept, workspace, _, again, _, reused, _ = graph
    count, values = len(order), len(size)
    most = LONGEST * count + 16
    runs = np.empty(most, np.int64)
    length = 0
    there, gone, always = np.zeros(values, np.bool_), np.zeros(values, np.bool_), np.zeros(values, np.bool_)
    locks, begun = np.zeros(values, np.int64), np.zeros(count, np.int64)
    used = use_start[:-1].copy()
    mark, stamp, walk = np.zeros(count, np.int64), 0, np.empty(count + 1, np.int64)
    mark_behind, stamp_behind, walk_values = np.zeros(count, np.int64), 0, np.empty(values + 1, np.int64)
    stack, held, holding = np.empty(count + 2, np.int64), np.empty(values, np.int64), 0
    pending, waiting = np.empty(values, np.int64), 0
    is_held, is_pending = np.zeros(values, np.bool_), np.zeros(values, np.bool_)
    users = np.empty(len(uses), np.int64)
    for at in range(len(uses)):
        users[at] = order[uses[at]]
    factor = weight * np.maximum(size, 1).astype(np.float64) ** by_size
    live, any_gone = np.int64(0), False
    for value in range(values):
        always[value] = maker[value] < 0 or not again[maker[value]]
        if maker[value] < 0:
            there[value] = True
            live += size[value]
            if used[value] == use_start[value + 1]:
                continue
    for step in range(count + 1):
        # The step behind the last asks for the outputs, one by one, and holds them.
        goals = np.empty(1, np.int64)
        if step == count:
            goals = np.flatnonzero(kept)
        for goal in goals:
            if step == count:
                locks[goal] += 1
                if there[goal]:
                    continue
                stack[0] = maker[goal]
            else:
                stack[0] = order[step]
            height = 1
            for at in range(read_start[stack[0]], read_start[stack[0] + 1]):
                locks[reads[at]] += 1
            while height:
                one = stack[height - 1]
                missing = -1
                for at in range(read_start[one], read_start[one + 1]):
                    if not there[reads[at]]:
                        missing = reads[at]
                        break
                if missing >= 0:
                    if gone[missing]:
                        return runs[:0]
                    stack[height] = maker[missing]
                    height += 1
                    for at in range(read_start[maker[missing]], read_start[maker[missing] + 1]):
                        locks[reads[at]] += 1
                    continue
                height -= 1
                if length == most:
                    return runs[:0]
                room = workspace[one]
                for at in range(make_start[one], make_start[one + 1]):
                    if not there[makes[at]]:
                        room += size[makes[at]]
                ending = 0  # operands that nobody wants behind this run may give their place to its results
                for at in range(read_start[one], read_start[one + 1]):
                    value = reads[at]
                    own = 1 if height == 0 and step < count else 0
                    last_use = used[value] + own == use_start[value + 1] and locks[value] == 1
                    if last_use and not kept[value] and not always[value]:
                        ending += size[value]
                room -= min(reused[one], ending)
                while live + room > budget:
                    best, best_score, place = -1, 0.0, 0
                    excess = float(live + room - budget)
                    looks[0] += holding
                    while place < holding:
                        value = held[place]
                        if not there[value]:
                            holding -= 1
                            held[place] = held[holding]
                            is_held[value] = False
                            continue
                        place += 1
                        if locks[value] > 0 or always[value]:
                            continue
                        is_own = False
                        for at in range(make_start[one], make_start[one + 1]):
                            is_own = is_own or makes[at] == value
                        if is_own:
                            continue
                        ends = uses[used[value]] if used[value] < use_start[value + 1] else count
                        stamp += 1
                        cost = _time_again(
                            value,
                            shared,
                            there,
                            gone,
                            used,
                            use_start,
                            mark,
                            stamp,
                            walk,
                            any_gone,
                            graph,
                            looks,
                        )
                        if cost >= UNREACHABLE:
                            continue
                        score = factor[value] * float(max(ends - step, 1)) ** by_distance / (cost + 1e-9)
                        if fitting and size[value] > excess:
                            score *= excess / size[value]
                        if best < 0 or score > best_score:
                            best, best_score = value, score
                    if best < 0:
                        return runs[:0]
                    there[best] = False
                    live -= size[best]
                runs[length] = one
                length += 1
                begun[one] = 1
                for at in range(make_start[one], make_start[one + 1]):
                    value = makes[at]
                    if not there[value]:
                        there[value] = True
                        live += size[value]
                        if not is_held[value]:
                            is_held[value] = True
                            held[holding] = value
                            holding += 1
                for at in range(read_start[one], read_start[one + 1]):
                    value = reads[at]
                    locks[value] -= 1
                    if height == 0 and step < count:
                        used[value] += 1
                    done = used[value] == use_start[value + 1] and not kept[value] and locks[value] == 0
                    if done and there[value]:
                        if always[value]:
                            if not is_pending[value]:
                                is_pending[value] = True
                                pending[waiting] = value
                                waiting += 1
                        else:
                            there[value] = False
                            live -= size[value]
                for at in range(make_start[one], make_start[one + 1]):
                    value = makes[at]
                    done = used[value] == use_start[value + 1] and not kept[value] and locks[value] == 0
                    if done and there[value]:
                        if always[value]:
                            if not is_pending[value]:
                                is_pending[value] = True
                                pending[waiting] = value
                                waiting += 1
                        else:
                            there[value] = False
                            live -= size[value]
        place = 0
        while place < waiting:
            value = pending[place]
            stamp_behind += 1
            if not there[value] or not _is_needed_again(
                value, there, used, use_start, step, mark_behind, stamp_behind, walk_values, maker, begun, make_start,
                makes, kept, use_start, users,
            ):  # fmt: skip
                if there[value]:
                    there[value], gone[value], any_gone = False, True, True
                    live -= size[value]
                waiting -= 1
                pending[place] = pending[waiting]
            else:
                place += 1
    return runs[:length]
