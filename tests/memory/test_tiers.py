"""A model's tensors over tiers: which lie where, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.errors import OptionError
from graphopt.memory.levers.tier import place, tiers_of
from graphopt.model.load import load
from memplan.plan import Stay
from memplan.problem import Alias
from memplan.tiers.machine import Machine, Tier
from tests import support

# Fast memory holds 128 bytes: two of the values, which take 64 each.
MACHINE = Machine("small", (Tier("fast", 128, 1e11, 1e11), Tier("slow", 1 << 20, 1e9, 1e9)))
# Weights are read once or twice, other values are smaller.
TEXT = "g (float[1,4] x) => (float[1,4] y) { a = MatMul(x, w) b = MatMul(a, v) c = Reshape(b, s) y = MatMul(c, w) }"


def small() -> ir.Model:
    weights = {name: np.ones((4, 4), np.float32) for name in "wv"}
    return load(support.model(TEXT, **weights, s=np.array([1, 4])))


ORDER = ["MatMul:a", "MatMul:b", "Reshape:c", "MatMul:y"]


def test_the_largest_lie_in_fast_memory_and_a_view_where_its_bytes_are() -> None:
    graph, plan = place(small(), ORDER, MACHINE, "static")
    assert [operator.name for operator in graph.operators] == ORDER
    found = tiers_of(plan)
    assert set(found) == {"x", "w", "v", "s", "a", "b", "c", "y"}
    assert {name for name, tier in found.items() if tier == "fast"} == {"w", "v"} and found["c"] == found["b"]


def test_values_that_are_moved_name_their_tiers_in_their_order() -> None:
    _, plan = place(small(), ORDER, MACHINE, "static")
    stays = (Stay("b", "slow", 2, 3), Stay("b", "fast", 1, 2), Stay("b", "slow", 3, 4))
    aliases = {"c": Alias("b"), "d": Alias("c"), "lost": Alias("nowhere")}
    moved = replace(plan, memory=replace(plan.memory, stays=stays), aliases=aliases)
    assert tiers_of(moved) == {"b": "fast, slow", "c": "fast, slow", "d": "fast, slow"}


def test_an_operator_that_runs_again_is_not_placed() -> None:
    with pytest.raises(OptionError, match=r"every operator runs once; leave out the budget"):
        place(small(), [*ORDER[:1], *ORDER], MACHINE, "static")


def test_a_machine_that_tells_its_flops_is_asked() -> None:
    """Three products of 32 flops each take 96,000 ns at a flop in 1,000 ns; reading takes less than one."""
    _, plan = place(small(), ORDER, replace(MACHINE, peak_flops=1e6), "static")
    assert 96_000 <= plan.time < 96_001
