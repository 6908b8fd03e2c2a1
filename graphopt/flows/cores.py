"""`schedule` for the cores of a processor: the program that `compile` writes, simulated, and measured beside it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered, OptionError
from graphopt.flows.asked import optimized
from graphopt.flows.run import drawn_inputs
from graphopt.memory.share import Budget
from graphopt.model.text import Progress, several
from graphopt.program import coplaced
from graphopt.program.costs import Costs
from graphopt.program.deploy.session import Program
from graphopt.program.listing import Linked
from graphopt.program.make import make_listing
from graphopt.program.plan import Together
from graphopt.program.regions.region import Lowered
from graphopt.program.sharing import kernels_of, shared_plans
from graphopt.program.tasks import Tasks
from graphopt.program.tuning import Tuning
from kernels.kernel import Kernel
from kernels.listing import Listing, Ticketed
from kernels.llvm.load import ObjectCache
from kernels.pool import SPIN_NS
from kernels.target import Target, why_not_here
from scheduler.device import Device
from scheduler.policies.choose import Scheduled

Floats = npt.NDArray[np.float64]

ROUNDS = 15  # calls of each side, by turns
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class OnCores:
    """What compile writes as a schedule, and its alternatives."""

    tasks: Tasks
    ways: tuple[Together, ...]  # the one that is taken first
    measured: Mapping[str, float]  # nanoseconds of whole calls by policy; empty where nothing was run
    notes: tuple[str, ...]


def on_cores(
    model: ir.Model, device: Device, target: Target, *, policy: str, memory_budget: Budget | None, measured: bool,
    costs: Costs, tuning: Tuning | None, progress: Progress,
) -> OnCores | None:  # fmt: skip
    """The programs of a model whose dims are all numbers; None where an operator has no kernel.

    Raises OptionError for a policy that is not of `coplaced.POLICIES`, and for a budget that is not kept.
    """
    if policy not in coplaced.POLICIES:
        raise OptionError(
            f"the policy '{policy}' is for devices without kernels of ours; a program for CPU workers is placed by "
            f"{', '.join(coplaced.POLICIES)}."
        )
    progress("optimizing")
    work = optimized(model)
    progress("making kernels")
    try:
        lowered, linked = make_listing(
            work, target, "model", False, memory_budget, device.multiprocessors, costs, tuning
        )
    except NotLowered:
        return None
    device = replace(device, signal_ns=costs.wait_ns, wait_ns=0.0)  # what it costs a worker to look is in it
    programs = coplaced.programs_of(lowered, linked)
    together = coplaced.TAKEN in programs
    wanted = (coplaced.TAKEN if together else coplaced.ALONE) if policy == "best" else policy
    if wanted not in programs:
        raise OptionError(
            "two workers gain nothing by this program, so that nothing is co-placed; take another policy."
        )
    clocked: Mapping[str, float] = {}
    sides = {name: steps for name, steps in programs.items() if name != coplaced.WAVES}  # which runs the same kernels
    times = {name: list(map(costs.time, kernels_of(lowered, steps.runs))) for name, steps in sides.items()}
    measured = measured and why_not_here(target) is None
    if measured:
        with tempfile.TemporaryDirectory() as folder:
            progress("measuring kernels")
            has_cores = device.multiprocessors <= len(os.sched_getaffinity(0))
            times, clocked = _Runner(lowered, linked, target, Path(folder)).measure(
                sides, programs if has_cores else {}, device.multiprocessors
            )
    timed = _Timed(lowered, sides, times, costs, device.multiprocessors if measured else 1)
    progress("simulating")
    bases, made = {}, {}
    for name, steps in programs.items():
        bases[name] = coplaced.tasks_of_program(lowered, linked, *timed.kernels(name, steps))
        made[name] = coplaced.scheduled(bases[name], steps, name, device)
    taken = replace(made[wanted], figures={name: one.makespan for name, one in made.items()})
    ways = _ways(lowered, linked, bases[wanted], taken, programs[wanted], device, costs, timed)
    return OnCores(bases[wanted], ways, clocked, _notes(device, measured, clocked, costs))


class _Timed:
    """What runs take: each with the kernel that a program has for it, and with what it reads of other workers."""

    def __init__(
        self, lowered: Lowered, sides: Mapping[str, Ticketed], times: Mapping[str, Sequence[float]], costs: Costs,
        workers: int,
    ) -> None:  # fmt: skip
        self._lowered, self._costs, self._workers = lowered, costs, workers
        self._known = {
            name: {(run, one.kernel): time for run, (one, time) in enumerate(zip(steps.runs, times[name], strict=True))}
            for name, steps in sides.items()
        }

    def kernels(self, policy: str, steps: Ticketed) -> tuple[list[Kernel], list[float]]:
        """The kernel of each run, and nanoseconds of all its blocks: as in this policy, or where it was measured."""
        kernels = kernels_of(self._lowered, steps.runs)
        known = {key: time for some in self._known.values() for key, time in some.items()}
        known |= self._known.get(policy, {})
        workers = 1 if policy == coplaced.ALONE else self._workers
        crossed = coplaced.crossings(self._lowered, kernels, steps, self._costs, workers)
        pairs = zip(kernels, crossed, strict=True)
        return kernels, [known[run, kernel.name] + more for run, (kernel, more) in enumerate(pairs)]


def _ways(
    lowered: Lowered, linked: Linked, base: Tasks, taken: Scheduled, steps: Ticketed, device: Device, costs: Costs,
    timed: _Timed,
) -> tuple[Together, ...]:  # fmt: skip
    """The plan that is taken, then the others from the least arena to the largest."""
    listing, together = linked.listing, taken.policy == coplaced.TAKEN
    plans = shared_plans(lowered, listing.runs, listing.arena_bytes, costs, device.multiprocessors) if together else []
    packing = coplaced.packing_of(lowered, kernels_of(lowered, steps.runs), base, steps, taken.graph)
    found = [Together(taken, packing, _way(None, len(listing.runs)), 0)]
    for plan in plans:
        kernels, times = timed.kernels(coplaced.TAKEN, plan.program)
        tasks = coplaced.tasks_of_program(lowered, linked, kernels, times)
        one = coplaced.scheduled(tasks, plan.program, coplaced.TAKEN, device)
        packing = coplaced.packing_of(lowered, kernels, tasks, plan.program, one.graph)
        added = sum(need.reuse for need in one.graph.needs)
        way = Together(one, packing, _way(plan.slack, len(listing.runs)), added)
        if plan.program == steps:
            found[0] = replace(way, scheduled=taken)
        else:
            found.append(way)
    return (found[0], *sorted(found[1:], key=lambda way: way.packing.arena_size))


def _way(slack: int | None, runs: int) -> str:
    if slack is None:
        return "order and memory of one worker"
    return f"bytes free after {several(slack, 'run')}" if slack < runs else "no reuse of bytes"


def _notes(device: Device, measured: bool, clocked: Mapping[str, float], costs: Costs) -> tuple[str, ...]:
    if not measured:
        return ("times come from flops and bytes of our kernels: estimated, not measured",)
    told = "times of blocks were measured with one worker of this machine, and the program simulated with them"
    if costs.crossing_ns and device.multiprocessors > 1:
        told += "; results of other workers are read at the rate that the machine's record tells"
    if clocked:
        return (told,)
    return (told, f"this machine has fewer than {device.multiprocessors} cores for it: whole programs were not run")


class _Runner:
    """Runs a program's kernels in several orders here; their machine code is made once, and kept in `folder`."""

    def __init__(self, lowered: Lowered, linked: Linked, target: Target, folder: Path) -> None:
        self._lowered, self._linked, self._target = lowered, linked, target
        self._cache = ObjectCache(folder)

    def measure(
        self, kernels: Mapping[str, Ticketed], programs: Mapping[str, Ticketed], workers: int
    ) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Nanoseconds of each run of `kernels` by itself on one worker, and of whole calls of `programs`: medians.

        All by turns, so that both are taken while the machine is in one state. Between two programs those workers fall
        asleep that still look for work, on cores that the next one wants.
        """
        profiled = {
            name: self._program(coplaced.in_claimed_order(self._lowered, self._linked, steps), 1)
            for name, steps in kernels.items()
        }
        called = {
            name: self._program(self._linked.listing, 1)
            if name == coplaced.ALONE
            else self._program(coplaced.listing_of(self._lowered, self._linked, steps), workers)
            for name, steps in programs.items()
        }
        every = [*profiled.values(), *called.values()]
        feeds = drawn_inputs(every[0])
        calls = {name: program.bind(feeds) for name, program in called.items()}
        runs: dict[str, list[Floats]] = {name: [] for name in kernels}
        whole: dict[str, list[int]] = {name: [] for name in programs}
        for turn in range(WARM_UP + ROUNDS):
            for name, program in profiled.items():
                program.run(None, feeds)
                stamps = program.profile(feeds)
                if turn >= WARM_UP:
                    count = len(kernels[name].runs)
                    taken = np.bincount(stamps["row"], stamps["end"] - stamps["begin"], count)
                    runs[name].append(taken.astype(np.float64))
            for name, call in calls.items():
                time.sleep(2e-9 * SPIN_NS)
                call()
                started = time.perf_counter_ns()
                call()
                if turn >= WARM_UP:
                    whole[name].append(time.perf_counter_ns() - started)
        for program in every:
            program.close()
        times = {name: _medians(taken, kernels[name]) for name, taken in runs.items()}
        return times, {name: float(np.median(taken)) for name, taken in whole.items()}

    def _program(self, listing: Listing, threads: int) -> Program:
        return Program(listing, self._linked.weights, self._target, self._cache, threads=threads)


def _medians(taken: Sequence[Floats], steps: Ticketed) -> list[float]:
    """Nanoseconds by run, from those by row of each call.

    Noise lies on other rows in every call, so that medians of rows add up to less than a call takes; they are scaled.
    """
    found = np.median(np.array(taken), axis=0)
    found *= np.median(np.sum(taken, axis=1)) / max(found.sum(), 1)
    by_run = dict(zip((run for run, _ in steps.waits), found.tolist(), strict=True))
    return [by_run[run] for run in range(len(steps.runs))]
