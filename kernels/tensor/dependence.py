"""Which iterations of loops touch the same element: what decides whether their order may change.

Positions are those in the storage, so that a flattened access and one by dims compare. The test is a sufficient one:
positions are mixed-radix numbers of the loop variables. What it cannot show counts as a dependence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from kernels.dtype import DType
from kernels.tensor.expression import Index, Variable
from kernels.tensor.nest import Accumulate, Loop, Node, allocated, statements, walk
from kernels.tensor.ranges import bounds
from kernels.tensor.traverse import loads


@dataclass(frozen=True, slots=True)
class Access:
    """One place in the text where a buffer is touched: "load", "store", or the operation of an accumulation."""

    name: str
    dtype: DType
    position: Index
    how: str


def accesses(body: tuple[Node, ...]) -> tuple[Access, ...]:
    """Every access of the body, except to temporaries that it allocates itself."""
    own = allocated(body)
    found: list[Access] = []
    for one in statements(body):
        for load in loads(one.value):
            if load.buffer.name not in own:
                found.append(Access(load.buffer.name, load.buffer.dtype, load.buffer.position(load.indices), "load"))
        if one.buffer.name not in own:
            how = one.op if isinstance(one, Accumulate) else "store"
            found.append(Access(one.buffer.name, one.buffer.dtype, one.buffer.position(one.indices), how))
    return tuple(found)


def shared(body: tuple[Node, ...]) -> dict[str, tuple[Access, ...]]:
    """The accesses to each buffer that the body writes to and does not allocate itself."""
    found: dict[str, list[Access]] = {}
    for access in accesses(body):
        found.setdefault(access.name, []).append(access)
    return {name: tuple(all_) for name, all_ in found.items() if any(a.how != "load" for a in all_)}


def inner_variables(body: tuple[Node, ...]) -> frozenset[Variable]:
    """The variables of the loops inside a body."""
    return frozenset(node.variable for node in walk(body) if isinstance(node, Loop))


def apart(positions: Sequence[Index], over: Iterable[Variable], inner: frozenset[Variable]) -> bool:
    """Whether iterations that differ in `over` never meet, whatever `inner` are, with all other variables equal.

    Positions are read as numbers of a mixed radix: sorted by their steps, each variable of `over`, and every variable
    above one of them, must step over all that the variables below it reach together.
    """
    chosen = frozenset(over)
    if any(_factors(one, inner) != _factors(positions[0], inner) for one in positions):
        return False
    moving = [{v: f for v, f in one.terms if v in inner} for one in positions]
    if all(one == moving[0] for one in moving):
        offsets = [one.offset for one in positions]
        reach, digits = max(offsets) - min(offsets), dict(positions[0].terms)
    else:
        ranges = [bounds(one, inner) for one in positions]
        reach = max(high for _, high in ranges) - min(low for low, _ in ranges)
        digits = _factors(positions[0], inner)
    steps = [(abs(digits.get(v, 0)), v.extent, v in chosen) for v in {*chosen, *(v for v in digits if v in inner)}]
    above = False
    for step, extent, matters in sorted(steps):
        if extent <= 1:
            continue
        above = above or matters
        if above and step <= reach:
            return False
        reach += step * (extent - 1)
    return True


def told_apart(positions: Sequence[Index], band: Sequence[Variable], inner: frozenset[Variable]) -> frozenset[Variable]:
    """The largest set of loops of a band whose values tell apart the elements that are touched."""
    for size in range(len(band), 0, -1):
        for chosen in combinations(band, size):
            if apart(positions, chosen, inner | (frozenset(band) - frozenset(chosen))):
                return frozenset(chosen)
    return frozenset()


def order_free(touched: Sequence[Access], reassociate: bool) -> bool:
    """Whether the accesses may come in any order: accumulations by one operation, exact or allowed to round anew."""
    first = touched[0]
    if first.how in ("load", "store") or any(access.how != first.how for access in touched):
        return False
    return reassociate or exact(first.how, first.dtype)


def exact(op: str, dtype: DType) -> bool:
    """Whether a reduction gives the same in any order."""
    return op in ("min", "max") or not dtype.is_float


def _factors(one: Index, inner: frozenset[Variable]) -> dict[Variable, int]:
    return {variable: factor for variable, factor in one.terms if variable not in inner}
