"""Good schedules found without search: elementwise work, reductions, normalisations and data movement.

`scheduled` reads from top to bottom: elementwise producers go into their consumers, other temporaries into the loop
that needs them, loops that step alike become one, the loop along the memory goes into lanes, the outermost loops
become blocks. Every step is a primitive; one that is refused is left out, so that any program gets a correct nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

from kernels.target import Target
from kernels.tensor.expression import Binary, Expression, Load, Unary, Variable
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    Nest,
    Node,
    Statement,
    Store,
    nest_of,
    statements,
    walk,
    written,
)
from kernels.tensor.program import Program
from kernels.tensor.schedule import (
    IllegalSchedule,
    drop_unit_loops,
    find,
    fuse,
    merge,
    parallel,
    reorder,
    split,
    unroll,
    vectorize,
)
from kernels.tensor.staging import compute_at, inline, split_accumulator
from kernels.tensor.traverse import loads, nodes
from kernels.tensor.vectors import widest_lanes

# One operation of the cheap kind is one unit of work; these are a polynomial or a division each.
_DEAR = {
    "exp": 12, "log": 16, "erf": 16, "tanh": 14, "sigmoid": 16, "sin": 24, "cos": 24, "pow": 40, "sqrt": 6, "rsqrt": 10,
    "reciprocal": 5, "div": 5, "mod": 12, "fmod": 12,
}  # fmt: skip
_BLOCK_WORK = 1 << 17  # units of work of a block: some ten microseconds, against 0.2 for a ticket
_SHORT_STEP = 4  # elements: a distance of lanes that shuffles can bridge
_SQUARE = 16  # elements: as many vectors hold a square that is turned
_INLINE_WORK = 3  # a value that costs no more is computed again for each reader


def scheduled(program: Program, target: Target) -> Nest:
    """The program's nest with loops in lanes and blocks, for a target. Sums of floats are put in another order."""
    nest = drop_unit_loops(nest_of(program))
    lanes, vectors = widest_lanes(nest, target), 4 if target.vector_registers >= 32 else 2
    nest = _banded(_inlined(nest), lanes * vectors)
    nest = _staged(nest)
    nest = _together(_fused(nest))
    nest = _in_lanes(nest, lanes, vectors)
    return _in_blocks(drop_unit_loops(nest))


def work(value: Expression) -> int:
    """About what one element costs, in cheap operations; loads count as one."""
    total = 0
    for node in nodes(value):
        if isinstance(node, Unary | Binary):
            total += _DEAR.get(node.op, 1)
        elif isinstance(node, Load):
            total += 1
    return total


def _attempt(nest: Nest, step: Callable[[Nest], Nest]) -> Nest:
    """The nest after a step, or as it is where the step is refused."""
    try:
        return step(nest)
    except IllegalSchedule:
        return nest


def _temporaries(nest: Nest) -> list[str]:
    """Of the whole nest, those that are computed last first."""
    return [node.buffer.name for node in reversed(nest.body) if isinstance(node, Allocate)]


def _inlined(nest: Nest) -> Nest:
    """Elementwise temporaries that have one reader of as many elements, or that cost almost nothing."""
    for name in _temporaries(nest):
        writers = [one for one in statements(nest.body) if one.buffer.name == name]
        readers = [load for one in statements(nest.body) for load in loads(one.value) if load.buffer.name == name]
        if len(writers) != 1:
            continue
        once = len({load.indices for load in readers}) == 1 and _iterations(nest, readers[0], name)
        if once or work(writers[0].value) <= _INLINE_WORK:
            nest = _attempt(nest, lambda n, name=name: inline(n, name))  # type: ignore[misc]
    return nest


def _iterations(nest: Nest, load: Load, name: str) -> bool:
    """Whether exactly one statement reads the temporary, once per element."""
    around = [loops for loops, one in _with_loops(nest.body) if any(x.buffer.name == name for x in loads(one.value))]
    count = 1
    for loop in around[0]:
        count *= loop.variable.extent
    size = 1
    for extent in load.buffer.shape:
        size *= extent
    return len(around) == 1 and count <= size


def _banded(nest: Nest, most: int) -> Nest:
    """Loops that all reductions depend on outside of those that they run over, in bands of some vectors.

    for c: for s: y[c, s] = ... m[s]   -->   for s.outer: for c: for s.inner: y[c, s] = ... m[s]

    A normalisation over a dim that is not the last one thus works on a band that stays in the nearest cache, and has
    blocks. The width of a band divides the extent, as a temporary cannot serve a loop and its tail.
    """
    if not nest.body or not isinstance(nest.body[-1], Loop):
        return nest
    chain = [nest.body[-1]]
    while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
        chain.append(chain[-1].body[0])
    temporaries = set(_temporaries(nest))
    used = [
        {loop.name for loop in chain if any(one.factor(loop.variable) for one in load.indices)}
        for one in statements((chain[-1],))
        for load in loads(one.value)
        if load.buffer.name in temporaries
    ]
    partial = [names for names in used if len(names) < len(chain)]
    if not partial:
        return nest
    kept = [loop for loop in chain if all(loop.name in names for names in partial)]
    others = [loop.name for loop in chain if loop not in kept]
    if not kept or chain.index(kept[-1]) < len(kept):
        return nest
    band = kept[-1]
    width = max(size for size in range(1, most + 1) if band.variable.extent % size == 0)
    if width == band.variable.extent or width < most // 8:
        return nest
    order = [*(loop.name for loop in kept[:-1]), f"{band.name}.outer", *others, f"{band.name}.inner"]
    return _attempt(nest, lambda n: reorder(split(n, band.name, width), order))


def _staged(nest: Nest) -> Nest:
    """Temporaries inside the deepest loop that needs each part once; loops of outputs merged on the way."""
    nest = _merged(nest)
    for name in _temporaries(nest):
        at = _deepest(nest, name)
        if at is not None:
            nest = _merged(_attempt(nest, lambda n, name=name, at=at: compute_at(n, name, at)))  # type: ignore[misc]
    return nest


def _deepest(nest: Nest, name: str) -> str | None:
    """The innermost loop around all readers of which every iteration reads another part of the temporary."""
    readers = [
        (loops, load) for loops, one in _with_loops(nest.body) for load in loads(one.value) if load.buffer.name == name
    ]
    found = None
    for depth, loop in enumerate(readers[0][0] if readers else ()):
        if any(len(loops) <= depth or loops[depth] is not loop for loops, _ in readers):
            break
        if not all(any(one.factor(loop.variable) for one in load.indices) for _, load in readers):
            break
        found = loop.name
    return found


def _merged(nest: Nest) -> Nest:
    """Outermost loops of outputs that follow one another and may be one."""
    temporaries = set(_temporaries(nest))
    done = False
    while not done:
        done = True
        for one, other in pairwise(nest.body):
            if not isinstance(one, Loop) or not isinstance(other, Loop) or one.variable.extent != other.variable.extent:
                continue
            if temporaries & written((one, other)):
                continue
            merged = _attempt(nest, lambda n, one=one, other=other: merge(n, one.name, other.name))  # type: ignore[misc]
            if merged is not nest:
                nest, done = merged, False
                break
    return nest


def _fused(nest: Nest) -> Nest:
    """Perfectly nested loops that step through all memory as one loop would."""
    done = False
    while not done:
        done = True
        for node in walk(nest.body):
            if isinstance(node, Loop) and len(node.body) == 1 and isinstance(node.body[0], Loop):
                fused = _attempt(nest, lambda n, node=node: fuse(n, node.name, node.body[0].name))  # type: ignore
                if fused is not nest:
                    nest, done = fused, False
                    break
    return nest


def _together(nest: Nest) -> Nest:
    """Loops of one body that pass over the same buffer become one pass, where nothing between them waits for the first.

    A softmax thus sums up its exponentials as it writes them.
    """
    for outer in [node for node in walk(nest.body) if isinstance(node, Loop)]:
        loops = [node for node in outer.body if isinstance(node, Loop)]
        for one, other in pairwise(loops):
            if one.variable.extent == other.variable.extent and _passed(one) & _passed(other):
                nest = _attempt(nest, lambda n, one=one, other=other: merge(n, one.name, other.name))  # type: ignore[misc]
    return nest


def _passed(loop: Loop) -> set[str]:
    """The buffers that a loop passes over."""
    found = set()
    for one in statements(loop.body):
        for buffer, indices in [(one.buffer, one.indices)] + [(load.buffer, load.indices) for load in loads(one.value)]:
            if any(place.factor(loop.variable) for place in indices):
                found.add(buffer.name)
    return found


def _in_lanes(nest: Nest, lanes: int, vectors: int) -> Nest:
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
            return _attempt(nest, lambda n: _turned(n, chain, *pair, 2 * lanes))
    repeats = {id(one): prod(loop.variable.extent for loop in loops) for loops, one in _with_loops(chain[-1].body)}
    scores = {loop.name: _along(loop.variable, own, repeats, lanes) for loop in (*chain, *inner)}
    best = max((*chain, *inner), key=lambda loop: (scores[loop.name], loop in inner))
    if scores[best.name] <= 0:
        return nest
    across = next((loop for loop in chain if loop is not best and _turns(loop, best, own)), None)
    if across is not None and best in chain and not inner and min(across.variable.extent, best.variable.extent) > 1:
        return _attempt(nest, lambda n: _turned(n, chain, across, best, min(lanes, _SQUARE)))
    if best not in inner and best is not chain[-1]:
        order = [loop.name for loop in chain if loop is not best] + [best.name]
        nest = _attempt(nest, lambda n: reorder(n, order, reassociate=True))
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
        return _attempt(nest, lambda n: vectorize(n, name))
    nest = _attempt(nest, lambda n: vectorize(split(n, name, most), f"{name}.inner"))
    return _attempt(nest, lambda n: vectorize(n, f"{name}.tail")) if extent % most else nest


def _reduction_in_lanes(nest: Nest, loop: Loop, lanes: int, vectors: int) -> Nest:
    name, extent, most = loop.name, loop.variable.extent, lanes * vectors
    if extent <= most:
        return _attempt(nest, lambda n: vectorize(n, name, reassociate=True))
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


def _in_blocks(nest: Nest) -> Nest:
    """The outermost loops in parallel, as many iterations to a block as make it worth a ticket."""
    for node in list(nest.body):
        if not isinstance(node, Loop) or node.kind != "serial":
            continue
        chain = [node]
        while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop) and chain[-1].body[0].kind == "serial":
            chain.append(chain[-1].body[0])
        total = _work(node)
        taken, iterations = 0, 1
        for loop in chain:
            if taken and total / iterations <= _BLOCK_WORK:
                break
            iterations *= loop.variable.extent
            taken += 1
        chunk = max(1, min(iterations, int(_BLOCK_WORK * iterations / max(total, 1))))
        chunk = -(-iterations // -(-iterations // chunk))  # blocks of nearly equal size
        for position, loop in enumerate(chain[:taken]):
            made = _attempt(nest, lambda n, loop=loop, c=chunk if position == 0 else 1: parallel(n, loop.name, c))  # type: ignore
            if made is nest:
                break
            nest = made
    return nest


def _work(node: Node) -> int:
    if isinstance(node, Loop):
        return node.variable.extent * sum(_work(inner) for inner in node.body)
    return work(node.value) + 1 if isinstance(node, Store | Accumulate) else 0


def _with_loops(body: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[tuple[Loop, ...], Statement]]:
    """Every statement with the loops around it, outermost first."""
    for node in body:
        if isinstance(node, Loop):
            yield from _with_loops(node.body, (*around, node))
        elif isinstance(node, Store | Accumulate):
            yield around, node
