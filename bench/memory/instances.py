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


def training(count: int, seed: int) -> MemoryProblem:
    """A training graph of equal layers: few sizes, features that wait for their mirror, gradients that stay."""
    rng = random.Random(f"training {seed}")
    hidden, positions, heads = rng.choice((1024, 2560, 4096)), rng.choice((512, 1024, 2048)), 32
    tokens, squares = hidden * positions * 2, hidden * hidden * 2
    sizes = (tokens, 2 * tokens, 3 * tokens, 4 * tokens, squares, 4 * squares, heads * positions * positions * 2,
             heads * positions * 4, positions * 4, hidden * 2, 512)  # fmt: skip
    width = rng.randint(120, 300)
    layers = max(2, count // width)
    last = layers * width
    kinds = [(rng.choice(sizes), rng.random(), rng.random()) for _ in range(width)]
    buffers = []
    for index in range(last):
        layer, (size, draw, share) = index // width, kinds[index % width]
        forward = layer < layers // 2
        if forward and draw < 0.12:  # a feature, until its layer's mirror
            end = (layers - 1 - layer) * width + int(share * width) + 1
        elif draw < (0.16 if forward else 0.08):  # an output, a gradient
            end = last
        elif draw < (0.4 if forward else 0.25):
            end = index + 1 + int(share * 90)
        else:
            end = index + 1 + int(share * 7)
        end = max(index + 1, min(last, end + rng.choice((0, 0, 0, 1, 3))))
        buffers.append(Buffer(str(index), size, index, end))
    return MemoryProblem(tuple(buffers), alignment=1)


def layered(count: int, seed: int) -> MemoryProblem:
    """Layers that run one after the other: each buffer lives a few layers, some to far ahead, few to the end."""
    rng = random.Random(f"layered {seed}")
    sizes = [UNIT * rng.choice((1, 2, 3, 4, 6, 8, 12, 16)) << rng.randrange(3, 12) for _ in range(rng.randint(4, 30))]
    width = rng.randint(2, 12)
    last = count // width + 1
    buffers = []
    for index in range(count):
        step, draw = index // width, rng.random()
        mean = 1 / 0.7 if draw < 0.8 else 50.0 if draw < 0.97 else float(last)
        end = min(last, step + 2 + int(rng.expovariate(1 / mean)))
        buffers.append(Buffer(str(index), rng.choice(sizes), step, max(step + 1, end)))
    return MemoryProblem(tuple(buffers), alignment=1)
