"""All measurements of the scheduler, one after the other, each with its tables: `make bench-scheduling`."""

from __future__ import annotations

from pathlib import Path

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.scheduling import lists, occupancy, policies, safety, waits, zoo
from bench.script import Measure, main

MEASURES: dict[str, Measure] = {
    "s1": occupancy.measure,
    "s2": safety.measure,
    "s3": lists.measure,
    "s4": policies.measure,
    "s4-zoo": zoo.measure,
    "c14": waits.measure,
}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Schedules against their bounds and against the baselines, and the verifier against brute force."""
    return [bar for one in MEASURES.values() for bar in one(sheet, data=data, quick=quick)]


if __name__ == "__main__":
    main(measure)
