"""A sequence of runs under change: a run is moved, added or taken out, and only what that touches is counted again.

A value is there from a run that makes it to the last run that reads it before it is made again; that run is an *end* of
the value. When a run changes its step, only the ends of what it reads and makes can change, and bytes only between the
steps at which ends did. A change is written down while it is made, and is taken back where it does not pay.

Tables are two-dimensional and few, since a call of a compiled loop hands over every array in seven words.
"""

from __future__ import annotations

import numpy as np

from memplan.compiling import compiled, inner
from memplan.ordering.arrays import Arrays, Ints

MOST_RUNS = 6  # of one operator
NEVER = 1 << 60  # a step
STAYS = -1  # the end of what is there when everything has run

# Columns of `steps`: the run at a step; then, by run, its step, its operator, bytes of operands that end with it, bytes
# of its results that nobody reads, bytes above the budget while it runs, bytes there behind it; places that are free.
RUN, STEP, OPERATOR, ENDED, UNREAD, ABOVE, THERE, FREE = range(8)
MANY = MOST_RUNS  # column of `runs` and of `ends`: how many there are, behind the runs or ends themselves
BEGIN, BEYOND, FREED, LENGTH, OVER, WRITTEN = range(6)  # of `figures`: steps to count again, runs, bytes, lines
# Columns of `operators` and of `values`. Lists lie in `items`.
READS, READ, MAKES, MADE, BEFORE, FIRST, BEHIND, LATER, WORKSPACE, REUSED, AGAIN = range(11)
MAKER, SIZE, KEPT, USERS, USED = range(5)


def columns_of(arrays: Arrays) -> tuple[Ints, Ints, Ints]:
    """A graph as (operators, values, items), in the columns above."""
    operators, values = np.zeros((arrays.count, 11), np.int64), np.zeros((len(arrays.size), 5), np.int64)
    lists, offset = [], 0
    for rows, table, column in (
        (arrays.reads, operators, READS), (arrays.makes, operators, MAKES), (arrays.before, operators, BEFORE),
        (arrays.behind, operators, BEHIND), (arrays.users, values, USERS),
    ):  # fmt: skip
        table[:, column], table[:, column + 1] = rows.start[:-1] + offset, rows.start[1:] + offset
        lists.append(rows.items)
        offset += len(rows.items)
    operators[:, WORKSPACE], operators[:, REUSED], operators[:, AGAIN] = arrays.workspace, arrays.reused, arrays.again
    values[:, MAKER], values[:, SIZE], values[:, KEPT] = arrays.maker, arrays.size, arrays.kept
    return operators, values, np.concatenate(lists)


@compiled
def fill(
    sequence: Ints, steps: Ints, runs: Ints, ends: Ints, figures: Ints, journal: Ints, operators: Ints, values: Ints,
    items: Ints,
) -> None:  # fmt: skip
    """Set up the tables for a sequence; all steps are to be counted."""
    length, room = len(sequence), len(steps)
    steps[:], runs[:], ends[:], figures[:] = 0, 0, STAYS, 0
    ends[:, MANY] = 0
    for step in range(length):
        one = sequence[step]
        steps[step, RUN], steps[step, STEP], steps[step, OPERATOR] = step, step, one
        runs[one, runs[one, MANY]] = step
        runs[one, MANY] += 1
    for place in range(room - length):
        steps[place, FREE] = room - 1 - place
    figures[FREED], figures[LENGTH] = room - length, length
    for value in range(len(values)):
        renew(value, steps, runs, ends, figures, journal, values, items)
        figures[WRITTEN] = 0
    figures[BEGIN], figures[BEYOND] = 0, length


@inner
def first_step(one: int, steps: Ints, runs: Ints) -> int:
    """The step at which an operator runs first."""
    first = steps[runs[one, 0], STEP]
    for number in range(1, runs[one, MANY]):
        first = min(first, steps[runs[one, number], STEP])
    return int(first)


@inner
def wanted_step(one: int, steps: Ints, runs: Ints, operators: Ints, items: Ints) -> int:
    """The first step at which anything runs that has to come behind an operator."""
    wanted = NEVER
    for at in range(operators[one, BEHIND], operators[one, LATER]):
        wanted = min(wanted, first_step(items[at], steps, runs))
    return wanted


@compiled
def is_needed(run: int, steps: Ints, runs: Ints, operators: Ints, items: Ints) -> bool:
    """Whether a run is the only one of its operator that comes before all that has to come behind it."""
    one = steps[run, OPERATOR]
    others = NEVER
    for number in range(runs[one, MANY]):
        if runs[one, number] != run:
            others = min(others, steps[runs[one, number], STEP])
    if others <= steps[run, STEP]:
        return False
    return others == NEVER or wanted_step(one, steps, runs, operators, items) < others


@compiled
def window(run: int, steps: Ints, runs: Ints, figures: Ints, operators: Ints, items: Ints) -> tuple[int, int]:
    """The first and the last step that a run can be moved to: every operator has run before what reads of it."""
    one = steps[run, OPERATOR]
    low, high = -1, figures[LENGTH] - 1
    for at in range(operators[one, BEFORE], operators[one, FIRST]):
        low = max(low, first_step(items[at], steps, runs))
    if is_needed(run, steps, runs, operators, items):
        high = min(high, wanted_step(one, steps, runs, operators, items) - 1)
    return low + 1, high


@compiled
def shift(run: int, goal: int, steps: Ints, figures: Ints) -> None:
    """Move a run to another step; what lies between moves up or down by one."""
    origin = steps[run, STEP]
    if goal > origin:
        for step in range(origin, goal):
            steps[step, RUN] = steps[step + 1, RUN]
            steps[steps[step, RUN], STEP] = step
    else:
        for step in range(origin, goal, -1):
            steps[step, RUN] = steps[step - 1, RUN]
            steps[steps[step, RUN], STEP] = step
    steps[goal, RUN], steps[run, STEP] = run, goal
    _touch(min(origin, goal), figures)
    _touch(max(origin, goal), figures)


@compiled
def insert(one: int, goal: int, above: int, steps: Ints, runs: Ints, figures: Ints) -> int:
    """Run an operator once more, at this step; the new run, which counts as `above` the budget so far."""
    figures[FREED] -= 1
    run = steps[figures[FREED], FREE]
    for step in range(figures[LENGTH], goal, -1):
        steps[step, RUN] = steps[step - 1, RUN]
        steps[steps[step, RUN], STEP] = step
    steps[goal, RUN], steps[run, STEP], steps[run, OPERATOR] = run, goal, one
    figures[LENGTH] += 1
    runs[one, runs[one, MANY]] = run
    runs[one, MANY] += 1
    steps[run, ABOVE] = above
    figures[OVER] += above
    _touch(goal, figures)
    _touch(goal + 1, figures)
    return int(run)


@compiled
def remove(run: int, steps: Ints, runs: Ints, figures: Ints) -> None:
    """Take a run out of the sequence."""
    one, origin = steps[run, OPERATOR], steps[run, STEP]
    figures[LENGTH] -= 1
    figures[OVER] -= steps[run, ABOVE]
    for step in range(origin, figures[LENGTH]):
        steps[step, RUN] = steps[step + 1, RUN]
        steps[steps[step, RUN], STEP] = step
    runs[one, MANY] -= 1
    for number in range(runs[one, MANY]):
        if runs[one, number] == run:
            runs[one, number] = runs[one, runs[one, MANY]]
    steps[figures[FREED], FREE] = run
    figures[FREED] += 1
    _touch(origin, figures)


@compiled
def renew_all(
    one: int, steps: Ints, runs: Ints, ends: Ints, figures: Ints, journal: Ints, operators: Ints, values: Ints,
    items: Ints,
) -> None:  # fmt: skip
    """Find the ends of all that an operator reads and makes."""
    for at in range(operators[one, READS], operators[one, READ]):
        renew(items[at], steps, runs, ends, figures, journal, values, items)
    for at in range(operators[one, MAKES], operators[one, MADE]):
        renew(items[at], steps, runs, ends, figures, journal, values, items)


@inner
def renew(
    value: int, steps: Ints, runs: Ints, ends: Ints, figures: Ints, journal: Ints, values: Ints, items: Ints
) -> None:
    """Find the ends of a value anew. An end is twice the run, and one more where the run makes the value."""
    one, since = values[value, MAKER], -1
    times = 1 if one < 0 else runs[one, MANY]
    most = max(times, ends[value, MANY])
    for number in range(most):
        # The runs that make the value, from the first; then the last reader before the next of them.
        made, until, end = -1, NEVER, STAYS
        if number < times:
            if one >= 0:
                made = NEVER
                for other in range(times):
                    step = steps[runs[one, other], STEP]
                    if since < step < made:
                        made, until, end = step, min(until, made), 2 * runs[one, other] + 1
                    elif since < step:
                        until = min(until, step)
            last = made
            for at in range(values[value, USERS], values[value, USED]):
                user = items[at]
                for other in range(runs[user, MANY]):
                    step = steps[runs[user, other], STEP]
                    if last < step < until:
                        last, end = step, 2 * runs[user, other]
            since = made
            if values[value, KEPT] and until == NEVER:
                end = STAYS
        old = ends[value, number]
        if old == end:
            continue
        if old != STAYS:
            _change(old, -values[value, SIZE], steps, figures, journal)
        if end != STAYS:
            _change(end, values[value, SIZE], steps, figures, journal)
        _write_down(0, value, number, old, figures, journal)
        ends[value, number] = end
    if ends[value, MANY] != times:
        _write_down(0, value, MANY, ends[value, MANY], figures, journal)
        ends[value, MANY] = times


@compiled
def take_back(steps: Ints, ends: Ints, figures: Ints, journal: Ints) -> None:
    """Undo what `renew` wrote since the last count that was kept."""
    for line in range(figures[WRITTEN] - 1, -1, -1):
        row, column, before = journal[line, 1], journal[line, 2], journal[line, 3]
        if journal[line, 0] == 0:
            ends[row, column] = before
        else:
            steps[row, column] = before
    figures[WRITTEN], figures[BEGIN], figures[BEYOND] = 0, NEVER, 0


@compiled
def count_again(given: int, budget: int, unread: int, counts: Ints, steps: Ints, figures: Ints, operators: Ints,
                values: Ints, items: Ints) -> int:  # fmt: skip
    """Bytes above the budget, summed over the steps, where the touched steps are counted anew.

    What is counted lies in `counts` until `keep`. `given` are the bytes that are there before the first step, `unread`
    those that are there during it alone.
    """
    begin, beyond = figures[BEGIN], min(figures[BEYOND], figures[LENGTH])
    live = steps[steps[begin - 1, RUN], THERE] if begin > 0 else given
    over = figures[OVER]
    for step in range(begin, beyond):
        run = steps[step, RUN]
        one = steps[run, OPERATOR]
        for at in range(operators[one, MAKES], operators[one, MADE]):
            live += values[items[at], SIZE]
        need = live + operators[one, WORKSPACE] - min(operators[one, REUSED], steps[run, ENDED])
        if step == 0:
            need += unread
        live -= steps[run, ENDED] + steps[run, UNREAD]
        above = max(need - budget, 0)
        over += above - steps[run, ABOVE]
        counts[step, 0], counts[step, 1] = above, live
    return int(over)


@compiled
def keep(over: int, counts: Ints, steps: Ints, figures: Ints) -> None:
    """Take what `count_again` found."""
    for step in range(figures[BEGIN], min(figures[BEYOND], figures[LENGTH])):
        run = steps[step, RUN]
        steps[run, ABOVE], steps[run, THERE] = counts[step, 0], counts[step, 1]
    figures[OVER] = over
    figures[WRITTEN], figures[BEGIN], figures[BEYOND] = 0, NEVER, 0


@inner
def _touch(step: int, figures: Ints) -> None:
    figures[BEGIN], figures[BEYOND] = min(figures[BEGIN], step), max(figures[BEYOND], step + 1)


@inner
def _change(end: int, more: int, steps: Ints, figures: Ints, journal: Ints) -> None:
    run, column = end // 2, UNREAD if end & 1 else ENDED
    _write_down(1, run, column, steps[run, column], figures, journal)
    steps[run, column] += more
    _touch(steps[run, STEP], figures)


@inner
def _write_down(table: int, row: int, column: int, before: int, figures: Ints, journal: Ints) -> None:
    line = figures[WRITTEN]
    journal[line, 0], journal[line, 1], journal[line, 2], journal[line, 3] = table, row, column, before
    figures[WRITTEN] = line + 1
