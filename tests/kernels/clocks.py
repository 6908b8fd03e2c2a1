"""A clock that tests wind up themselves."""

from __future__ import annotations

from collections.abc import Iterable


class Ticks:
    """Called by pairs, before and after something: the second call is so many seconds after the first."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds = iter(seconds)
        self._now = 1.0
        self._begun = False

    def __call__(self) -> float:
        """The time."""
        if self._begun:
            self._now += next(self._seconds)
        self._begun = not self._begun
        return self._now
