"""One runtime in a process of its own, asked line by line: how long queries take, or how many it answers a second.

The first line on standard input is a `Request` as JSON; "ready" answers it. Each further line is a number of queries,
answered by their seconds as JSON: of each query for single-stream, of all together for offline. At the end of the input
comes the `Memory` of the process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from graphopt.program.deploy.benchmark import COMPILED, SIDES, Side
from graphopt.program.deploy.session import Bundle

Scenario = Literal["single-stream", "offline"]
OURS = "graphopt"


class Request(msgspec.Struct, frozen=True):
    """What to serve: a bundle's folder for graphopt, a model's file for a peer."""

    side: str
    source: str
    feeds: str  # an .npz file
    threads: int
    scenario: Scenario


class Ready(msgspec.Struct, frozen=True):
    """What serves."""

    name: str
    precision: str


class Memory(msgspec.Struct, frozen=True):
    """Bytes of the process at its peak, and before the model was opened."""

    peak: int
    before: int


def main() -> None:
    """Serve what the first line asks for."""
    request = msgspec.json.decode(sys.stdin.readline(), type=Request)
    before = _peak_bytes()
    sides = _opened(request)
    for side in sides:
        side.call()
    _say(Ready(sides[0].name, sides[0].precision))
    run = _one_by_one if request.scenario == "single-stream" else _all_together
    for line in sys.stdin:
        _say(run([side.call for side in sides], int(line)))
    _say(Memory(_peak_bytes(), before))


def _say(answer: object) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


def _opened(request: Request) -> list[Side]:
    """One program on all threads; for offline as many contexts as threads, each on one."""
    with np.load(request.feeds) as file:
        feeds = {name: file[name] for name in file.files}
    offline = request.scenario == "offline"
    threads = 1 if offline else request.threads
    if request.side == OURS:
        contexts = request.threads if offline else 1
        programs = [Bundle(request.source, threads=threads) for _ in range(contexts)]
        return [Side(OURS, COMPILED, partial(one.run, None, feeds)) for one in programs]
    one = SIDES[request.side](request.source, feeds, threads)
    if not offline:
        return [one]
    return [one, *(SIDES[request.side](request.source, feeds, 1) for _ in range(request.threads - 1))]


def _one_by_one(calls: Sequence[Callable[[], object]], queries: int) -> list[float]:
    found = []
    for _ in range(queries):
        started = time.perf_counter()
        calls[0]()
        found.append(time.perf_counter() - started)
    return found


def _all_together(calls: Sequence[Callable[[], object]], queries: int) -> list[float]:
    """Each context takes the next query when it is done with one."""
    numbers: Iterator[int] = count()

    def serve(call: Callable[[], object]) -> None:
        while next(numbers) < queries:
            call()

    started = time.perf_counter()
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(serve, calls))
    return [time.perf_counter() - started]


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
