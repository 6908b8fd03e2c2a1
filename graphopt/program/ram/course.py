"""How long a program takes that fetches its weights, by a simulation of one worker and of the thread that reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.kernel import Kernel
from kernels.listing import Fetch, Ticketed


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second: of the disk, and of transforming what was read."""

    disk: float
    transforming: float


def course(
    ticketed: Ticketed, kernels: Mapping[str, Kernel], durations: Mapping[str, float], workers: int, rates: Rates
) -> float:
    """Nanoseconds of a run whose blocks `workers` share evenly; `durations` are those of kernels on one.

    Runs follow one another in the order of claims, and so do fetches; each waits for what it needs of the others.
    """
    order = [run for run, _ in ticketed.waits]
    ended: dict[int, float] = {}
    fetched: list[float] = []
    now = reading = 0.0

    def read(until: int) -> None:
        nonlocal reading
        for one in ticketed.fetches[len(fetched) : until]:
            reading = max([reading, *(ended[run] for run in one.after)]) + 1e9 * one.bytes / rates.disk
            if isinstance(one, Fetch) and one.transformed is not None:
                reading += 1e9 * one.transformed.bytes / rates.transforming
            fetched.append(reading)

    for run in order:
        needed = ticketed.fetched[run] if ticketed.fetches else 0
        read(needed)
        given = ticketed.runs[run]
        kernel = kernels[given.kernel]
        first, end = given.blocks or (0, kernel.blocks)
        shared = min(workers, max(1, kernel.blocks))
        begin = max(now, fetched[needed - 1]) if needed else now
        now = begin + durations[given.kernel] * (end - first) / max(1, kernel.blocks) / shared
        ended[run] = now
    return now
