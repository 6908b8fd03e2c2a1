"""Which loop goes into the lanes of vectors: the one along the memory, in pieces that a target's registers hold.

A reduction along the memory gets accumulators of its own; where source and result run along different loops, squares
are turned in registers; where results alternate in memory (y[2*i + q]), they are woven from whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from kernels.tensor.expression import Variable
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    Nest,
    Node,
    Statement,
    statements,
    walk,
    with_loops,
)
from kernels.tensor.schedule import (
    IllegalSchedule,
    find,
    reorder,
    split,
    unroll,
    vectorize,
)
from kernels.tensor.staging import split_accumulator
from kernels.tensor.traverse import loads

_SHORT_STEP = 4  # elements: a distance of lanes that shuffles can bridge
_SQUARE = 16  # elements: as many vectors hold a square that is turned


def attempt(nest: Nest, step: Callable[[Nest], Nest]) -> Nest:
    """The nest after a step, or as it is where the step is refused."""
    try:
        return step(nest)
    except IllegalSchedule:
        return nest


def in_lanes(nest: Nest, lanes: int, vectors: int) -> Nest:
    """In each group of perfectly nested loops around statements, the loop along the memory in lanes."""
    for chain in list(_leaves(nest.body)):
        nest = _one_in_lanes(nest, chain, lanes, vectors)
    return nest


def _one_in_lanes(nest: Nest, chain: tuple[Loop, ...], lanes: int, vectors: int) -> Nest:
    own = list(statements((chain[-1],)))
    inner = [loop for loop in walk(chain[-1].body) if isinstance(loop, Loop)]
    if not inner and len(own) == 1:
        pair = _alternating(chain, own[0])
        if pair is not None:
            return attempt(nest, lambda n: _turned(n, chain, *pair, 2 * lanes))
    repeats = {id(one): prod(loop.variable.extent for loop in loops) for loops, one in with_loops(chain[-1].body)}
    scores = {loop.name: _along(loop.variable, own, repeats, lanes) for loop in (*chain, *inner)}
    best = max((*chain, *inner), key=lambda loop: (scores[loop.name], loop in inner))
    if scores[best.name] <= 0:
        return nest
    across = next((loop for loop in chain if loop is not best and _turns(loop, best, own)), None)
    if across is not None and best in chain and not inner and min(across.variable.extent, best.variable.extent) > 1:
        return attempt(nest, lambda n: _turned(n, chain, across, best, min(lanes, _SQUARE)))
    if best not in inner and best is not chain[-1]:
        order = [loop.name for loop in chain if loop is not best] + [best.name]
        nest = attempt(nest, lambda n: reorder(n, order, reassociate=True))
        best = find(nest, best.name)
        if any(isinstance(node, Loop) for node in best.body):
            return nest
    if _is_reduction(best):
        return _reduction_in_lanes(nest, best, lanes, vectors)
    return _pieces_in_lanes(nest, best, lanes, vectors)


def _is_reduction(loop: Loop) -> bool:
    """Whether all iterations of a loop accumulate into one element."""
    return any(
        isinstance(one, Accumulate) and not one.buffer.position(one.indices).factor(loop.variable) for one in loop.body
    )


def _pieces_in_lanes(nest: Nest, loop: Loop, lanes: int, vectors: int) -> Nest:
    """All of a short loop at once; a longer one in pieces of some vectors, and the rest at once."""
    name, extent, most = loop.name, loop.variable.extent, lanes * vectors
    if extent <= most:
        return attempt(nest, lambda n: vectorize(n, name))
    nest = attempt(nest, lambda n: vectorize(split(n, name, most), f"{name}.inner"))
    return attempt(nest, lambda n: vectorize(n, f"{name}.tail")) if extent % most else nest


def _reduction_in_lanes(nest: Nest, loop: Loop, lanes: int, vectors: int) -> Nest:
    name, extent, most = loop.name, loop.variable.extent, lanes * vectors
    if extent <= most:
        return attempt(nest, lambda n: vectorize(n, name, reassociate=True))
    before = nest
    try:
        nest = split_accumulator(split(nest, name, most), f"{name}.inner", reassociate=True)
        nest = vectorize(nest, f"{name}.inner")
        return vectorize(nest, f"{name}.tail", reassociate=True) if extent % most else nest
    except IllegalSchedule:
        return before


def _along(variable: Variable, own: Sequence[Statement], repeats: Mapping[int, int], lanes: int) -> float:
    """How well a loop runs along the memory: accesses that step by one element, less those that jump.

    `repeats` says how often each statement runs per iteration of the innermost common loop. A loop that does not fill
    a vector of `lanes` counts for the part that it fills.
    """
    score = 0.0
    for one in own:
        count = repeats[id(one)]
        for load in loads(one.value):
            if load.buffer.shape:
                step = abs(load.buffer.position(load.indices).factor(variable))
                score += count if step == 1 else 0 if step <= _SHORT_STEP else -count / 2
        if one.buffer.shape:
            step = abs(one.buffer.position(one.indices).factor(variable))
            score += 2 * count if step == 1 else 0 if step == 0 else -count
    return score * min(variable.extent / lanes, 1) if score > 0 else score


def _turns(across: Loop, along: Loop, own: Sequence[Statement]) -> bool:
    """Whether a load runs along the memory with one loop and jumps with the other."""
    positions = [load.buffer.position(load.indices) for one in own for load in loads(one.value) if load.buffer.shape]
    return any(p.factor(across.variable) == 1 and p.factor(along.variable) not in (-1, 0, 1) for p in positions)


def _alternating(chain: tuple[Loop, ...], one: Statement) -> tuple[Loop, Loop] | None:
    """A short loop and another one whose stores it fills up: q and i of y[2*i + q]."""
    position = one.buffer.position(one.indices)
    for short in chain:
        if position.factor(short.variable) == 1 and 2 <= short.variable.extent <= _SHORT_STEP:
            for long in chain:
                if position.factor(long.variable) == short.variable.extent and long.variable.extent > 1:
                    steps = [abs(load.buffer.position(load.indices).factor(long.variable)) for load in loads(one.value)]
                    return (short, long) if all(step <= _SHORT_STEP for step in steps) else None
    return None


def _turned(nest: Nest, chain: tuple[Loop, ...], across: Loop, along: Loop, side: int) -> Nest:
    """One loop unrolled around another in lanes: `across` runs along the source, or fills up the result's steps."""
    others = [loop.name for loop in chain if loop is not across and loop is not along]
    nest = reorder(nest, (*others, across.name, along.name))
    parts = [across.name]
    if across.variable.extent > side:
        nest = split(nest, across.name, side)
        parts = [f"{across.name}.inner"] + ([f"{across.name}.tail"] if across.variable.extent % side else [])
    for outer in parts:
        inner = _only_child(nest, outer)
        squares = [(outer, inner)]
        if along.variable.extent > side:
            nest = split(reorder(nest, (inner, outer)), inner, side)
            squares = [(outer, f"{inner}.inner")]
            if along.variable.extent % side:
                squares.append((_only_child(nest, f"{inner}.tail"), f"{inner}.tail"))
            for rows, lanes in squares:
                nest = reorder(nest, (rows, lanes))
        for rows, lanes in squares:
            nest = vectorize(unroll(nest, rows), lanes)
    return nest


def _only_child(nest: Nest, name: str) -> str:
    child = find(nest, name).body[0]
    assert isinstance(child, Loop), "the loops are perfectly nested"
    return child.name


def _leaves(body: tuple[Node, ...]) -> Iterator[tuple[Loop, ...]]:
    """Perfectly nested loops around statements, or around one reduction, outermost first."""
    for node in body:
        if isinstance(node, Loop):
            chain = [node]
            while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
                chain.append(chain[-1].body[0])
            inside = [loop for loop in chain[-1].body if isinstance(loop, Loop)]
            if len(inside) <= 1 and all(_is_plain(loop) for loop in inside):
                yield tuple(chain)
            else:
                yield from _leaves(chain[-1].body)


def _is_plain(loop: Loop) -> bool:
    """Whether a loop holds statements only, perhaps inside further loops."""
    return all(_is_plain(node) if isinstance(node, Loop) else not isinstance(node, Allocate) for node in loop.body)
