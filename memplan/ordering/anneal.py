"""Search among sequences: runs are moved, added and taken out at random, and what is better, or not much worse, stays.

A sequence is judged by the bytes above the budget, summed over its steps, and by its time. Worse ones are accepted
with a probability that falls as the search goes on (simulated annealing), so that it can leave a valley. With adding
switched off it is a search for an order.
"""

from __future__ import annotations

import numpy as np

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints
from memplan.ordering.runs import Tables

NEAR = 24  # steps that most moves stay within
FAR = 200  # steps that some moves reach
MOVES_EACH, LEAST_MOVES, MOST_MOVES = 300, 60_000, 400_000  # random moves of a round, by operators
MOST_LOOKS = 2_500_000_000  # values looked at in a round: a move looks at all of them, a round should take seconds
STEPS_PER_LOOK = 2
LARGEST = 20_000  # operators of a graph for which this is of use
WARM, COLD = 1.0, 0.02  # temperatures, in mean values above the budget at one step


def moves_for(arrays: Arrays) -> int:
    """How many moves a round should have."""
    return min(max(MOVES_EACH * arrays.count, LEAST_MOVES), MOST_MOVES, MOST_LOOKS // _looks(arrays))


def steps_for(arrays: Arrays) -> int:
    """The work of a round; one that does not fit into what is left is not begun."""
    return moves_for(arrays) * _looks(arrays) * STEPS_PER_LOOK


def _looks(arrays: Arrays) -> int:
    return len(arrays.size) + len(arrays.reads.items) + len(arrays.makes.items) + 1


class Annealing:
    """A search that can be continued: each call of `run` is one cooling from where the best so far stands."""

    def __init__(self, arrays: Arrays, graph: Tables, runs: Ints, budget: int, *, adding: bool, seed: int = 0) -> None:
        self._graph = graph
        self._links = (
            arrays.before.start, arrays.before.items, arrays.behind.start, arrays.behind.items,
            arrays.users.start, arrays.users.items,
        )  # fmt: skip
        self._unit = max(1.0, float(arrays.size.mean())) if len(arrays.size) else 1.0
        self._moment = float(arrays.time.mean()) or 1.0
        self._adding = adding
        self._seed = seed
        self.budget = budget
        self.runs = runs

    def run(self, moves: int, price: float, *, warm: float = WARM) -> Ints:
        """After `moves` moves the best sequence that keeps the budget, or the one that comes nearest to it.

        `price` is what a run of mean time counts, against one mean value above the budget at one step.
        """
        self._seed += 1
        self.runs = _anneal(
            self.runs, self.budget, moves, self._unit, price / self._moment, warm, COLD, self._adding, self._seed,
            self._graph, self._links,
        )  # fmt: skip
        return self.runs


@compiled
def _energy(
    runs: Ints,
    length: int,
    budget: int,
    unit: float,
    price: float,
    needed: Ints,
    ended: Ints,
    last: Ints,
    top: Ints,
    graph: Tables,
) -> tuple[float, float]:
    """Bytes above the budget in `unit`s, summed; and time times `price`. `top` becomes a step of the peak."""
    read_start, reads, make_start, makes, maker, size, kept, workspace, time, _, _, reused, unread = graph
    values = len(size)
    needed[: length + 1] = 0
    ended[:length] = 0
    for value in range(values):
        last[value] = length - 1 if kept[value] else -1
    total = 0.0
    for step in range(length - 1, -1, -1):
        one = runs[step]
        total += time[one]
        for at in range(make_start[one], make_start[one + 1]):
            value = makes[at]
            needed[step] += size[value]
            needed[max(last[value], step) + 1] -= size[value]
            last[value] = -1
        for at in range(read_start[one], read_start[one + 1]):
            value = reads[at]
            if last[value] < 0:
                last[value] = step
                ended[step] += size[value]
    live = 0
    for value in range(values):
        if maker[value] < 0 and last[value] >= 0:
            live += size[value]
            needed[last[value] + 1] -= size[value]
    over, most = 0.0, -1
    for step in range(length):
        live += needed[step]
        need = live + workspace[runs[step]] - min(reused[runs[step]], ended[step])
        if step == 0:
            need += unread[0]
        if need > most:
            most, top[0] = need, step
        if need > budget:
            over += float(need - budget)
    return over / unit, total * price


@compiled
def _can_move(runs: Ints, origin: int, goal: int, many: Ints, mark: Ints, stamp: int, links: Tables) -> bool:
    """Whether every run still finds what it reads: only first runs can be missing."""
    before_start, before, behind_start, behind = links[:4]
    one = runs[origin]
    if goal > origin:
        for step in range(origin):
            if runs[step] == one:
                return True  # made before
            if many[one] == 1:
                break
        for at in range(behind_start[one], behind_start[one + 1]):
            mark[behind[at]] = stamp
        for step in range(origin + 1, goal + 1):
            if runs[step] == one:
                return True
            if mark[runs[step]] == stamp:
                return False
        return True
    for at in range(before_start[one], before_start[one + 1]):
        mark[before[at]] = stamp
    for step in range(goal, origin):
        if mark[runs[step]] == stamp:
            if many[runs[step]] == 1:
                return False
            is_first = True
            for earlier in range(goal):
                if runs[earlier] == runs[step]:
                    is_first = False
                    break
            if is_first:
                return False
    return True


@compiled
def _move(runs: Ints, origin: int, goal: int) -> None:
    one = runs[origin]
    if goal > origin:
        for step in range(origin, goal):
            runs[step] = runs[step + 1]
    else:
        for step in range(origin, goal, -1):
            runs[step] = runs[step - 1]
    runs[goal] = one


@compiled
def _can_go(runs: Ints, length: int, step: int, mark: Ints, stamp: int, links: Tables) -> bool:
    """Whether a repeated run may be taken out: it is not the first, or nobody needs it before the second."""
    behind_start, behind = links[2:4]
    one = runs[step]
    for earlier in range(step):
        if runs[earlier] == one:
            return True
    for at in range(behind_start[one], behind_start[one + 1]):
        mark[behind[at]] = stamp
    for later in range(step + 1, length):
        if runs[later] == one:
            return True
        if mark[runs[later]] == stamp:
            return False
    return False


@compiled
def _addition(
    runs: Ints, length: int, top: int, reach: int, mark: Ints, stamp: int, graph: Tables, links: Tables
) -> tuple[int, int]:
    """An operator and the step at which it runs again, for a value that idles at `top`; -1 where none was found."""
    read_start, reads, maker, again = graph[0], graph[1], graph[4], graph[9]
    user_start, users = links[4:]
    use = top + 1 + np.random.randint(reach)
    if use >= length:
        return -1, 0
    one = runs[use]
    many = read_start[one + 1] - read_start[one]
    if many == 0:
        return -1, 0
    value = reads[read_start[one] + np.random.randint(many)]
    if maker[value] < 0 or not again[maker[value]]:
        return -1, 0
    mark[maker[value]] = stamp
    for at in range(user_start[value], user_start[value + 1]):
        mark[users[at]] = stamp
    for step in range(top, use):
        if mark[runs[step]] == stamp:
            return -1, 0
    return maker[value], use if np.random.random() < 0.8 else top + 1 + np.random.randint(use - top)


@compiled
def _anneal(
    start: Ints, budget: int, moves: int, unit: float, price: float, warm: float, cold: float, adding: bool, seed: int,
    graph: Tables, links: Tables,
) -> Ints:  # fmt: skip
    np.random.seed(seed)
    again, waited_for = graph[9], graph[10]
    count = len(again)
    room = len(start) + count // 2 + 64
    runs = np.empty(room, np.int64)
    length = len(start)
    runs[:length] = start
    needed, ended = np.empty(room + 2, np.int64), np.empty(room + 2, np.int64)
    last, top = np.empty(len(graph[5]), np.int64), np.zeros(1, np.int64)
    mark, stamp, many = np.zeros(count, np.int64), 0, np.zeros(count, np.int64)
    for step in range(length):
        many[runs[step]] += 1
    over, spent = _energy(runs, length, budget, unit, price, needed, ended, last, top, graph)
    best, best_over, best_spent, best_length = runs.copy(), over, spent, length
    peak = top[0]
    extra = length - count
    for number in range(moves):
        temperature = warm * (cold / warm) ** (number / moves)
        kind = np.random.random()
        stamp += 1
        origin, goal, added = -1, -1, -1
        if adding and kind < 0.2:
            if length + 1 >= room or over == 0.0:
                continue
            added, goal = _addition(
                runs, length, peak, FAR if np.random.random() < 0.5 else NEAR, mark, stamp, graph, links
            )
            if added < 0 or many[added] >= 4:
                continue
            for step in range(length, goal, -1):
                runs[step] = runs[step - 1]
            runs[goal] = added
            length += 1
            many[added] += 1
        elif extra > 0 and kind < 0.35:
            skip = np.random.randint(extra)
            for step in range(length):
                if many[runs[step]] > 1:
                    if skip == 0:
                        origin = step
                        break
                    skip -= 1
            if origin < 0 or waited_for[runs[origin]]:
                continue
            if not _can_go(runs, length, origin, mark, stamp, links):
                continue
            added = runs[origin]
            for step in range(origin, length - 1):
                runs[step] = runs[step + 1]
            length -= 1
            many[added] -= 1
        else:
            reach = FAR if np.random.random() < 0.1 else NEAR
            if over > 0.0 and np.random.random() < 0.7:
                origin = peak + np.random.randint(2 * reach + 1) - reach
            else:
                origin = np.random.randint(length)
            goal = origin + np.random.randint(2 * reach + 1) - reach
            if origin < 0 or origin >= length or goal == origin:
                continue
            goal = min(max(goal, 0), length - 1)
            if goal == origin or not _can_move(runs, origin, goal, many, mark, stamp, links):
                continue
            _move(runs, origin, goal)
        new_over, new_spent = _energy(runs, length, budget, unit, price, needed, ended, last, top, graph)
        worse = new_over + new_spent - over - spent
        if worse <= 0.0 or np.random.random() < np.exp(-worse / temperature):
            over, spent, peak = new_over, new_spent, top[0]
            extra = length - count
            if over < best_over or (over == best_over and spent < best_spent):
                best_over, best_spent, best_length = over, spent, length
                best[:length] = runs[:length]
            continue
        if origin >= 0 and goal >= 0:
            _move(runs, goal, origin)
        elif goal >= 0:
            for step in range(goal, length - 1):
                runs[step] = runs[step + 1]
            length -= 1
            many[added] -= 1
        else:
            for step in range(length, origin, -1):
                runs[step] = runs[step - 1]
            runs[origin] = added
            length += 1
            many[added] += 1
    return best[:best_length].copy()
