"""Places of a routine that lie outside of their areas for certain: a kernel would read or write other memory there.

A place is followed where it is a sum of loop variables and numbers, in loops of constant bounds that no condition
guards: then the least and the greatest place are reached. The shared loop over several dims counts them flat; quotient
and remainder by a size of it are variables of their own, each with all its values beside all of the other's. What data
or the sizes of a run decide is left to whoever defines the routine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels.routine.grammar import (
    Area,
    Assign,
    Element,
    For,
    InvalidRoutine,
    Local,
    Put,
    Routine,
    RoutineStep,
    When,
    While,
    statements,
    values_of,
)
from kernels.tensor.expression import Binary, Expression, Number
from kernels.tensor.traverse import nodes


@dataclass(frozen=True, slots=True)
class _Sum:
    """A number, and iterations of loops by factors."""

    number: int
    factors: Mapping[str, int]

    def plus(self, other: _Sum, sign: int = 1) -> _Sum:
        factors = dict(self.factors)
        for one, factor in other.factors.items():
            factors[one] = factors.get(one, 0) + sign * factor
        return _Sum(self.number + sign * other.number, {one: factor for one, factor in factors.items() if factor})

    def times(self, factor: int) -> _Sum:
        return _Sum(self.number * factor, {one: factor * other for one, other in self.factors.items() if factor})


def require_inside(routine: Routine) -> None:
    """Raises InvalidRoutine for a place that lies outside of its area whenever the routine runs."""
    count = routine.shared.count
    if not isinstance(count, int) or count < 1:
        return
    body = routine.shared.body
    assigned = Counter(one.local.name for one in statements(body) if isinstance(one, Assign))
    name = routine.shared.variable.name
    _Walk(routine.title, assigned, {}, {}).through(body, {name: _Sum(0, {name: 1})}, {name: count})


@dataclass(frozen=True, slots=True)
class _Walk:
    title: str
    assigned: Mapping[str, int]
    parents: dict[str, str]  # of a quotient or remainder: the variable that it is taken of
    sizes: dict[str, int]  # and by what that is divided

    def through(self, body: tuple[RoutineStep, ...], known: Mapping[str, _Sum], counts: Mapping[str, int]) -> None:
        """Look at what always runs; `counts` are the iterations of the loops around it."""
        known, counts = dict(known), dict(counts)
        for one in body:
            for area, place in _places(one):
                self._require(area, _sum(place, known), counts)
            match one:
                case Assign(local, value):
                    known.pop(local.name, None)
                    found = None
                    if self.assigned[local.name] == 1:
                        found = _sum(value, known) or self._digit(local, value, known, counts)
                    if found is not None:
                        known[local.name] = found
                case For(variable, start, stop, inner):
                    first, last = _sum(start, known), _sum(stop, known)
                    inside = {name: one for name, one in known.items() if name != variable.name}
                    if first is None or last is None or first.factors or last.factors:
                        continue
                    times = last.number - first.number
                    if times > 0:
                        inside[variable.name] = _Sum(first.number, {variable.name: 1})
                        self.through(inner, inside, {**counts, variable.name: times})
                case While() | When():
                    continue  # whether it runs is not known

    def _digit(self, local: Local, value: Expression, known: Mapping[str, _Sum], counts: dict[str, int]) -> _Sum | None:
        """A quotient or remainder of a variable by a part of its count, as a variable; it is counted then."""
        match value:
            case Binary("div" | "fmod" as op, left, Number(int(size))):
                whole = _sum(left, known)
                if whole is None or whole.number or list(whole.factors.values()) != [1] or size < 1:
                    return None
                (parent,) = whole.factors
                if counts[parent] % size or self.sizes.setdefault(parent, size) != size:
                    return None
                counts[local.name] = size if op == "fmod" else counts[parent] // size
                self.parents[local.name] = parent
                return _Sum(0, {local.name: 1})
        return None

    def _is_free(self, place: _Sum) -> bool:
        """Whether no variable of a place decides another one of it."""
        above = set[str]()
        for name in place.factors:
            parent = self.parents.get(name)
            while parent is not None:
                above.add(parent)
                parent = self.parents.get(parent)
        return above.isdisjoint(place.factors)

    def _require(self, area: Area, place: _Sum | None, counts: Mapping[str, int]) -> None:
        if place is None or not isinstance(area.elements, int) or not self._is_free(place):
            return
        ends = [factor * (counts[one] - 1) for one, factor in place.factors.items()]
        low, high = (place.number + sum(choose(0, end) for end in ends) for choose in (min, max))
        if low < 0 or high >= area.elements:
            outside = low if low < 0 else high
            raise InvalidRoutine(
                f"{self.title}: '{area.name}' has {area.elements} elements, and the one at {outside} is asked for."
            )


def _places(one: RoutineStep) -> Iterator[tuple[Area, Expression]]:
    if isinstance(one, Put):
        yield one.area, one.place
    for value in values_of(one):
        yield from ((node.area, node.place) for node in nodes(value) if isinstance(node, Element))


def _sum(value: Expression, known: Mapping[str, _Sum]) -> _Sum | None:
    """The value as such a sum; None for any other."""
    match value:
        case Number(int(number)) if not isinstance(number, bool):
            return _Sum(number, {})
        case Local(name):
            return known.get(name)
        case Binary(op, left, right) if op in ("add", "sub", "mul"):
            one, other = _sum(left, known), _sum(right, known)
            if one is None or other is None:
                return None
            if op != "mul":
                return one.plus(other, 1 if op == "add" else -1)
            if not one.factors:
                return other.times(one.number)
            return one.times(other.number) if not other.factors else None
    return None
