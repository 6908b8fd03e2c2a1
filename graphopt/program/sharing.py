"""The order in which several workers claim runs, and the memory that goes with it.

Where a program is a chain, the order of one worker serves. Where branches lie side by side, runs that need nothing of
one another follow each other in the list, so that nobody waits long; and buffers whose bytes are taken by another one
at once would make its writer wait. So several plans are made, from one without any more memory to one in which no
buffer waits for another, each is simulated, and the fastest is taken, or the fastest within a budget.

List scheduling by the longest way to the end (Hu, 1961; Graham, 1969). Times are estimates from flops and bytes: they
order runs and choose among plans, and are told to nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.memory.plan import PACK_WORK
from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from graphopt.program.ticketed import needs_of, ticketed
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT, Place, Run, Ticketed
from memplan import problem as memory
from memplan.packing.solve import solve
from memplan.verify.packing import verify

WORKERS = 4  # that a plan for any number is chosen for
FEW = 2  # whose order it has
WORTH = 0.9  # of one worker's time may two take, or one does it alone
GAIN = 1.03  # so much faster must a plan with more memory be
SLACKS = (0, 2, 8, 32)  # claims for which a dead buffer's bytes are left alone


@dataclass(frozen=True, slots=True)
class Shared:
    """A plan: the program, its estimated time with `WORKERS` workers."""

    program: Ticketed
    nanoseconds: float
    slack: int | None  # claims for which a dead buffer's bytes are left alone; None: order and memory of one worker


def plan_shared(
    lowered: Lowered, alone: Sequence[Run], arena_bytes: int, budget: int | None = None, costs: Costs = ESTIMATED
) -> Ticketed | None:
    """The runs of a listing for several workers; `alone` are those of one, with an arena of `arena_bytes`.

    The fastest by estimate whose arena is at most `budget`; the arena of one worker is always kept to by one plan.
    None where a program is so short, or so much of a chain of single blocks, that two workers gain nothing by it.
    """
    plans = shared_plans(lowered, alone, arena_bytes, costs)
    fitting = [plan for plan in plans if budget is None or plan.program.arena_bytes <= budget] or plans[:1]
    fastest = min(plan.nanoseconds for plan in fitting)
    near = [plan for plan in fitting if plan.nanoseconds <= GAIN * fastest]
    chosen = min(near, key=lambda plan: plan.program.arena_bytes).program
    several = shared_kernels(lowered)
    times = list(map(costs.time, several))
    claims = [run for run, _ in chosen.waits]
    by_two = _simulated(times, several, claims, dict(chosen.waits), costs.wait_ns, workers=2)
    return chosen if by_two + costs.wake_ns < WORTH * sum(times) else None


def shared_kernels(lowered: Lowered) -> list[Kernel]:
    """The kernel of each region that several workers share."""
    return [region.kernel.shared or region.kernel for region in lowered.regions]


def shared_plans(lowered: Lowered, alone: Sequence[Run], arena_bytes: int, costs: Costs = ESTIMATED) -> list[Shared]:
    """Plans from the memory of one worker to one in which no buffer waits for another's bytes.

    Only the first where branches gain nothing by more memory.
    """
    several = shared_kernels(lowered)
    kernels = {kernel.name: kernel for kernel in several}
    runs = [replace(run, kernel=kernel.name) for run, kernel in zip(alone, several, strict=True)]
    times = list(map(costs.time, several))
    given = range(len(runs))
    plans = [_plan(runs, kernels, times, given, arena_bytes, None, costs.wait_ns)]
    free = needs_of(apart(lowered, runs), kernels, given)
    order = _list_order(times, [kernel.blocks for kernel in several], free, costs.wait_ns)
    if _simulated(times, several, order, free, costs.wait_ns) * GAIN < plans[0].nanoseconds:
        for slack in (*SLACKS, len(runs)):
            placed, size = _packed(lowered, runs, order, slack)
            plans.append(_plan(placed, kernels, times, order, size, slack, costs.wait_ns))
    return plans


def _plan(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], times: Sequence[float], order: Sequence[int], arena: int,
    slack: int | None, wait_ns: float,
) -> Shared:  # fmt: skip
    program = ticketed(runs, kernels, order, arena)
    needs = dict(program.waits)
    several = [kernels[run.kernel] for run in runs]
    return Shared(program, _simulated(times, several, order, needs, wait_ns), slack)


def apart(lowered: Lowered, runs: Sequence[Run]) -> list[Run]:
    """The runs with every temporary in bytes of its own: what they need of one another without any reuse."""
    starts, top = {}, 0
    for one in lowered.temporaries:
        starts[one] = top
        top += one.size
    return _placed(lowered, runs, starts)


def _placed(lowered: Lowered, runs: Sequence[Run], starts: Mapping[Buffer, int]) -> list[Run]:
    found = []
    for region, run in zip(lowered.regions, runs, strict=True):
        places = (
            Place("arena", starts[given.buffer] + given.offset) if given.buffer in starts else place
            for given, place in zip(region.places, run.operands, strict=True)
        )
        found.append(replace(run, operands=tuple(places)))
    return found


def _packed(lowered: Lowered, runs: Sequence[Run], order: Sequence[int], slack: int) -> tuple[list[Run], int]:
    """The runs with temporaries that keep their bytes for `slack` claims after their last use, and the arena."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for claim, run in enumerate(order):
        for place in lowered.regions[run].places:
            first.setdefault(place.buffer, claim)
            last[place.buffer] = claim
    names = distinct_names(lowered.temporaries)
    problem = memory.MemoryProblem(
        tuple(
            memory.Buffer(name, one.size, first[one], min(last[one] + 1 + slack, len(runs)))
            for one, name in names.items()
        ),
        ALIGNMENT,
    )
    plan = solve(problem, work=PACK_WORK)
    verify(problem, plan)
    return _placed(lowered, runs, {one: plan.offsets[name] for one, name in names.items()}), plan.arena_size


def _list_order(
    times: Sequence[float], blocks: Sequence[int], needs: Mapping[int, Sequence[int]], wait_ns: float
) -> list[int]:
    """The order in which two workers begin the runs, the one with the longest way to the end first.

    Whoever comes to a run that is not ready waits there, so the order of few workers serves more of them better than
    the other way round.
    """
    followers: list[list[int]] = [[] for _ in times]
    for run, before in needs.items():
        for one in before:
            followers[one].append(run)
    length = [0.0] * len(times)
    for run in reversed(range(len(times))):
        length[run] = times[run] / blocks[run] + wait_ns + max((length[one] for one in followers[run]), default=0.0)
    missing = [len(needs[run]) for run in range(len(times))]
    ready = [(-length[run], run) for run in range(len(times)) if not missing[run]]
    heapq.heapify(ready)
    waiting: list[tuple[float, int]] = []  # when a run's needs have ended, and the run
    workers, order, now = [0.0] * FEW, [], 0.0
    while ready or waiting:
        while waiting and (waiting[0][0] <= now or not ready):
            now = max(now, waiting[0][0])
            run = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (-length[run], run))
        run = heapq.heappop(ready)[1]
        order.append(run)
        each, ended = times[run] / blocks[run], 0.0
        for _ in range(blocks[run]):
            start = max(heapq.heappop(workers), now)
            ended = max(ended, start + each)
            heapq.heappush(workers, start + each)
        for one in followers[run]:
            missing[one] -= 1
            if not missing[one]:
                heapq.heappush(waiting, (ended + wait_ns, one))
        now = max(now, workers[0])
    return order


def _simulated(
    times: Sequence[float],
    kernels: Sequence[Kernel],
    order: Sequence[int],
    needs: Mapping[int, Sequence[int]],
    wait_ns: float,
    workers: int = WORKERS,
) -> float:
    """Nanoseconds with workers that go through the claims in order."""
    free, ended = [0.0] * workers, [0.0] * len(times)
    for run in order:
        ready = max((ended[one] + wait_ns for one in needs[run]), default=0.0)
        parts = min(kernels[run].blocks, 4 * workers)
        each = times[run] / parts
        for _ in range(parts):
            start = max(heapq.heappop(free), ready)
            ended[run] = max(ended[run], start + each)
            heapq.heappush(free, start + each)
    return max(ended, default=0.0)
