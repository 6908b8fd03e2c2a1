"""The best course of one unit while all others stay where they are, by dynamic programming over its periods.

A state is the set of tiers that hold the unit in a period. What a course costs is exact: steps' times with and without
the unit's bytes and copies. Room is either kept (`hard`) or only paid for, by prices of a byte in a tier at a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.tiers.course import WINDOW

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STATIC, SYNC, ASYNC = 0, 1, 2
GAP, READS, CHANGES = 0, 1, 2
STEPS_BESIDE = WINDOW  # numba takes it as a constant


class Table(NamedTuple):
    """Units and periods as arrays; a unit's periods are first[u] to before first[u + 1]."""

    first: Ints
    begin: Ints  # by period
    end: Ints
    kind: Ints  # GAP, READS or CHANGES
    access: Floats  # nanoseconds by period and tier
    held: Ints  # bytes, by unit
    size: Floats
    constant: NDArray[np.bool_]
    compute: Floats  # nanoseconds, by step
    wait: Floats  # nanoseconds per byte of a copy by source and target; infinite: no such copy
    beside: Floats


class State(NamedTuple):
    """What the steps have, with the units that are placed; changed in place."""

    room: Ints  # bytes, by tier and step; may be negative where room is only paid for
    memory: Floats  # nanoseconds, by step
    copies: Floats  # nanoseconds of copies beside each step
    waited: Floats  # nanoseconds of copies before each step
    price: Floats  # per byte: sums over the steps before, by tier and step


class Courses(NamedTuple):
    """By period: the tiers held (bits), and the copy that leads into it (source -1: none)."""

    mask: Ints
    source: Ints
    target: Ints
    step: Ints
    overlapped: NDArray[np.bool_]


@compiled
def lowest(mask: int) -> int:
    """The number of the lowest bit."""
    tier = 0
    while not mask >> tier & 1:
        tier += 1
    return tier


@compiled
def total(table: Table, state: State) -> float:
    """Nanoseconds of all steps."""
    time = 0.0
    for step in range(table.compute.shape[0]):
        time += max(table.compute[step], state.memory[step], state.copies[step]) + state.waited[step]
    return time


@compiled
def apply(table: Table, state: State, courses: Courses, unit: int, sign: int) -> None:
    """Place a unit by its course (sign 1) or take it away (sign -1)."""
    held = table.held[unit] * sign
    tiers = state.room.shape[0]
    for period in range(table.first[unit], table.first[unit + 1]):
        mask, begin = courses.mask[period], table.begin[period]
        for tier in range(tiers):
            if mask >> tier & 1:
                state.room[tier, begin : table.end[period]] -= held
        if table.kind[period] != GAP:
            state.memory[begin] += sign * table.access[period, lowest(mask)]
        source = courses.source[period]
        if source >= 0:
            target, step = courses.target[period], courses.step[period]
            if not courses.overlapped[period]:
                state.waited[step] += sign * table.size[unit] * table.wait[source, target]
                continue
            state.copies[step] += sign * table.size[unit] * table.beside[source, target]
            if table.kind[period] != GAP:  # towards the use behind a gap
                state.room[target, step:begin] -= held
            elif not mask >> source & 1:
                state.room[source, begin : step + 1] -= held


@compiled
def _holding(table: Table, state: State, unit: int, hard: bool) -> Floats:
    """The cost of holding each set of tiers in each period: prices and, at a use, the step's longer time."""
    first, last = table.first[unit], table.first[unit + 1]
    tiers = state.room.shape[0]
    cost = np.empty((last - first, 1 << tiers))
    each = np.empty(tiers)
    held = table.held[unit]
    for number in range(last - first):
        period = first + number
        begin, end = table.begin[period], table.end[period]
        for tier in range(tiers):
            each[tier] = (state.price[tier, end] - state.price[tier, begin]) * held
            if hard and held:
                for step in range(begin, end):
                    if state.room[tier, step] < held:
                        each[tier] = np.inf
                        break
        before = max(table.compute[begin], state.memory[begin], state.copies[begin])
        for mask in range(1, 1 << tiers):
            cost[number, mask] = 0.0
            for tier in range(tiers):
                if mask >> tier & 1:
                    cost[number, mask] += each[tier]
            if table.kind[period] != GAP:
                memory = state.memory[begin] + table.access[period, lowest(mask)]
                cost[number, mask] += max(before, memory) - before
    return cost


@compiled
def _beside(
    table: Table, state: State, unit: int, hard: bool, source: int, target: int, gap: int, falls: bool, keeps: bool
) -> tuple[float, int]:
    """The cheapest overlapped copy in a gap and its step; -1 where there is none."""
    begin, end = table.begin[gap], table.end[gap]
    middle = (begin + end) // 2
    duration = table.size[unit] * table.beside[source, target]
    held = table.held[unit]
    best, where, price = np.inf, -1, 0.0
    if falls:
        for step in range(begin, min(begin + STEPS_BESIDE, middle)):
            if not keeps:  # the source is held until the copy has been made
                price += (state.price[source, step + 1] - state.price[source, step]) * held
                if hard and state.room[source, step] < held:
                    break
            now = max(table.compute[step], state.memory[step], state.copies[step])
            cost = max(now, state.copies[step] + duration) - now + price
            if cost < best:
                best, where = cost, step
    else:
        for step in range(end - 1, max(end - STEPS_BESIDE, middle) - 1, -1):
            price += (state.price[target, step + 1] - state.price[target, step]) * held
            if hard and state.room[target, step] < held:
                break
            now = max(table.compute[step], state.memory[step], state.copies[step])
            cost = max(now, state.copies[step] + duration) - now + price
            if cost < best:
                best, where = cost, step
    return best, where


@compiled
def improve(table: Table, state: State, courses: Courses, unit: int, mode: int, hard: bool) -> float:
    """Give a unit that is taken away its best course, written to `courses`; returns its cost, infinite if none."""
    first, last = table.first[unit], table.first[unit + 1]
    count, tiers = last - first, state.room.shape[0]
    masks = 1 << tiers
    holding = _holding(table, state, unit, hard)
    if mode == STATIC:
        best, chosen = np.inf, -1
        for tier in range(tiers):
            paid = 0.0
            for number in range(count):
                paid += holding[number, 1 << tier]
            if paid < best:
                best, chosen = paid, tier
        if chosen >= 0:
            for period in range(first, last):
                courses.mask[period] = 1 << chosen
                courses.source[period] = -1
        return best
    origins = tiers if table.constant[unit] and count > 1 else 1
    best = np.inf
    cost = np.empty((count, masks))
    came = np.zeros((count, masks), np.int64)
    source = np.zeros((count, masks), np.int64)
    target = np.zeros((count, masks), np.int64)
    where = np.zeros((count, masks), np.int64)
    beside = np.zeros((count, masks), np.bool_)
    for origin in range(origins):
        cost[:] = np.inf
        for tier in range(tiers):
            if origins == 1 or tier == origin:
                cost[0, 1 << tier] = holding[0, 1 << tier]
        for number in range(1, count):
            period = first + number
            gap_before, gap = table.kind[period - 1] == GAP, table.kind[period] == GAP
            for old in range(1, masks):
                if cost[number - 1, old] == np.inf:
                    continue
                valid = 1 << lowest(old) if table.kind[period - 1] == CHANGES else old
                for new in range(1, masks):
                    if holding[number, new] == np.inf:
                        continue
                    base = cost[number - 1, old] + holding[number, new]
                    added = new & ~valid
                    if added == 0:
                        if base < cost[number, new]:
                            cost[number, new], came[number, new], source[number, new] = base, old, -1
                        continue
                    if added & (added - 1):
                        continue
                    to = lowest(added)
                    for tier in range(tiers):
                        if not valid >> tier & 1:
                            continue
                        falls = to > tier
                        if (falls and gap_before and not gap) or (not falls and gap):
                            continue
                        keeps = bool(new >> tier & 1)
                        if falls or keeps:  # upwards, the source counts until the copy has been made
                            now = base + table.size[unit] * table.wait[tier, to]
                            if now < cost[number, new]:
                                cost[number, new], came[number, new] = now, old
                                source[number, new], target[number, new] = tier, to
                                where[number, new], beside[number, new] = table.begin[period], False
                        if mode == ASYNC and table.beside[tier, to] < np.inf and (gap if falls else gap_before):
                            extra, step = _beside(
                                table, state, unit, hard, tier, to, period if falls else period - 1, falls, keeps
                            )
                            if step >= 0 and base + extra < cost[number, new]:
                                cost[number, new], came[number, new] = base + extra, old
                                source[number, new], target[number, new] = tier, to
                                where[number, new], beside[number, new] = step, True
        end, least = 0, np.inf
        for mask in range(1, masks):
            if cost[count - 1, mask] < least and (origins == 1 or mask >> origin & 1):
                end, least = mask, cost[count - 1, mask]
        if least < best:
            best = least
            for number in range(count - 1, -1, -1):
                period = first + number
                courses.mask[period] = end
                courses.source[period] = source[number, end] if number else -1
                courses.target[period] = target[number, end]
                courses.step[period] = where[number, end]
                courses.overlapped[period] = beside[number, end]
                end = came[number, end]
    return best


@compiled
def _copy_course(table: Table, source: Courses, target: Courses, unit: int) -> None:
    for period in range(table.first[unit], table.first[unit + 1]):
        target.mask[period], target.source[period] = source.mask[period], source.source[period]
        target.target[period], target.step[period] = source.target[period], source.step[period]
        target.overlapped[period] = source.overlapped[period]


@compiled
def sweep(table: Table, state: State, courses: Courses, order: Ints, mode: int, hard: bool, saved: Courses) -> bool:
    """Each unit in turn gets its best course, or keeps its own where it has none better. True: something changed.

    `saved`: room for courses, as long as they are.
    """
    changed = False
    for unit in order:
        apply(table, state, courses, unit, -1)
        _copy_course(table, courses, saved, unit)
        if improve(table, state, courses, unit, mode, hard) == np.inf:
            _copy_course(table, saved, courses, unit)
        for period in range(table.first[unit], table.first[unit + 1]):
            if courses.mask[period] != saved.mask[period] or courses.source[period] != saved.source[period]:
                changed = True
        apply(table, state, courses, unit, 1)
    return changed


@compiled
def shake(
    table: Table, state: State, courses: Courses, candidates: Ints, most: int, trials: int, mode: int, seed: int,
    saved: Courses,
) -> int:  # fmt: skip
    """Take some units that live together away and place them in another order; how often that was better and kept.

    `candidates`: units worth the trouble. `most`: how many at a time. `saved`: room for courses, as long as they are.
    """
    np.random.seed(seed)
    taken = np.empty(most, np.int64)
    better = 0
    best = total(table, state)
    for trial in range(trials):
        centre = candidates[np.random.randint(len(candidates))]
        # Who lives at one step of the unit's life, or, by turns, at any: what frees room for it for all of its life.
        begin, end = table.begin[table.first[centre]], table.end[table.first[centre + 1] - 1]
        if trial % 2:
            begin = np.random.randint(begin, end)
            end = begin + 1
        taken[0] = centre
        count = 1
        wanted = np.random.randint(2, most + 1)
        for _ in range(4 * most):
            unit = candidates[np.random.randint(len(candidates))]
            alive = table.begin[table.first[unit]] < end and begin < table.end[table.first[unit + 1] - 1]
            if alive and unit not in taken[:count]:
                taken[count] = unit
                count += 1
                if count == wanted:
                    break
        if count < 2:
            continue
        for unit in taken[:count]:
            _copy_course(table, courses, saved, unit)
            apply(table, state, courses, unit, -1)
        done = 0
        for unit in taken[:count]:
            if improve(table, state, courses, unit, mode, True) == np.inf:
                break
            apply(table, state, courses, unit, 1)
            done += 1
        now = total(table, state) if done == count else np.inf
        if now <= best:
            better += now < best
            best = now
            continue
        for unit in taken[:done]:
            apply(table, state, courses, unit, -1)
        for unit in taken[:count]:
            _copy_course(table, saved, courses, unit)
            apply(table, state, courses, unit, 1)
    return better
