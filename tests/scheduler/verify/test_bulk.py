"""Twenty thousand small programs, random and broken: the verifiers and brute force agree on every one."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scheduling.brute import ENDED, HUNG, IN_ORDER, REVERSED, by_closure, executed
from bench.scheduling.safety import Counts, count
from bench.scheduling.small_programs import AS_MADE, DROPPED, KINDS, NO_SENSE, OFF_BY_ONE, STALE, SWAPPED, TOO_MANY
from scheduler.verify.bulk import CIRCLE, LATE, MALFORMED, NEVER, NOT_RESIDENT, SAFE, UNCOVERED, Batch, verdicts


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


def pinned(slots: int, *workers: str, counts: tuple[int, ...] = (), **needs: int) -> Batch:
    """`pinned(2, "0", "w0.1 1", t1=0)`: worker 0 runs task 0; worker 1 waits for counter 0 at 1, then runs task 1.

    Counter i counts task i, or those of the bits `counts[i]`.
    """
    batch = Batch.empty(1, 8)
    batch.workers[0], batch.slots[0] = len(workers), slots
    for worker, line in enumerate(workers):
        for at, word in enumerate(line.split()):
            counter, value = word[1:].split(".") if word[0] == "w" else (-1, word)
            batch.counter[0, worker, at], batch.value[0, worker, at] = int(counter), int(value)
            batch.length[0, worker] += 1
            batch.tasks[0] += word[0] != "w"
    for task in range(int(batch.tasks[0])):
        batch.counts[0, task] = counts[task] if task < len(counts) else 1 << task
    for name, source in needs.items():
        batch.needs[0, int(name[1:])] |= np.uint64(1 << source)
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
    assert verdict(pinned(2, "0", "w0.-1 1")) == MALFORMED
    assert verdict(pinned(1, "0", "w0.1 1")) == NOT_RESIDENT
    assert verdict(pinned(2, "w1.1 0", "w0.1 1")) == CIRCLE
    assert verdict(pinned(1, "0 w0.1 1", t1=0)) == SAFE, "a wait for one's own past"
    assert verdict(pinned(1, "w0.1 0")) == CIRCLE, "and for one's own future"
    assert verdict(pinned(1, "0 w1.1", "1")) == NOT_RESIDENT
    assert verdict(pinned(2, "0 w1.1", "w0.1 1")) == SAFE, "a wait with no run behind it"
    assert verdict(pinned(3, "0", "w0.1 1", "w1.1 2", t2=0)) == SAFE, "the need is covered through task 1"


def test_waits_for_parts_by_hand() -> None:
    """Counter 0 counts tasks 0 to 2."""
    three = (0b111,)
    assert verdict(pinned(2, "0 1 2", "w0.2 3", counts=three, t3=1)) == SAFE, "they end one after the other"
    assert verdict(pinned(2, "0 1 2", "w0.2 3", counts=three, t3=2)) == UNCOVERED
    assert verdict(pinned(3, "0 1", "2", "w0.2 3", counts=three, t3=0)) == SAFE, "of any two one is task 0 or after it"
    assert verdict(pinned(3, "0 1", "2", "w0.2 3", counts=three, t3=1)) == UNCOVERED
    assert verdict(pinned(3, "0 1", "w0.1 2", "w0.2 3", counts=three, t3=0)) == SAFE
    assert verdict(pinned(2, "w0.3 0", "1 2", counts=three)) == CIRCLE


def tickets(workers: int, line: str, counts: tuple[int, ...] = (), **needs: int) -> Batch:
    batch = pinned(1, line, counts=counts, **needs)
    batch.ticketed[0], batch.workers[0] = True, workers
    return batch


def test_tickets_by_hand() -> None:
    assert verdict(tickets(4, "0 w0.1 1 w1.1 2", t1=0, t2=0)) == SAFE
    assert verdict(tickets(4, "0 w0.1 1 2", t1=0, t2=0)) == UNCOVERED
    assert verdict(tickets(1, "0 w0.1 1 2", t1=0, t2=0)) == SAFE, "one worker runs them in order"
    assert verdict(tickets(1, "w2.1 0 w0.1 1 2", t1=0, t2=0)) == LATE
    assert verdict(tickets(4, "0 1 w0.1 2", counts=(0b11,), t2=0)) == UNCOVERED, "task 1 may be the one that ended"
    assert verdict(tickets(4, "0 w0.2 1 2", counts=(0b101,))) == LATE, "one of the two comes later"


def test_the_dispatch_decides_where_not_all_are_resident() -> None:
    batch = pinned(1, "0", "w0.1 1", t1=0)
    assert executed(batch, IN_ORDER, 0)[0] == ENDED and executed(batch, REVERSED, 0)[0] == HUNG
