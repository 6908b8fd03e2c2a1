"""Baselines that decide when a value is made and never again: first touch, and all in the slowest tier."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.tiers.placement import Placement, TiersTooSmall


def first_touch(problem: Placement, capacity: Sequence[Sequence[int]]) -> list[int]:
    """The tier (its number) of every unit: the fastest that has room when the unit is made.

    What an operating system does that spreads pages over memories of different speed. Raises TiersTooSmall.
    """
    return _place(problem, capacity, range(len(problem.machine.tiers)))


def all_slow(problem: Placement, capacity: Sequence[Sequence[int]]) -> list[int]:
    """The slowest tier for every unit for which it has room when the unit is made. Raises TiersTooSmall."""
    return _place(problem, capacity, range(len(problem.machine.tiers) - 1, -1, -1))


def _place(problem: Placement, capacity: Sequence[Sequence[int]], preferred: Sequence[int]) -> list[int]:
    steps = len(problem.compute)
    begins: list[list[int]] = [[] for _ in range(max(steps, 1))]
    ends: list[list[int]] = [[] for _ in range(max(steps, 1) + 1)]
    for number, unit in enumerate(problem.units):
        begins[unit.begin].append(number)
        ends[unit.end].append(number)
    taken = [0] * len(problem.machine.tiers)
    found = [-1] * len(problem.units)
    for step in range(steps):
        for number in ends[step]:
            taken[found[number]] -= problem.units[number].held
        for number in begins[step]:
            unit = problem.units[number]
            # Capacities may differ from step to step: what is placed now has to fit for its whole life.
            room = [min(most[step : unit.end]) - used for most, used in zip(capacity, taken, strict=True)]
            chosen = next((tier for tier in preferred if room[tier] >= unit.held), None)
            if chosen is None:
                raise TiersTooSmall(
                    f"'{unit.name}' ({unit.held} bytes) has no room when it is made: the tiers have "
                    f"{', '.join(str(max(free, 0)) for free in room)} bytes left, {unit.held - max(room)} too few."
                )
            found[number] = chosen
            taken[chosen] += unit.held
    return found
