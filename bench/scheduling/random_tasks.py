"""Random task graphs by the methods of the Standard Task Graph Set: layers or none, equal odds or equal predecessors.

Written after Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
algorithms", Journal of Scheduling 5, 2002. Times are whole numbers. Task 0 comes before all and the last one after all,
and both take no time, as in the files of that set.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from scheduler.lists.tasks import Tasks, tasks_of

Before = list[list[int]]
Method = Callable[[random.Random, int, float], Before]


def random_tasks(method: str, times: str, count: int, predecessors: float, seed: int) -> Tasks:
    """`count` tasks and the two that take no time; `predecessors` on average."""
    draw = random.Random(f"{method} {times} {count} {predecessors} {seed}")
    inner = METHODS[method](draw, count, predecessors)
    before = [[], *([one + 1 for one in reads] or [0] for reads in inner)]
    followed = {one for reads in before for one in reads}
    before.append([one for one in range(1, count + 1) if one not in followed])
    return tasks_of([0, *(TIMES[times](draw) for _ in range(count)), 0], before)


def same_odds(draw: random.Random, count: int, predecessors: float) -> Before:
    """Every pair of tasks is joined with the same odds."""
    odds = min(1.0, 2 * predecessors / max(1, count - 1))
    return [[other for other in range(one) if draw.random() < odds] for one in range(count)]


def same_predecessors(draw: random.Random, count: int, predecessors: float) -> Before:
    """Every task has as many predecessors on average, drawn from all before it."""
    return [sorted(draw.sample(range(one), min(one, _many(draw, predecessors)))) for one in range(count)]


def layered_odds(draw: random.Random, count: int, predecessors: float) -> Before:
    """Tasks in layers; every task is joined to those of earlier layers with the same odds."""
    layers = _layers(draw, count)
    pairs = sum(len(layer) * layer[0] for layer in layers)
    odds = min(1.0, predecessors * count / max(1, pairs))
    return [[other for other in range(layer[0]) if draw.random() < odds] for layer in layers for _ in layer]


def layered_predecessors(draw: random.Random, count: int, predecessors: float) -> Before:
    """Tasks in layers; every task has as many predecessors on average, drawn from all earlier layers."""
    return [
        sorted(draw.sample(range(layer[0]), min(layer[0], _many(draw, predecessors))))
        for layer in _layers(draw, count)
        for _ in layer
    ]


METHODS: Mapping[str, Method] = {
    "sameprob": same_odds,
    "samepred": same_predecessors,
    "layrprob": layered_odds,
    "layrpred": layered_predecessors,
}
TIMES: Mapping[str, Callable[[random.Random], int]] = {
    "uniform 1..10": lambda draw: draw.randint(1, 10),
    "uniform 1..100": lambda draw: draw.randint(1, 100),
    "exponential 5": lambda draw: 1 + int(draw.expovariate(1 / 5)),
    "exponential 20": lambda draw: 1 + int(draw.expovariate(1 / 20)),
    "normal 10": lambda draw: max(1, round(draw.gauss(10, 4))),
}


def _many(draw: random.Random, mean: float) -> int:
    return draw.randint(0, round(2 * mean))


def _layers(draw: random.Random, count: int) -> list[range]:
    """As many layers as tasks in one of them, about; widths vary from one to twice the mean."""
    mean = max(1.0, draw.uniform(0.5, 2.0) * count**0.5)
    layers, made = [], 0
    while made < count:
        wide = min(count - made, draw.randint(1, max(1, round(2 * mean) - 1)))
        layers.append(range(made, made + wide))
        made += wide
    return layers
