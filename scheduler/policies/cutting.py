"""Several launches, where one would not be resident or would be slower: each has workers and kernels of its own.

Cuts are tried where the graph is narrow, so that nothing is lost but the cost of a launch; where it is narrow nowhere,
at some of its levels.
"""

from __future__ import annotations

from scheduler.policies.blocks import search
from scheduler.policies.emit import Plan
from scheduler.policies.parts import parts
from scheduler.policies.placing import place
from scheduler.policies.problem import Problem
from scheduler.policies.search import Found, improved
from scheduler.policies.selection import allowed_for, upward_ranks
from scheduler.policies.waves import levels

MOST_PARTS = 24
LONGEST = 8  # parts in one launch that are tried, and all
FOR_PARTS, FOR_LAUNCHES = 0.7, 0.3  # of all tries


def cutting(problem: Problem, tries: int) -> Plan | None:
    """The cheapest sequence of launches over consecutive parts; None where a region has no room in any launch.

    `tries` counts blocks placed by the search in parts and, once they are joined, in launches.
    """
    pieces = _pieces(problem)
    best: list[Found] = []
    for part in pieces:
        found = search(problem, part, int(FOR_PARTS * tries / len(pieces)) if len(part) > 1 else 0)
        if found is None:
            return None
        best.append(found)
    joined = {(number, number + 1): found for number, found in enumerate(best)}
    for begin in range(len(pieces)):
        for end in range(begin + 2, min(len(pieces), begin + LONGEST) + 1):
            found = _joined(problem, best[begin:end])
            if found is not None:
                joined[begin, end] = found
    cost = [0.0] + [float("inf")] * len(pieces)
    came = [0] * (len(pieces) + 1)
    for (begin, end), found in sorted(joined.items(), key=lambda one: one[0][1]):
        total = cost[begin] + problem.device.launch_ns + found.makespan
        if total < cost[end]:
            cost[end], came[end] = total, begin
    launches: list[Found] = []
    end = len(pieces)
    while end:
        launches.append(joined[came[end], end])
        end = came[end]
    launches.reverse()
    whole = cost[-1] or 1.0  # regions without bytes and flops take no time at all
    refined = [improved(problem, one, int(FOR_LAUNCHES * tries * one.makespan / whole)) for one in launches]
    choice = [numbers[0] for numbers in problem.fitting]
    for one in refined:
        for region in one.placed.regions:
            choice[region] = one.choice[region]
    return Plan("cutting", tuple(choice), tuple(one.placed for one in refined))


def _pieces(problem: Problem) -> list[list[int]]:
    """Narrow parts, neighbours joined while they are too many; or as many slices of levels."""
    found = parts(problem)
    if len(found) < 2:
        found = levels(problem)
    size = -(-len(found) // MOST_PARTS)
    return [[region for part in found[at : at + size] for region in part] for at in range(0, len(found), size)]


def _joined(problem: Problem, some: list[Found]) -> Found | None:
    """The parts as one launch, with the kernels that they had where these leave room."""
    regions = [region for one in some for region in one.placed.regions]
    wanted = {region: one.choice[region] for one in some for region in one.placed.regions}
    best: Found | None = None
    ways = {(one.placed.per_multiprocessor, one.placed.packed, one.placed.striped) for one in some}
    for per, packed, striped in sorted(ways):
        allowed = allowed_for(problem, per, regions)
        if allowed is None:
            continue
        choice = [numbers[0] for numbers in allowed]
        for region, number in wanted.items():
            choice[region] = min(allowed[region], key=lambda one, number=number: abs(one - number))  # type: ignore[misc]
        ranks = upward_ranks(problem, tuple(choice), per, alone=False)
        placed = place(problem, tuple(choice), regions, per, ranks, packed, striped)
        if best is None or placed.makespan < best.makespan:
            best = Found(tuple(choice), ranks, placed)
    return best
