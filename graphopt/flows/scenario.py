"""`bench --scenario`: runtimes in processes of their own serve queries by turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graphopt.check.given import Feeds, read_feeds
from graphopt.check.plain import plain_feed
from graphopt.errors import OptionError
from graphopt.flows.compile import compile
from graphopt.flows.records.scenario import ScenarioRecord, ServedLine
from graphopt.flows.source import name_of, resize
from graphopt.machine.record import MachineRecord
from graphopt.model.load import load
from graphopt.model.save import save
from graphopt.model.settling import settle
from graphopt.model.text import Progress, silent
from graphopt.program.deploy.benchmark import interval
from graphopt.program.deploy.loadgen import ask_with_loadgen
from graphopt.program.deploy.serving import OURS, Memory, Ready, Request, Scenario

TURNS = 8  # of each side, among which its queries are shared out
QUERIES = 400
Seconds = list[float]


@dataclass(frozen=True, slots=True)
class _Server:
    """A process that serves."""

    process: subprocess.Popen[str]
    ready: Ready

    def ask(self, queries: int) -> Seconds:
        """Seconds of so many queries."""
        return msgspec.json.decode(_answer(self.process, f"{queries}\n"), type=Seconds)

    def end(self) -> Memory:
        """What it took."""
        out, _ = self.process.communicate()
        return msgspec.json.decode(out, type=Memory)


def serve(
    source: Path,
    peers: Sequence[str],
    scenario: Scenario,
    *,
    bundle: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    feeds: Feeds | None = None,
    queries: int = QUERIES,
    threads: int = 1,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    loadgen: Path | None = None,
    progress: Progress | None = None,
) -> ScenarioRecord:
    """A model's program beside each of `peers`, in processes of their own, by turns.

    "single-stream": one query after another, each on all `threads`; percentiles of their times. "offline": all queries
    are there at once, and each of `threads` contexts takes the next one on one thread; queries a second. `machine` and
    `tune` as for `compile`. With `loadgen` MLPerf's LoadGen asks our program too, after the others, and writes its logs
    into that folder. Raises what `compile` raises, OptionError for a peer that is not installed or too few
    queries, and BundleError for a program that cannot be written.
    """
    if queries < TURNS:
        raise OptionError(f"{queries} queries are too few for {TURNS} turns of each side.")
    progress = progress or silent
    model = load(source)
    if shapes or dims:
        resize(model, shapes or {}, dims or {})
    settle(model)
    own = read_feeds(model, feeds)
    drawn = own[0].feed if own else plain_feed(model)
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        if bundle is None:
            program = compile(
                source, shapes=shapes, dims=dims, feeds=feeds, threads=threads, machine=machine, tune=tune,
                progress=progress,
            )  # fmt: skip
            bundle = folder / "bundle"
            program.save(bundle)
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in drawn.items()}
        np.savez(folder / "feeds.npz", **arrays)
        save(model, folder / "model.onnx")
        progress("starting runtimes")
        servers = []
        for side in (OURS, *peers):
            place = bundle if side == OURS else folder / "model.onnx"
            request = Request(side, str(place), str(folder / "feeds.npz"), threads, scenario)
            servers.append(stack.enter_context(_serving(request)))
        progress("serving")
        taken: list[list[Seconds]] = [[] for _ in servers]
        for _ in range(TURNS):
            for server, times in zip(servers, taken, strict=True):
                times.append(server.ask(queries // TURNS))
        said = None
        if loadgen is not None:
            progress("LoadGen asks")
            said = ask_with_loadgen(partial(servers[0].ask, 1), scenario, loadgen)
        lines = tuple(
            _line(server, times, taken[0], queries // TURNS if scenario == "offline" else None)
            for server, times in zip(servers, taken, strict=True)
        )
    return ScenarioRecord(name_of(source), scenario, threads, queries // TURNS * TURNS, lines, said)


@contextmanager
def _serving(request: Request) -> Iterator[_Server]:
    """A process that is ready; it ends with the body."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphopt.program.deploy.serving"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        answer = _answer(process, msgspec.json.encode(request).decode() + "\n")
        yield _Server(process, msgspec.json.decode(answer, type=Ready))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _answer(process: subprocess.Popen[str], line: str) -> str:
    """The answer to a line; raises OptionError with the last of what the process said where it ended."""
    assert process.stdin is not None and process.stdout is not None, "pipes"
    try:
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        _, said = process.communicate()
        reason = said.strip().splitlines()[-1] if said.strip() else f"exit status {process.returncode}"
        raise OptionError(f"a runtime ended while it served: {reason}")
    return answer


def _line(server: _Server, times: Sequence[Seconds], ours: Sequence[Seconds], together: int | None) -> ServedLine:
    """`together`: queries of a reading, where all of them were taken as one."""
    memory = server.end()
    each = 1e3 * np.concatenate([np.array(one) for one in times])
    low = middle = high = None
    if times is not ours:
        turns = np.array([float(np.median(one)) for one in times]) / np.array([float(np.median(one)) for one in ours])
        low, middle, high = interval(turns)
    p50, p90, p99 = (None if together else float(np.percentile(each, share)) for share in (50, 90, 99))
    rate = float(1e3 * together * len(times) / each.sum()) if together else None
    return ServedLine(
        server.ready.name, server.ready.precision, p50, p90, p99, rate, memory.peak - memory.before, middle, low, high
    )
