"""The loop of a pinned launch: workers take slots, run their lists and wait for counters."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from scheduler.compiling import compiled
from scheduler.simulation.arrays import Floats, Ints

# What a worker is at.
OUTSIDE, AWAKE, RUNNING, BLOCKED, ENDED = 0, 1, 2, 3, 4


@compiled
def pinned_loop(
    instructions: Ints, target: Ints, value: Ints, runs: Ints, runs_of: Ints, counters: Ints, counters_of: Ints,
    times: Floats, factors: Floats, order: Ints, slots: int, multiprocessors: int, signal: float, wait: float,
    begin: float, start: Floats, end: Floats, worker_of: Ints, place: Ints, waited: Floats, signalled: Floats,
    looked: Floats, cause: Ints, busy: Floats, state: Ints, at: Ints, stands: Ints,
) -> float:  # fmt: skip
    """Run the launch from `begin` until nothing happens any more; the time of the last event.

    Fills in the arrays of Times and, by multiprocessor, `busy` (time with a block on it); by worker `state` and the
    next instruction `at`; by counter where it `stands`. A wait takes `wait` from when the worker came to it or, if that
    is later, from when it sees the end that fulfils it. Blocks that start at the same instant count for each other.
    """
    count = len(order)
    sits = np.empty(count, np.int64)  # slot
    done = np.zeros(count, np.int64)  # runs
    came = np.full(count, begin)  # when it came to its next instruction
    ended = np.empty(runs_of[-1], np.int64)  # the runs of each counter as they ended
    first_waiter, next_waiter = np.full(len(stands), -1), np.full(count, -1)
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
                run = runs[worker] + done[worker]
                done[worker] += 1
                for counter in counters[counters_of[run] : counters_of[run + 1]]:
                    ended[runs_of[counter] + stands[counter]] = run
                    stands[counter] += 1
                    before, waiter = -1, first_waiter[counter]
                    while waiter >= 0:
                        following = next_waiter[waiter]
                        if value[at[waiter]] <= stands[counter]:
                            if done[waiter] < runs[waiter + 1] - runs[waiter]:
                                mine = runs[waiter] + done[waiter]
                                waited[mine] += now - came[waiter]
                                signalled[mine] += signal
                                looked[mine] += wait
                                cause[mine] = run
                            at[waiter] += 1
                            heappush(events, (now + signal + wait, waiter))
                            state[waiter] = AWAKE
                            if before < 0:
                                first_waiter[counter] = following
                            else:
                                next_waiter[before] = following
                        else:
                            before = waiter
                        waiter = following
            state[worker], came[worker] = AWAKE, now
            goes_on = True
            while at[worker] < instructions[worker + 1] and target[at[worker]] >= 0:
                counter, need = target[at[worker]], value[at[worker]]
                if need > stands[counter]:
                    state[worker] = BLOCKED
                    next_waiter[worker] = first_waiter[counter]
                    first_waiter[counter] = worker
                    goes_on = False
                    break
                at[worker] += 1
                seen, by = _seen(ended[runs_of[counter] : runs_of[counter] + need], end, worker_of, worker, signal)
                if done[worker] < runs[worker + 1] - runs[worker]:
                    mine = runs[worker] + done[worker]
                    looked[mine] += wait
                    if seen > now:
                        signalled[mine] += seen - now
                        cause[mine] = by
                if max(seen, now) + wait > now:
                    heappush(events, (max(seen, now) + wait, worker))
                    goes_on = False
                    break
            if goes_on and at[worker] == instructions[worker + 1]:
                state[worker] = ENDED
                if dispatched < count:
                    newcomer = order[dispatched]
                    dispatched += 1
                    sits[newcomer], state[newcomer] = sits[worker], AWAKE
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
            kernel = value[at[worker]]
            takes = times[kernel, min(active[spot], times.shape[1]) - 1] * factors[run]
            start[run], end[run], worker_of[run], place[run] = now, now + takes, worker, spot
            at[worker] += 1
            state[worker] = RUNNING
            heappush(events, (now + takes, worker))
    return now


@compiled
def _seen(ended: Ints, end: Floats, worker_of: Ints, worker: int, signal: float) -> tuple[float, int]:
    """When a worker sees a counter at the height that these runs made, as they ended; and which run it waits for.

    Its own runs it sees at once, those of others after a signal.
    """
    if len(ended) == 0:
        return -np.inf, -1
    last = ended[-1]
    latest, by = end[last], last
    for place in range(len(ended) - 1, -1, -1):
        if worker_of[ended[place]] != worker:
            if end[ended[place]] + signal > latest:
                latest, by = end[ended[place]] + signal, ended[place]
            break
    return latest, by
