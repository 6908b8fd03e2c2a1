"""What recomputation refuses."""

from __future__ import annotations

from memplan.errors import MemplanError


class BudgetTooSmall(MemplanError):
    """A budget that no plan keeps, or none that was found. `least` is the smallest budget known to be of use."""

    def __init__(self, budget: int, least: int, *, proved: bool) -> None:
        self.budget = budget  # bytes
        self.least = least  # bytes: a bound for all plans where `proved`, else the least peak that was found
        self.proved = proved
        why = f"no plan needs less than {least:,}" if proved else f"the least that was found is {least:,}"
        super().__init__(f"a budget of {budget:,} bytes is {least - budget:,} bytes too small: {why}.")
