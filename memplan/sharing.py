"""Which buffers may lie inside others: views, results in place, slices of concatenations.

A view of an operand has its contents: it is always taken. A result in place destroys its operand: it is taken where
nothing on those bytes is needed after the step that writes them, and where they are the program's own. A slice is an
operand that is made right where the result (a concatenation) will stand: the result's bytes are then needed from the
first operand on, which may cost more than it saves; so slices are taken only where the live peak does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.graph import Kind, Share
from memplan.problem import Alias

MOST_SITES = 300  # concatenations that are looked at
ROUNDS = 4  # over all of them


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer's name, size in bytes, half-open range of steps, and what kind of value it holds."""

    name: str
    size: int
    begin: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Step:
    """What one step reads and makes: value -> buffer."""

    reads: Mapping[str, str]
    makes: Mapping[str, str]


def aliases(
    lives: Mapping[str, Life],
    steps: Sequence[Step],
    shares: Iterable[Share],
    *,
    views: bool = True,
    in_place: bool = True,
    slices: bool = True,
) -> dict[str, Alias]:
    """The shares that hold for these lives, by the buffer that lies in another."""
    offered: dict[str, list[Share]] = {}
    into: dict[str, list[Share]] = {}  # result -> slices of it
    for share in shares:
        offered.setdefault(share.value, []).append(share)
        into.setdefault(share.of, []).append(share)
    classes = _AliasClasses(lives)
    for number, step in enumerate(steps):
        for value, held in step.makes.items():
            for share in offered.get(value, ()):
                base = step.reads.get(share.of)
                if base is None or base not in lives or held not in lives:
                    continue
                if (in_place if share.overwrites else views) and classes.take(
                    held, base, share.at, number if share.overwrites else None
                ):
                    break
    if slices:
        _take_slices(classes, steps, into)
    return classes.aliases


def _take_slices(classes: _AliasClasses, steps: Sequence[Step], into: Mapping[str, Sequence[Share]]) -> None:
    """Lay operands into concatenations, where that lowers the peak, or leaves it and lowers bytes times steps.

    Concatenations are tried one after the other, from the first and from the last, until nothing is gained; of one, the
    operands that are made last are laid into it first, for each earlier one keeps its bytes needed longer.
    """
    sites = []
    for step in steps:
        for value, held in step.makes.items():
            parts = {step.reads[one.value]: one.at for one in into.get(value, ()) if one.value in step.reads}
            here = [(name, at) for name, at in parts.items() if name in classes.lives]
            if here and held in classes.lives:
                sites.append((held, sorted(here, key=lambda part: (-classes.lives[part[0]].begin, part[1]))))
    sites = sites[:MOST_SITES]
    found = [_improved(classes, order) for order in (sites, sites[::-1])]
    classes.adopt(min(found, key=lambda one: one.cost()))


def _improved(classes: _AliasClasses, sites: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> _AliasClasses:
    best, cost = classes, classes.cost()
    open_sites = list(sites)
    for _ in range(ROUNDS):
        left = []
        for held, parts in open_sites:
            taken = _with_most(best, held, parts, cost)
            if taken is None:
                left.append((held, parts))
            else:
                best, cost = taken, taken.cost()
        if len(left) == len(open_sites):
            break
        open_sites = left
    return best


def _with_most(
    classes: _AliasClasses, held: str, parts: Sequence[tuple[str, int]], cost: tuple[int, int]
) -> _AliasClasses | None:
    """With as many of the first parts laid into `held` as there are ways to do so below this cost; None without."""
    trial, most = classes.copy(), 0
    for count, (name, at) in enumerate(parts, 1):
        if not trial.slide(name, held, at):
            break
        most = count if trial.cost() < cost else most
    if not most:
        return None
    taken = classes.copy()
    for name, at in parts[:most]:
        taken.slide(name, held, at)
    return taken


class _AliasClasses:
    """Buffers that share bytes: each alias class has a root, every member a place in it.

    A class is needed from its first member's beginning to its last one's end.
    """

    def __init__(self, lives: Mapping[str, Life]) -> None:
        self.lives = lives
        self.aliases: dict[str, Alias] = {}
        self._place = {name: (name, 0) for name in lives}
        self._members: dict[str, tuple[str, ...]] = {name: (name,) for name in lives}
        self._spans = {name: (life.begin, life.end) for name, life in lives.items()}  # of roots
        self._live = np.zeros(max((life.end for life in lives.values()), default=1), np.int64)  # bytes at each step
        self._area = 0  # bytes times steps
        for name in lives:
            self._count(name, 1)

    def copy(self) -> _AliasClasses:
        other = _AliasClasses.__new__(_AliasClasses)
        other.lives, other.aliases = self.lives, dict(self.aliases)
        other._place, other._members = dict(self._place), dict(self._members)
        other._spans, other._live, other._area = dict(self._spans), self._live.copy(), self._area
        return other

    def adopt(self, other: _AliasClasses) -> None:
        self.aliases, self._place, self._members = other.aliases, other._place, other._members
        self._spans, self._live, self._area = other._spans, other._live, other._area

    def take(self, held: str, base: str, at: int, overwritten_at: int | None) -> bool:
        """Put a new buffer into an operand; `overwritten_at`: the step that destroys what stood there."""
        life = self.lives[held]
        if at + life.size > self.lives[base].size or self._place[held] != (held, 0):
            return False
        root, start = self._place[base]
        start += at
        if overwritten_at is not None and not self._is_free(root, start, life.size, overwritten_at):
            return False
        self._join(held, base, at, overwritten_at is not None)
        return True

    def slide(self, held: str, result: str, at: int) -> bool:
        """Make an operand where its result will stand, with everything that shares its bytes."""
        if held not in self.lives:
            return False
        root, place = self._place[held]
        start = at - place
        if root == self._place[result][0] or start < 0 or start + self.lives[root].size > self.lives[result].size:
            return False
        if any(self.lives[one].kind in ("input", "constant") for one in self._members[root]):
            return False
        if self._is_slice(held):
            return False
        if not self._fits(root, result, self._place[result][1] + start, (place, place + self.lives[held].size)):
            return False
        self._join(root, result, start, False)
        return True

    def _fits(self, held: str, result: str, start: int, part: tuple[int, int]) -> bool:
        """Whether nothing else is needed on the bytes while `held` or what lies in it is.

        The result itself and what views it have the same contents on the operand's bytes, the `part` of `held`; what
        overwrites it has not, nor does what overwrites the operand once the result is made.
        """
        made = self.lives[result].begin
        first, last = start + part[0], start + part[1]
        for other_name in self._members[self._place[result][0]]:
            other, other_place = self.lives[other_name], self._place[other_name][1]
            alike = self._views(other_name, result)
            for name in self._members[held]:
                one, place = self.lives[name], start + self._place[name][1]
                apart = other.begin >= one.end or one.begin >= other.end
                beside = place >= other_place + other.size or other_place >= place + one.size
                alias = self.aliases.get(name)
                destroys = alias is not None and alias.overwrites and one.begin >= made and other.end > one.begin + 1
                inside = first <= max(place, other_place) and min(place + one.size, other_place + other.size) <= last
                if not apart and not beside and (not alike or destroys or not inside):
                    return False
        return True

    def _is_slice(self, name: str) -> bool:
        """Whether the buffer lies in what is made later than it: a concatenation has it already."""
        while name in self.aliases:
            base = self.aliases[name].of
            if self.lives[base].begin > self.lives[name].begin:
                return True
            name = base
        return False

    def _views(self, member: str, result: str) -> bool:
        """Whether the buffer was made as a view of the result: neither in place of it nor as an operand of it."""
        while member != result:
            alias = self.aliases.get(member)
            if alias is None or alias.overwrites or self.lives[alias.of].begin > self.lives[member].begin:
                return False
            member = alias.of
        return True

    def _join(self, held: str, base: str, at: int, overwrites: bool) -> None:
        root, start = self._place[base]
        self.aliases[held] = Alias(base, at, overwrites)
        self._count(held, -1)
        self._count(root, -1)
        (begin, end), (other_begin, other_end) = self._spans.pop(held), self._spans[root]
        self._spans[root] = min(begin, other_begin), max(end, other_end)
        self._count(root, 1)
        for member in self._members.pop(held):
            self._place[member] = (root, self._place[member][1] + start + at)
            self._members[root] += (member,)

    def _count(self, root: str, sign: int) -> None:
        begin, end = self._spans[root]
        self._live[begin:end] += sign * self.lives[root].size
        self._area += sign * self.lives[root].size * (end - begin)

    def _is_free(self, root: str, start: int, size: int, step: int) -> bool:
        for member in self._members[root]:
            life, place = self.lives[member], self._place[member][1]
            ours = life.kind not in ("input", "constant") and life.end <= step + 1
            if place < start + size and start < place + life.size and not ours:
                return False
        return True

    def cost(self) -> tuple[int, int]:
        """The largest sum of live roots over all steps, in bytes; and bytes times steps."""
        return int(self._live.max(initial=0)), self._area
