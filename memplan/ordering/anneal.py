"""Search among sequences: runs are moved, added and taken out at random, and what is better, or not much worse, stays.

A sequence is judged by the bytes above the budget, summed over its steps, and by its time. Worse ones are accepted
with a probability that falls as the search goes on (simulated annealing), so that it can leave a valley. With adding
switched off it is a search for an order. A change costs what it touches (`memplan.ordering.sequence`), so that a round
has some thousand changes for each operator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled, inner
from memplan.ordering.arrays import Arrays, Ints
from memplan.ordering.sequence import (
    ABOVE,
    AGAIN,
    BEGIN,
    BEYOND,
    LENGTH,
    MAKER,
    MANY,
    MOST_RUNS,
    OPERATOR,
    OVER,
    READ,
    READS,
    RUN,
    STEP,
    columns_of,
    count_again,
    fill,
    first_step,
    insert,
    is_needed,
    keep,
    remove,
    renew_all,
    shift,
    take_back,
    window,
)  # fmt: skip
from memplan.work import Work

NEAR = 24  # steps that most moves stay within
FAR = 200  # steps that some moves reach
STEPS_EACH, LEAST_STEPS = 4_000, 50_000_000  # of a round: by the square of the operators
ROUNDS = 12  # that the work should do for
SHORT_ROUNDS = 1_500  # operators of a graph in which rounds that the work cuts short find something too
FEWEST = 2  # whole rounds: a search with work for fewer finds nothing that segments of a large graph do not
LARGEST = 20_000  # operators of a graph for which this is of use
ADDING, REMOVING = 0.1, 0.1  # shares of the changes; the rest are moves
TO_END = 0.2  # share of the moves that go to the first or the last step that is possible
MOVED, ADDED, REMOVED = range(3)
STEPS_PER_TRY, STEPS_PER_STEP = 700, 10  # of work
WARM, COLD = 1.0, 0.05  # temperatures, in mean values above the budget at one step


def round_of(arrays: Arrays, work: Work) -> int:
    """The steps of a round: by pairs of operators, or fewer where the work would not do for some rounds."""
    return max(1, min(_whole_round(arrays), work.left // ROUNDS))


def affords_rounds(arrays: Arrays, work: Work) -> bool:
    """Whether the work does for rounds that are long enough to find anything, in a graph of this size."""
    return arrays.count <= SHORT_ROUNDS or FEWEST * _whole_round(arrays) <= work.left


def _whole_round(arrays: Arrays) -> int:
    return max(STEPS_EACH * arrays.count**2, LEAST_STEPS)


class Annealing:
    """A search that can be continued: each call of `run` is one cooling from where the best so far stands."""

    def __init__(self, arrays: Arrays, runs: Ints, budget: int, *, adding: bool, seed: int = 0) -> None:
        self._columns = columns_of(arrays)
        self._time = arrays.time
        self._given = (arrays.inputs_size() - arrays.unread, arrays.unread)
        self._unit = max(1.0, float(arrays.size.mean())) if len(arrays.size) else 1.0
        self._moment = float(arrays.time.mean()) or 1.0
        self._adding = adding
        self._seed = seed
        self.budget = budget
        self.runs = runs

    def run(self, steps: int, price: float, *, warm: float = WARM) -> Ints:
        """After so many steps of work the best sequence that keeps the budget, or the one that comes nearest to it.

        `price` is what a run of mean time counts, against one mean value above the budget at one step. A sequence in
        which an operator runs more than `MOST_RUNS` times stays as it is.
        """
        self._seed += 1
        if np.bincount(self.runs).max(initial=0) > MOST_RUNS:  # the tables have no room for it
            return self.runs
        self.runs = _anneal(
            self.runs, self.budget, steps, self._unit, price / self._moment, warm, COLD, self._adding, self._seed,
            self._time, *self._given, *self._columns,
        )  # fmt: skip
        return self.runs


@compiled
def _anneal(
    start: Ints, budget: int, work: int, unit: float, price: float, warm: float, cold: float, adding: bool, seed: int,
    time: NDArray[np.float64], given: int, unread: int, operators: Ints, values: Ints, items: Ints,
) -> Ints:  # fmt: skip
    np.random.seed(seed)
    count = len(operators)
    room = len(start) + count // 2 + 64
    steps, runs = np.empty((room, 8), np.int64), np.empty((count, MOST_RUNS + 1), np.int64)
    ends, figures = np.empty((len(values), MOST_RUNS + 1), np.int64), np.empty(6, np.int64)
    journal, counts = np.empty((4 * MOST_RUNS * (len(values) + 1), 4), np.int64), np.empty((room, 2), np.int64)
    fill(start, steps, runs, ends, figures, journal, operators, values, items)
    over = count_again(given, budget, unread, counts, steps, figures, operators, values, items)
    keep(over, counts, steps, figures)
    once, spent = time.sum(), 0.0
    for step in range(len(start)):
        spent += time[start[step]]
    best, best_length, best_over, best_spent = np.empty(room, np.int64), len(start), over, spent
    best[:best_length] = start
    looked, tries, temperature = 0, 0, warm
    while looked < work and (best_over > 0 or best_spent > once * (1 + 1e-12)):
        tries += 1
        if tries % 64 == 0:
            temperature = warm * (cold / warm) ** (looked / work)
        looked += STEPS_PER_TRY
        kind, length, before = np.random.random(), figures[LENGTH], figures[OVER]
        if adding and kind < ADDING:
            if before == 0 or length + 1 >= room:
                continue
            one, goal = _addition(length, steps, runs, operators, values, items)
            if one < 0:
                continue
            run = insert(one, goal, 0, steps, runs, figures)
            did, more = ADDED, time[one]
        elif length > count and kind < ADDING + REMOVING:
            run = _repeated(length, steps, runs)
            if is_needed(run, steps, runs, operators, items):
                continue
            one, origin, above = steps[run, OPERATOR], steps[run, STEP], steps[run, ABOVE]
            remove(run, steps, runs, figures)
            did, more = REMOVED, -time[one]
        else:
            origin = np.random.randint(length)
            if before > 0 and np.random.random() < 0.7:
                origin = _hot(length, steps)
            run = steps[origin, RUN]
            low, high = window(run, steps, runs, figures, operators, items)
            where = np.random.random()
            if where < TO_END:
                goal = low if where < 0.5 * TO_END else high
            else:
                reach = FAR if np.random.random() < 0.1 else NEAR
                low, high = max(low, origin - reach), min(high, origin + reach)
                goal = low + np.random.randint(high - low + 1)
            if goal == origin:
                continue
            one = steps[run, OPERATOR]
            shift(run, goal, steps, figures)
            did, more = MOVED, 0.0
        renew_all(one, steps, runs, ends, figures, journal, operators, values, items)
        over = count_again(given, budget, unread, counts, steps, figures, operators, values, items)
        looked += STEPS_PER_STEP * (figures[BEYOND] - figures[BEGIN]) + (length if did != MOVED else 0)
        worse = (over - before) / unit + more * price
        if worse <= 0.0 or np.random.random() < np.exp(-worse / temperature):
            keep(over, counts, steps, figures)
            spent += more
            if over < best_over or (over == best_over and spent < best_spent * (1 - 1e-12)):
                best_over, best_spent, best_length = over, spent, figures[LENGTH]
                for step in range(best_length):
                    best[step] = steps[steps[step, RUN], OPERATOR]
                looked += best_length
            continue
        if did == MOVED:
            shift(run, origin, steps, figures)
        elif did == ADDED:
            remove(run, steps, runs, figures)
        else:
            insert(one, origin, above, steps, runs, figures)
        take_back(steps, ends, figures, journal)
    return best[:best_length].copy()


@inner
def _hot(length: int, steps: Ints) -> int:
    """A step near one above the budget: near the highest of a few."""
    hot = np.random.randint(length)
    for _ in range(4):
        step = np.random.randint(length)
        if steps[steps[step, RUN], ABOVE] > steps[steps[hot, RUN], ABOVE]:
            hot = step
    reach = FAR if np.random.random() < 0.1 else NEAR
    return min(max(hot + np.random.randint(2 * reach + 1) - reach, 0), length - 1)


@inner
def _repeated(length: int, steps: Ints, runs: Ints) -> int:
    """The next run behind a random step whose operator runs several times."""
    step = np.random.randint(length)
    while runs[steps[steps[step, RUN], OPERATOR], MANY] == 1:
        step = (step + 1) % length
    return int(steps[step, RUN])


@inner
def _addition(length: int, steps: Ints, runs: Ints, operators: Ints, values: Ints, items: Ints) -> tuple[int, int]:
    """An operator that may run again for a value that is read behind a step with too many bytes, and where; or -1."""
    top = _hot(length, steps)
    for _ in range(4):
        use = top + 1 + np.random.randint(FAR if np.random.random() < 0.5 else NEAR)
        if use >= length:
            continue
        one = steps[steps[use, RUN], OPERATOR]
        many = operators[one, READ] - operators[one, READS]
        if many == 0:
            continue
        made = values[items[operators[one, READS] + np.random.randint(many)], MAKER]
        if made < 0 or operators[made, AGAIN] == 0 or runs[made, MANY] == MOST_RUNS:
            continue
        if first_step(made, steps, runs) < top:
            return made, use if np.random.random() < 0.8 else top + 1 + np.random.randint(use - top)
    return -1, 0
