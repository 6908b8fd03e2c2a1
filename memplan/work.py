"""How much a search may do: steps of work, handed down to the searches inside it; and seconds, where the user asks.

A step is about a nanosecond of a compiled loop on the machine on which it was measured. What a search finds follows
from its steps alone, so that it is the same on every machine, busy or not. A limit in seconds is the user's own: it
leaves out what numba compiles, and a result that it has cut short says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from memplan.compiling import Stopwatch
from memplan.problem import InvalidProblem

STEPS_A_SECOND = 1_000_000_000
Limit = Literal["work", "time"]
_UNLIMITED = 1 << 62  # steps


@dataclass(slots=True)
class _Clock:
    watch: Stopwatch
    ends: float  # seconds


@dataclass(slots=True)
class Work:
    """What is left to a search. What a part of it spends, it has spent; what a part leaves, it still has."""

    left: int  # steps
    clock: _Clock | None = None
    limited: Limit | None = None  # what has ended some part of the search; the time, where both have
    outer: Work | None = None

    def spend(self, steps: int) -> None:
        """Count steps that have been done."""
        self.left -= steps
        if self.outer is not None:
            self.outer.spend(steps)

    def over(self) -> bool:
        """Whether nothing is left."""
        return not self.affords(1)

    def affords(self, steps: int) -> bool:
        """Whether so many steps are left, and about the time for them."""
        if self.left < steps:
            self._end("work")
            return False
        if self.clock is not None and self.clock.watch.seconds() + steps / STEPS_A_SECOND > self.clock.ends:
            self._end("time")
            return False
        return True

    def seconds_left(self) -> float | None:
        """What is left of the user's time limit; None where there is none."""
        return None if self.clock is None else max(0.1, self.clock.ends - self.clock.watch.seconds())

    def part(self, share: float) -> Work:
        """A share of what is left, for a search inside this one."""
        clock = None
        if self.clock is not None:
            now = self.clock.watch.seconds()
            clock = _Clock(self.clock.watch, now + share * max(0.0, self.clock.ends - now))
        return Work(max(0, int(share * self.left)), clock, None, self)

    def at_most(self, steps: int) -> Work:
        """What is left, but no more than so many steps, for a search inside this one."""
        return Work(min(self.left, steps), self.clock, None, self)

    def _end(self, limit: Limit) -> None:
        if self.limited != "time":
            self.limited = limit
        if self.outer is not None:
            self.outer._end(limit)


@contextmanager
def allowed(work: int | None, time_limit: float | None, usual: int) -> Iterator[Work]:
    """The budget that a caller gives: `work` in steps, `time_limit` in seconds; the `usual` steps with neither.

    With a time limit alone, that alone ends the search. Raises InvalidProblem for what is no limit.
    """
    if work is not None and work < 0:
        raise InvalidProblem(f"{work} steps of work are no budget: give 0 or more.")
    if time_limit is None:
        yield Work(usual if work is None else work)
        return
    if not time_limit >= 0:
        raise InvalidProblem(f"a time limit of {time_limit} s is no time limit.")
    watch = Stopwatch()
    with watch.running():
        yield Work(_UNLIMITED if work is None else work, _Clock(watch, time_limit))
