"""How long a program takes that fetches its weights, by a simulation of one worker and of the thread that reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.emit.ahead import REQUESTS
from kernels.kernel import Kernel
from kernels.listing import Fetch, Ticketed
from kernels.moves import Reload

NOTICE = 100e3  # nanoseconds until who naps sees that a run has ended, or a fetch
LATENCY = 150e3  # nanoseconds from a request to its first byte


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second: of the disk, and of transforming what was read."""

    disk: float
    transforming: float


def course(
    ticketed: Ticketed, kernels: Mapping[str, Kernel], durations: Mapping[str, float], workers: int, rates: Rates
) -> float:
    """Nanoseconds of a run whose blocks `workers` share evenly; `durations` are those of kernels on one.

    Runs follow one another in the order of claims, and so do fetches; each waits for what it needs of the others. A few
    fetches are asked for at the same time, and the disk brings them one after the other.
    """
    order = [run for run, _ in ticketed.waits]
    ended: dict[int, float] = {}
    fetched: list[float] = []
    now = asked = 0.0

    def read(until: int) -> None:
        nonlocal asked
        for number in range(len(fetched), until):
            one, free = (
                ticketed.fetches[number],
                max((ended[run] for run in ticketed.fetches[number].after), default=0.0),
            )
            under_way = [end for end in fetched[-REQUESTS:] if end > free]  # the reader looks up when one of them ends
            seen = min(under_way) if under_way else free + NOTICE
            if isinstance(one, Reload):
                asked = max(asked, fetched[one.told - 1])
            asked = max(asked, seen if one.after else 0.0, *fetched[-REQUESTS : 1 - REQUESTS])
            end = max(asked + LATENCY, fetched[-1] if fetched else 0.0) + 1e9 * one.bytes / rates.disk
            if isinstance(one, Fetch) and one.transformed is not None:
                end += 1e9 * one.transformed.bytes / rates.transforming
            fetched.append(end)

    for run in order:
        needed = ticketed.fetched[run] if ticketed.fetches else 0
        read(needed)
        given = ticketed.runs[run]
        kernel = kernels[given.kernel]
        first, end = given.blocks or (0, kernel.blocks)
        block, shared = durations[given.kernel] / max(1, kernel.blocks), min(workers, max(1, kernel.blocks))
        there = fetched[needed - 1] if needed else 0.0
        now = max(now, there + NOTICE if there > now else 0.0) + block * (end - first) / shared
        ended[run] = now + (block if shared > 1 else 0.0)  # the last block, while the others have gone on
    return now
