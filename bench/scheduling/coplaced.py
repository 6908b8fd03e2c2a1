"""Bars of programs for several cores as schedules: simulated beside measured, and co-placed beside region by region.

Kernels are measured on one worker, programs are simulated with these times, and with the machine's record, on two
workers and run on two; for 8 and 16 workers they are simulated alone.
"""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import graphopt
from bench.bar import Bar, Sheet
from bench.cores import NAMES
from bench.kernels.timing import unpin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.flows.records.schedule import ScheduleRecord

ISSUE = 18
WORKERS, MORE = 2, (8, 16)
TAKEN, APART = "co-placed", "launches"
AT_LEAST = {"nasnet_a_mobile": 1.3, "inception_v3": 1.03}  # co-placed beside region by region, measured
NOT_SLOWER = 0.97
OFF = 0.15  # simulated beside measured
APART_BY = 1.03  # policies that differ by less than this have no order


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model that several workers run."""
    unpin()
    assert len(os.sched_getaffinity(0)) >= WORKERS, "programs are run on as many cores"
    rows, slow, off, wrong = [], [], [], []
    for name in NAMES[:4] if quick else NAMES:
        record = _schedule(name, WORKERS)
        line = {one.policy: one for one in record.policies}
        if TAKEN not in line:
            continue
        simulated, measured = line[TAKEN].makespan, line[TAKEN].measured or 0.0
        gain = (line[APART].measured or 0.0) / measured
        more = [_gain(_schedule(name, workers)) for workers in MORE]
        rows.append((
            name, simulated / 1000, measured / 1000, measured / simulated, line[APART].makespan / simulated, gain,
            *more, record.waits / sum(one.blocks for one in record.ran),
        ))  # fmt: skip
        if gain < AT_LEAST.get(name, NOT_SLOWER):
            slow.append(f"{name} {gain:.2f}")
        if abs(measured / simulated - 1) > OFF:
            off.append(f"{name} {measured / simulated:.2f}")
        if not _same_order(record):
            wrong.append(name)
    columns = (
        "model", "simulated us", "measured us", "measured / simulated", "gain simulated", "gain measured",
        *(f"gain with {workers}" for workers in MORE), "waits a block",
    )  # fmt: skip
    sheet.table(f"{WORKERS} workers; gain: region by region / co-placed", columns, rows)
    said = ", ".join(f"{name} {least}" for name, least in AT_LEAST.items())
    return [
        Bar(ISSUE, 9, "co-placed beside region by region", f"{said}, none slower", f"not: {slow or 'none'}", not slow),
        Bar(ISSUE, 10, "simulated beside measured", "within 15 %", f"not: {off or 'none'}", not off),
        Bar(ISSUE, 11, "the order of policies", "as measured", f"not: {wrong or 'none'}", not wrong),
    ]  # fmt: skip


def _schedule(name: str, workers: int) -> ScheduleRecord:
    return graphopt.schedule(model_file(name), device=f"cpu:{workers}", machine=graphopt.machine()).record


def _gain(record: ScheduleRecord) -> float:
    line = {one.policy: one.makespan for one in record.policies}
    return line[APART] / line.get(TAKEN, line[APART])


def _same_order(record: ScheduleRecord) -> bool:
    """Whether of any two policies whose times differ the same one is the faster, simulated and measured."""
    for one, other in combinations(record.policies, 2):
        if one.measured is None or other.measured is None:
            continue
        told, seen = one.makespan / other.makespan, one.measured / other.measured
        clear = not 1 / APART_BY < told < APART_BY and not 1 / APART_BY < seen < APART_BY
        if clear and (told > 1) != (seen > 1):
            return False
    return True


if __name__ == "__main__":
    main(measure)
