"""What a template is: a name, the problems it computes, the candidates for each, their estimate, and how one is built.

`Scope.kernel` of the compiler, the tuner and the benchmarks take any template by this one record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernels.kernel import Kernel, renamed
from kernels.target import Target

SOME, MANY = 4, 16  # blocks that a few workers share well enough, and any number
Problem = TypeVar("Problem")
Candidate = TypeVar("Candidate")


@dataclass(frozen=True, slots=True)
class Template(Generic[Problem, Candidate]):
    """One way to write kernels.

    `candidates(problem, target)` are worth trying, the likely best first; there is always one. `estimate(problem,
    candidate, target)` is the time of all blocks on one core in nanoseconds, good enough to choose; None where the few
    candidates are in order without it. `build(problem, candidate, target, name)` writes the kernel `name`.
    `share(problem, candidate, target)` is the candidate with blocks so small that several workers share them, and the
    same operands; None where the blocks are small as they are. Problems are frozen records, and refuse by themselves
    what no kernel computes.
    """

    name: str
    problem: type[Problem]
    candidates: Callable[[Problem, Target], tuple[Candidate, ...]]
    build: Callable[[Problem, Candidate, Target, str], Kernel]
    estimate: Callable[[Problem, Candidate, Target], float] | None = None
    share: Callable[[Problem, Candidate, Target], Candidate] | None = None

    def kernel(self, problem: Problem, target: Target, name: str | None = None) -> Kernel:
        """The kernel of the likely best candidate."""
        return self.build(problem, self.candidates(problem, target)[0], target, name or self.name)

    def shared(self, problem: Problem, kernel: Kernel, target: Target) -> Kernel:
        """`kernel`, of the likely best candidate, with blocks for several workers; they read the same operands.

        It uses the tiles of the other one, so that a program that holds both is hardly larger. Where it cannot, as the
        tiles depend on the block, and the other's blocks serve some workers, they serve all.
        """
        if self.share is None or kernel.blocks >= MANY:
            return kernel
        candidate = self.candidates(problem, target)[0]
        cut = self.share(problem, candidate, target)
        if cut == candidate:
            return kernel
        found = renamed(self.build(problem, cut, target, kernel.name), f"{kernel.name}_shared")
        if not kernel.module.agrees(found.module):
            if kernel.blocks >= SOME:
                return kernel
            found = self.build(problem, cut, target, f"{kernel.name}_shared")
        alike = [(one.name, one.elements, one.packing) for one in kernel.operands]
        assert alike == [(one.name, one.elements, one.packing) for one in found.operands], "they read the same"
        return found


def only(name: str, problem: type[Problem], build: Callable[[Problem, Target, str], Kernel]) -> Template[Problem, None]:
    """A template with one way to compute a problem."""

    def candidates(problem: Problem, target: Target) -> tuple[None]:
        return (None,)

    def built(problem: Problem, candidate: None, target: Target, name: str) -> Kernel:
        return build(problem, target, name)

    return Template(name, problem, candidates, built)
