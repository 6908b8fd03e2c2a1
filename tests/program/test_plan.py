"""Schedule and memory together: what shares bytes is waited for, whichever way is cheaper."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.errors import BudgetNotKept
from graphopt.model.load import load
from graphopt.program.plan import plan_together
from graphopt.program.tasks import Tasks, tasks_of
from kernels.target import host
from memplan.accesses import Accesses
from memplan.verify.concurrent import verify_concurrent
from scheduler.device import Device, cpu, device
from scheduler.verify.program import verify
from tests import support

# Two branches of two products each, joined at the end.
TEXT = """g (float[64,64] x) => (float[64,64] y) {
    a = MatMul(x, w) b = Softmax(a) c = MatMul(b, w)
    d = MatMul(x, v) e = Softmax(d) f = MatMul(e, v)
    y = Add(c, f)
}"""


def tasks(where: Device, text: str = TEXT) -> Tasks:
    draw = np.random.default_rng(0)
    weights = {name: draw.standard_normal((64, 64)).astype(np.float32) for name in ("w", "v")}
    return tasks_of(load(support.model(text, **weights)), where, host(), "g")


def test_regions_are_those_of_lowering_and_need_what_they_read() -> None:
    found = tasks(cpu(2))
    assert found.lowered and len(found.graph.regions) == 6
    found.graph.check()
    sources = {need.target: set() for need in found.graph.needs}
    for need in found.graph.needs:
        sources[need.target].add(need.source)
    last = found.graph.regions[-1].name
    assert len(sources[last]) == 2, "the last product adds the other branch in its epilogue"
    assert set(found.sizes) == {buffer for written in found.writes.values() for buffer in written}


def test_an_operator_without_a_kernel_makes_groups_of_nodes() -> None:
    found = tasks(cpu(2), TEXT.replace("y = Add(c, f)", "g = SequenceConstruct(c) h = SequenceLength(g) y = Add(c, f)"))
    assert not found.lowered
    found.graph.check()


@pytest.mark.parametrize("where", ["cpu:2", "v100"])
def test_every_way_is_safe_and_the_cheapest_comes_first(where: str) -> None:
    place = device(where)
    found = tasks(place)
    ways = plan_together(found, place, work=3_000_000)
    assert {way.way for way in ways} == {"forbid", "wait"}
    fastest = min(way.scheduled.makespan for way in ways)
    assert ways[0].scheduled.makespan <= 1.005 * fastest
    for way in ways:
        verify(way.scheduled.graph, way.scheduled.program, place)
        before = tuple((need.source, need.target) for need in way.scheduled.graph.needs)
        if all(name == merged for name, merged in way.scheduled.merged.items()):
            order = way.scheduled.graph.order()
            verify_concurrent(found.sizes, way.packing, Accesses(order, before, found.reads, found.writes))


def test_less_memory_is_had_for_waits() -> None:
    place = cpu(2)
    ways = {way.way: way for way in plan_together(tasks(place), place, work=3_000_000)}
    assert ways["wait"].packing.arena_size <= ways["forbid"].packing.arena_size


def test_within_a_budget_bytes_are_left_alone_as_long_as_there_is_room() -> None:
    """Four branches: each 16 KiB more let a writer find its bytes free for one region longer, and wait less."""
    place = cpu(2)
    found = tasks(
        place,
        TEXT.replace("y = Add(c, f)", """g = MatMul(x, v) h = Softmax(g) i = MatMul(h, w)
            j = MatMul(x, w) k = Relu(j) l = MatMul(k, v) m = Add(c, f) n = Add(i, l) y = Mul(m, n)"""),
    )  # fmt: skip
    told, waits = [], []
    for budget in range(80 << 10, 160 << 10, 16 << 10):
        way, *others = plan_together(found, place, work=300_000, memory_budget=budget)
        assert way.packing.arena_size == budget and all(budget <= one.packing.arena_size for one in others)
        graph = way.scheduled.graph
        before = tuple((need.source, need.target) for need in graph.needs)
        verify_concurrent(found.sizes, way.packing, Accesses(graph.order(), before, found.reads, found.writes))
        told.append(way.way)
        waits.append(way.added_waits)
    free = [f"bytes free after {count}" for count in ("1 region", "2 regions", "3 regions")]
    assert told == ["wait", *free, "forbid"]
    assert waits == sorted(waits, reverse=True) and waits[-1] == 0 < waits[0]
    with pytest.raises(BudgetNotKept, match="the least arena that was found takes 80 KiB"):
        plan_together(found, place, work=300_000, memory_budget=(80 << 10) - 1)
