"""Twenty thousand small programs, random and broken: the verifiers and brute force agree on every one."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scheduling.brute import ENDED, HUNG, IN_ORDER, REVERSED, by_closure, executed
from bench.scheduling.safety import Counts, count
from bench.scheduling.small_programs import AS_MADE, DROPPED, KINDS, NO_SENSE, OFF_BY_ONE, STALE, SWAPPED, TOO_MANY
from scheduler.verify.bulk import CIRCLE, LATE, NEVER, NOT_RESIDENT, SAFE, UNCOVERED, Batch, verdicts


@pytest.fixture(scope="module")
def counts() -> Counts:
    return count(20_000, seed=11, judged=3_000)


def test_nothing_accepted_goes_wrong(counts: Counts) -> None:
    assert counts.accepted > 4_000
    assert counts.accepted_and_hung == counts.accepted_and_early == 0


def test_nothing_safe_is_refused(counts: Counts) -> None:
    assert counts.refused_though_safe == 0
    assert counts.broken[AS_MADE] == 0, "what is made by appending and waiting for what is there is safe (T3)"


def test_every_fault_that_matters_is_found(counts: Counts) -> None:
    assert counts.caught == counts.broken
    for kind in (NO_SENSE, DROPPED, SWAPPED, STALE, OFF_BY_ONE):
        assert counts.broken[kind] > 1_000 and counts.harmless[kind] > 50, KINDS[kind]
    assert counts.harmless[TOO_MANY] == 0 and counts.hung[TOO_MANY] > 500


def test_refusals_are_real(counts: Counts) -> None:
    """A circle does hang, and an edge that is missing is broken by some execution."""
    assert counts.refused_for[CIRCLE] > 100 and counts.refused_for[UNCOVERED] > 1_000
    assert counts.not_hung == counts.not_early == 0


def test_whole_programs_are_judged_alike(counts: Counts) -> None:
    assert counts.other_verdict == 0


def pinned(slots: int, *workers: str, **needs: int) -> Batch:
    """`pinned(2, "0", "w0.1 1", t1=0)`: worker 0 runs task 0; worker 1 waits for one run of it, then runs task 1."""
    batch = Batch.empty(1, 8)
    batch.workers[0], batch.slots[0] = len(workers), slots
    for worker, line in enumerate(workers):
        for at, word in enumerate(line.split()):
            other, value = word[1:].split(".") if word[0] == "w" else (-1, word)
            batch.other[0, worker, at], batch.value[0, worker, at] = int(other), int(value)
            batch.length[0, worker] += 1
            batch.tasks[0] += word[0] != "w"
    for task, source in needs.items():
        batch.needs[0, int(task[1:])] |= np.uint64(1 << source)
    return batch


def verdict(batch: Batch) -> int:
    """And that brute force has the same."""
    found = int(verdicts(batch)[0])
    free, covered = by_closure(batch)
    assert (found == SAFE) == bool(free[0] and covered[0] and (batch.ticketed[0] or batch.workers[0] <= batch.slots[0]))
    return found


def test_verdicts_by_hand() -> None:
    assert verdict(pinned(2, "0", "w0.1 1", t1=0)) == SAFE
    assert verdict(pinned(2, "0", "1", t1=0)) == UNCOVERED
    assert verdict(pinned(2, "0", "w0.0 1", t1=0)) == UNCOVERED
    assert verdict(pinned(2, "0", "w0.2 1")) == NEVER
    assert verdict(pinned(1, "0", "w0.1 1")) == NOT_RESIDENT
    assert verdict(pinned(2, "w1.1 0", "w0.1 1")) == CIRCLE
    assert verdict(pinned(1, "0 w0.1 1", t1=0)) == SAFE, "a wait for one's own past"
    assert verdict(pinned(1, "w0.1 0")) == CIRCLE, "and for one's own future"
    assert verdict(pinned(3, "0", "w0.1 1", "w1.1 2", t2=0)) == SAFE, "the need is covered through task 1"


def test_tickets_by_hand() -> None:
    batch = pinned(1, "0 1 2", t1=0, t2=0)
    batch.ticketed[0], batch.workers[0] = True, 4
    batch.tickets[0, 1:3] = (1, 2)
    assert verdict(batch) == SAFE
    batch.tickets[0, 2] = 0
    assert verdict(batch) == UNCOVERED
    batch.workers[0] = 1
    assert verdict(batch) == SAFE, "one worker runs them in order"
    batch.tickets[0, 0] = 1 << 2
    assert verdict(batch) == LATE


def test_the_dispatch_decides_where_not_all_are_resident() -> None:
    batch = pinned(1, "0", "w0.1 1", t1=0)
    assert executed(batch, IN_ORDER, 0)[0] == ENDED and executed(batch, REVERSED, 0)[0] == HUNG
