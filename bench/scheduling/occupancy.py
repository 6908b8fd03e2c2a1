"""Bar 1 of the scheduler: resident blocks as NVIDIA's own header computes them.

    python -m bench.scheduling.occupancy --data FOLDER

reads every CSV file in FOLDER that has the columns device, cc, threads, regs, smem, dynamic, bars and blocks; without
it, the rows that the tests have.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from scheduler.device import Device, Resources, device

ISSUE = 7
OWN_ROWS = Path(__file__).parents[2] / "tests" / "scheduler" / "data" / "occupancy.csv"
COLUMNS = {"device", "cc", "threads", "regs", "smem", "dynamic", "bars", "blocks"}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per device."""
    devices = {name: _device(name) for name in ("A100", "H100", "H200", "V100")}
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name, block, blocks in _rows(data):
        seen[name] += 1
        wrong[name] += devices[name.partition("_")[0]].occupancy(block) != blocks
    rows = [(name, seen[name], wrong[name]) for name in sorted(seen)]
    sheet.table("resident blocks beside cuda_occupancy.h", ("device", "kernels", "different"), rows)
    different, count = sum(wrong.values()), sum(seen.values())
    figure = f"{count - different:,} of {count:,}"
    return [Bar(ISSUE, 1, "scheduler: occupancy as NVIDIA's header has it", "every row", figure, not different)]


def _device(name: str) -> Device:
    """Of an A100, what differs from an H200 is told; the H100's multiprocessors are those of the H200."""
    if name == "V100":
        return device("v100")
    hopper = device("h200")
    if name == "A100":
        return replace(hopper, shared_memory=164 << 10, shared_memory_per_block=163 << 10, compute_capability=(8, 0))
    return hopper


def _rows(data: Path | None) -> Iterator[tuple[str, Resources, int]]:
    """Device, kernel, and the blocks that are resident."""
    found = False
    for file in sorted(data.rglob("*.csv")) if data else ():
        with file.open() as lines:
            reader = csv.DictReader(lines)
            if not set(reader.fieldnames or ()) >= COLUMNS:
                continue
            found = True
            for row in reader:
                threads, registers, shared, bars = (int(row[key]) for key in ("threads", "regs", "smem", "bars"))
                yield (
                    row["device"],
                    Resources(threads, registers, shared, row["dynamic"] == "1", bars),
                    int(row["blocks"]),
                )
    if found:
        return
    with OWN_ROWS.open() as lines:
        for row in csv.DictReader(lines):
            threads, registers, shared = (int(row[key]) for key in ("threads", "registers", "shared_memory"))
            block = Resources(threads, registers, shared, row["opt_in"] == "1", int(row["barriers"]))
            yield row["device"], block, int(row["blocks"])


if __name__ == "__main__":
    main(measure)
