"""Ticketed launches: waits only for earlier tickets (theorem T4), and every need inside the launch covered by waits.

A ticket comes after those it waits for and those that they come after. Which tickets that is, is a set of bits for each
ticket, worked out for a few thousand tickets as sources at a time.
"""

from __future__ import annotations

import numpy as np

from scheduler.compiling import compiled
from scheduler.errors import UnsafeProgram
from scheduler.verify.form import Blocks, Ints, Tickets
from scheduler.verify.needs import Needs

COVERED = -1
WORDS = 64  # of 64 tickets each: the sources looked at in one go


def check_ticketed(number: int, flat: Tickets, workers: int, blocks: Blocks, needs: Needs) -> None:
    """Raises UnsafeProgram naming the wait for a later ticket, or the need that is not covered.

    A launch of one worker runs its tickets one after the other, so that there the order alone covers needs.
    """
    ticket = np.repeat(np.arange(len(flat.block)), np.diff(flat.of))
    late = np.flatnonzero(flat.waits >= ticket)
    if len(late):
        raise UnsafeProgram(
            f"launch {number}: ticket {ticket[late[0]]} waits for ticket {flat.waits[late[0]]}, which is not earlier: "
            "its workers may all wait for tickets that nobody claims."
        )
    missing = np.full(2, COVERED)
    _cover(
        number, flat.block, flat.waits, flat.of, workers == 1, blocks.region, blocks.first, blocks.launch,
        blocks.worker, needs.of, needs.source, needs.bounds, needs.low, needs.high, missing,
    )  # fmt: skip
    if missing[0] != COVERED:
        source, target = map(int, missing)
        raise UnsafeProgram(
            f"launch {number}: nothing makes ticket {blocks.worker[target]}, {blocks.named(target)}, come after ticket "
            f"{blocks.worker[source]}, {blocks.named(source)}, which it needs: the edge {blocks.named(source)} -> "
            f"{blocks.named(target)} is missing."
        )


@compiled
def _cover(
    number: int, block_of: Ints, waits: Ints, of: Ints, in_order: bool, region: Ints, first: Ints, launch: Ints,
    ticket_of: Ints, needs_of: Ints, source: Ints, bounds: Ints, low: Ints, high: Ints, missing: Ints,
) -> None:  # fmt: skip
    """Fill in the first need that is not covered, if there is one: a source and a target block."""
    count = len(block_of)
    words = min(WORDS, count // 64 + 1)
    before = np.zeros((count, words), np.uint64)  # bits of the tickets that come before, of those from `begin` on
    here = np.zeros((len(first) - 1, words), np.uint64)  # by region the bits of its tickets
    nothing = np.zeros(words, np.uint64)
    for begin in range(0, count, 64 * words):
        end = min(count, begin + 64 * words)
        here[:] = 0
        for one in range(begin, end):
            here[region[block_of[one]], (one - begin) >> 6] |= np.uint64(1) << np.uint64((one - begin) & 63)
        before[begin:] = 0
        for ticket in range(begin, count):
            row = before[ticket]
            for other in waits[of[ticket] : of[ticket + 1]]:
                if other >= begin:
                    row |= before[other]
                    if other < end:
                        row[(other - begin) >> 6] |= np.uint64(1) << np.uint64((other - begin) & 63)
            if in_order and ticket > begin:
                row |= before[ticket - 1]
                if ticket - 1 < end:
                    row[(ticket - 1 - begin) >> 6] |= np.uint64(1) << np.uint64((ticket - 1 - begin) & 63)
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
