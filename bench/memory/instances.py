"""Packing instances made by rule: what networks give, what nothing gives, and rectangles cut to a known least."""

from __future__ import annotations

import random

from memplan.problem import Buffer, MemoryProblem

UNIT = 64  # bytes that every size is a multiple of
SHAPES = 24  # different sizes in a structured instance


def structured(count: int, seed: int) -> MemoryProblem:
    """What networks give: three buffers a step, of few sizes; most live a few steps, some longer, few to the end."""
    rng = random.Random(f"structured {seed}")
    shapes = [rng.choice((1, 2, 3, 4, 6, 8, 12, 16)) * UNIT << rng.randrange(4, 14) for _ in range(SHAPES)]
    last = count // 3 + 2
    buffers = []
    for index in range(count):
        step = index // 3
        draw = rng.random()
        if draw < 0.70:  # an activation
            life = 1.0 + min(rng.expovariate(0.5), 12.0)
        elif draw < 0.92:  # a residual
            life = 4.0 + rng.expovariate(0.05)
        else:  # a gradient
            life = (last - step) * rng.uniform(0.3, 1.0)
        end = max(step + 1, min(last, step + 1 + int(life)))
        buffers.append(Buffer(str(index), rng.choice(shapes), step, end))
    return MemoryProblem(tuple(buffers), alignment=1)


def uniform(count: int, seed: int) -> MemoryProblem:
    """Lives and sizes drawn evenly; four buffers a step, up to 400 steps long."""
    rng = random.Random(f"uniform {seed}")
    steps = max(1, count // 4)
    longest = max(1, min(400, steps // 4))
    buffers = []
    for index in range(count):
        begin = rng.randrange(steps)
        size = rng.randrange(1, 65536) * UNIT
        buffers.append(Buffer(str(index), size, begin, begin + 1 + rng.randrange(longest)))
    return MemoryProblem(tuple(buffers), alignment=1)


def cut(count: int, seed: int, *, capacity: int = 1024, steps: int = 2000, dropped: float = 0.0) -> MemoryProblem:
    """A rectangle of steps by bytes, cut straight through again and again: what is cut fits the capacity exactly.

    Larger pieces are cut more often. A share of the pieces is `dropped`, which leaves some room.
    """
    rng = random.Random(f"cut {seed}")
    pieces = [(0, steps, 0, capacity)]
    while len(pieces) < count:
        areas = [(end - begin) * (high - low) for begin, end, low, high in pieces]
        chosen = rng.choices(range(len(pieces)), weights=areas)[0]
        begin, end, low, high = pieces[chosen]
        if rng.random() < 0.5 and end - begin > 1:
            at = rng.randrange(begin + 1, end)
            pieces[chosen] = (begin, at, low, high)
            pieces.append((at, end, low, high))
        elif high - low > 1:
            at = rng.randrange(low + 1, high)
            pieces[chosen] = (begin, end, low, at)
            pieces.append((begin, end, at, high))
    kept = [piece for piece in pieces if rng.random() >= dropped]
    rng.shuffle(kept)
    buffers = (Buffer(str(index), high - low, begin, end) for index, (begin, end, low, high) in enumerate(kept))
    return MemoryProblem(tuple(buffers), alignment=1, capacity=capacity)
