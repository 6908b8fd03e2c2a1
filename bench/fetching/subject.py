"""Small random programs that fetch weights, as they are planned under random budgets."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.errors import BudgetNotKept
from graphopt.program.ram.course import Rates
from graphopt.program.ram.plan import streamed
from graphopt.program.ticketed import ticketed
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.listing import Argument, Listing, Place, Run
from kernels.llvm.module import Module
from kernels.target import host
from scheduler.chains import Chain

PART, PAGE, VALUE = 12 << 10, 4096, 512  # bytes: of a block's weights, of a fetch's steps, of an intermediate result


@dataclass(frozen=True, slots=True)
class Subject:
    """A program without and with fetches."""

    whole: Listing
    weights: npt.NDArray[np.uint8]
    listing: Listing
    file: npt.NDArray[np.uint8]


def subject(draw: random.Random) -> Subject | None:
    """A random program under a random budget; None where the budget leaves nothing to fetch."""
    kernels, runs, weights_top, arena_top = [], [], 0, 0
    free: list[int] = []
    values: list[int] = []
    count = draw.randint(2, 9)
    for number in range(count):
        blocks = draw.choice([1, 2, 6, 8, 12])
        size = PART * blocks
        repeated = draw.choice([1, 1, 2])  # blocks that read the same weights
        parts = tuple((PART * one, PART * (one + 1)) for one in range(blocks)) * repeated
        operands = [Operand("b", "constant", DType.F32, size // 4, parts=parts if draw.random() < 0.8 else None)]
        places = [Place("weights", weights_top)]
        weights_top += size
        for value in draw.sample(values, min(len(values), draw.randint(1, 2))):
            operands.append(Operand(f"x{value}", "input", DType.F32, VALUE // 4))
            places.append(Place("arena", value))
        where = free.pop() if free and draw.random() < 0.7 else arena_top
        arena_top = max(arena_top, where + VALUE)
        operands.append(Operand("y", "output", DType.F32, VALUE // 4))
        places.append(Place("arena", where))
        if values and draw.random() < 0.6:
            free.append(values.pop(draw.randrange(len(values))))
        values.append(where)
        kernels.append(Kernel(f"k{number}", Module(host()), tuple(operands), blocks * repeated, flops=1))
        runs.append(Run(f"k{number}", tuple(places)))
    known = {one.name: one for one in kernels}
    chains = [Chain((run,), draw.random() < 0.2) for run in range(count)]
    program = ticketed(runs, known, chains, arena_top)
    given = (Argument("x", DType.F32, (1,)),)
    whole = Listing("subject", given, given, tuple(kernels), tuple(runs), arena_top, weights_top, program)
    weights = np.frombuffer(draw.randbytes(weights_top), np.uint8)
    durations = {one.name: draw.uniform(1e3, 1e6) for one in kernels}
    least = 0
    try:
        streamed(whole, weights, (), durations, Rates(1e9, 1e9), 0, 2, PART)
    except BudgetNotKept as error:
        least = error.least
    budget = least + int(draw.random() ** 2 * weights_top)
    made = streamed(whole, weights, (), durations, Rates(1e9, 1e9), budget, 2, PART)
    assert made.listing.ticketed is not None
    return Subject(whole, weights, made.listing, made.file) if made.listing.ticketed.fetches else None
