"""The choice of least cost within a budget."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from graphopt.quantization.choice import choice_of, furthest, steps_of
from graphopt.quantization.formats import Candidate, Form, Measured, Options

STATIC, DYNAMIC, BLOCKS = Form("static", "minmax"), Form("dynamic"), Form("int4-weights")


def _node(name: str, cost: float, *measured: tuple[Form, float, float]) -> Options:
    candidate = Candidate(name, "MatMul", "x", "w", "y", None, ())
    return Options(candidate, cost, tuple(Measured(*one) for one in measured))


def test_nodes_that_save_most_for_their_error_come_first() -> None:
    steps = steps_of([
        _node("dear", 10.0, (STATIC, 0.1, 1.0)),  # 9 for 0.01
        _node("cheap", 2.0, (STATIC, 0.01, 1.0)),  # 1 for 0.0001
        _node("slower", 1.0, (STATIC, 0.0, 1.5)),
    ])  # fmt: skip
    assert [step.node for step in steps] == ["cheap", "dear"]
    assert choice_of(steps) == {"cheap": STATIC, "dear": STATIC}


def test_a_node_takes_a_better_form_before_a_cheaper_one() -> None:
    steps = steps_of([_node("n", 10.0, (DYNAMIC, 0.01, 5.0), (BLOCKS, 0.2, 1.0), (STATIC, 0.02, 6.0))])
    assert [step.form for step in steps] == [DYNAMIC, BLOCKS]  # static costs more and is further off
    assert choice_of(steps[:1]) == {"n": DYNAMIC}


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_as_little_error_costs_less_than_a_prefix(seed: int) -> None:
    """Every prefix is on the lower hull of all choices, which are tried one by one."""
    random = np.random.default_rng(seed)
    nodes = [
        _node(str(place), 10.0, *((form, random.random(), 10 * random.random()) for form in (STATIC, DYNAMIC, BLOCKS)))
        for place in range(4)
    ]
    steps = steps_of(nodes)

    def worth(forms: tuple[Measured | None, ...]) -> tuple[float, float]:
        pairs = zip(nodes, forms, strict=True)
        errors, costs = zip(*((0.0, node.cost) if one is None else (one.error**2, one.cost) for node, one in pairs),
                            strict=True)  # fmt: skip
        return sum(errors), sum(costs)

    every = [worth(forms) for forms in itertools.product(*((None, *node.measured) for node in nodes))]
    for count in range(len(steps) + 1):
        choice = choice_of(steps[:count])
        error, cost = worth(
            tuple(
                next((one for one in node.measured if one.form == choice.get(node.candidate.name)), None)
                for node in nodes
            )
        )
        assert min(other for off, other in every if off <= error + 1e-12) >= cost - 1e-12


def test_the_furthest_prefix_within_a_budget() -> None:
    steps = steps_of([_node(str(place), 2.0, (STATIC, 0.1 + 0.01 * place, 1.0)) for place in range(10)])
    asked = []

    def error(count: int) -> float:
        asked.append(count)
        return math.sqrt(sum((0.1 + 0.01 * place) ** 2 for place in range(count)))

    assert furthest(steps, error, 0.25) == 4 and error(4) <= 0.25 < error(5)
    assert len(asked) < 8
    assert furthest(steps, error, 10.0) == 10
    assert furthest(steps, error, 0.01) == 0
    assert furthest((), error, 1.0) == 0
