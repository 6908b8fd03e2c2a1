"""`schedule`: tasks, policies, bounds, and schedule and memory planned together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphopt.errors import OptionError
from graphopt.flows.asked import planned_target
from graphopt.flows.cores import on_cores
from graphopt.flows.records.schedule import (
    BoundLine,
    PolicyLine,
    RegionLine,
    ScheduleRecord,
    SpanLine,
    StallLine,
    WayLine,
)
from graphopt.flows.shown import Shown
from graphopt.flows.source import name_of, read, resize
from graphopt.flows.tune import kept_tuning
from graphopt.machine.record import MachineRecord
from graphopt.memory.share import read_budget
from graphopt.model.dimensions import name_dims
from graphopt.model.functions import inline
from graphopt.model.load import Source
from graphopt.model.text import Progress, silent
from graphopt.program.costs import costs_of
from graphopt.program.plan import Together, plan_together
from graphopt.program.tasks import Tasks, tasks_of
from kernels.target import TargetName
from scheduler.buffers import Buffer, Buffers
from scheduler.compiling import telling
from scheduler.device import Device
from scheduler.device import device as find_device
from scheduler.policies.choose import Scheduled
from scheduler.program import text

DEFAULT_SCHEDULE_WORK = 7_500_000  # blocks placed: about five seconds of searching
NEXT = 1.0  # nanoseconds between two runs that are drawn as one
BASELINE = "launches"  # the policy that figures are compared with: one launch per region


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleReport(Shown):
    """The record, and the plans behind it."""

    record: ScheduleRecord
    tasks: Tasks
    together: Together

    def __repr__(self) -> str:
        kept = self.record
        return (
            f"<ScheduleReport {kept.model} on {kept.device}: {kept.makespan / 1000:.3g} us by {kept.policy}, simulated>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page (.html) or the record (.json). Raises OptionError for another ending, and SaveError."""
        self.write(path)

    def buffers(self) -> Buffers:
        """Where the buffers of the arena lie, and which regions of the program's task graph touch them."""
        tasks, graph = self.tasks, self.together.scheduled.graph
        called = self.together.scheduled.merged
        touched: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in tasks.sizes}
        for side, uses in enumerate((tasks.reads, tasks.writes)):
            for region, names in uses.items():
                for name in names:
                    touched[name][side].append(called[region])
        offsets = self.together.packing.offsets
        return Buffers(
            graph.name, self.together.packing.arena_size,
            tuple(
                Buffer(name, offsets[name], size, *(tuple(dict.fromkeys(side)) for side in touched[name]))
                for name, size in tasks.sizes.items()
            ),
        )  # fmt: skip

    def _record(self) -> ScheduleRecord:
        return self.record

    def _headers(self) -> tuple[str, ...]:
        return ("policy", "makespan (us)", "speed-up over one launch per region")

    def _figures(self) -> list[tuple[str, ...]]:
        return [(line.policy, f"{line.makespan / 1000:.3g}", f"{line.ratio:.2f}") for line in self.record.policies]


def schedule(
    source: Source,
    *,
    device: str | os.PathLike[str],
    policy: str = "best",
    target: TargetName = "host",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    work: int = DEFAULT_SCHEDULE_WORK,
    memory_budget: int | str | None = None,
    measure: bool = True,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    progress: Progress | None = None,
) -> ScheduleReport:
    """A model's regions on the workers of a device: simulated makespans by policy, bounds, and a verified program.

    For the workers of a CPU it is the program that `compile` writes for several threads, beside the same kernels region
    by region, wave by wave and on one worker. With `measure` the kernels are run on this machine, if it can, and the
    programs too where it has as many cores; else times are estimated. `machine` as for `compile`; with a time to `tune`
    kernels are those that were measured before. `memory_budget` is what the arena may take, in bytes ("40MiB") or as a
    share of what it takes without ("50%"): the fastest plan within it is taken.

    `device`: "h200", "v100", "cpu:2", "cpu" for all cores, or a machine file. `target` is the processor that regions
    are lowered for.
    `values` fixes inputs at constants; inputs with defaults are always constants of a program, so that `fix_defaults`
    says nothing new. `work`, in blocks placed, is for each schedule. Schedule and memory are planned together.

    Raises ModelError for a model that cannot be worked on, OptionError for dims without a value, an unknown device, and
    work that does not fit it.
    """
    name, place = name_of(source), find_device(os.fspath(device))
    fixed, _ = read(source, values, fix_defaults=True)
    progress, budget = progress or silent, read_budget(memory_budget)
    processor = planned_target(target, machine, 0 if place.is_gpu else place.multiprocessors)
    name_dims(fixed, dims or {})
    if fixed.functions:
        inline(fixed)
    resize(fixed, shapes or {}, dict(dims or {}))
    if not place.is_gpu:
        found = on_cores(
            fixed, place, processor, policy=policy, memory_budget=budget, measured=measure,
            costs=costs_of(machine), tuning=kept_tuning(tune), progress=progress,
        )  # fmt: skip
        if found is not None:
            record = _record(name, place, found.tasks, found.ways, found.notes, found.measured)
            return ScheduleReport(record, found.tasks, found.ways[0])
    progress("reading tasks")
    tasks = tasks_of(fixed, place, processor, name)
    if not tasks.graph.regions:
        raise OptionError(
            f"'{name}' computes nothing that could be scheduled: its outputs are views of inputs or constants."
        )
    with telling(progress):
        ways = plan_together(
            tasks, place, policy=policy, work=work, memory_budget=budget, progress=progress
        )  # fmt: skip
    notes = ["times come from a roofline of the device: simulated, not measured"]
    if not tasks.lowered:
        notes.append("some operator has no kernel, so nodes were taken instead of regions")
    return ScheduleReport(_record(name, place, tasks, ways, notes, {}), tasks, ways[0])


def _record(
    name: str, device: Device, tasks: Tasks, ways: Sequence[Together], notes: Sequence[str],
    measured: Mapping[str, float],
) -> ScheduleRecord:  # fmt: skip
    taken = ways[0]
    scheduled = taken.scheduled
    return ScheduleRecord(
        model=name,
        device=device.name,
        regions=len(tasks.graph.regions),
        lowered=tasks.lowered,
        policy=scheduled.policy,
        makespan=scheduled.makespan,
        policies=_policies(scheduled, measured),
        bounds=tuple(
            BoundLine(bound, time, 100 * (scheduled.makespan - time) / time if time else 0.0)
            for bound, time in scheduled.bounds.items()
        ),
        launches=len(scheduled.program.launches),
        waits=scheduled.waits,
        gpu=device.is_gpu,
        workers=scheduled.simulation.workers,
        busy=scheduled.simulation.stalls.busy,
        utilisation=tuple(float(share) for share in scheduled.simulation.utilisation),
        stalls=_stalls(scheduled),
        ways=tuple(
            WayLine(one.way, one.scheduled.makespan, one.packing.arena_size, one.added_waits, one is taken)
            for one in ways
        ),
        ran=_ran(scheduled, tasks),
        spans=_spans(scheduled),
        program=text(scheduled.program),
        notes=tuple(notes),
    )


def _policies(scheduled: Scheduled, measured: Mapping[str, float]) -> tuple[PolicyLine, ...]:
    baseline = scheduled.figures.get(BASELINE, scheduled.makespan)
    found = (
        PolicyLine(name, time, baseline / time if time else 1.0, measured.get(name))
        for name, time in scheduled.figures.items()
    )
    return tuple(sorted(found, key=lambda line: (line.makespan, line.policy)))


def _stalls(scheduled: Scheduled) -> tuple[StallLine, ...]:
    """Where the time of workers goes that run nothing; a share is of workers times makespan."""
    stalls = scheduled.simulation.stalls
    parts = {
        "waiting for another worker's block": stalls.waiting,
        "until a signal arrives": stalls.signal,
        "at waits, also for what has ended long ago": stalls.looking,
        "launching": stalls.launch,
        "nothing left to do in this launch": stalls.idle,
        "no block for it in this launch": stalls.absent,
    }
    whole = scheduled.simulation.workers * scheduled.makespan
    return tuple(StallLine(cause, time, 100 * time / whole if whole else 0.0) for cause, time in parts.items())


def _ran(scheduled: Scheduled, tasks: Tasks) -> tuple[RegionLine, ...]:
    """What each region took; one that stands for several has the operator of any of them: they are alike."""
    ran = scheduled.simulation
    operator = {scheduled.merged[name]: kind for name, kind in tasks.operators.items()}
    count = len(ran.regions)
    blocks = np.bincount(ran.region, minlength=count)
    time = np.bincount(ran.region, weights=ran.end - ran.start, minlength=count)
    start, end = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(start, ran.region, ran.start)
    np.maximum.at(end, ran.region, ran.end)
    lines = (
        RegionLine(name, operator[name], int(blocks[at]), float(time[at]), float(start[at]), float(end[at]))
        for at, name in enumerate(ran.regions)
        if blocks[at]
    )
    return tuple(sorted(lines, key=lambda line: (line.start, line.region)))


def _spans(scheduled: Scheduled) -> tuple[SpanLine, ...]:
    """Runs of one worker on one region joined, in the order of their start."""
    ran = scheduled.simulation
    spans: list[SpanLine] = []
    for run in np.lexsort((ran.start, ran.worker, ran.multiprocessor)).tolist():
        before = spans[-1] if spans else None
        place = (int(ran.multiprocessor[run]), int(ran.worker[run]))
        region, start, end = ran.regions[ran.region[run]], float(ran.start[run]), float(ran.end[run])
        goes_on = before is not None and (before.multiprocessor, before.worker, before.region) == (*place, region)
        if before is not None and goes_on and start <= before.end + NEXT:
            spans[-1] = SpanLine(*place, region, before.blocks + 1, before.start, end)
        else:
            spans.append(SpanLine(*place, region, 1, start, end))
    return tuple(sorted(spans, key=lambda span: (span.start, span.multiprocessor, span.worker)))
