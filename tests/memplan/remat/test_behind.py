"""Operators that change what others read: no reader runs behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Value
from memplan.ordering.arrays import arrays_of
from memplan.remat.behind import Changes
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute
from memplan.verify.packing import WrongPlan
from memplan.verify.sequence import verify_sequence


def chain(*, follows: bool = False) -> Graph:
    """`layer` reads a weight, which `update` changes; `last` reads what the layer makes, and maybe what is updated."""
    values = [Value(name, 100) for name in ("x", "v", "g")] + [Value("y", 10, "output")]
    operators = [
        Operator("begin", (), ("x",)), Operator("layer", ("x",), ("v",)), Operator("gradient", ("v",), ("g",)),
        Operator("update", ("g",), (), recomputable=False, after=("layer",), changes=True),
        Operator("last", ("v",), ("y",), after=("update",) if follows else ()),
    ]  # fmt: skip
    return Graph(tuple(values), tuple(operators))


def test_a_change_waits_for_the_last_run_of_its_readers() -> None:
    graph = chain()
    arrays = arrays_of(graph)
    again = np.array([0, 1, 2, 3, 0, 1, 4])
    found = Changes(graph, arrays).behind(again)
    assert found.tolist() == [0, 1, 2, 0, 1, 3, 4]
    with pytest.raises(WrongPlan, match="runs 'layer' behind 'update', which changes what it reads"):
        verify_sequence(graph, [arrays.names[one] for one in again])
    verify_sequence(graph, [arrays.names[one] for one in found])
    once = np.arange(5)
    assert Changes(graph, arrays).behind(once) is once


def test_what_comes_after_a_change_waits_with_it() -> None:
    graph = chain(follows=True)
    found = Changes(graph, arrays_of(graph)).behind(np.array([0, 1, 2, 3, 4, 0, 1]))
    assert found.tolist() == [0, 1, 2, 0, 1, 3, 4]


def test_where_what_follows_runs_several_times_there_is_none() -> None:
    graph = chain(follows=True)
    assert not len(Changes(graph, arrays_of(graph)).behind(np.array([0, 1, 2, 3, 4, 0, 1, 4])))


def step(seed: int, layers: int) -> Graph:
    """A chain of layers and its way back, each with a weight that is changed once its gradient is there."""
    draw = np.random.default_rng(seed)
    values, operators = [Value("x0", 64, "input")], list[Operator]()
    for layer in range(layers):
        values.append(Value(f"x{layer + 1}", int(draw.integers(16, 128))))
        operators.append(Operator(f"layer{layer}", (f"x{layer}",), (f"x{layer + 1}",), float(draw.integers(1, 9))))
    values.append(Value(f"d{layers}", 8))
    operators.append(Operator("loss", (f"x{layers}",), (f"d{layers}",), 1.0))
    for layer in reversed(range(layers)):
        values += [Value(f"d{layer}", 8), Value(f"w{layer}", int(draw.integers(1, 32)))]
        operators += [
            Operator(f"back{layer}", (f"d{layer + 1}",), (f"d{layer}",), 2.0),
            Operator(f"gradient{layer}", (f"d{layer + 1}", f"x{layer}"), (f"w{layer}",), 2.0),
        ]
        after = (f"layer{layer}", f"back{layer}")
        operators.append(
            Operator(f"update{layer}", (f"w{layer}",), (), 1.0, recomputable=False, after=after, changes=True)
        )
    return Graph(tuple(values), tuple(operators))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 10), st.floats(0.3, 0.7))
def test_plans_of_steps_never_read_a_weight_that_was_changed(seed: int, layers: int, share: float) -> None:
    graph = step(seed, layers)
    whole = verify_sequence(graph, [one.name for one in graph.operators])
    try:
        found = recompute(graph, int(share * whole), work=30_000_000)
    except BudgetTooSmall:
        return
    verify_sequence(graph, found.order, int(share * whole))
