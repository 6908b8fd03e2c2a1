"""Small random programs that fetch weights, as they are planned under random budgets."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.program.ram.contents import Owned
from graphopt.program.ram.course import Rates
from graphopt.program.ram.plan import Asked, Timed
from graphopt.program.ram.spill import Away, spilled
from graphopt.program.ticketed import ticketed
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.listing import Argument, Listing, Place, Run
from kernels.llvm.module import Module
from kernels.target import host
from scheduler.chains import Chain

PART, PAGE, VALUE = 12 << 10, 4096, 4096  # bytes: of a block's weights, of a fetch's steps, of an intermediate result
RATES, WORKERS = Rates(1e9, 1e9), 2


@dataclass(frozen=True, slots=True)
class Subject:
    """A program without and with fetches."""

    whole: Listing
    weights: npt.NDArray[np.uint8]
    listing: Listing
    file: npt.NDArray[np.uint8]
    owned: Owned


def subject(draw: random.Random) -> Subject | None:
    """A random program under a random budget; None where the budget leaves nothing to fetch."""
    kernels, runs, weights_top, arena_top = [], [], 0, 0
    free: list[int] = []
    values: list[int] = []
    owner: dict[int, str] = {}  # by offset in the arena the buffer that lies there
    owned: list[list[tuple[str, int] | None]] = []
    count = draw.randint(2, 14)
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
        owned.append([None if place.space == "weights" else (owner[place.offset], 0) for place in places])
        where = free.pop() if free and draw.random() < 0.7 else arena_top
        arena_top = max(arena_top, where + VALUE)
        operands.append(Operand("y", "output", DType.F32, VALUE // 4))
        places.append(Place("arena", where))
        owner[where] = f"y{number}"
        owned[-1].append((owner[where], 0))
        if values and draw.random() < 0.5:
            free.append(values.pop(draw.randrange(len(values))))
        values.append(where)
        kernels.append(Kernel(f"k{number}", Module(host()), tuple(operands), blocks * repeated, flops=1))
        runs.append(Run(f"k{number}", tuple(places)))
    known = {one.name: one for one in kernels}
    chains = [Chain((run,), draw.random() < 0.2) for run in range(count)]
    program = ticketed(runs, known, chains, arena_top)
    ends = (Argument("x", DType.F32, (1,)),)
    whole = Listing("subject", ends, ends, tuple(kernels), tuple(runs), arena_top, weights_top, program)
    weights = np.frombuffer(draw.randbytes(weights_top), np.uint8)
    durations = {one.name: draw.uniform(1e3, 1e6) for one in kernels}
    listing: Listing = whole
    away: tuple[Away, ...] = ()
    if draw.random() < 0.7:
        found = [spilled(whole, owned, target, 1) for target in range(arena_top, 0, -VALUE)]
        listing, away = next((one for one in reversed(found) if one is not None), (whole, ()))
    least = Asked(weights, (), durations, RATES, 0, WORKERS, PART).within(listing, away)
    assert isinstance(least, int), "nothing fits in no bytes"
    budget = least + int(draw.random() ** 2 * weights_top)
    made = Asked(weights, (), durations, RATES, budget, WORKERS, PART).within(listing, away)
    assert isinstance(made, Timed) and made.program.listing.ticketed is not None, "the least is enough"
    given = Subject(whole, weights, made.program.listing, made.program.file, owned)
    return given if made.program.listing.ticketed.fetches else None
