"""Lower bounds by name: no schedule of the tasks on so many workers can be shorter.

All hold for identical workers and ignore the delays of signals, which only lengthen schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scheduler.compiling import compiled
from scheduler.lists.priority import heads, tails
from scheduler.lists.sorting import ascending
from scheduler.lists.tasks import Floats, Ints, Tasks, check_workers
from scheduler.lists.windows import MOST_TASKS, tight_heads, tight_tails

MOST_ROUNDS = 20  # of longer and longer schedules refuted; most need one or two
MOST_STEPS = 20_000_000  # of a sweep; with more intervals than that, evenly chosen ones are taken: still a bound
ROUNDING = 1e-9  # relative: sums in different orders differ by less


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound, in the tasks' unit of time, and what it is called."""

    name: str
    value: float


def lower_bound(tasks: Tasks, workers: int) -> Bound:
    """The best of all bounds; of equal ones the simplest."""
    return max(all_bounds(tasks, workers), key=lambda bound: bound.value)


def all_bounds(tasks: Tasks, workers: int) -> tuple[Bound, ...]:
    """Critical path, work, Fernandez-Bussell and tightened windows. Raises InvalidTaskGraph without a worker."""
    check_workers(workers)
    plain = (critical_path(tasks), work(tasks, workers), fernandez_bussell(tasks, workers))
    return (*plain, tightened(tasks, workers)) if tasks.count <= MOST_TASKS else plain


def critical_path(tasks: Tasks) -> Bound:
    """The longest path: what the tasks take with a worker for each."""
    return Bound("critical path", float(tails(tasks).max(initial=0.0)))


def work(tasks: Tasks, workers: int) -> Bound:
    """All work shared evenly by the workers."""
    return Bound("work", _rounded(work_over_slots(tasks.times, workers), tasks.whole))


def work_over_slots(amounts: ArrayLike, slots: int) -> float:
    """Amounts of time, of blocks or regions, shared evenly by slots that work at once."""
    check_workers(slots)
    return float(np.sum(np.asarray(amounts, np.float64))) / slots


def fernandez_bussell(tasks: Tasks, workers: int) -> Bound:
    """The critical path and what does not fit into some interval of it.

    A schedule as long as the critical path has each task in a window, from the longest path before it to the longest
    path behind it. Of the work W that then lies in [a, b] for certain, `W - workers * (b - a)` finds no place, and
    the schedule is longer by that, shared by the workers. Where times are whole, so is the bound.

    Fernandez and Bussell, "Bounds on the number of processors and time for multiprocessor optimal schedules", IEEE
    Transactions on Computers C-22, 1973. Tasks of equal windows are counted together; every interval that can be the
    worst begins at the beginning or the latest start of a task, and all ends are tried, in one sweep for each begin.
    """
    check_workers(workers)
    path = critical_path(tasks).value
    return Bound("Fernandez-Bussell", _rounded(path + excess(heads(tasks), tails(tasks), tasks.times, workers, path),
                                               tasks.whole))  # fmt: skip


def tightened(tasks: Tasks, workers: int) -> Bound:
    """Fernandez and Bussell's bound with windows that count the workers; again for each longer schedule it asks for."""
    check_workers(workers)
    head, tail = tight_heads(tasks, workers), tight_tails(tasks, workers)
    length = max(float((head + tail).max(initial=0.0)), work(tasks, workers).value)
    for _ in range(MOST_ROUNDS):
        longer = _rounded(length + excess(head, tail, tasks.times, workers, length), tasks.whole)
        if longer <= length * (1 + ROUNDING):
            break
        length = longer
    return Bound("tightened windows", length)


def excess(head: ArrayLike, tail: ArrayLike, times: ArrayLike, workers: int, length: float) -> float:
    """By how much a schedule must be longer than `length`, at least, from tasks in windows.

    A task begins `head` after the start at the earliest and ends so that `tail`, its own time included, fits before
    `length`. The times of one unit; 0 if nothing is too much.
    """
    windows = np.stack((np.asarray(head, np.float64), length - np.asarray(tail, np.float64), np.asarray(times)))
    some = windows[:, windows[2] > 0]
    if not some.size:
        return 0.0
    (early, late, takes), many = np.unique(some, axis=1, return_counts=True)
    late = np.maximum(late, early)  # only rounding can have it otherwise
    begins = np.unique(np.concatenate((early, late)))
    most = max(16, MOST_STEPS // (len(takes) * max(1, len(takes).bit_length())))
    if len(begins) > most:
        begins = begins[np.linspace(0, len(begins) - 1, most).astype(np.int64)]
    return float(_excess(early, late, takes, many.astype(np.int64), begins, workers))


def _rounded(value: float, whole: bool) -> float:
    """Up to a whole number where times are whole."""
    return float(np.ceil(value - ROUNDING * max(1.0, abs(value)))) if whole else value


@compiled
def _excess(early: Floats, late: Floats, times: Floats, many: Ints, begins: Floats, workers: int) -> float:
    """The largest `W(a, b) / workers - (b - a)`.

    In [a, b] lies `min(m, b - max(a, late))` of a task at least, where m is what is left of it after a when it begins
    as early as it can: from max(a, late) on, b has to grow by m until all of that is in.
    """
    count = len(times)
    ends, slope = np.empty(2 * count), np.empty(2 * count, np.int64)
    worst = 0.0
    for begin in begins:
        made = 0
        for one in range(count):
            inside = min(times[one], early[one] + times[one] - begin)
            if inside <= 0:
                continue
            first = max(begin, late[one])
            ends[made], slope[made] = first, many[one]
            ends[made + 1], slope[made + 1] = first + inside, -many[one]
            made += 2
        by = ascending(ends[:made])
        amount, rate, last = 0.0, 0, begin
        for at in by:
            amount += rate * (ends[at] - last)
            last = ends[at]
            rate += slope[at]
            worst = max(worst, amount / workers - (last - begin))
    return worst
