"""Parts of a graph: what no order of their operators can do without."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.graph import Graph, Operator, Value
from memplan.ordering.arrays import arrays_of
from memplan.ordering.part import floor_of, part_of
from memplan.ordering.profile import profile
from tests.memplan.ordering.test_order import random_graph


def test_the_floor_is_what_stays_beside_what_the_largest_operator_touches() -> None:
    """`x` is read behind the part too, so 4 bytes stay; the first operator reads 2 beside them, and makes 8."""
    values = (
        Value("x", 4, "input"), Value("y", 2, "input"), Value("z", 8), Value("small", 1), Value("end", 1, "output"),
    )  # fmt: skip
    operators = (
        Operator("wide", ("x", "y"), ("z",)),
        Operator("narrow", ("z",), ("small",)),
        Operator("last", ("small", "x"), ("end",)),
    )
    arrays, none = arrays_of(Graph(values, operators)), np.zeros(3, np.bool_)
    assert floor_of(arrays, np.array([0, 1]), none, 6) == 4 + 2 + 8


@pytest.mark.parametrize("seed", range(20))
def test_a_part_has_the_floor_that_is_known_without_its_sets(seed: int) -> None:
    arrays = arrays_of(random_graph(seed, 24, density=0.2))
    order = np.arange(arrays.count, dtype=np.int64)
    needed, lives = profile(arrays, order)
    ran = np.zeros(arrays.count, np.bool_)
    for first, last in ((0, 7), (7, 8), (8, 24)):
        given = (arrays, order[first:last], ran, int(lives[first]))
        assert part_of(*given).floor == floor_of(*given) <= needed[first:last].max()
        ran[first:last] = True
