"""A time that no list of chains goes below."""

from __future__ import annotations

from scheduler.chains import PIECES, Runs


def least(runs: Runs, workers: int, wait: float, claim: float) -> float:
    """Nanoseconds that no list goes below: all work evenly shared, and the longest way to the end.

    On that way each run is whole and saves all that it can, or shared by all and waited for by who needs it.
    """
    work, last, ended = 0.0, 0.0, [0.0] * len(runs.blocks)  # what is needed, as one that needs it sees it
    needs, saved, ends = runs.needs.tolist(), runs.saved.tolist(), runs.needs_of.tolist()
    times = zip(runs.blocks.tolist(), runs.shared.tolist(), runs.whole.tolist(), strict=True)
    for run, (blocks, shared, whole) in enumerate(times):
        before = [(ended[needs[at]], saved[at]) for at in range(ends[run], ends[run + 1])]
        alone = max((end - some for end, some in before), default=0.0) + whole
        pieces = max(1, min(blocks, PIECES * workers))
        together = max((end for end, _ in before), default=0.0)
        together += -(-pieces // workers) * (shared / pieces + claim) - claim
        ended[run] = min(alone, together + wait)
        last = max(last, min(alone, together))
        work += min(shared, whole - max((some for _, some in before), default=0.0))
    return max(last, work / workers)
