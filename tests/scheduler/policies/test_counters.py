"""The counters of a placement: they cover what is needed, in one wait or two, and tell what they may."""

from __future__ import annotations

import networkx
import numpy as np
from hypothesis import given, settings

from scheduler.device import cpu
from scheduler.policies.counters import Counters, counters_of, readers_of, stripes_read
from scheduler.policies.problem import problem_of
from scheduler.tasks import TaskGraph, needed_blocks
from tests.scheduler.policies.graphs import near, task_graphs


def made(graph: TaskGraph) -> tuple[Counters, list[int]]:
    """With stripes of all regions; and the blocks of each."""
    blocks = [region.kernels[0].blocks for region in graph.regions]
    return counters_of(problem_of(graph, cpu(4)), range(len(blocks)), np.array(blocks), striped=0.0), blocks


@settings(max_examples=100, deadline=None)
@given(task_graphs(6, 12))
def test_counters_cover_what_is_needed(graph: TaskGraph) -> None:
    found, blocks = made(graph)
    number = {region.name: at for at, region in enumerate(graph.regions)}
    for at, (source, target) in enumerate(zip(found.source.tolist(), found.target.tolist(), strict=True)):
        if not found.near[at]:
            whole = found.whole[source]
            assert (found.begin[whole], found.end[whole]) == (found.first[source], found.first[source + 1])
            continue
        (need,) = (
            one for one in graph.needs if (number[one.source], number[one.target]) == (source, target)
        )  # fmt: skip
        for block in range(blocks[target]):
            sizes = blocks[target], blocks[source], need.halo, int(found.length[source])
            low, high = stripes_read(block, *sizes)
            assert high - low <= 2
            begin, end = (
                int(found.begin[found.stripes[source] + low] - found.first[source]),
                int(found.end[found.stripes[source] + high - 1] - found.first[source]),
            )
            some = needed_blocks(need, blocks[source], blocks[target], block)
            assert begin <= some.start and some.stop <= end
            for stripe in range(-(-blocks[source] // sizes[3])):
                first, last = readers_of(stripe, blocks[source], blocks[target], need.halo, sizes[3])
                assert (first <= block < last) == (low <= stripe < high)


@settings(max_examples=100, deadline=None)
@given(task_graphs(6, 6))
def test_what_a_block_tells_is_what_it_comes_after_whole(graph: TaskGraph) -> None:
    """By blocks: a region is told if every block of it comes before any block of the other, whichever that is."""
    found, blocks = made(graph)
    order: networkx.DiGraph = networkx.DiGraph()
    order.add_nodes_from(range(int(found.first[-1])))
    for at, (source, target) in enumerate(zip(found.source.tolist(), found.target.tolist(), strict=True)):
        for block in range(blocks[target]):
            low, high = int(found.first[source]), int(found.first[source + 1])
            if found.near[at]:
                stripes = stripes_read(
                    block, blocks[target], blocks[source], float(found.halo[at]), int(found.length[source])
                )
                low, high = (
                    int(found.begin[found.stripes[source] + stripes[0]]),
                    int(found.end[found.stripes[source] + stripes[1] - 1]),
                )
            order.add_edges_from((one, int(found.first[target]) + block) for one in range(low, high))
    for region in range(len(blocks)):
        for other in range(len(blocks)):
            if int(found.implied[region, other >> 6]) >> (other & 63) & 1:
                for block in range(int(found.first[region]), int(found.first[region + 1])):
                    before = networkx.ancestors(order, block)
                    assert set(range(int(found.first[other]), int(found.first[other + 1]))) <= before


def test_a_part_is_a_stripe() -> None:
    """A block that reads n blocks of twelve has stripes of n - 1, so that two suffice; one that reads most, none."""
    for halo, length in ((0.0, 1), (0.1, 4), (0.4, 0)):
        found = counters_of(problem_of(near(12, halo), cpu(12)), (0, 1), np.array([12, 12]), striped=0.0)
        assert found.length.tolist() == [length, 0] and found.near.tolist() == [length > 0]
        assert sum(found.end - found.begin) == 12 and found.whole[0] == (-1 if length else 0)
    found = counters_of(problem_of(near(12, 0.1), cpu(12)), (0, 1), np.array([12, 12]), striped=13.0)
    assert found.length.tolist() == [0, 0], "and none where they are few"
