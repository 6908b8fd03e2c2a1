"""The schedule report in a terminal."""

from __future__ import annotations

from graphopt.flows.records.schedule import ScheduleRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table

# What people read for the record's words.
BOUNDS = {"any kernels": "bound over all kernel choices"}
WAYS = {"forbid": "no reuse across workers", "wait": "reuse with waits"}


def duration(nanoseconds: float) -> str:
    """A time with its unit: 742 us."""
    number = nanoseconds
    for unit in ("ns", "us", "ms"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} s"


def share_of_time(record: ScheduleRecord, time: float) -> float:
    """A time of all workers together as percent of workers times makespan."""
    whole = record.workers * record.makespan
    return 100 * time / whole if whole else 0.0


def print_schedule(screen: Screen, record: ScheduleRecord) -> None:
    """Makespans by policy, bounds by name, utilisation, waits, and what sharing memory costs."""
    screen.line(f"{record.model} on {record.device}, simulated", "bold")
    tasks = several(record.regions, "region" if record.lowered else "group") + ("" if record.lowered else " of nodes")
    screen.line(f"tasks         {tasks}")
    taken = next((line.measured for line in record.policies if line.policy == record.policy), None)
    beside = f", {duration(taken)} measured" if taken is not None else ""
    screen.line(f"makespan      {duration(record.makespan)} by {record.policy}{beside}")
    launches = "1 launch" if record.launches == 1 else f"{record.launches:,} launches"
    each = record.waits / max(1, sum(line.blocks for line in record.ran))
    screen.line(
        f"program       {launches}, {several(record.waits, 'wait')} ({each:.2f} a block), verified free of deadlock"
    )
    mean = sum(record.utilisation) / max(len(record.utilisation), 1)
    low, high = min(record.utilisation, default=0.0), max(record.utilisation, default=0.0)
    place = "multiprocessors" if record.gpu else "workers"
    screen.line(f"utilisation   {mean:.0%} of the {place}' time ({low:.0%} to {high:.0%})")
    measured = ("measured",) if record.is_measured else ()
    table = Table("policy", "makespan", *measured, "speed-up over one launch per region")
    for item in record.policies:
        clocked = [duration(item.measured)] if item.measured is not None else ["" for _ in measured]
        table.add(item.policy, duration(item.makespan), *clocked, f"{item.ratio:.2f}")
    screen.table(table)
    table = Table("lower bound", "time", "gap")
    for bound in record.bounds:
        table.add(BOUNDS.get(bound.name, bound.name), duration(bound.time), f"{bound.gap_percent:.1f}%")
    screen.table(table)
    table = Table("time of the workers", "time", "share")
    table.add("running blocks", duration(record.busy), f"{share_of_time(record, record.busy):.1f}%")
    for stall in record.stalls:
        table.add(stall.cause, duration(stall.time), f"{stall.share_percent:.1f}%")
    screen.table(table)
    if record.ways:
        table = Table("schedule and memory", "makespan", "arena", "added waits", "")
        for way in record.ways:
            table.add(
                WAYS.get(way.way, way.way), duration(way.makespan), binary_size(way.arena), f"{way.added_waits:,}",
                "taken" if way.taken else "",
            )  # fmt: skip
        screen.table(table)
    for note in record.notes:
        screen.small(f"note: {note}")
