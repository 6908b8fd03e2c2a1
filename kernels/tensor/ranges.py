"""What is known of an index: its range over the loops, whether it is injective, what a condition says about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from kernels.errors import Undecided
from kernels.size import range_of
from kernels.tensor.expression import Binary, Compare, Expression, Index, Load, Number, Position, Unary, Variable

Facts = tuple[Index, ...]  # each is known to be >= 0
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def bounds(one: Index, free: Iterable[Variable] | None = None) -> tuple[int, int]:
    """Smallest and largest value (inclusive) while the variables run; with `free`, only those run, others count as 0.

    A variable of extent 0 counts as one of extent 1: its loop makes no iteration, and nothing needs to be shown.
    """
    low = high = one.offset
    chosen = None if free is None else set(free)
    for variable, factor in one.terms:
        if chosen is not None and variable not in chosen:
            continue
        reach = factor * max(variable.extent - 1, 0)
        least, most = range_of(reach)
        if least >= 0:
            high += reach
        elif most <= 0:
            low += reach
        else:
            raise Undecided(f"the sign of {reach} depends on the sizes of a run.")
    return low, high


def injective(one: Index, free: Sequence[Variable]) -> bool:
    """Whether different values of the variables give different values of the index (sufficient: mixed radix)."""
    factors = dict(one.terms)
    steps = sorted((abs(factors.get(v, 0)), v.extent) for v in free if v.extent > 1)
    reach = 0
    for factor, extent in steps:
        if factor <= reach:
            return False
        reach += factor * (extent - 1)
    return True


def never_equal(one: Index, other: Index) -> bool:
    """Whether no values of the variables (apart for the two) make the indices equal: ranges or residues differ."""
    low, high = bounds(one)
    other_low, other_high = bounds(other)
    if high < other_low or other_high < low:
        return True
    step = gcd(*(abs(factor) for _, factor in (*one.terms, *other.terms)))
    return step > 1 and (one.offset - other.offset) % step != 0


def holds(one: Index, facts: Facts) -> bool:
    """Whether index >= 0 everywhere the facts hold: by its range, or because it is a fact plus something >= 0."""
    return bounds(one)[0] >= 0 or any(bounds(one - fact)[0] >= 0 for fact in facts)


def lies_inside(load: Load) -> bool:
    """Whether a load lies inside its buffer for all values of its variables; not where the sizes of a run decide it."""
    try:
        return all(
            holds(one, ()) and holds(one * -1 + (size - 1), ())
            for one, size in zip(load.indices, load.buffer.shape, strict=True)
        )
    except Undecided:
        return False


def facts_of(condition: Expression, truth: bool = True) -> Facts:
    """What a condition (or its negation) says of indices; () where it says nothing that we can use."""
    match condition:
        case Binary("and", left, right) if truth:
            return facts_of(left) + facts_of(right)
        case Binary("or", left, right) if not truth:
            return facts_of(left, False) + facts_of(right, False)
        case Unary("not", operand):
            return facts_of(operand, not truth)
        case Compare(op, left, right):
            first, second = _as_index(left), _as_index(right)
            if first is None or second is None:
                return ()
            return _compared(op if truth else _NEGATED[op], first, second)
    return ()


def _compared(op: str, left: Index, right: Index) -> Facts:
    match op:
        case "lt":
            return (right - left + (-1),)
        case "le":
            return (right - left,)
        case "gt":
            return (left - right + (-1),)
        case "ge":
            return (left - right,)
        case "eq":
            return (left - right, right - left)
    return ()


def _as_index(value: Expression) -> Index | None:
    if isinstance(value, Position):
        return value.index
    if isinstance(value, Number) and isinstance(value.value, int):
        return Index((), int(value.value))
    return None
