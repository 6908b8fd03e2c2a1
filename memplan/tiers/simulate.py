"""Executes a plan of tiers step by step: what each step takes, what it waits for, and what every tier holds.

Before the operator of a step, the copies that are waited for are made, those to slower tiers first (deepest source
first), so that what they leave is free for the others. Then the operator runs in the fastest tier that has each of its
units, with the overlapped copies beside it; these can be read from the next step on. What a step writes is valid only
where it is written. Every figure is simulated: it follows from the machine's numbers, not from a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memplan.errors import MemplanError
from memplan.plan import Move, Stay
from memplan.tiers.cost import access_time, copy_time, operator_time, step_time
from memplan.tiers.placement import Placement, Unit


class ImpossiblePlan(MemplanError):
    """A plan that cannot be executed; the message names the step, the value and what is wrong."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened, by step; times in nanoseconds, bytes by tier (fastest first) and step."""

    operators: tuple[float, ...]  # operators by themselves
    waits: tuple[float, ...]  # for copies before the operator
    stalls: tuple[float, ...]  # for overlapped copies, after the operator's end
    occupancy: tuple[tuple[int, ...], ...]

    @property
    def time(self) -> float:
        """Nanoseconds in all."""
        return sum(self.operators) + sum(self.waits) + sum(self.stalls)


@dataclass(slots=True)
class _Place:
    """Where one unit lies now: tier -> whether the bytes there are the valid ones."""

    unit: Unit
    valid: dict[int, bool] = field(default_factory=dict)


def simulate(problem: Placement, stays: Sequence[Stay], moves: Sequence[Move]) -> Simulation:
    """Execute; raises ImpossiblePlan at the first thing that cannot be done."""
    return _Run(problem, stays, moves).run()


class _Run:
    def __init__(self, problem: Placement, stays: Sequence[Stay], moves: Sequence[Move]) -> None:
        self.problem = problem
        self.steps = len(problem.compute)
        self.number = {tier.name: number for number, tier in enumerate(problem.machine.tiers)}
        self.places = {unit.name: _Place(unit) for unit in problem.units}
        self.uses: list[list[Unit]] = [[] for _ in range(self.steps)]
        for unit in problem.units:
            for use in unit.uses:
                self.uses[use.step].append(unit)
        self.begins: list[list[Stay]] = [[] for _ in range(self.steps + 1)]
        self.ends: list[list[Stay]] = [[] for _ in range(self.steps + 1)]
        for stay in stays:
            if stay.tier not in self.number or stay.value not in self.places:
                raise ImpossiblePlan(f"'{stay.value}' in '{stay.tier}': there is no such value or tier.")
            if not 0 <= stay.begin < stay.end <= self.steps:
                raise ImpossiblePlan(f"'{stay.value}' stays in '{stay.tier}' from {stay.begin} to {stay.end}: never.")
            self.begins[stay.begin].append(stay)
            self.ends[stay.end].append(stay)
        self.moves: list[list[Move]] = [[] for _ in range(self.steps)]
        for move in moves:
            if not 0 <= move.step < self.steps:
                raise ImpossiblePlan(f"'{move.value}' is moved at step {move.step}, which is not there.")
            self.moves[move.step].append(move)
        self.held = [0] * len(self.number)

    def run(self) -> Simulation:
        operators, waits, stalls = [], [], []
        occupancy: list[list[int]] = [[] for _ in self.number]
        for step in range(self.steps):
            waits.append(self._boundary(step))
            for tier, held in enumerate(self.held):
                capacity = self.problem.machine.tiers[tier]
                if held > capacity.capacity:
                    raise ImpossiblePlan(
                        f"step {step}: '{capacity.name}' holds {held} bytes, {held - capacity.capacity} too many."
                    )
                occupancy[tier].append(held)
            operator = operator_time(self.problem.compute[step], self._operate(step))
            beside = self._finish(step)
            operators.append(operator)
            stalls.append(step_time(operator, beside) - operator)
        return Simulation(tuple(operators), tuple(waits), tuple(stalls), tuple(map(tuple, occupancy)))

    def _boundary(self, step: int) -> float:
        """What happens before the operator runs; nanoseconds of copies that are waited for."""
        waited = [move for move in self.moves[step] if not move.overlapped]
        falling = [move for move in waited if self.number[move.source] < self.number[move.target]]
        arriving = {(move.value, move.target) for move in self.moves[step]}
        time = 0.0
        for move in sorted(falling, key=lambda move: -self.number[move.source]):
            time += self._copy(move, step)
        for stay in self.ends[step]:
            place = self.places[stay.value]
            # A stay that ends where another of the same value begins hands its bytes over to it.
            place.valid.pop(self.number[stay.tier], None)
            self.held[self.number[stay.tier]] -= place.unit.held
        for stay in self.begins[step]:
            unit, tier = self.places[stay.value].unit, self.number[stay.tier]
            self.held[tier] += unit.held
            fresh = unit.begin == step
            if not fresh and (stay.value, stay.tier) not in arriving:
                raise ImpossiblePlan(f"step {step}: nothing brings '{stay.value}' to '{stay.tier}'.")
            fallen = any(move.value == stay.value and move.target == stay.tier for move in falling)
            self.places[stay.value].valid[tier] = fallen or (stay.value, stay.tier) not in arriving
        for move in waited:
            if self.number[move.source] > self.number[move.target]:
                time += self._copy(move, step)
                self._arrive(move, step)
        for move in self.moves[step]:
            if move.overlapped:
                self._check_source(move, step)
        return time

    def _copy(self, move: Move, step: int) -> float:
        self._check_source(move, step)
        link = self.problem.machine.link(move.source, move.target)
        if link is None:
            raise ImpossiblePlan(f"there is no link from '{move.source}' to '{move.target}'.")
        return copy_time(link, self.places[move.value].unit.size, move.overlapped)

    def _check_source(self, move: Move, step: int) -> None:
        if not self.places[move.value].valid.get(self.number[move.source], False):
            raise ImpossiblePlan(f"step {step}: '{move.value}' is not in '{move.source}' to be copied from there.")

    def _arrive(self, move: Move, step: int) -> None:
        tier = self.number[move.target]
        if tier not in self.places[move.value].valid:
            raise ImpossiblePlan(f"step {step}: '{move.value}' is copied to '{move.target}', where it has no place.")
        self.places[move.value].valid[tier] = True

    def _operate(self, step: int) -> float:
        """The operator's memory time; what it writes is valid only where it is written."""
        time = 0.0
        for unit in self.uses[step]:
            place = self.places[unit.name]
            use = next(use for use in unit.uses if use.step == step)
            there = [tier for tier, valid in place.valid.items() if valid]
            if not there:
                raise ImpossiblePlan(f"step {step} needs '{unit.name}', which is in no tier.")
            tier = min(there)
            time += access_time(self.problem.machine.tiers[tier], use.read, use.written)
            if use.changes:
                for other in place.valid:
                    place.valid[other] = other == tier
                for move in self.moves[step]:
                    if move.overlapped and move.value == unit.name:
                        raise ImpossiblePlan(f"step {step} writes '{unit.name}' while it is copied.")
        return time

    def _finish(self, step: int) -> float:
        """The overlapped copies of a step; nanoseconds in all."""
        time = 0.0
        for move in self.moves[step]:
            if move.overlapped:
                time += self._copy(move, step)
                self._arrive(move, step)
        return time
