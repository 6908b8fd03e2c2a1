"""Kernels that models for one target share: a model in other tiles has most of its problems in common with the last."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from kernels.kernel import Kernel
from kernels.target import Target
from kernels.templates.template import Template

Problem = TypeVar("Problem")
Candidate = TypeVar("Candidate")


class Kernels:
    """What was built and what was estimated, by problem."""

    def __init__(self) -> None:
        self.built: dict[Hashable, Kernel] = {}
        self._likely: dict[Hashable, float] = {}

    def likely(self, template: Template[Problem, Candidate], problem: Problem, target: Target) -> float:
        """Nanoseconds of a problem's likely best candidate, as its template estimates."""
        key = (template.name, template.variant, problem)
        if key not in self._likely:
            self._likely[key] = template.likely(problem, target)
        return self._likely[key]
