"""Choosing by measurement: candidates run on this machine, with weights out of the caches, and the best is kept.

A model runs its layers one after the other, so that a layer finds its weights in memory and not where the last run of
the same layer left them; tuning with warm weights chose wrong variants. The result is a file that anyone may read,
keyed by what decides it: the template, the problem, the target.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np

from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.llvm.load import ObjectCache
from kernels.run import Array, Calls, Executable, aligned
from kernels.target import Target

Problem = TypeVar("Problem")
Candidate = TypeVar("Candidate")

SCHEMA = "graphopt.tuning/1"
COLD_BYTES = 64 << 20  # of constants that pass through between two uses of the same ones
MOST_SETS = 64
READING = 1e-3  # seconds of one reading, at least


class TuningError(KernelsError):
    """A tuning file that cannot be read."""


class Choice(msgspec.Struct, frozen=True):
    """What was found for one kernel."""

    kernel: str  # the template and the problem, for people
    target: str
    candidate: str
    nanoseconds: float  # of all blocks on one core, measured
    predicted: float  # nanoseconds, of the same candidate
    measured: dict[str, float]  # nanoseconds of every candidate that was tried


class _File(msgspec.Struct, frozen=True):
    schema: str
    choices: dict[str, Choice]


class Database:
    """Choices in a JSON file; several processes may share it, and the last one to write a key wins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def choices(self) -> dict[str, Choice]:
        """All of them by key; raises TuningError when the file is not one of ours."""
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise TuningError(f"'{self.path}' is no tuning file: {error}; delete it to tune anew.") from error
        if found.schema != SCHEMA:
            raise TuningError(f"'{self.path}' is of schema '{found.schema}', not '{SCHEMA}'; delete it to tune anew.")
        return found.choices

    def add(self, key: str, choice: Choice) -> None:
        """Keep a choice."""
        content = _File(SCHEMA, dict(sorted({**self.choices(), key: choice}.items())))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        os.replace(name, self.path)


class Tuner(Generic[Problem, Candidate]):
    """Measures the candidates of one template."""

    def __init__(
        self,
        template: str,
        candidates: Callable[[Problem, Target], Sequence[Candidate]],
        build: Callable[[Problem, Candidate, Target], Kernel],
        estimate: Callable[[Problem, Candidate, Target], float],
    ) -> None:
        self.template = template
        self._candidates = candidates
        self._build = build
        self._estimate = estimate

    def key(self, problem: Problem, target: Target) -> str:
        """What decides a choice, as a hash."""
        return hashlib.sha256(f"{self.template}\0{problem!r}\0{target!r}".encode()).hexdigest()

    def best(
        self, problem: Problem, target: Target, database: Database, *, most: int = 8, rounds: int = 5
    ) -> Candidate:
        """The candidate that the database holds, or else the fastest of the `most` likeliest, which is then kept."""
        found = tuple(self._candidates(problem, target))
        held = database.choices().get(self.key(problem, target))
        if held is not None:
            known = [candidate for candidate in found if str(candidate) == held.candidate]
            if known:
                return known[0]
        seconds = self.measure(problem, found[:most], target, rounds=rounds)
        chosen = found[int(np.argmin(seconds))]
        choice = Choice(
            f"{self.template} {problem!r}",
            f"{target.triple} {target.cpu}",
            str(chosen),
            min(seconds) * 1e9,
            self._estimate(problem, chosen, target),
            {str(one): taken * 1e9 for one, taken in zip(found, seconds, strict=False)},
        )
        database.add(self.key(problem, target), choice)
        return chosen

    def measure(
        self,
        problem: Problem,
        candidates: Sequence[Candidate],
        target: Target,
        *,
        rounds: int = 5,
        cache: ObjectCache | None = None,
    ) -> list[float]:
        """CPU seconds of one run of each, the least of several readings taken by turns."""
        calls = [self._cold_calls(self._build(problem, candidate, target), cache) for candidate in candidates]
        least = [float("inf")] * len(calls)
        for _ in range(rounds):
            for number, (call, runs) in enumerate(calls):
                least[number] = min(least[number], _reading(call) / runs)
        return least

    def _cold_calls(self, kernel: Kernel, cache: ObjectCache | None) -> tuple[Calls, int]:
        """Runs over as many sets of constants as exceed the caches."""
        constants = sum(operand.bytes for operand in kernel.operands if operand.role == "constant")
        sets = int(np.clip(COLD_BYTES // max(constants, 1), 1, MOST_SETS)) if constants else 1
        shared = {
            operand.name: _filled(operand.elements, operand.dtype.numpy)
            for operand in kernel.operands
            if operand.role != "constant"
        }
        runs: list[tuple[Kernel, Mapping[str, Array]]] = []
        for _ in range(sets):
            own = {
                operand.name: _filled(operand.elements, operand.dtype.numpy)
                for operand in kernel.operands
                if operand.role == "constant"
            }
            runs.append((kernel, {**shared, **own}))
        return Executable([kernel], cache).calls(runs), sets


def _filled(elements: int, dtype: np.dtype[np.generic]) -> Array:
    """Memory that is really there: a page that was never written is the same page of zeros everywhere."""
    found = aligned(elements, dtype)
    found.fill(1)
    return found


def _reading(call: Calls) -> float:
    call()
    repeats, taken = 1, 0.0
    while taken < READING:
        started = time.thread_time()
        for _ in range(repeats):
            call()
        taken = time.thread_time() - started
        repeats *= 2
    return taken / (repeats // 2)
