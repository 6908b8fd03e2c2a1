"""Good schedules found without search: elementwise work, reductions, normalisations and data movement.

`scheduled` reads from top to bottom: elementwise producers go into their consumers, other temporaries into the loop
that needs them, loops that step alike become one, the loop along the memory goes into lanes, the outermost loops
become blocks. Every step is a primitive; one that is refused is left out, so that any program gets a correct nest.
"""

from __future__ import annotations

from itertools import pairwise

from kernels.target import Target
from kernels.tensor.expression import Load
from kernels.tensor.lanes import attempt, in_lanes
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    Nest,
    Node,
    Store,
    nest_of,
    statements,
    walk,
    with_loops,
    written,
)
from kernels.tensor.program import Program
from kernels.tensor.schedule import (
    drop_unit_loops,
    fuse,
    merge,
    parallel,
    reorder,
    split,
)
from kernels.tensor.staging import compute_at, inline
from kernels.tensor.traverse import loads
from kernels.tensor.vectors import widest_lanes
from kernels.tensor.work import work

_BLOCK_WORK = 1 << 18  # units of work of a block, at least: 2 to 8 microseconds of one core, against 0.2 for a ticket
_BLOCKS = 64  # of large work: enough for many workers to end together
_INLINE_WORK = 3  # a value that costs no more is computed again for each reader


def scheduled(program: Program, target: Target) -> Nest:
    """The program's nest with loops in lanes and blocks, for a target. Sums of floats are put in another order."""
    nest = drop_unit_loops(nest_of(program))
    lanes, vectors = widest_lanes(nest, target), 4 if target.vector_registers >= 32 else 2
    nest = _banded(_inlined(nest), lanes * vectors)
    nest = _staged(nest)
    nest = _together(_fused(nest))
    nest = in_lanes(nest, lanes, vectors)
    return _in_blocks(drop_unit_loops(nest))


def _temporaries(nest: Nest) -> list[str]:
    """Of the whole nest, those that are computed last first."""
    return [node.buffer.name for node in reversed(nest.body) if isinstance(node, Allocate)]


def _inlined(nest: Nest) -> Nest:
    """Elementwise temporaries that have one reader of as many elements, or that cost almost nothing."""
    for name in _temporaries(nest):
        writer = next(one for one in statements(nest.body) if one.buffer.name == name)
        readers = [load for one in statements(nest.body) for load in loads(one.value) if load.buffer.name == name]
        once = len({load.indices for load in readers}) == 1 and _iterations(nest, readers[0], name)
        if once or work(writer.value) <= _INLINE_WORK:
            nest = attempt(nest, lambda n, name=name: inline(n, name))  # type: ignore[misc]
    return nest


def _iterations(nest: Nest, load: Load, name: str) -> bool:
    """Whether exactly one statement reads the temporary, once per element."""
    around = [loops for loops, one in with_loops(nest.body) if any(x.buffer.name == name for x in loads(one.value))]
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
    return attempt(nest, lambda n: reorder(split(n, band.name, width), order))


def _staged(nest: Nest) -> Nest:
    """Temporaries inside the deepest loop that needs each part once; loops of outputs merged on the way."""
    nest = _merged(nest)
    for name in _temporaries(nest):
        at = _deepest(nest, name)
        if at is not None:
            nest = _merged(attempt(nest, lambda n, name=name, at=at: compute_at(n, name, at)))  # type: ignore[misc]
    return nest


def _deepest(nest: Nest, name: str) -> str | None:
    """The innermost loop around all readers of which every iteration reads another part of the temporary."""
    readers = [
        (loops, load) for loops, one in with_loops(nest.body) for load in loads(one.value) if load.buffer.name == name
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
            merged = attempt(nest, lambda n, one=one, other=other: merge(n, one.name, other.name))  # type: ignore[misc]
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
                fused = attempt(nest, lambda n, node=node: fuse(n, node.name, node.body[0].name))  # type: ignore
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
                nest = attempt(nest, lambda n, one=one, other=other: merge(n, one.name, other.name))  # type: ignore[misc]
    return nest


def _passed(loop: Loop) -> set[str]:
    """The buffers that a loop passes over."""
    found = set()
    for one in statements(loop.body):
        for buffer, indices in [(one.buffer, one.indices)] + [(load.buffer, load.indices) for load in loads(one.value)]:
            if any(place.factor(loop.variable) for place in indices):
                found.add(buffer.name)
    return found


def _in_blocks(nest: Nest) -> Nest:
    """The outermost loops in parallel, as many iterations to a block as make it worth a ticket."""
    for node in list(nest.body):
        if not isinstance(node, Loop) or node.kind != "serial":
            continue
        chain = [node]
        while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop) and chain[-1].body[0].kind == "serial":
            chain.append(chain[-1].body[0])
        total = _work(node)
        if not total:
            continue  # of no iterations
        block = max(_BLOCK_WORK, total // _BLOCKS)
        taken, iterations = 0, 1
        for loop in chain:
            if taken and total / iterations <= block:
                break
            iterations *= loop.variable.extent
            taken += 1
        chunk = max(1, min(iterations, int(block * iterations / total)))
        chunk = -(-iterations // -(-iterations // chunk))  # blocks of nearly equal size
        for position, loop in enumerate(chain[:taken]):
            made = attempt(nest, lambda n, loop=loop, c=chunk if position == 0 else 1: parallel(n, loop.name, c))  # type: ignore
            if made is nest:
                break
            nest = made
    return nest


def _work(node: Node) -> int:
    if isinstance(node, Loop):
        return node.variable.extent * sum(_work(inner) for inner in node.body)
    return work(node.value) + 1 if isinstance(node, Store | Accumulate) else 0
