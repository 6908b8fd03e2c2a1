"""What kernels of a program take on one core, by estimate."""

from __future__ import annotations

from collections.abc import Hashable

from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.regions.region import Lowered
from kernels.kernel import Kernel
from kernels.routine.build import ROUTINE

CYCLES = 4  # of an element of a loop that is no template: its operands are found by divisions, one after the other


class Clock:
    """Nanoseconds by what templates estimate, and by flops and bytes where they do not."""

    def __init__(self, costs: Costs = ESTIMATED) -> None:
        self._costs = costs
        self._known: dict[Hashable, float] = {}

    def of(self, lowered: Lowered) -> float:
        """Of a whole program."""
        return sum(self.time(lowered, region.kernel) for region in lowered.regions)

    def time(self, lowered: Lowered, kernel: Kernel) -> float:
        """Of one of its kernels."""
        template, problem = lowered.problems.get(kernel.name, (None, None))
        if template is None or template.estimate is None:
            passing = self._costs.beside(lowered.target).time(kernel)
            if template is None or template.name != ROUTINE.name:
                return passing
            written = sum(one.elements for one in kernel.operands if one.role == "output")
            return max(passing, written * CYCLES / lowered.target.core.gigahertz)
        key = (template.name, template.variant, problem, kernel.choice)
        if key not in self._known:
            self._known[key] = template.estimate(problem, lowered.candidate(kernel), lowered.target)
        return self._known[key]
