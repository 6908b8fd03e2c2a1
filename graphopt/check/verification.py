"""The verdict on two models, and what the feeds reached before it was given."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["verified", "different", "not run", "off"]  # "not run": no engine runs the original


class Verification(msgspec.Struct, frozen=True):
    """The verdict on two models, as `--json` prints it. A number that JSON cannot hold is written as null."""

    status: Status
    feeds: int = 0  # on how many feeds the outputs were compared
    max_abs: float = 0.0
    max_rel: float = 0.0  # relative to each element and the largest beside it (check.tolerance)
    reason: str | None = None  # why the models are not equal, or why nothing was run
    excluded: tuple[str, ...] = ()  # outputs that were not compared, because they are random
    sizes: tuple[dict[str, int], ...] = ()  # the values that the dynamic dims took
    engine: str = ""
    tolerance: dict[str, float] = {}  # by type, what counts as equal whatever the model's own rounding is
    limited: str | None = None  # what kept the check from being complete, None when it was
    rounding: float = 0.0  # the largest multiple of the model's own rounding; 0 where all is within `tolerance`
    draws: tuple[str, ...] = ()  # kinds of values in the feeds (check.feeds), "given" for the user's own
    branches: tuple[int, int] = (0, 0)  # of the Ifs, inside loops and functions too: those that the feeds took, and all
    shut_rows: bool | None = None  # whether a row of a mask was false throughout; None where no input may be a mask
    plain_rel: float = 0.0  # the largest relative difference on feeds on which all is within `tolerance`
    rounded_feeds: int = 0  # on so many others the model's own rounding decided

    @property
    def passed(self) -> bool:
        """Whether the models were found equal."""
        return self.status == "verified"


OFF = Verification("off")
UNCHANGED = Verification("verified", limited="nothing was rewritten, so nothing was run")
