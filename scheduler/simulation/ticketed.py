"""The loop of a ticketed launch, or of a plain one: workers claim the next ticket and wait for earlier ones."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from scheduler.compiling import compiled
from scheduler.simulation.arrays import Floats, Ints

UNCLAIMED = -1


@compiled
def ticketed_loop(
    regions: Ints, waits: Ints, waits_of: Ints, waiters: Ints, waiters_of: Ints, times: Floats, factors: Floats,
    order: Ints, multiprocessors: int, signal: float, begin: float, start: Floats, end: Floats, worker_of: Ints,
    place: Ints, waited: Floats, signalled: Floats, cause: Ints, busy: Floats, left: Ints,
) -> float:  # fmt: skip
    """Run the launch from `begin` until nothing happens any more; the time of the last event.

    `order` has the workers that have a slot, in the order in which they come; those that come at the same instant
    claim in that order. Fills in the arrays of Times, by multiprocessor `busy` (time with a block on it), and by
    ticket `left`, the waits that are not fulfilled. Blocks that start at the same instant count for each other.
    """
    count = len(order)
    holder = np.full(len(regions), UNCLAIMED)
    item = np.full(count, UNCLAIMED)  # that it holds, by position in `order`, like `last` and `running`
    last = np.full(count, begin)
    running = np.zeros(count, np.bool_)
    active, since = np.zeros(multiprocessors, np.int64), np.zeros(multiprocessors)
    starters = np.empty(count, np.int64)
    ticket, now = 0, begin
    for one in range(len(regions)):
        left[one] = waits_of[one + 1] - waits_of[one]
    events = [(begin, position) for position in range(count)]
    while len(events) > 0:
        now = events[0][0]
        starting = 0
        while len(events) > 0 and events[0][0] <= now:
            position = heappop(events)[1]
            if running[position]:
                running[position] = False
                run = item[position]
                spot = place[run]
                active[spot] -= 1
                if active[spot] == 0:
                    busy[spot] += now - since[spot]
                last[position] = now
                item[position] = UNCLAIMED
                for other in waiters[waiters_of[run] : waiters_of[run + 1]]:
                    left[other] -= 1
                    if left[other] == 0 and holder[other] != UNCLAIMED:
                        seen, _ = _seen(other, waits, waits_of, end, worker_of, order[holder[other]], signal)
                        heappush(events, (max(seen, now), holder[other]))
            if item[position] == UNCLAIMED:
                if ticket == len(regions):
                    continue
                item[position] = ticket
                ticket += 1
            run = item[position]
            holder[run] = position
            if left[run] > 0:
                continue
            seen, by = _seen(run, waits, waits_of, end, worker_of, order[position], signal)
            if seen > now:
                heappush(events, (seen, position))
                continue
            if seen > last[position]:
                source = max(last[position], end[by])
                waited[run], signalled[run], cause[run] = source - last[position], now - source, by
            starters[starting] = position
            starting += 1
        for position in starters[:starting]:
            spot = order[position] % multiprocessors
            if active[spot] == 0:
                since[spot] = now
            active[spot] += 1
        for position in starters[:starting]:
            spot, run = order[position] % multiprocessors, item[position]
            takes = times[regions[run], min(active[spot], times.shape[1]) - 1] * factors[run]
            start[run], end[run], worker_of[run], place[run] = now, now + takes, order[position], spot
            running[position] = True
            heappush(events, (now + takes, position))
    return now


@compiled
def _seen(
    ticket: int, waits: Ints, waits_of: Ints, end: Floats, worker_of: Ints, worker: int, signal: float
) -> tuple[float, int]:
    """When the last of a ticket's waits is seen by the worker that holds it, and which; one's own needs no signal."""
    latest, by = -np.inf, -1
    for other in waits[waits_of[ticket] : waits_of[ticket + 1]]:
        seen = end[other] + (0.0 if worker_of[other] == worker else signal)
        if seen > latest:
            latest, by = seen, other
    return latest, by
