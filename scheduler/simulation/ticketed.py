"""The loop of a ticketed launch, or of a plain one: workers claim the next ticket and wait for earlier ones."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from scheduler.compiling import compiled
from scheduler.simulation.arrays import Bools, Floats, Ints

UNCLAIMED = -1


@compiled
def ticketed_loop(
    regions: Ints, follows: Bools, target: Ints, value: Ints, waits_of: Ints, waiters: Ints, heights: Ints,
    waiters_of: Ints, runs_of: Ints, counters: Ints, counters_of: Ints, times: Floats, factors: Floats, order: Ints,
    multiprocessors: int, signal: float, wait: float, begin: float, start: Floats, end: Floats, worker_of: Ints,
    place: Ints, waited: Floats, signalled: Floats, looked: Floats, cause: Ints, busy: Floats, stands: Ints,
) -> float:  # fmt: skip
    """Run the launch from `begin` until nothing happens any more; the time of the last event.

    `order` has the workers that have a slot, in the order in which they come; those that come at the same instant
    claim in that order. Tickets that follow are claimed with the one before them. Fills in the arrays of Times, by
    multiprocessor `busy` (time with a block on it), and by counter where it `stands`. A wait takes `wait`, as in a
    pinned launch. Blocks that start at the same instant count for each other.
    """
    count = len(order)
    holder = np.full(len(regions), UNCLAIMED)
    item = np.full(count, UNCLAIMED)  # that it holds, by position in `order`, like `claimed` and `running`
    claimed = np.full(count, begin)  # when
    limit = np.zeros(count, np.int64)  # where its tickets end
    ready, running = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    left = waits_of[1:] - waits_of[:-1]  # waits by ticket that are not fulfilled
    ended = np.empty(runs_of[-1], np.int64)  # the runs of each counter as they ended
    next_waiter = waiters_of[:-1].copy()
    active, since = np.zeros(multiprocessors, np.int64), np.zeros(multiprocessors)
    starters = np.empty(count, np.int64)
    ticket, now = 0, begin
    for counter in range(len(stands)):
        while next_waiter[counter] < waiters_of[counter + 1] and heights[next_waiter[counter]] == 0:
            left[waiters[next_waiter[counter]]] -= 1
            next_waiter[counter] += 1
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
                item[position] = UNCLAIMED
                for counter in counters[counters_of[run] : counters_of[run + 1]]:
                    ended[runs_of[counter] + stands[counter]] = run
                    stands[counter] += 1
                    at = next_waiter[counter]
                    while at < waiters_of[counter + 1] and heights[at] == stands[counter]:
                        other = waiters[at]
                        at += 1
                        left[other] -= 1
                        if left[other] == 0 and holder[other] != UNCLAIMED:
                            ready[holder[other]] = True
                            begins = _begins(
                                other, claimed[holder[other]], order[holder[other]], target, value, waits_of, runs_of,
                                ended, end, worker_of, signal, wait, waited, signalled, looked, cause,
                            )  # fmt: skip
                            heappush(events, (max(begins, now), holder[other]))
                    next_waiter[counter] = at
                if run + 1 < limit[position]:
                    item[position], claimed[position], holder[run + 1] = run + 1, now, position
            if item[position] == UNCLAIMED:
                if ticket == len(regions):
                    continue
                item[position], claimed[position] = ticket, now
                holder[ticket] = position
                ticket += 1
                while ticket < len(regions) and follows[ticket]:
                    ticket += 1
                limit[position] = ticket
            run = item[position]
            if left[run] > 0:
                continue
            if not ready[position]:
                ready[position] = True
                begins = _begins(
                    run, now, order[position], target, value, waits_of, runs_of, ended, end, worker_of, signal, wait,
                    waited, signalled, looked, cause,
                )  # fmt: skip
                if begins > now:
                    heappush(events, (begins, position))
                    continue
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
            running[position], ready[position] = True, False
            heappush(events, (now + takes, position))
    return now


@compiled
def _begins(
    ticket: int, claimed: float, worker: int, target: Ints, value: Ints, waits_of: Ints, runs_of: Ints, ended: Ints,
    end: Floats, worker_of: Ints, signal: float, wait: float, waited: Floats, signalled: Floats, looked: Floats,
    cause: Ints,
) -> float:  # fmt: skip
    """When a ticket whose waits are fulfilled begins: they come one after the other; what each costs is filled in.

    Its own worker's blocks a worker sees at once, those of others after a signal.
    """
    now = claimed
    for at in range(waits_of[ticket], waits_of[ticket + 1]):
        first = runs_of[target[at]]
        seen, by = -np.inf, -1
        for place in range(first + value[at] - 1, first - 1, -1):
            run = ended[place]
            if by < 0:
                seen, by = end[run], run
            if worker_of[run] != worker:
                if end[run] + signal > seen:
                    seen, by = end[run] + signal, run
                break
        if seen > now:
            source = min(seen, max(now, end[by]))
            waited[ticket] += source - now
            signalled[ticket] += seen - source
            cause[ticket] = by
            now = seen
        looked[ticket] += wait
        now += wait
    return now
