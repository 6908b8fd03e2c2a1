"""The list that blocks of a GPU go through: runs by the longest way to the end, and memory that makes nobody wait.

It is ticketed, for any number of blocks; and pinned, for as many as a device has room for at once, each with a list of
its own. The scheduler's verifier proves both before anything is written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.program.arena import apart, packed
from graphopt.program.lifetimes import planned
from graphopt.program.listing import Linked
from graphopt.program.regions.buffer import Role
from graphopt.program.regions.region import Lowered
from graphopt.program.ticketed import needs_of, ticketed
from graphopt.program.weights import Weights, bytes_of
from kernels.kernel import Kernel
from kernels.listing import Listing, Place, Run, Space, Ticketed
from kernels.ptx.program import resident_blocks
from kernels.ptx.tasks.table import block_time, nanoseconds
from kernels.ptx.tasks.threads import THREADS
from kernels.ptx.tasks.touched import TouchedBytes, touched
from scheduler import program as programs
from scheduler import tasks
from scheduler.chains import Chain
from scheduler.device import Device
from scheduler.pinning import Lists, Pinning, pinned
from scheduler.verify.program import verify

SLACK = 16  # claims for which a dead buffer's bytes are left alone: as many runs may be under way
WAIT_NS = 800.0  # from the end of a run's last block to the begin of who needs it, as an H100 was measured to take
_SPACES: Mapping[Role, Space] = {
    "input": "input", "output": "output", "constant": "weights", "temporary": "arena", "sizes": "sizes"
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class LinkedTasks(Linked):
    """A program of tasks, and by worker the blocks of each where it is pinned."""

    lists: Lists = ()
    estimate_ns: float = 0.0  # of the pinned program, by estimated times
    bytes_of: Mapping[str, TouchedBytes] = field(default_factory=dict)  # by kernel


def link_tasks(lowered: Lowered, name: str, *, slack: int = SLACK) -> LinkedTasks:
    """The listing of regions whose kernels are tasks; a dead buffer's bytes are left alone for `slack` claims.

    Raises UnsafeProgram where the scheduler's verifier finds that blocks could hang or read too early.
    """
    weights, arena = Weights(bytes_of(lowered)), planned(lowered)
    offsets = {**weights.add(lowered), **arena.offsets}
    runs = [
        Run(
            region.kernel.name,
            tuple(
                Place(_SPACES[one.buffer.role], offsets.get(one.buffer, 0) + one.offset, one.buffer.argument or 0)
                for one in region.places
            ),
        )
        for region in lowered.regions
    ]
    kernels = {region.kernel.name: region.kernel for region in lowered.regions}
    placing = _Placing(lowered, kernels, [run.kernel for run in runs])
    chains = [Chain((run,)) for run in placing.order(needs_of(apart(lowered, runs), kernels, range(len(runs))))]
    placed, size = packed(lowered, runs, chains, slack)
    steps = ticketed(placed, kernels, chains, size)
    listing = Listing(
        name, lowered.inputs, lowered.outputs, tuple(kernels.values()), tuple(runs), arena.plan.arena_size,
        weights.bytes.size, steps,
    )  # fmt: skip
    pinning = placing.pinned(dict(steps.waits))
    _prove(listing, steps, placing.blocks, pinning.lists, placing.resident)
    return LinkedTasks(
        listing,
        weights.bytes,
        arena.problem,
        arena.plan,
        weights.held,
        None,
        None,
        pinning.lists,
        pinning.end,
        {name: touched(_problem(lowered, name), kernel) for name, kernel in kernels.items()},
    )


class _Placing:
    """Places blocks of runs by estimated times."""

    def __init__(self, lowered: Lowered, kernels: Mapping[str, Kernel], names: Sequence[str]) -> None:
        """`names` of kernels, by run."""
        target = lowered.target
        runs = [(_problem(lowered, name), kernels[name]) for name in names]
        self.blocks = [kernel.blocks for _, kernel in runs]
        self.resident, self._multiprocessors = resident_blocks(list(kernels.values())), target.workers
        self._whole = [nanoseconds(problem, kernel, target) for problem, kernel in runs]
        each = [block_time(problem, kernel, target) for problem, kernel in runs]
        self._times = [(one.busy, one.waiting) for one in each]

    def order(self, needs: Mapping[int, Sequence[int]]) -> list[int]:
        """The runs as they begin where nothing but data is waited for."""
        urgent, found = self._urgent(needs), self.pinned(needs)
        return sorted(urgent, key=found.begins.__getitem__)

    def pinned(self, needs: Mapping[int, Sequence[int]]) -> Pinning:
        """The blocks on all workers that are resident, those of the longest way to the end first."""
        return pinned(
            self.blocks, self._times, needs, self._urgent(needs), self._multiprocessors, self.resident, WAIT_NS
        )

    def _urgent(self, needs: Mapping[int, Sequence[int]]) -> list[int]:
        """The runs by the longest way from each to the end (Hu, 1961), what needs others behind them."""
        ways = [0.0] * len(self.blocks)
        for run in reversed(list(needs)):
            ways[run] += self._whole[run] + WAIT_NS
            for one in needs[run]:
                ways[one] = max(ways[one], ways[run])
        return sorted(needs, key=lambda run: -ways[run])


def _prove(listing: Listing, steps: Ticketed, blocks: Sequence[int], pinned_blocks: Lists, resident: int) -> None:
    """Let the scheduler's verifier decide of both forms."""
    names, count = [f"run{run}" for run in range(len(blocks))], len(pinned_blocks)
    device = Device(
        "GPU", count // resident, 2048, 64, resident, 65536, 233472, 232448, 1024, 128, compute_capability=(9, 0)
    )
    there = [run for run, many in enumerate(blocks) if many]  # others are nothing to wait for
    before = {run: [one for one in some if blocks[one]] for run, some in steps.waits if blocks[run]}
    graph = tasks.TaskGraph(
        listing.name,
        tuple(tasks.Region(names[run], (tasks.Kernel(names[run], blocks[run], (1.0,)),)) for run in there),
        tuple(tasks.Need(names[one], names[run]) for run, some in before.items() for one in some),
    )
    place = {run: number for number, run in enumerate(there)}
    counters = tuple(programs.Counter(names[run], 0, blocks[run]) for run in there)
    waits = {run: tuple(programs.Wait(place[one], blocks[one]) for one in some) for run, some in before.items()}
    items = tuple(
        programs.Item(programs.Run(names[run], block), waits[run]) for run in before for block in range(blocks[run])
    )
    lists: list[tuple[programs.Instruction, ...]] = []
    for some in pinned_blocks:
        steps_of = list[programs.Instruction]()
        for run, block in some:
            steps_of += [*waits[run], programs.Run(names[run], block)]
        lists.append(tuple(steps_of))
    for launch in (
        programs.Ticketed(items, count, counters, THREADS),
        programs.Pinned(tuple(lists), counters, THREADS),
    ):
        verify(graph, programs.Program(graph.name, device.name, {names[run]: 0 for run in there}, (launch,)), device)


def _problem(lowered: Lowered, kernel: str) -> Hashable | None:
    found = lowered.problems.get(kernel)
    return found[1] if found else None
