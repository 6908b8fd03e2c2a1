"""Bar 2 of the scheduler: a million small programs, random and broken, judged by the verifier and by brute force.

Every program is executed with its slots in order, in reverse and at random, its workers' steps interleaved at random,
twice in a row without clearing counters. Refusals are held against what each task keeps from starting; a program that
is refused for a need that is not covered is also executed so that the need is broken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.scheduling.brute import EARLY, HUNG, IN_ORDER, RANDOM, REVERSED, by_closure, executed
from bench.scheduling.small_programs import KINDS, NO_SENSE, drawn, program_of
from bench.script import main
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.verify.bulk import CIRCLE, MALFORMED, NAMES, NEVER, NOT_RESIDENT, SAFE, UNCOVERED, Batch, verdicts
from scheduler.verify.program import verify

ISSUE = 7
COUNT, QUICK_COUNT = 1_000_000, 70_000
AT_ONCE = 70_000
JUDGED = 2_000  # by the verifier of whole programs too
SEED = 7
# What the verifier of whole programs says for each verdict.
SAID = {
    SAFE: None, NOT_RESIDENT: "are resident at once", MALFORMED: "values are counted from its own start",
    NEVER: "waits for ever", CIRCLE: "each waits for the next", UNCOVERED: "is missing",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """Programs by what was found; the last six must be nothing."""

    programs: int
    accepted: int
    broken: tuple[int, ...]  # by kind, those that brute force calls unsafe
    caught: tuple[int, ...]  # by kind, those of them that are refused
    harmless: tuple[int, ...]  # by kind, those that the fault leaves safe
    refused_for: tuple[int, ...]  # by verdict
    hung: tuple[int, ...]  # by kind, those of the refused that hung in one of the executions
    accepted_and_hung: int
    accepted_and_early: int
    refused_though_safe: int
    not_hung: int  # refused for a circle or a wait for ever, and yet an execution with every worker resident ended
    not_early: int  # refused as uncovered, and yet no execution broke the need
    other_verdict: int  # where the verifier of whole programs says something else


def count(programs: int, seed: int = SEED, judged: int = JUDGED) -> Counts:
    """Draw programs, judge them and run them; `judged` of them with the verifier of whole programs as well."""
    totals: dict[str, np.ndarray] = {}
    share = judged / programs
    for part, begin in enumerate(range(0, programs, AT_ONCE)):
        size = min(AT_ONCE, programs - begin)
        for name, value in _part(size, seed + part, round(share * size)).items():
            totals[name] = totals.get(name, 0) + value
    numbers = {
        name: tuple(map(int, value)) if np.ndim(value) else int(value)  # by kind or verdict, or a sum
        for name, value in totals.items()
    }
    return Counts(programs, **numbers)  # type: ignore[arg-type]


def _part(programs: int, seed: int, judged: int) -> dict[str, np.ndarray]:
    batch, kinds = drawn(programs, seed)
    found = verdicts(batch)
    free, covered = (one.astype(bool) for one in by_closure(batch))
    resident = (batch.workers <= batch.slots) | (batch.ticketed > 0)
    safe, accepted = free & covered & resident, found == SAFE
    ways = [executed(batch, dispatch, seed) for dispatch in (IN_ORDER, REVERSED, RANDOM, RANDOM)]
    hung = np.logical_or.reduce([how == HUNG for how in ways])
    early = np.logical_or.reduce([how == EARLY for how in ways])
    together = executed(batch, IN_ORDER, seed + 1, slots=np.maximum(batch.slots, batch.workers))
    forced = executed(batch, RANDOM, seed + 2, delay=True)
    by_kind = [kinds == kind for kind in range(len(KINDS))]
    return {
        "accepted": accepted.sum(),
        "broken": np.asarray([(one & ~safe).sum() for one in by_kind]),
        "caught": np.asarray([(one & ~safe & ~accepted).sum() for one in by_kind]),
        "harmless": np.asarray([(one & safe).sum() for one in by_kind]),
        "refused_for": np.asarray([(found == verdict).sum() for verdict in range(len(NAMES))]),
        "hung": np.asarray([(one & ~accepted & hung).sum() for one in by_kind]),
        "accepted_and_hung": (accepted & hung).sum(),
        "accepted_and_early": (accepted & early).sum(),
        "refused_though_safe": (~accepted & safe).sum(),
        "not_hung": (np.isin(found, (CIRCLE, NEVER)) & (together != HUNG)).sum(),
        "not_early": ((found == UNCOVERED) & (forced != EARLY)).sum(),
        "other_verdict": np.asarray(sum(_other(batch, one, int(found[one])) for one in range(judged))),
    }


def _other(batch: Batch, number: int, verdict: int) -> bool:
    """Whether the verifier of whole programs judges otherwise, or for another reason."""
    graph, program, device = program_of(batch, number)
    said = SAID.get(verdict, "of which earlier tickets run")
    try:
        verify(graph, program, device)
    except (UnsafeProgram, InvalidProgram) as error:
        return said is None or said not in str(error)
    return said is not None


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per kind of program, and one per verdict."""
    started = time.perf_counter()
    counts = count(QUICK_COUNT if quick else COUNT)
    taken = time.perf_counter() - started
    rows = zip(KINDS, counts.broken, counts.caught, counts.hung, counts.harmless, strict=True)
    sheet.table(
        f"{counts.programs:,} programs of 2 to 8 workers in {taken:.0f} s",
        ("kind", "unsafe", "refused", "hung when run", "safe"), list(rows),
    )  # fmt: skip
    sheet.table("verdicts", ("verdict", "programs"), list(zip(NAMES, counts.refused_for, strict=True)))
    wrong = {
        "accepted, and hung": counts.accepted_and_hung, "accepted, and read too early": counts.accepted_and_early,
        "refused, though safe": counts.refused_though_safe,
        "refused for a circle or a wait for ever, and ended": counts.not_hung,
        "refused as uncovered, and never early": counts.not_early,
        "judged otherwise as a whole program": counts.other_verdict,
    }  # fmt: skip
    sheet.table("what must not be", ("what", "programs"), list(wrong.items()))
    unsafe, caught = sum(counts.broken), sum(counts.caught)
    mutants = sum(counts.broken[NO_SENSE + 1 :]), sum(counts.caught[NO_SENSE + 1 :])
    figure = (
        f"{sum(wrong.values())} wrong of {counts.programs:,}; refused {caught:,} of {unsafe:,} unsafe, of those broken "
        f"on purpose {mutants[1]:,} of {mutants[0]:,}; {sum(counts.hung):,} hung when run"
    )
    met = not any(wrong.values()) and caught == unsafe and (quick or counts.programs >= COUNT)
    return [Bar(ISSUE, 2, "scheduler: verifier against brute force", "1,000,000, none wrong", figure, met)]


if __name__ == "__main__":
    main(measure)
