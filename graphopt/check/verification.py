"""The verdict on two models, and what the feeds reached before it was given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reached:
    """What the feeds of a check had in them, and where they led the original."""

    draws: tuple[str, ...] = ()  # kinds of values (check.feeds), "given" for the user's own
    branches: tuple[int, int] = (0, 0)  # of the Ifs: those taken, and all
    shut_rows: bool | None = None  # whether a row of a mask was false throughout; None where no input may be a mask


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on two models."""

    status: str  # "verified", "different", "not run" (no engine runs the original), "off"
    feeds: int  # on how many feeds the outputs were compared
    max_abs: float
    max_rel: float  # relative to each element and the largest beside it (check.tolerance)
    reason: str | None  # why the models are not equal, or why nothing was run
    excluded: tuple[str, ...]  # outputs that were not compared, because they are random
    sizes: tuple[dict[str, int], ...]  # the values that the dynamic dims took
    engine: str
    tolerance: dict[str, float]  # by type, what counts as equal whatever the model's own rounding is
    limited: str | None  # what kept the check from being complete, None when it was
    rounding: float = 0.0  # the largest multiple of the model's own rounding; 0 where all is within `tolerance`
    reached: Reached = Reached()

    @property
    def passed(self) -> bool:
        """Whether the models were found equal."""
        return self.status == "verified"


OFF = Verification("off", 0, 0.0, 0.0, None, (), (), "", {}, None)
UNCHANGED = Verification("verified", 0, 0.0, 0.0, None, (), (), "", {}, "nothing was rewritten, so nothing was run")
