"""Branch and bound: the least schedule of small or narrow graphs, or the proof that a given one is the least.

Tasks are started one after the other, never earlier than the one before; each start is the earliest possible. Some
schedule of this kind is the least. What cuts the tree: a task that would start only when another could already have run
in full is not started now; windows, and the work of every set of longest tails shared by the workers, must leave time
to end before the best schedule known; and a state (what has been started, when the next start can be, what still runs
until when) that was met before is not met again, whatever the order was that led to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.compiling import compiled
from scheduler.lists.sorting import ascending
from scheduler.lists.tasks import Floats, Ints, Tasks
from scheduler.lists.windows import tight_tails

TABLE = 1 << 20  # states remembered; a power of two
TRIES = 4  # places of the table where a state may stand
CLOSER = 1e-9  # relative: a schedule is only looked for if it is shorter by more than this
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """What branch and bound found. `start` is None if nothing shorter than asked for was found."""

    start: Floats | None
    complete: bool  # the whole tree was seen: nothing shorter exists
    nodes: int


def branch_and_bound(tasks: Tasks, workers: int, shorter_than: float, *, lower: float, nodes: int) -> Searched:
    """The shortest schedule below `shorter_than`, all of whose times are positive; stops after `nodes` starts.

    `lower` is a length below which nothing is looked for. Signals must not be delayed.
    """
    order = tasks.order
    tail = tight_tails(tasks, workers)
    keys = np.random.default_rng(1).integers(1, 2**63, size=(2, tasks.count), dtype=np.uint64)
    start, found, complete, used = _search(
        tasks.times, tasks.before_start, tasks.before, tasks.behind_start, tasks.behind, order, tail, keys,
        min(workers, tasks.count), shorter_than, lower, tasks.whole, nodes, np.zeros((TABLE, 2), np.uint64),
    )  # fmt: skip
    return Searched(start if found else None, bool(complete), int(used))


@compiled
def _mixed(value: np.uint64) -> np.uint64:
    """Bits spread over the whole word (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _met(table: Words, first: np.uint64, second: np.uint64) -> bool:
    """Whether a state stands in the table; from now on it does."""
    mask = np.uint64(len(table) - 1)
    at = np.int64(first & mask)
    for _ in range(TRIES):
        if table[at, 0] == first and table[at, 1] == second:
            return True
        if table[at, 0] == 0 and table[at, 1] == 0:
            break
        at = (at + 1) & np.int64(mask)
    else:
        at = np.int64(first & mask)
    table[at, 0], table[at, 1] = first, second
    return False


@compiled
def _search(
    times: Floats, before_start: Ints, before: Ints, behind_start: Ints, behind: Ints, order: Ints, tail: Floats,
    keys: Words, workers: int, shorter_than: float, lower: float, whole: bool, most_nodes: int, table: Words,
) -> tuple[Floats, bool, bool, int]:  # fmt: skip
    count = len(times)
    best_start = np.zeros(count)
    found = False
    # A schedule must end by `goal` to be worth anything.
    goal = shorter_than - 1.0 if whole else shorter_than * (1.0 - CLOSER)
    by_rest = ascending(times - tail)  # the longest time behind first
    start, ready_at = np.zeros(count), np.zeros(count)
    missing = before_start[1:] - before_start[:-1]
    started = np.zeros(count, np.bool_)
    # By depth: what runs and until when, the earliest next start, what may start next and which of it is tried now.
    runs, ends = np.zeros((count + 1, workers), np.int64), np.zeros((count + 1, workers))
    running = np.zeros(count + 1, np.int64)
    choices, tried, many = (
        np.zeros((count + 1, count), np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
    )
    begins = np.zeros((count + 1, count))
    chosen = np.zeros(count + 1, np.int64)
    first_key, second_key = np.zeros(count + 1, np.uint64), np.zeros(count + 1, np.uint64)
    clock = np.zeros(count + 1)  # the last start
    bits = np.zeros(2)
    words = bits.view(np.uint64)
    nodes = 0
    depth = 0
    enter = True
    while True:
        if enter:
            enter = False
            nodes += 1
            many[depth], tried[depth] = 0, 0
            if depth == count:
                length = 0.0
                for one in range(count):
                    length = max(length, start[one] + times[one])
                if length <= goal:
                    found = True
                    best_start[:] = start
                    goal = length - 1.0 if whole else length * (1.0 - CLOSER)
                    if length <= lower * (1.0 + CLOSER):
                        return best_start, True, True, nodes
            else:
                # The earliest start of anything, and what could run in full before a later start.
                free = clock[depth]
                if running[depth] == workers:
                    free = np.inf
                    for at in range(workers):
                        free = min(free, ends[depth, at])
                    free = max(free, clock[depth])
                soonest, over = np.inf, np.inf
                cut = False
                for one in range(count):
                    if not started[one] and missing[one] == 0:
                        begin = max(free, ready_at[one])
                        soonest = min(soonest, begin)
                        over = min(over, begin + times[one])
                        if begin + tail[one] > goal * (1 + 1e-15):
                            cut = True
                            break
                if not cut:
                    # Work that has to be done before goal - rest, for every rest, in what the workers have left.
                    busy = 0.0
                    for at in range(running[depth]):
                        busy += max(0.0, ends[depth, at] - soonest)
                    need = 0.0
                    for at in range(count):
                        one = by_rest[at]
                        if started[one]:
                            continue
                        need += times[one]
                        until = goal - (tail[one] - times[one])
                        room = workers * (until - soonest)
                        if need > room * (1 + 1e-12):
                            cut = True
                            break
                        if need + busy > room:
                            held = need
                            for other in range(running[depth]):
                                held += max(0.0, min(ends[depth, other], until) - soonest)
                            if held > room + 1e-9 * goal:
                                cut = True
                                break
                if not cut:
                    first, second = first_key[depth], second_key[depth]
                    bits[0] = soonest
                    mixed = _mixed(words[0] + np.uint64(0x9E3779B97F4A7C15))
                    first += mixed
                    second ^= _mixed(mixed)
                    for at in range(running[depth]):
                        if ends[depth, at] > soonest:
                            bits[0] = ends[depth, at]
                            mixed = _mixed(words[0] ^ keys[0, runs[depth, at]])
                            first += mixed
                            second += _mixed(mixed ^ keys[1, runs[depth, at]])
                    cut = _met(table, first | np.uint64(1), second)
                if not cut:
                    # Longest tail first; a task that begins no sooner than another could have ended is left for later.
                    for one in range(count):
                        if not started[one] and missing[one] == 0:
                            begin = max(free, ready_at[one])
                            if begin < over:
                                at = many[depth]
                                many[depth] += 1
                                while at > 0:
                                    other = choices[depth, at - 1]
                                    if begins[depth, at - 1] < begin or (
                                        begins[depth, at - 1] == begin and tail[other] >= tail[one]
                                    ):
                                        break
                                    choices[depth, at], begins[depth, at] = other, begins[depth, at - 1]
                                    at -= 1
                                choices[depth, at], begins[depth, at] = one, begin
        if tried[depth] < many[depth] and nodes < most_nodes:
            one, begin = choices[depth, tried[depth]], begins[depth, tried[depth]]
            tried[depth] += 1
            if begin + tail[one] > goal * (1 + 1e-15):
                continue
            chosen[depth] = one
            start[one] = begin
            started[one] = True
            kept = 0
            for at in range(running[depth]):
                if ends[depth, at] > begin:
                    runs[depth + 1, kept], ends[depth + 1, kept] = runs[depth, at], ends[depth, at]
                    kept += 1
            runs[depth + 1, kept], ends[depth + 1, kept] = one, begin + times[one]
            running[depth + 1] = kept + 1
            clock[depth + 1] = begin
            first_key[depth + 1] = first_key[depth] ^ keys[0, one]
            second_key[depth + 1] = second_key[depth] ^ keys[1, one]
            for edge in range(behind_start[one], behind_start[one + 1]):
                other = behind[edge]
                missing[other] -= 1
                if missing[other] == 0:
                    ready_at[other] = 0.0
                    for back in range(before_start[other], before_start[other + 1]):
                        ready_at[other] = max(ready_at[other], start[before[back]] + times[before[back]])
            depth += 1
            enter = True
            continue
        if depth == 0:
            return best_start, found, nodes < most_nodes, nodes
        depth -= 1
        one = chosen[depth]
        started[one] = False
        for edge in range(behind_start[one], behind_start[one + 1]):
            missing[behind[edge]] += 1
