"""Which buffers may lie inside others: views, results in place, slices of concatenations.

A view of an operand has its contents: it is always taken. A result in place destroys its operand: it is taken where
nothing on those bytes is needed after the step that writes them, and where they are the program's own. A slice is an
operand that is made right where the result (a concatenation) will stand: the result's bytes are then needed from the
first operand on, which may cost more than it saves; a result's slices are taken together, and only where the live peak
does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memplan.graph import Kind, Share
from memplan.problem import Alias

MOST_TRIALS = 1_000  # concatenations that are tried one by one; beyond, the time is not worth it


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
    family = _Families(lives)
    for number, step in enumerate(steps):
        for value, held in step.makes.items():
            for share in offered.get(value, ()):
                base = step.reads.get(share.of)
                if base is None or base not in lives or held not in lives:
                    continue
                if (in_place if share.overwrites else views) and family.take(
                    held, base, share.at, number if share.overwrites else None
                ):
                    break
    if slices:
        _take_slices(family, steps, into)
    return family.aliases


def _take_slices(family: _Families, steps: Sequence[Step], into: Mapping[str, Sequence[Share]]) -> None:
    peak = family.peak()
    trials = 0
    for step in steps:
        for value, held in step.makes.items():
            parts = [share for share in into.get(value, ()) if share.value in step.reads]
            if not parts or held not in family.lives or trials >= MOST_TRIALS:
                continue
            trials += 1
            trial = family.copy()
            taken = [trial.slide(step.reads[share.value], held, share.at) for share in parts]
            if any(taken) and (now := trial.peak()) <= peak:
                peak = now
                family.adopt(trial)


class _Families:
    """Buffers that share bytes: each family has a root, every member a place in it."""

    def __init__(self, lives: Mapping[str, Life]) -> None:
        self.lives = lives
        self.aliases: dict[str, Alias] = {}
        self._place = {name: (name, 0) for name in lives}
        self._members: dict[str, tuple[str, ...]] = {name: (name,) for name in lives}

    def copy(self) -> _Families:
        other = _Families.__new__(_Families)
        other.lives, other.aliases = self.lives, dict(self.aliases)
        other._place, other._members = dict(self._place), dict(self._members)
        return other

    def adopt(self, other: _Families) -> None:
        self.aliases, self._place, self._members = other.aliases, other._place, other._members

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
        """Make an operand where its result will stand, with everything that lies in the operand."""
        life = self.lives.get(held)
        if life is None or life.kind in ("input", "constant") or self._place[held] != (held, 0):
            return False
        if self._place[result][0] == held or at + life.size > self.lives[result].size:
            return False
        if not self._fits(held, result, self._place[result][1] + at):
            return False
        self._join(held, result, at, False)
        return True

    def _fits(self, held: str, result: str, start: int) -> bool:
        """Whether nothing else is needed on the bytes while `held` or what lies in it is.

        The result itself and what views it have the same contents there; what overwrites it has not.
        """
        own = [self.lives[one] for one in self._members[held]]
        first, last = min(life.begin for life in own), max(life.end for life in own)
        for member in self._members[self._place[result][0]]:
            other, place = self.lives[member], self._place[member][1]
            apart = other.begin >= last or first >= other.end
            beside = place >= start + self.lives[held].size or start >= place + other.size
            if not apart and not beside and not self._views(member, result):
                return False
        return True

    def _views(self, member: str, result: str) -> bool:
        while member != result:
            alias = self.aliases.get(member)
            if alias is None or alias.overwrites:
                return False
            member = alias.of
        return True

    def _join(self, held: str, base: str, at: int, overwrites: bool) -> None:
        root, start = self._place[base]
        self.aliases[held] = Alias(base, at, overwrites)
        for member in self._members.pop(held):
            self._place[member] = (root, self._place[member][1] + start + at)
            self._members[root] += (member,)

    def _is_free(self, root: str, start: int, size: int, step: int) -> bool:
        for member in self._members[root]:
            life, place = self.lives[member], self._place[member][1]
            ours = life.kind not in ("input", "constant") and life.end <= step + 1
            if place < start + size and start < place + life.size and not ours:
                return False
        return True

    def peak(self) -> int:
        """The largest sum of live roots over all steps, in bytes."""
        changes: dict[int, int] = {}
        for root, members in self._members.items():
            size = self.lives[root].size
            begin = min(self.lives[one].begin for one in members)
            end = max(self.lives[one].end for one in members)
            changes[begin] = changes.get(begin, 0) + size
            changes[end] = changes.get(end, 0) - size
        live = peak = 0
        for step in sorted(changes):
            live += changes[step]
            peak = max(peak, live)
        return peak
