"""Ticketed launches: waits only for blocks of earlier tickets (theorem T4), and every need inside covered by waits.

A ticket comes after the blocks of every counter that it waits for in full, and what they come after. Which tickets that
is, is a set of bits for each ticket, worked out for a few thousand tickets as sources at a time. A launch with waits
for parts of counters is decided by `withheld` instead, each ticket a worker: it is right for any number of workers.
"""

from __future__ import annotations

import numpy as np

from scheduler.compiling import compiled
from scheduler.errors import UnsafeProgram
from scheduler.verify.form import Blocks, Ints, Lists
from scheduler.verify.needs import Needs
from scheduler.verify.withheld import early_start

COVERED = -1
WORDS = 64  # of 64 tickets each: the sources looked at in one go


def check_ticketed(number: int, flat: Lists, workers: int, blocks: Blocks, needs: Needs) -> None:
    """Raises UnsafeProgram naming the wait for blocks of later tickets, or the need that is not covered.

    A launch of one worker runs its tickets one after the other, so that there the order alone covers needs.
    """
    late = np.full(2, COVERED)
    _late(flat.of, flat.block, flat.counter, flat.value, flat.counts, flat.counters_of, flat.counters, late)
    if late[0] != COVERED:
        ticket, counter = int(np.searchsorted(flat.of, late[0], side="right")) - 1, int(flat.counter[late[0]])
        raise UnsafeProgram(
            f"launch {number}: ticket {ticket} waits for {flat.value[late[0]]} blocks of {flat.names[counter]}, of "
            f"which earlier tickets run {late[1]}: its workers may all wait for tickets that nobody claims."
        )
    waits = np.flatnonzero(flat.counter >= 0)
    counts = flat.counts[flat.counter[waits]]
    lost: tuple[int, int] | None
    if workers > 1 and bool(((flat.value[waits] > 0) & (flat.value[waits] < counts)).any()):
        lost = early_start(number, flat, blocks, needs)
    else:
        missing = np.full(2, COVERED)
        _cover(
            number, flat.of, flat.block, flat.counter, flat.value, flat.counts, flat.counters_of, flat.counters,
            workers == 1, blocks.region, blocks.first, blocks.launch, blocks.worker, needs.of, needs.source,
            needs.bounds, needs.low, needs.high, missing,
        )  # fmt: skip
        lost = None if missing[0] == COVERED else (int(missing[0]), int(missing[1]))
    if lost is not None:
        source, target = lost
        raise UnsafeProgram(
            f"launch {number}: nothing makes ticket {blocks.worker[target]}, {blocks.named(target)}, come after ticket "
            f"{blocks.worker[source]}, {blocks.named(source)}, which it needs: the edge {blocks.named(source)} -> "
            f"{blocks.named(target)} is missing."
        )


@compiled
def _late(
    of: Ints, block_of: Ints, counter_of: Ints, value_of: Ints, counts: Ints, counters_of: Ints, counters: Ints,
    late: Ints,
) -> None:  # fmt: skip
    """Fill in the first wait for more blocks than earlier tickets run, and how many those are."""
    stands = np.zeros(len(counts), np.int64)
    for ticket in range(len(of) - 1):
        for at in range(of[ticket], of[ticket + 1]):
            block = block_of[at]
            if block < 0:
                if value_of[at] > stands[counter_of[at]]:
                    late[0], late[1] = at, stands[counter_of[at]]
                    return
            else:
                for counter in counters[counters_of[block] : counters_of[block + 1]]:
                    stands[counter] += 1


@compiled
def _cover(
    number: int, of: Ints, instruction_of: Ints, counter_of: Ints, value_of: Ints, counts: Ints, counters_of: Ints,
    counters: Ints, in_order: bool, region: Ints, first: Ints, launch: Ints, ticket_of: Ints, needs_of: Ints,
    source: Ints, bounds: Ints, low: Ints, high: Ints, missing: Ints,
) -> None:  # fmt: skip
    """Fill in the first need that is not covered, if there is one: a source and a target block."""
    count = len(of) - 1
    block_of = np.empty(count, np.int64)
    for ticket in range(count):
        block_of[ticket] = instruction_of[of[ticket + 1] - 1]
    words = min(WORDS, count // 64 + 1)
    before = np.zeros((count, words), np.uint64)  # bits of the tickets that come before, of those from `begin` on
    counted = np.zeros((len(counts), words), np.uint64)  # by counter those of its tickets, and what is before them
    here = np.zeros((len(first) - 1, words), np.uint64)  # by region the bits of its tickets
    nothing = np.zeros(words, np.uint64)
    for begin in range(0, count, 64 * words):
        end = min(count, begin + 64 * words)
        here[:] = 0
        for one in range(begin, end):
            here[region[block_of[one]], (one - begin) >> 6] |= np.uint64(1) << np.uint64((one - begin) & 63)
        before[begin:] = 0
        counted[:] = 0
        for ticket in range(begin, count):
            row = before[ticket]
            for at in range(of[ticket], of[ticket + 1] - 1):
                if 0 < value_of[at] == counts[counter_of[at]]:
                    row |= counted[counter_of[at]]
            if in_order and ticket > begin:
                row |= before[ticket - 1]
                if ticket - 1 < end:
                    row[(ticket - 1 - begin) >> 6] |= np.uint64(1) << np.uint64((ticket - 1 - begin) & 63)
            block = block_of[ticket]
            for counter in counters[counters_of[block] : counters_of[block + 1]]:
                counted[counter] |= row
                if ticket < end:
                    counted[counter, (ticket - begin) >> 6] |= np.uint64(1) << np.uint64((ticket - begin) & 63)
        for ticket in range(count):
            target = block_of[ticket]
            mine = region[target]
            row = before[ticket] if ticket >= begin else nothing
            for need in range(needs_of[mine], needs_of[mine + 1]):
                slot = bounds[need] + target - first[mine]
                from_region = source[need]
                if low[slot] == first[from_region] and high[slot] == first[from_region + 1]:
                    for word in range(words):
                        lost = here[from_region, word] & ~row[word]
                        if lost != 0:
                            bit = 0
                            while (lost >> np.uint64(bit)) & np.uint64(1) == 0:
                                bit += 1
                            missing[0], missing[1] = block_of[begin + 64 * word + bit], target
                            return
                else:
                    for one in range(low[slot], high[slot]):
                        at = ticket_of[one] - begin
                        if launch[one] != number or at < 0 or at >= end - begin:
                            continue
                        if (row[at >> 6] >> np.uint64(at & 63)) & np.uint64(1) == 0:
                            missing[0], missing[1] = one, target
                            return
