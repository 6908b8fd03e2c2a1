"""The schedule report in a terminal."""

from __future__ import annotations

from rich.console import Console

from graphopt.flows.records.schedule import ScheduleRecord
from graphopt.model.text import binary_size
from graphopt.report.terminal import dim_line, line, new_table


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


def print_schedule(console: Console, record: ScheduleRecord) -> None:
    """Makespans by policy, bounds by name, utilisation, waits, and what sharing memory costs."""
    line(console, f"{record.model} on {record.device}, simulated", "bold")
    kind = "regions" if record.lowered else "groups of nodes"
    line(console, f"tasks         {record.regions:,} {kind}")
    line(console, f"makespan      {duration(record.makespan)} by {record.policy}")
    launches = "1 launch" if record.launches == 1 else f"{record.launches:,} launches"
    line(console, f"program       {launches}, {record.waits:,} waits, verified free of deadlock")
    mean = sum(record.utilisation) / max(len(record.utilisation), 1)
    low, high = min(record.utilisation, default=0.0), max(record.utilisation, default=0.0)
    place = "multiprocessors" if record.gpu else "workers"
    line(console, f"utilisation   {mean:.0%} of the {place}' time ({low:.0%} to {high:.0%})")
    table = new_table("policy", "makespan", "one launch a region / this")
    for item in record.policies:
        table.add_row(item.policy, duration(item.makespan), f"{item.ratio:.2f}")
    console.print(table)
    table = new_table("no schedule is below", "time", "this one is above by")
    for bound in record.bounds:
        table.add_row(bound.name, duration(bound.time), f"{bound.gap_percent:.1f}%")
    console.print(table)
    table = new_table("time of the workers", "time", "share")
    table.add_row("running blocks", duration(record.busy), f"{share_of_time(record, record.busy):.1f}%")
    for stall in record.stalls:
        table.add_row(stall.cause, duration(stall.time), f"{stall.share_percent:.1f}%")
    console.print(table)
    if record.ways:
        table = new_table("schedule and memory", "makespan", "arena", "added waits", "")
        for way in record.ways:
            table.add_row(
                way.way, duration(way.makespan), binary_size(way.arena), f"{way.added_waits:,}",
                "taken" if way.taken else "",
            )  # fmt: skip
        console.print(table)
    for note in record.notes:
        dim_line(console, f"note: {note}")
