"""A folder of models: each by a command in a process of its own, several at a time, here or on a cluster of Dask.

A process that dies costs one try of its model. What is done is written down line by line, so that a run that was broken
off goes on where it stopped: a model whose file, command and options are those of a line is not touched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from graphopt.errors import OptionError
from graphopt.files.single import write_file
from graphopt.flows.cluster import reached
from graphopt.flows.records.encode import encode
from graphopt.flows.records.many import ManyRecord, Result
from graphopt.model.text import Progress

LEDGER = "results.jsonl"
TRIES = 3  # of a model whose process dies
ENDED = (0, 1, 2)  # exit statuses of a command that has printed its object


@dataclass(frozen=True, slots=True)
class Task:
    """One model and the words of its command line."""

    model: str  # its path in the folder
    words: tuple[str, ...]
    digest: str
    makes: str | None  # the file or folder that must be there when it is done


def models_in(folder: Path) -> list[Path]:
    """The models of a folder and of those in it, by name. Raises OptionError where there are none."""
    found = sorted(path for path in folder.rglob("*.onnx") if path.is_file())
    if not found:
        raise OptionError(f"'{folder}' holds no .onnx file.")
    return found


def task(model: Path, folder: Path, words: Sequence[str], makes: Path | None) -> Task:
    """The task of a command line without what names the run."""
    content = hashlib.sha256(model.read_bytes())
    content.update(repr(list(words)).encode())
    return Task(
        str(model.relative_to(folder)), tuple(words), content.hexdigest(), None if makes is None else str(makes)
    )


def run_many(
    command: str, folder: Path, tasks: Sequence[Task], place: Path | None, *, jobs: int, dask: str | None,
    progress: Progress,
) -> ManyRecord:  # fmt: skip
    """Run what is not done yet; results go to `place` as they come, and are taken over from there.

    Raises OptionError for a cluster that cannot be reached, and MissingExtra where Dask is not installed.
    """
    ledger = None if place is None else place / LEDGER
    known = {} if ledger is None else _taken_over(ledger, tasks)
    waiting = [one for one in tasks if one.digest not in known]
    results = dict(known)
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_cluster(dask) if dask is not None else _threads(jobs))
        futures = [executor.submit(attempt, one) for one in waiting]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                result = future.result()
                results[result.task] = result
                if ledger is not None:
                    with ledger.open("ab") as file:
                        file.write(msgspec.json.encode(result) + b"\n")
                progress(f"{number} of {len(waiting)} models, {result.model} {result.status}")
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    ordered = tuple(results[one.digest] for one in tasks)
    return ManyRecord(command, str(folder), ordered, len(known))


def write_results(record: ManyRecord, place: Path) -> None:
    """The one JSON object of a run beside its results; raises SaveError."""
    write_file(place / "results.json", encode(record))


def attempt(one: Task) -> Result:
    """Run one command line in a process of its own, and again where the process dies."""
    for number in range(1, TRIES + 1):
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "graphopt", *one.words, "--json"], capture_output=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        seconds = time.monotonic() - started
        with contextlib.suppress(ValueError):
            answer = json.loads(done.stdout)
            if done.returncode in ENDED:
                error = answer.get("error")
                refused = error is not None
                return Result(
                    one.model, "refused" if refused else "done", error, number, seconds, None if refused else answer,
                    one.digest,
                )  # fmt: skip
    last = done.stderr.decode(errors="replace").strip().splitlines()
    what = f"its process died with status {done.returncode}{f': {last[-1]}' if last else ''}"
    return Result(one.model, "crashed", what, TRIES, seconds, None, one.digest)


def _taken_over(ledger: Path, tasks: Sequence[Task]) -> dict[str, Result]:
    """Results of an earlier run of the same tasks whose files are still there; a line that was cut off is none."""
    wanted = {one.digest: one for one in tasks}
    found: dict[str, Result] = {}
    if ledger.exists():
        content = ledger.read_bytes()
        if not content.endswith(b"\n"):  # of a run that was killed in a line: the next begins on its own
            with ledger.open("ab") as file:
                file.write(b"\n")
        for line in content.splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                result = msgspec.json.decode(line, type=Result)
                made = wanted[result.task].makes if result.task in wanted else None
                gone = result.status == "done" and made is not None and not Path(made).exists()
                if result.task in wanted and not gone and result.status != "crashed":
                    found[result.task] = result
    return found


@contextlib.contextmanager
def _threads(jobs: int) -> Iterator[Executor]:
    """Threads that wait for processes."""
    executor = ThreadPoolExecutor(jobs)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """The workers of a running cluster; Dask gives a task of a worker that dies to another one."""
    with reached(address) as client, client.get_executor(pure=False) as executor:
        yield executor
