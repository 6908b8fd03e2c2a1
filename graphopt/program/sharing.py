"""The list that several workers go through, and the memory that goes with it.

Where a program is a chain, the order of one worker serves. Where branches lie side by side, runs that need nothing of
one another follow each other in the list, so that nobody waits long; runs that are too short to share are one worker's,
in chains (scheduler/chains.py); and buffers whose bytes are taken by another one at once would make its writer wait. So
several plans are made, from one without any more memory to one in which no buffer waits for another, each is simulated,
and the fastest is taken, or the fastest within a budget.

Times are estimates from flops and bytes: they order runs and choose among plans, and are told to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.program.arena import apart, packed
from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.handing import handed
from graphopt.program.regions.region import Lowered
from graphopt.program.ticketed import needs_of, ticketed
from kernels.kernel import Kernel
from kernels.listing import Run, Ticketed
from scheduler.chain_bound import least
from scheduler.chains import Chain, Runs, chained, simulated

WORKERS = 4  # that a plan for any number is chosen for
WORTH = 0.9  # of one worker's time may two take, or one does it alone
GAIN = 1.01  # so much faster must a list with chains be
DOUBLED = 0.03  # a plan with twice the memory must be faster by the factor of two to this power
SLACKS = (0, 2, 8, 32)  # claims for which a dead buffer's bytes are left alone
EVALUATIONS = 8000  # lists that the search for chains simulates at most


@dataclass(frozen=True, slots=True)
class Shared:
    """A plan: the program, its estimated time with the workers that it is for."""

    program: Ticketed
    nanoseconds: float
    slack: int | None  # claims for which a dead buffer's bytes are left alone; None: order and memory of one worker


def plan_shared(
    lowered: Lowered, alone: Sequence[Run], arena_bytes: int, budget: int | None = None, costs: Costs = ESTIMATED,
    workers: int = WORKERS,
) -> Ticketed | None:  # fmt: skip
    """The runs of a listing for several workers; `alone` are those of one, with an arena of `arena_bytes`.

    The fastest by estimate for so many workers whose arena is at most `budget`, where its memory pays; the arena of one
    worker is always kept to by one plan. None where a program is so short, or so much of a chain of single blocks, that
    two workers gain nothing by it.
    """
    plans = shared_plans(lowered, alone, arena_bytes, costs, workers)
    fitting = [plan for plan in plans if budget is None or plan.program.arena_bytes <= budget] or plans[:1]
    chosen = min(fitting, key=lambda plan: plan.nanoseconds * max(1, plan.program.arena_bytes) ** DOUBLED).program
    by_two = _Planner(lowered, alone, costs, workers=2).time(chosen)
    return chosen if by_two + costs.wake_ns < WORTH * sum(costs.time(one.kernel) for one in lowered.regions) else None


def shared_kernels(lowered: Lowered) -> list[Kernel]:
    """The kernel of each region whose blocks several workers share."""
    return [region.kernel.shared or region.kernel for region in lowered.regions]


def kernels_of(lowered: Lowered, runs: Sequence[Run]) -> list[Kernel]:
    """The kernel of each run: its region's own one, or that which several workers share."""
    pairs = zip(lowered.regions, shared_kernels(lowered), runs, strict=True)
    return [shared if run.kernel == shared.name else region.kernel for region, shared, run in pairs]


def shared_plans(
    lowered: Lowered, alone: Sequence[Run], arena_bytes: int, costs: Costs = ESTIMATED, workers: int = WORKERS
) -> list[Shared]:
    """Plans from the memory of one worker to one in which no buffer waits for another's bytes.

    Only the first where branches gain nothing by more memory.
    """
    planner = _Planner(lowered, alone, costs, workers)
    given = [Chain((run,)) for run in range(len(alone))]
    plans = [planner.plan(given, planner.runs(given), arena_bytes, None)]
    chains, nanoseconds = planner.search(plans[0].nanoseconds)
    if nanoseconds * GAIN < plans[0].nanoseconds:
        runs = planner.runs(chains)
        for slack in (*SLACKS, len(runs)):
            placed, size = packed(lowered, runs, chains, slack)
            plans.append(planner.plan(chains, placed, size, slack))
    return plans


class _Planner:
    """The runs of a program with their estimated times, on so many workers."""

    def __init__(self, lowered: Lowered, alone: Sequence[Run], costs: Costs, workers: int) -> None:
        self._lowered, self._alone, self._wait, self._workers = lowered, alone, costs.wait_ns, workers
        self._own, self._several = [region.kernel for region in lowered.regions], shared_kernels(lowered)
        self._kernels = {kernel.name: kernel for kernel in (*self._own, *self._several)}
        read = handed(lowered, self._own)
        crossing = [costs.crossing([size for _, size in some], workers) for some in read]
        self._shared = [
            costs.time(kernel) + costs.again(kernel, workers) + more
            for kernel, more in zip(self._several, crossing, strict=True)
        ]
        self._whole = [costs.time(kernel) + more for kernel, more in zip(self._own, crossing, strict=True)]
        self._saved: dict[tuple[int, int], float] = {}
        for run, some in enumerate(read):
            for maker, size in some:
                if maker is not None:
                    before = self._saved.get((maker, run), 0.0)
                    self._saved[maker, run] = before + costs.crossing([size], workers)

    def runs(self, chains: Sequence[Chain]) -> list[Run]:
        """The runs with their own kernels where one worker has them whole, with those that are shared elsewhere."""
        found = [replace(run, kernel=kernel.name) for run, kernel in zip(self._alone, self._several, strict=True)]
        for chain in chains:
            for run in chain.runs if chain.whole else ():
                found[run] = self._alone[run]
        return found

    def search(self, than: float) -> tuple[list[Chain], float]:
        """The fastest list that was found, where no bytes are used again, and its time.

        None is looked for where it cannot be faster than so many nanoseconds by GAIN; then there are no chains.
        """
        shared = self.runs(())
        timed = self._timed(needs_of(apart(self._lowered, shared), self._kernels, range(len(shared))))
        if least(timed, self._workers, self._wait, self._wait / 2) * GAIN >= than:
            return [], than
        return chained(timed, self._workers, self._wait, self._wait / 2, EVALUATIONS)

    def plan(self, chains: Sequence[Chain], runs: Sequence[Run], arena: int, slack: int | None) -> Shared:
        """The program of runs at these places."""
        program = ticketed(runs, self._kernels, chains, arena)
        return Shared(program, self.time(program), slack)

    def time(self, program: Ticketed) -> float:
        """Nanoseconds by estimate."""
        chains = chains_of(program)
        needs = {run: list(before) for run, before in program.waits}
        for chain in chains:
            for one, run in zip(chain.runs, chain.runs[1:], strict=False):
                needs[run].append(one)
        return simulated(self._timed(needs), chains, self._workers, self._wait, self._wait / 2)

    def _timed(self, needs: Mapping[int, Sequence[int]]) -> Runs:
        blocks = [kernel.blocks for kernel in self._several]
        return Runs.of(blocks, self._shared, self._whole, needs, self._saved)


def chains_of(program: Ticketed) -> list[Chain]:
    """The chains that a program's steps are."""
    found: list[list[int]] = []
    following, whole = program.following, program.whole
    for run, _ in program.waits:
        if run in following:
            found[-1].append(run)
        else:
            found.append([run])
    return [Chain(tuple(runs), runs[0] in whole) for runs in found]
