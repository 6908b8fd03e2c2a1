"""The loop of a pinned launch: workers take slots, run their lists and wait for each other's counters."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from scheduler.compiling import compiled
from scheduler.simulation.arrays import Floats, Ints

# What a worker is at.
OUTSIDE, AWAKE, RUNNING, BLOCKED, ENDED = 0, 1, 2, 3, 4


@compiled
def pinned_loop(
    instructions: Ints, target: Ints, value: Ints, runs: Ints, times: Floats, factors: Floats, order: Ints, slots: int,
    multiprocessors: int, signal: float, begin: float, start: Floats, end: Floats, worker_of: Ints, place: Ints,
    waited: Floats, signalled: Floats, cause: Ints, busy: Floats, state: Ints, at: Ints, done: Ints,
) -> float:  # fmt: skip
    """Run the launch from `begin` until nothing happens any more; the time of the last event.

    Fills in the arrays of Times and, by multiprocessor, `busy` (time with a block on it); by worker `state`, the next
    instruction `at` and the number of runs `done`. Blocks that start at the same instant count for each other.
    """
    count = len(order)
    sits = np.empty(count, np.int64)  # slot
    last = np.full(count, begin)  # when it came, or ended its last run
    seen, seen_run = np.full(count, -np.inf), np.full(count, -1)  # the latest signal since then
    first_waiter, next_waiter = np.full(count, -1), np.full(count, -1)
    active, since = np.zeros(multiprocessors, np.int64), np.zeros(multiprocessors)
    starters = np.empty(count, np.int64)
    events = [(begin, -1)]
    events.clear()
    for dispatched in range(min(slots, count)):
        worker = order[dispatched]
        sits[worker] = worker if count <= slots else dispatched
        state[worker] = AWAKE
        heappush(events, (begin, worker))
    dispatched, now = min(slots, count), begin
    while len(events) > 0:
        now = events[0][0]
        starting = 0
        while len(events) > 0 and events[0][0] <= now:
            worker = heappop(events)[1]
            if state[worker] == RUNNING:
                spot = sits[worker] % multiprocessors
                active[spot] -= 1
                if active[spot] == 0:
                    busy[spot] += now - since[spot]
                done[worker] += 1
                last[worker] = now
                before, waiter = -1, first_waiter[worker]
                while waiter >= 0:
                    following = next_waiter[waiter]
                    if value[at[waiter]] <= done[worker]:
                        heappush(events, (now + signal, waiter))
                        state[waiter] = AWAKE
                        if before < 0:
                            first_waiter[worker] = following
                        else:
                            next_waiter[before] = following
                    else:
                        before = waiter
                    waiter = following
            state[worker] = AWAKE
            goes_on = True
            while at[worker] < instructions[worker + 1] and target[at[worker]] >= 0:
                other, need = target[at[worker]], value[at[worker]]
                if need <= done[other]:
                    if other != worker and need > 0:
                        run = runs[other] + need - 1
                        if end[run] + signal > seen[worker]:
                            seen[worker], seen_run[worker] = end[run] + signal, run
                        if end[run] + signal > now:
                            heappush(events, (end[run] + signal, worker))
                            goes_on = False
                            break
                    at[worker] += 1
                else:
                    state[worker] = BLOCKED
                    if other != worker:
                        next_waiter[worker] = first_waiter[other]
                        first_waiter[other] = worker
                    goes_on = False
                    break
            if goes_on and at[worker] == instructions[worker + 1]:
                state[worker] = ENDED
                if dispatched < count:
                    newcomer = order[dispatched]
                    dispatched += 1
                    sits[newcomer], last[newcomer], state[newcomer] = sits[worker], now, AWAKE
                    heappush(events, (now, newcomer))
            elif goes_on:
                starters[starting] = worker
                starting += 1
        for worker in starters[:starting]:
            spot = sits[worker] % multiprocessors
            if active[spot] == 0:
                since[spot] = now
            active[spot] += 1
        for worker in starters[:starting]:
            spot = sits[worker] % multiprocessors
            run = runs[worker] + done[worker]
            if seen[worker] > last[worker]:
                source = max(last[worker], end[seen_run[worker]])
                waited[run], signalled[run] = source - last[worker], now - source
                cause[run] = seen_run[worker]
            seen[worker] = -np.inf
            kernel = value[at[worker]]
            takes = times[kernel, min(active[spot], times.shape[1]) - 1] * factors[run]
            start[run], end[run], worker_of[run], place[run] = now, now + takes, worker, spot
            at[worker] += 1
            state[worker] = RUNNING
            heappush(events, (now + takes, worker))
    return now
