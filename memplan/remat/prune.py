"""Runs that are not worth their time are taken out of a sequence: what they make is kept from before instead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Ints
from memplan.ordering.runs import Tables, needs_of


def prune(graph: Tables, runs: Ints, budget: int, *, by: int = 0) -> tuple[Ints, int]:
    """The sequence without runs that can be saved, by keeping what they make from where it was last there; and looks.

    Runs are tried by what they cost for each byte and step that keeping takes (`by` 0), for each byte (1), or at
    all (2), until nothing more can be saved. No step needs more than `budget` bytes, if none did before. `looks` at
    steps are what it took.
    """
    looks = np.full(1, len(runs) + len(graph[1]) + len(graph[5]), np.int64)
    return _prune(runs, budget, by, graph, looks), int(looks[0])


@compiled
def _events(runs: Ints, graph: Tables) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """By value, in order: the steps that make it or read it, and which of the two."""
    read_start, reads, make_start, makes, _, size = graph[:6]
    start = np.zeros(len(size) + 1, np.int64)
    for step in range(len(runs)):
        one = runs[step]
        for at in range(read_start[one], read_start[one + 1]):
            start[reads[at] + 1] += 1
        for at in range(make_start[one], make_start[one + 1]):
            start[makes[at] + 1] += 1
    start = np.cumsum(start)
    fill = start[:-1].copy()
    steps, are_made = np.empty(start[-1], np.int64), np.empty(start[-1], np.bool_)
    for step in range(len(runs)):
        one = runs[step]
        for at in range(read_start[one], read_start[one + 1]):
            steps[fill[reads[at]]], are_made[fill[reads[at]]] = step, False
            fill[reads[at]] += 1
        for at in range(make_start[one], make_start[one + 1]):
            steps[fill[makes[at]]], are_made[fill[makes[at]]] = step, True
            fill[makes[at]] += 1
    return start, steps, are_made


@compiled
def _at(steps: Ints, first: int, last: int, step: int) -> int:
    """The event of a value at a step."""
    return first + int(np.searchsorted(steps[first:last], step))


@compiled
def _before(alive: NDArray[np.bool_], event: int, first: int) -> int:
    event -= 1
    while event >= first and not alive[event]:
        event -= 1
    return event if event >= first else -1


@compiled
def _behind(alive: NDArray[np.bool_], event: int, last: int) -> int:
    event += 1
    while event < last and not alive[event]:
        event += 1
    return event if event < last else -1


@compiled
def _is_wanted(event: int, last: int, is_kept: bool, are_made: NDArray[np.bool_], alive: NDArray[np.bool_]) -> bool:
    """Whether what an event makes or reads is wanted behind it, before it is made again."""
    then = _behind(alive, event, last)
    return is_kept if then < 0 else not are_made[then]


@compiled
def _prune(runs: Ints, budget: int, by: int, graph: Tables, looks: Ints) -> Ints:
    _, _, make_start, makes, _, size, _, _, time, _, waited_for, reused, _ = graph
    length = len(runs)
    start, steps, are_made = _events(runs, graph)
    needed = needs_of(runs, graph) + reused[runs]  # a place that is reused may be wanted when more is kept
    alive, there = np.ones(len(steps), np.bool_), np.ones(length, np.bool_)
    many, first_run = np.zeros(len(time), np.int64), np.full(len(time), -1, np.int64)
    for step in range(length):
        many[runs[step]] += 1
        if first_run[runs[step]] < 0:
            first_run[runs[step]] = step
    worth = np.zeros(length)
    candidates = np.zeros(length, np.bool_)
    for step in range(length):
        one = runs[step]
        if many[one] < 2 or (waited_for[one] and first_run[one] == step):
            continue
        candidates[step] = True
        taken = 1.0
        for at in range(make_start[one], make_start[one + 1]):
            value = makes[at]
            event = _at(steps, start[value], start[value + 1], step)
            if event > start[value]:
                taken += size[value] * (float(step - steps[event - 1]) if by == 0 else 1.0)
        worth[step] = time[one] / (taken if by < 2 else 1.0)
    tried = np.argsort(-worth, kind="mergesort")
    changed = True
    while changed:
        changed = False
        for step in tried:
            one = runs[step]
            if not candidates[step] or not there[step] or many[one] < 2:
                continue
            if not _can_go(runs, step, one, budget, start, steps, are_made, alive, there, needed, graph, looks):
                continue
            _take_out(step, one, start, steps, are_made, alive, there, needed, graph)
            many[one] -= 1
            changed = True
    return runs[there]


@compiled
def _can_go(
    runs: Ints, step: int, one: int, budget: int, start: Ints, steps: Ints, are_made: NDArray[np.bool_],
    alive: NDArray[np.bool_], there: NDArray[np.bool_], needed: Ints, graph: Tables, looks: Ints,
) -> bool:  # fmt: skip
    """Whether what the run makes can be kept from before, within the budget."""
    _, _, make_start, makes, _, size, kept = graph[:7]
    reused = graph[11]
    more = 0
    from_steps = np.empty(make_start[one + 1] - make_start[one], np.int64)
    for place, at in enumerate(range(make_start[one], make_start[one + 1])):
        value = makes[at]
        event = _at(steps, start[value], start[value + 1], step)
        from_steps[place] = step
        if not _is_wanted(event, start[value + 1], kept[value], are_made, alive):
            continue
        earlier = _before(alive, event, start[value])
        if earlier < 0:
            return False
        from_steps[place] = steps[earlier]
        more += size[value]
    if more == 0:
        return True
    looks[0] += step - from_steps.min()
    for other in range(from_steps.min(), step):
        if not there[other]:
            continue
        extra = 0
        for place, at in enumerate(range(make_start[one], make_start[one + 1])):
            if from_steps[place] < other or (from_steps[place] == other and reused[runs[other]] > 0):
                extra += size[makes[at]]
        if extra and needed[other] + extra > budget:
            return False
    return True


@compiled
def _take_out(
    step: int, one: int, start: Ints, steps: Ints, are_made: NDArray[np.bool_], alive: NDArray[np.bool_],
    there: NDArray[np.bool_], needed: Ints, graph: Tables,
) -> None:  # fmt: skip
    """Take a run out of the sequence, and change what the steps need."""
    read_start, reads, make_start, makes, _, size, kept = graph[:7]
    there[step] = False
    for at in range(make_start[one], make_start[one + 1]):
        value = makes[at]
        event = _at(steps, start[value], start[value + 1], step)
        if _is_wanted(event, start[value + 1], kept[value], are_made, alive):
            earlier = _before(alive, event, start[value])
            needed[steps[earlier] + 1 : step] += size[value]
        alive[event] = False
    for at in range(read_start[one], read_start[one + 1]):
        value = reads[at]
        event = _at(steps, start[value], start[value + 1], step)
        if not _is_wanted(event, start[value + 1], kept[value], are_made, alive):
            earlier = _before(alive, event, start[value])
            needed[(steps[earlier] + 1 if earlier >= 0 else 0) : step + 1] -= size[value]
        alive[event] = False
