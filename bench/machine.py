"""The bar of the machine's record: the same in ten measures, and beside what tools of others measure."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.machine.kept import measured_now
from graphopt.machine.record import ALL

ISSUE = 18
TIMES, QUICK_TIMES = 10, 4
WITHIN, BESIDE = 0.10, 0.25
# The tools do other work beside: products load and store, dots multiply, memchr compares
# with half as wide vectors, dd makes the zeros that it writes.
LOWER_BOUNDS = ("multiply_adds", "loads", "l1_read", "l1_write", "l2_read", "disk_write")

UPPER_BOUNDS = ("wake",)  # a thread of Python finds its interpreter out of the caches


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each entry: ten measures, then the independent tool's."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        records = [measured_now(Path(folder)) for _ in range(QUICK_TIMES if quick else TIMES)]
    peers = _peers()
    rows, apart, off = [], [], []
    for name, entry in ALL.items():
        values = [record.entries[name].value for record in records if name in record.entries]
        if not values:
            continue
        spread = max(record.entries[name].spread for record in records)
        middle, wide = float(np.median(values)), max(values) / min(values) - 1
        if wide > max(WITHIN, spread):
            apart.append(name)
        other = peers.get(name)
        by_ns = float(np.median([record.by_ns(name) or math.nan for record in records if name in record.entries]))
        ratio = None if other is None else by_ns / other
        least = 0 if name in UPPER_BOUNDS else 1 - BESIDE
        most = math.inf if name in LOWER_BOUNDS else 1 + BESIDE
        if ratio is not None and not least <= ratio <= most:
            off.append(f"{name} ({ratio:.2f})")
        bound = "a lower bound" if name in LOWER_BOUNDS else "an upper bound" if name in UPPER_BOUNDS else ""
        told = ("", "", "") if other is None else (f"{other:.4g}", f"{ratio:.2f}", bound)
        rows.append((name, entry.unit, f"{middle:.4g}", f"{wide:.1%}", f"{spread:.1%}", f"{by_ns:.4g}", *told))
    columns = ("entry", "unit", "median", "largest / smallest - 1", "spread told", "by ns", "another tool", "ratio", "")
    sheet.table(f"the record of this machine, {len(records)} measures, beside tools of others", columns, rows)
    compared = [row for row in rows if row[6]]
    return [
        Bar(ISSUE, 12, f"{len(records)} measures of this machine", f"within {WITHIN:.0%}, or the spread that is told",
            f"apart: {', '.join(apart) or 'none'} of {len(rows)}", not apart),
        Bar(ISSUE, 13, "entries beside an independent tool", f"within {BESIDE:.0%}, or above a lower bound",
            f"further off: {', '.join(off) or 'none'} of {len(compared)}", not off),
    ]  # fmt: skip


def _peers() -> dict[str, float]:
    """In a process of its own, with one thread for NumPy's products."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.machine_peers"], capture_output=True, text=True, check=True,
        env=environment,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main(measure)
