"""Bars of the worker pool: the same bits whatever delays workers, and little lost to too many threads.

Drawn programs, whose every block sums what it needed, run with idle turns drawn for each block of each call, with one
to eight threads. Programs of the zoo run beside neighbours that keep every core busy: with two threads and with eight
by turns, four on one pool, and eight threads of this process with a program each.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

import graphopt
from bench.bar import Bar, Sheet
from bench.cores import by_name
from bench.kernels.timing import ratio, unpin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.program.deploy import runtime
from tests.kernels.interface import Library
from tests.kernels.test_sharing import Drawn, calls

ISSUE = 18
DELAYED, QUICK_DELAYED = 10_000, 400  # calls of drawn programs
MOST_IDLE = 3_000  # turns of a block's idle loop
MOST_THREADS = 8
NAMES = ("squeezenet1_1", "mobilenet_v2", "resnet18", "nasnet_a_mobile", "inception_v3")
ROUNDS, QUICK_ROUNDS = 15, 5
REPEATS = 12  # calls of each program that runs beside others
TOO_MANY = 1.3  # what eight threads may take of the time of two

Feeds = Mapping[str, np.ndarray]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Delays, then one row for each model."""
    unpin()
    delayed = _delayed(QUICK_DELAYED if quick else DELAYED)
    rows, unequal, slow = [], [], []
    for name in NAMES[:1] if quick else NAMES:
        made = graphopt.compile(model_file(name), threads=MOST_THREADS).program.another
        feeds = [_feeds(name, seed) for seed in range(MOST_THREADS)]
        wanted = [_bits(made(threads=1), feed) for feed in feeds]
        with _neighbours():
            eight, two = (made(threads=threads) for threads in (MOST_THREADS, 2))
            taken = by_name(
                {"eight": eight.bind(feeds[0]), "two": two.bind(feeds[0])}, QUICK_ROUNDS if quick else ROUNDS
            )
            equal = all(_bits(made(threads=threads), feeds[0]) == wanted[0] for threads in range(1, MOST_THREADS + 1))
            first = made(threads=3)
            pooled = [first, *(made(threads=3, pool=first) for _ in range(3))]
            together = _beside(pooled, feeds, wanted)
            apart = _beside([made(threads=2) for _ in range(MOST_THREADS)], feeds, wanted)
        found = ratio(taken["eight"], taken["two"])
        rows.append((name, found.median, found.low, found.high, equal, together, apart))
        if not (equal and together and apart):
            unequal.append(name)
        if found.low > TOO_MANY:
            slow.append(name)
    columns = ("model", "time of 8 threads / 2", "from", "to", "1 to 8 threads equal", "4 on one pool", "8 at once")
    sheet.table("beside busy neighbours on every core", columns, rows)
    most = max(row[1] for row in rows)
    return [
        Bar(ISSUE, 5, "8 threads beside busy neighbours", f"{TOO_MANY} x the time of 2", f"{most:.2f} at most; "
            f"slower: {slow or 'none'}", most <= TOO_MANY),
        Bar(ISSUE, 6, "the same bits with random delays, 1 to 8 threads", "all", f"{delayed:,} delayed calls equal; "
            f"other bits: {unequal or 'none'}", not unequal),
    ]  # fmt: skip


def _delayed(wanted: int) -> int:
    """Calls of drawn programs, each of which is compared; raises AssertionError with the first that differs."""
    generator = np.random.default_rng(18)
    ran, number = 0, 0
    each = max(1, wanted // (5 * MOST_THREADS))
    while ran < wanted:
        count = int(generator.integers(2, 13))
        blocks = generator.integers(1, 10, count).tolist()
        needs = [
            sorted(generator.choice(run, size=min(run, int(generator.integers(0, 4))), replace=False).tolist())
            for run in range(count)
        ]
        drawn = Drawn(blocks, needs)
        library = Library(drawn.listing)
        threads = number % MOST_THREADS + 1
        model = library.made(threads=threads)
        calls(drawn, library, model, each, MOST_IDLE, seed=number)
        library.destroy(model)
        ran, number = ran + each, number + 1
    return ran


def _feeds(name: str, seed: int) -> Feeds:
    """Inputs, in another order of their elements for each seed."""
    made = make_feed(inputs_of(graphopt.load(model_file(name))), {}, "normal")
    generator = np.random.default_rng(seed)
    arrays = {key: np.asarray(value) for key, value in made.items()}
    return {key: generator.permutation(array.reshape(-1)).reshape(array.shape) for key, array in arrays.items()}


def _bits(program: runtime.Program, feeds: Feeds) -> list[bytes]:
    return [one.tobytes() for one in program.run(None, feeds)]


def _beside(programs: list[runtime.Program], feeds: list[Feeds], wanted: list[list[bytes]]) -> bool:
    """Whether programs that are called at the same time, each by a thread of its own, all give what they should."""
    failures: list[int] = []

    def use(number: int) -> None:
        for _ in range(REPEATS):
            if _bits(programs[number], feeds[number]) != wanted[number]:
                failures.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not failures


@contextlib.contextmanager
def _neighbours() -> Iterator[None]:
    """A process that computes for ever for each core."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_busy, daemon=True) for _ in os.sched_getaffinity(0)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _busy() -> None:
    while True:
        pass


if __name__ == "__main__":
    main(measure)
