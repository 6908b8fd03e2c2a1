"""Bars of list scheduling: random task graphs against the bound, and small ones against every order there is.

    python -m bench.scheduling.lists --data FOLDER

also solves every Standard Task Graph file in FOLDER, and those in the folders under it, on 2, 4, 8 and 16 workers.
Every schedule is looked through for overlaps and broken precedence here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.scheduling.random_tasks import METHODS, TIMES, random_tasks
from bench.script import main
from scheduler.bounds import critical_path, fernandez_bussell, work
from scheduler.compiling import Stopwatch
from scheduler.lists.list_schedule import list_schedule
from scheduler.lists.priority import rules
from scheduler.lists.solve import Solved, solve
from scheduler.lists.tasks import Tasks, tasks_of
from scheduler.stg import read_stg

ISSUE = 7
COUNTS, WORKERS = (50, 100, 1000), (2, 4, 8, 16)
PREDECESSORS = (1.0, 3.0, 5.0)
MOST_GAP, MOST_SECONDS = 0.5, 1.0  # percent, mean; seconds, each
SMALL = 6  # tasks of the graphs that are searched by trying everything
CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Result:
    """One graph on so many workers."""

    bound: float
    rule: float  # what CP/MISF alone gives
    solved: Solved
    seconds: float

    @property
    def gap(self) -> float:
        """Percent above the greatest of critical path, work and Fernandez-Bussell."""
        return 100 * (self.solved.makespan / self.bound - 1) if self.bound else 0.0

    @property
    def proved(self) -> bool:
        """Whether the plain bounds are enough to prove that nothing is shorter."""
        return self.solved.makespan <= self.bound * (1 + CLOSE)

    @property
    def rule_proved(self) -> bool:
        """The same of CP/MISF alone."""
        return self.rule <= self.bound * (1 + CLOSE)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per method, number of tasks and workers."""
    return [_random(sheet, quick=quick), _small(sheet, quick=quick), _files(sheet, data)]


def _random(sheet: Sheet, *, quick: bool) -> Bar:
    rows, worst, slowest, below = [], 0.0, 0.0, 0
    for count, workers, method in itertools.product(COUNTS, WORKERS, METHODS):
        kinds = list(itertools.product(TIMES, PREDECESSORS, (0,) if quick or count == 1000 else (0, 1, 2)))
        graphs = (random_tasks(method, times, count, many, seed) for times, many, seed in kinds)
        results = [_solved(tasks, workers) for tasks in graphs]
        row = _row(results)
        rows.append((method, count, workers, *row))
        worst = max(worst, fmean(one.gap for one in results))
        slowest = max(slowest, max(one.seconds for one in results))
        below += sum(one.solved.makespan < one.bound * (1 - CLOSE) for one in results)
    sheet.table("random task graphs", ("method", "tasks", "workers", *COLUMNS), rows)
    target = f"mean gap at most {MOST_GAP} % for each, {MOST_SECONDS:.0f} s, never below"
    figure = f"worst mean {worst:.3f} %, {slowest:.2f} s at most, {below} below"
    met = worst <= MOST_GAP and slowest <= MOST_SECONDS and not below
    return Bar(ISSUE, 3, "lists: above max(critical path, work, Fernandez)", target, figure, met)


def _small(sheet: Sheet, *, quick: bool) -> Bar:
    draw = random.Random(7)
    equal, total = 0, 100 if quick else 400
    for _ in range(total):
        count, workers = draw.randint(1, SMALL), draw.randint(1, 3)
        odds = draw.choice((0.1, 0.3, 0.5))
        before = [[other for other in range(one) if draw.random() < odds] for one in range(count)]
        times = [draw.randint(0, 9) for _ in range(count)]
        tasks = tasks_of(times, before)
        solved = solve(tasks, workers)
        _check(tasks, workers, solved)
        equal += solved.makespan == _least(times, before, workers) and solved.proved_optimal
    sheet.table("small graphs against every schedule", ("graphs", "tasks at most", "equal and proved"),
                [(total, SMALL, equal)])  # fmt: skip
    return Bar(ISSUE, 3, "lists: least on small graphs", f"{total} of {total}", f"{equal} of {total}", equal == total)


def _files(sheet: Sheet, data: Path | None) -> Bar:
    text, target = "lists: Standard Task Graph files", "mean gap at most 0.25 % for each, 5 % at most, 1 s"
    files = sorted(data.rglob("*.stg")) if data is not None else []
    if data is None or not files:
        return Bar(ISSUE, 3, text, target, "not measured: pass --data FOLDER with its .stg files", None)
    by: dict[tuple[str, int], list[Result]] = {}
    for file in files:
        tasks = read_stg(file).tasks
        for workers in WORKERS:
            by.setdefault((str(file.parent.relative_to(data)), workers), []).append(_solved(tasks, workers))
    sheet.table("Standard Task Graph files", ("folder", "workers", *COLUMNS),
                [(*key, *_row(results)) for key, results in by.items()])  # fmt: skip
    every = [one for results in by.values() for one in results]
    worst = max(fmean(one.gap for one in results) for results in by.values())
    gap, slowest = max(one.gap for one in every), max(one.seconds for one in every)
    proved = sum(one.solved.proved_optimal for one in every)
    figure = f"{proved} of {len(every)} proved, worst mean {worst:.3f} %, {gap:.2f} % at most, {slowest:.2f} s"
    return Bar(ISSUE, 3, text, target, figure, worst <= 0.25 and gap <= 5 and slowest <= MOST_SECONDS)


COLUMNS = ("graphs", "CP/MISF at bound", "at bound", "proved", "CP/MISF gap %", "mean gap %", "most %", "slowest s")


def _row(results: list[Result]) -> tuple[object, ...]:
    rule = fmean(100 * (one.rule / one.bound - 1) if one.bound else 0.0 for one in results)
    return (
        len(results), sum(one.rule_proved for one in results), sum(one.proved for one in results),
        sum(one.solved.proved_optimal for one in results), rule, f"{fmean(one.gap for one in results):.3f}",
        max(one.gap for one in results), max(one.seconds for one in results),
    )  # fmt: skip


def _solved(tasks: Tasks, workers: int) -> Result:
    bound = max(one.value for one in (critical_path(tasks), work(tasks, workers), fernandez_bussell(tasks, workers)))
    rule = list_schedule(tasks, workers, rules(tasks)["cp/misf"]).makespan
    watch = Stopwatch()
    with watch.running():
        solved = solve(tasks, workers)
        seconds = watch.seconds()
    _check(tasks, workers, solved)
    return Result(bound, rule, solved, seconds)


def _check(tasks: Tasks, workers: int, solved: Solved) -> None:
    """Nothing starts before what it waits for has ended, and no worker does two things at once."""
    ends = solved.start + tasks.times
    waits = np.repeat(np.arange(tasks.count), np.diff(tasks.before_start))
    if np.any(solved.start[waits] < ends[tasks.before]) or ends.max(initial=0.0) != solved.makespan:
        raise AssertionError("a task starts before what it waits for has ended, or the makespan is not the last end")
    by = np.lexsort((ends, solved.start, solved.worker))
    same = solved.worker[by][1:] == solved.worker[by][:-1]
    there = (solved.worker >= 0) & (solved.worker < workers)
    if np.any(same & (solved.start[by][1:] < ends[by][:-1])) or not np.all(there):
        raise AssertionError("a worker does two things at once, or is not there")


def _least(times: list[int], before: list[list[int]], workers: int) -> int:
    """By trying every order in which the tasks can be given to the first free worker."""
    return min((_appended(order, times, before, workers) for order in _orders(before, ())), default=0)


def _orders(before: list[list[int]], done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(done) == len(before):
        yield done
    for one, reads in enumerate(before):
        if one not in done and all(other in done for other in reads):
            yield from _orders(before, (*done, one))


def _appended(order: tuple[int, ...], times: list[int], before: list[list[int]], workers: int) -> int:
    ends: dict[int, int] = {}
    free, last = [0] * workers, 0
    for one in order:
        last = max([last, min(free), *(ends[other] for other in before[one])])
        ends[one] = last + times[one]
        free[free.index(min(free))] = ends[one]
    return max(ends.values(), default=0)


if __name__ == "__main__":
    main(measure)
