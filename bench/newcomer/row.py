"""A row of the table: a feature, the best tool that has it, and whether ours is worse, level or better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.newcomer.place import Place

Verdict = Literal["better", "level", "worse"]


class Worse(Exception):
    """What is demanded is not so; the text says what was found."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check found, in a sentence."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One feature; `check` demands what its docstring says, and raises Worse."""

    number: int
    feature: str
    anchor: str  # the best tool, and what it does
    check: Callable[[Place], Seen]


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that no script can check, and the reason."""

    number: int
    feature: str
    anchor: str
    verdict: Verdict
    text: str  # what there is today
    why: str  # why a script does not tell


def better(text: str) -> Seen:
    """The anchor has less."""
    return Seen("better", text)


def level(text: str) -> Seen:
    """The anchor has the same."""
    return Seen("level", text)


def require(condition: object, found: object) -> None:
    """Raise Worse with what was found, unless the condition holds."""
    if not condition:
        raise Worse(str(found).strip()[-200:])
