"""AutoTM's networks: as large as published, executable, and slower with less of the fast tier."""

from __future__ import annotations

import pytest

from memplan.lifetimes import memory_problem
from memplan.tiers.machine import machine
from memplan.tiers.placement import placement
from memplan.tiers.plan import Method, all_fast_time, plan_tiers
from memplan.verify.tiers import verify_tiers
from models.training_networks import BATCHES, training_graph

PEAK = 3e12  # flops per second


@pytest.mark.parametrize(
    ("name", "parameters", "operations"),
    [  # millions; billions of multiplications and additions of one image, forward
        ("inception_v4", 42.7, 12.3),
        ("resnet200", 64.7, 15.1),
        ("vgg19", 143.7, 19.6),
        ("densenet264", 33.3, 5.8),
    ],
)
def test_networks_have_the_published_size(name: str, parameters: float, operations: float) -> None:
    graph = training_graph(name, PEAK, batch=1)
    weights = sum(value.size for value in graph.values if value.kind == "constant")
    assert weights / 4e6 == pytest.approx(parameters, rel=0.01)
    products = [operator for operator in graph.operators if operator.name.startswith(("conv", "linear"))]
    convolutions = sum(one.time for one in products if not one.name.endswith(".backward"))
    backward = sum(one.time for one in products if one.name.endswith(".backward"))
    assert convolutions / 1e9 * PEAK / 2e9 == pytest.approx(operations, rel=0.02)
    assert backward == pytest.approx(2 * convolutions), "gradients of inputs and of weights"


def test_batches_are_autotm_s() -> None:
    assert BATCHES == {"inception_v4": 1024, "resnet200": 512, "vgg19": 2048, "densenet264": 512}
    graph = training_graph("resnet200", PEAK)
    assert memory_problem(graph).buffers
    assert max(value.size for value in graph.values) == 512 * 64 * 112 * 112 * 4


def test_a_fifth_of_the_memory_costs_less_than_first_touch_does() -> None:
    graph = training_graph("vgg19", PEAK)
    target = machine("dram+pmem")
    peak = max(placement(graph, target).live())
    target = target.with_capacity("dram", peak // 5)
    times = {}
    methods: tuple[Method, ...] = ("heuristic", "first-touch")
    for method in methods:
        plan = plan_tiers(graph, target, mode="async", method=method)
        verify_tiers(graph, plan.memory, plan.capacities, plan.aliases)
        times[method] = plan.time / all_fast_time(graph, target)
    assert 1.0 < times["heuristic"] < 1.2 < times["first-touch"]
