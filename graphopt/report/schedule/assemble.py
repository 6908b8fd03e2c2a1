"""A schedule report from a model: tasks, policies, bounds, and schedule and memory planned together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphopt.errors import OptionError
from graphopt.model.dimensions import change_dims
from graphopt.program.plan import Together, plan_together
from graphopt.program.tasks import Tasks, tasks_of
from graphopt.report.inspection import name_dims
from graphopt.report.schedule.records import (
    BoundLine,
    PolicyLine,
    ScheduleRecord,
    SpanLine,
    StallLine,
    WayLine,
)
from kernels.target import Target
from scheduler.compiling import telling
from scheduler.device import Device
from scheduler.policies.choose import USUAL_WORK, Scheduled
from scheduler.program import text

NEXT = 1.0  # nanoseconds between two runs that are drawn as one
BASELINE = "launches"  # the policy that figures are compared with: one launch per region


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """The record, and the plans behind it."""

    record: ScheduleRecord
    tasks: Tasks
    together: Together


def schedule_report(
    model: ir.Model,
    name: str,
    device: Device,
    target: Target,
    *,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    policy: str = "best",
    work: int = USUAL_WORK,
    tell: Callable[[str], None] = lambda text: None,
) -> ScheduleReport:
    """The schedule of `model` (which is left as it is) on a device. Every program has been verified.

    Raises OptionError for dims without a value and for a model that computes nothing, SchedulerError for a block that
    fits no multiprocessor.
    """
    fixed = model.clone()
    name_dims(fixed)
    if fixed.functions:
        fixed = InlinePass()(fixed).model
    change_dims(fixed, shapes, dict(dims))
    tell("reading tasks")
    tasks = tasks_of(fixed, device, target, name)
    if not tasks.graph.regions:
        raise OptionError(
            f"'{name}' computes nothing that could be scheduled: its outputs are views of inputs or constants."
        )
    with telling(tell):
        ways = plan_together(tasks, device, policy=policy, work=work, tell=tell)
    return ScheduleReport(_record(name, device, tasks, ways), tasks, ways[0])


def _record(name: str, device: Device, tasks: Tasks, ways: Sequence[Together]) -> ScheduleRecord:
    taken = ways[0]
    scheduled = taken.scheduled
    notes = ["times come from a roofline of the device: simulated, not measured"]
    if not tasks.lowered:
        notes.append("some operator has no kernel, so nodes were taken instead of regions")
    return ScheduleRecord(
        model=name,
        device=device.name,
        regions=len(tasks.graph.regions),
        lowered=tasks.lowered,
        policy=scheduled.policy,
        makespan=scheduled.makespan,
        policies=_policies(scheduled),
        bounds=tuple(
            BoundLine(bound, time, 100 * (scheduled.makespan - time) / time if time else 0.0)
            for bound, time in scheduled.bounds.items()
        ),
        launches=len(scheduled.program.launches),
        waits=scheduled.waits,
        utilisation=tuple(float(share) for share in scheduled.simulation.utilisation),
        stalls=_stalls(scheduled),
        ways=tuple(
            WayLine(one.way, one.scheduled.makespan, one.packing.arena_size, one.added_waits, one is taken)
            for one in ways
        ),
        spans=_spans(scheduled),
        program=text(scheduled.program),
        notes=tuple(notes),
    )


def _policies(scheduled: Scheduled) -> tuple[PolicyLine, ...]:
    baseline = scheduled.figures.get(BASELINE, scheduled.makespan)
    found = (PolicyLine(name, time, baseline / time if time else 1.0) for name, time in scheduled.figures.items())
    return tuple(sorted(found, key=lambda line: (line.makespan, line.policy)))


def _stalls(scheduled: Scheduled) -> tuple[StallLine, ...]:
    """Where the time of workers goes that run nothing; a share is of all their time."""
    stalls = scheduled.simulation.stalls
    parts = {
        "waiting for another worker's block": stalls.waiting,
        "until a signal arrives": stalls.signal,
        "launching": stalls.launch,
        "nothing left to do": stalls.idle,
    }
    whole = stalls.busy + sum(parts.values())
    return tuple(StallLine(cause, time, 100 * time / whole if whole else 0.0) for cause, time in parts.items())


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
