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
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.run import Array, Calls, Executable, aligned
from kernels.target import Target
from kernels.templates.template import Candidate, Problem, Template

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
    predicted: float | None  # nanoseconds of the same candidate, by the estimate of a template that has one
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


def key(template: Template[Problem, Candidate], problem: Problem, target: Target) -> str:
    """What decides a choice, as a hash."""
    return hashlib.sha256(f"{template.name}\0{problem!r}\0{target!r}".encode()).hexdigest()


def best(
    template: Template[Problem, Candidate],
    problem: Problem,
    target: Target,
    database: Database,
    *,
    most: int = 8,
    rounds: int = 5,
) -> Candidate:
    """The candidate that the database holds, or else the fastest of the `most` likeliest, which is then kept."""
    candidates = template.candidates(problem, target)
    held = database.choices().get(key(template, problem, target))
    if held is not None:
        known = [candidate for candidate in candidates if str(candidate) == held.candidate]
        if known:
            return known[0]
    seconds = measure(template, problem, candidates[:most], target, rounds=rounds)
    chosen = candidates[int(np.argmin(seconds))]
    choice = Choice(
        f"{template.name} {problem!r}",
        f"{target.triple} {target.cpu}",
        str(chosen),
        min(seconds) * 1e9,
        template.estimate(problem, chosen, target) if template.estimate else None,
        {str(candidate): taken * 1e9 for candidate, taken in zip(candidates, seconds, strict=False)},
    )
    database.add(key(template, problem, target), choice)
    return chosen


def measure(
    template: Template[Problem, Candidate],
    problem: Problem,
    candidates: Sequence[Candidate],
    target: Target,
    *,
    rounds: int = 5,
) -> list[float]:
    """CPU seconds of one run of each, the least of several readings taken by turns."""
    calls = [_cold_calls(template.build(problem, one, target, template.name)) for one in candidates]
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, (call, runs) in enumerate(calls):
            least[number] = min(least[number], _reading(call) / runs)
    return least


def _cold_calls(kernel: Kernel) -> tuple[Calls, int]:
    """Runs over as many sets of constants as exceed the caches."""
    constants = sum(operand.bytes for operand in kernel.operands if operand.role == "constant")
    sets = int(np.clip(COLD_BYTES // max(constants, 1), 1, MOST_SETS)) if constants else 1

    def arrays(*, constant: bool) -> dict[str, Array]:
        return {
            operand.name: _filled(operand.elements, operand.dtype.numpy)
            for operand in kernel.operands
            if (operand.role == "constant") is constant
        }

    shared = arrays(constant=False)
    return Executable([kernel]).calls([(kernel, {**shared, **arrays(constant=True)}) for _ in range(sets)]), sets


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
