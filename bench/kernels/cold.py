"""Candidates of one kernel beside one another, with weights out of the caches, as a network finds them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from kernels.kernel import Kernel
from kernels.run import Array, Calls, Executable, aligned
from kernels.target import Target
from kernels.templates.template import Candidate, Problem, Template

COLD_BYTES = 64 << 20  # of constants that pass through between two uses of the same ones
MOST_SETS = 64
READING = 1e-3  # seconds of one reading, at least


def measure_candidates(
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
