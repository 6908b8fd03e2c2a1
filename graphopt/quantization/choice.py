"""Which nodes take which form: the least cost whose errors stay within a budget.

Rounding is noise, whose squares add up, so that this is a knapsack with several options for each item. Its Lagrangian
takes for each node the lower convex hull of (square of the error, cost), and the steps of all hulls in the order of
what they save for their error (Shoham and Gersho, Efficient bit allocation for an arbitrary set of quantizers, 1988).
Every prefix of the steps is a choice; measured errors of whole choices say how far to go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphopt.quantization.formats import Form, Options

LEAST = 0.05  # of a cost that a form has to save: less is the noise of a reading
TINY = 1e-18  # a squared error below it is none


@dataclass(frozen=True, slots=True)
class Step:
    """A node takes a form, or a cheaper one."""

    node: str
    form: Form
    worth: float  # cost that is saved for each unit of squared error


def steps_of(options: Sequence[Options]) -> tuple[Step, ...]:
    """Steps from float32 on, those that save most for their error first."""
    found = [step for one in options for step in _hull(one)]
    return tuple(sorted(found, key=lambda step: -step.worth))


def _hull(options: Options) -> list[Step]:
    """The steps of one node: each cheaper and further off than the one before, each worth less."""
    square, cost = 0.0, options.cost
    steps: list[Step] = []
    while True:
        left = [
            ((cost - one.cost) / max(one.error**2 - square, TINY), one.error**2, one)
            for one in options.measured
            if one.error is not None and one.cost < (1 - LEAST) * cost
        ]
        if not left:
            return steps
        worth, square, best = max(left, key=lambda each: each[0])
        steps.append(Step(options.candidate.name, best.form, worth))
        cost = best.cost


def choice_of(steps: Sequence[Step]) -> dict[str, Form]:
    """The forms after these steps."""
    return {step.node: step.form for step in steps}


def furthest(steps: Sequence[Step], error_of: Callable[[int], float], budget: float) -> int:
    """How many steps keep the budget, by bisection: errors grow with the number but for their own noise."""
    if not steps or error_of(len(steps)) <= budget:
        return len(steps)
    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        if error_of(middle) <= budget:
            low = middle
        else:
            high = middle
    return low
