"""Regions of the same kind that do not depend on each other as one region: one kernel, one launch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler.policies.problem import Problem
from scheduler.tasks import Need, Region, TaskGraph


def batched(problem: Problem) -> tuple[TaskGraph, Mapping[str, str]] | None:
    """The task graph with such regions joined, and by region of the given one the region that it is part of.

        a1 -> b1 -> c            a1 -> b1 and 1 more -> c
        a2 -> b2 -> c    -->     a2 -> b1 and 1 more -> c       (where b1 and b2 share a batch key, a1 and a2 do not)

    Joined are regions of one key, the same kernels and the same level, so that no circle can come of it. What needs one
    of them, or is needed by it, needs all of their blocks. None where nothing can be joined.
    """
    groups: dict[tuple[str, int, int], list[int]] = {}
    for number, region in enumerate(problem.graph.regions):
        if region.batch is not None:
            groups.setdefault((region.batch, problem.level[number], problem.kind[number]), []).append(number)
    joined = [members for members in groups.values() if len(members) > 1]
    if not joined:
        return None
    regions = list(problem.graph.regions)
    merged = {region.name: region.name for region in regions}
    taken = set(merged)
    gone: set[int] = set()
    for members in joined:
        first = regions[members[0]]
        name = f"{first.name} and {len(members) - 1} more"
        while name in taken:
            name += "'"
        taken.add(name)
        for member in members:
            merged[problem.graph.regions[member].name] = name
        kernels = tuple(
            msgspec.structs.replace(kernel, blocks=kernel.blocks * len(members)) for kernel in first.kernels
        )
        regions[members[0]] = Region(name, kernels, first.batch)
        gone.update(members[1:])
    needs: dict[tuple[str, str], Need] = {}
    for need in problem.graph.needs:
        source, target = merged[need.source], merged[need.target]
        whole = (source, target) != (need.source, need.target) or need.pattern == "all"
        before = needs.get((source, target))
        reuse = need.reuse and (before is None or before.reuse)
        if whole or (before is not None and before.pattern == "all"):
            needs[source, target] = Need(source, target, reuse=reuse)
        else:
            halo = max(need.halo, before.halo if before is not None else 0.0)
            needs[source, target] = Need(source, target, "near", halo, reuse)
    kept = tuple(region for number, region in enumerate(regions) if number not in gone)
    return TaskGraph(problem.graph.name, kept, tuple(needs.values())), merged
