"""Memory budgets: in bytes, or as a share of what is needed without one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from graphopt.errors import OptionError
from memplan.tiers.machine import InvalidMachine, parse_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A part of what is needed without a budget, above 0 and at most 1."""

    part: Fraction

    def of(self, whole: int) -> int:
        """Bytes of this part of so many, rounded down."""
        return int(self.part * whole)


Budget: TypeAlias = int | Share  # bytes, or what becomes bytes once it is known what is needed without a budget


def read_budget(given: int | str | None) -> Budget | None:
    """The budget of a number of bytes, of a text such as "40MiB", or of a share such as "50%"; None for None.

    Raises OptionError for another text, no byte at all, and a share that is not above 0 % and at most 100 %.
    """
    if given is None or isinstance(given, int):
        return given
    share = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", given)
    if share is None:
        try:
            size = parse_bytes(given)
        except InvalidMachine as error:
            raise OptionError(f"{str(error).rstrip('.')}, nor a share such as 50%.") from error
        if not size:
            raise OptionError(f"'{given}' is no byte; a share is told in percent, such as 50%.")
        return size
    part = Fraction(share[1]) / 100
    if not 0 < part <= 1:
        raise OptionError(
            f"'{given}' is no share of what is needed without a budget, which is above 0% and at most 100%."
        )
    return Share(part)


def in_bytes(budget: Budget, whole: int) -> int:
    """A budget in bytes, where `whole` is what is needed without one."""
    return budget.of(whole) if isinstance(budget, Share) else budget
