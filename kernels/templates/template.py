"""What a template is: a name, the problems it computes, the candidates for each, their estimate, and how one is built.

`Scope.kernel` of the compiler, the tuner and the benchmarks take any template by this one record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kernels.kernel import Kernel, renamed
from kernels.size import range_of
from kernels.target import Target

WORKERS = (2, 4, 8)  # of which any may share a kernel, where nobody says how many
SOME, MANY = 4, 16  # blocks that a few workers share well enough, and any number
IDLE = 0.15  # of the time of so many workers as are known, that they may wait for the last block
HOPELESS = 2.0  # times the likely best one's estimate
Problem = TypeVar("Problem")
Candidate = TypeVar("Candidate")


@dataclass(frozen=True, slots=True)
class Single:
    """What runs of a problem are in which a number is 1: a problem of another template."""

    template: Template[Any, Any]
    problem: Any
    number: int  # a Size
    suits: Callable[[Any], bool]  # whether a candidate for the other runs reads the same constants


@dataclass(frozen=True, slots=True)
class Template(Generic[Problem, Candidate]):
    """One way to write kernels.

    `candidates(problem, target)` are worth trying, the likely best first; there is always one. `estimate(problem,
    candidate, target)` is the time of all blocks on one core in nanoseconds, good enough to choose; None where the few
    candidates are in order without it. `build(problem, candidate, target, name)` writes the kernel `name`.
    `share(problem, candidate, target)` is the candidate with blocks so small that several workers share them, and the
    same operands; None where the blocks are small as they are. `repeats(problem, candidate, cut)`: whether such smaller
    blocks do some work more than once; None where they always may. `family(candidate)` is the algorithm, and within it
    the kind, as the shape of a tile: estimates compare candidates of one family better than two families, and two of a
    kind hardly differ. `steady(candidate)` orders candidates that are about as fast where one has to serve problems of
    many sizes: the greatest first. `single(problem, target)` is what another template computes better in some runs of a
    problem with numbers that only a run knows; None where there is none. `serves(problem, candidate)`: whether a
    candidate can be built for a problem with such numbers; None where all can. `form(candidate)` is equal for
    candidates whose constants lie in a file in one form; None where nobody says it. Problems are frozen records, and
    refuse by themselves what no kernel computes.
    """

    name: str
    problem: type[Problem]
    candidates: Callable[[Problem, Target], tuple[Candidate, ...]]
    build: Callable[[Problem, Candidate, Target, str], Kernel]
    estimate: Callable[[Problem, Candidate, Target], float] | None = None
    share: Callable[[Problem, Candidate, Target], Candidate] | None = None
    repeats: Callable[[Problem, Candidate, Candidate], bool] | None = None
    family: Callable[[Candidate], tuple[str, Hashable]] | None = None
    steady: Callable[[Candidate], float] | None = None
    single: Callable[[Problem, Target], Single | None] | None = None
    serves: Callable[[Problem, Candidate], bool] | None = None
    form: Callable[[Candidate], Hashable] | None = None
    variant: str = ""  # of templates with one name: what its candidates are

    def likely(self, problem: Problem, target: Target) -> float:
        """Nanoseconds of the likely best candidate; for templates that have an estimate."""
        assert self.estimate is not None, "the caller knows that it has one"
        return self.estimate(problem, self.candidates(problem, target)[0], target)

    def rivals(self, problem: Problem, target: Target, each: int, hopeless: float = HOPELESS) -> tuple[Candidate, ...]:
        """What is worth measuring: first the likely best of each family, then its next kinds.

        The likely best of all comes first. Of its family there are up to `each`, and one less of another: where the
        best of that loses, so do its next ones. Those are left out whose estimate is `hopeless` times the best one's.
        """
        best, *others = self.candidates(problem, target)
        most = hopeless * self.estimate(problem, best, target) if self.estimate else 0.0
        kinds: dict[str, list[Hashable]] = {}
        found: list[tuple[int, Candidate]] = []
        for one in (best, *others):
            family, kind = ("", one) if self.family is None else self.family(one)
            known = kinds.setdefault(family, [])
            room = each if next(iter(kinds)) == family else max(1, each - 1)
            if kind in known or len(known) >= room or (self.estimate and self.estimate(problem, one, target) > most):
                continue
            found.append((len(known), one))
            known.append(kind)
        return tuple(one for _, one in sorted(found, key=lambda pair: pair[0]))

    def kernel(
        self, problem: Problem, target: Target, name: str | None = None, candidate: Candidate | None = None
    ) -> Kernel:
        """The kernel of a candidate, the likely best where None; where several workers share other blocks, with theirs.

        Blocks for several that only cut the work, and repeat none of it, are one worker's too: then there is one
        kernel. Else both use the same tiles, so that a program that holds both is hardly larger. Where they cannot, as
        the tiles depend on the block, and the blocks of one worker serve some, they serve all.
        """
        if candidate is None:
            candidate = self.candidates(problem, target)[0]
        cut = candidate if self.share is None else self.share(problem, candidate, target)
        return self.kernel_of(problem, target, name or self.name, candidate, cut)

    def kernel_of(self, problem: Problem, target: Target, name: str, candidate: Candidate, cut: Candidate) -> Kernel:
        """The same, where it is known that `cut` has the blocks for several workers."""
        return replace(self._kernel(problem, target, name, candidate, cut), choice=str(candidate))

    def _kernel(self, problem: Problem, target: Target, name: str, candidate: Candidate, cut: Candidate) -> Kernel:
        if cut != candidate and self.repeats is not None and not self.repeats(problem, candidate, cut):
            candidate = cut
        kernel = self.build(problem, candidate, target, name)
        blocks = kernel.blocks if kernel.run_blocks is None else range_of(kernel.run_blocks)[0]
        if cut == candidate or blocks >= MANY:
            return kernel
        shared = renamed(self.build(problem, cut, target, name), f"{name}_shared")
        if not kernel.module.agrees(shared.module):
            if _serves(blocks, target.workers):
                return kernel
            shared = self.build(problem, cut, target, f"{name}_shared")
        alike = [(one.name, one.elements, one.packing) for one in kernel.operands]
        assert alike == [(one.name, one.elements, one.packing) for one in shared.operands], "they read the same"
        return replace(kernel, shared=shared)


def _serves(blocks: int, workers: int) -> bool:
    """Whether so many even blocks keep workers busy; none known: a few."""
    if workers < 2:
        return blocks >= SOME
    return -(-blocks // workers) * workers <= (1 + IDLE) * blocks


def only(name: str, problem: type[Problem], build: Callable[[Problem, Target, str], Kernel]) -> Template[Problem, None]:
    """A template with one way to compute a problem."""

    def candidates(problem: Problem, target: Target) -> tuple[None]:
        return (None,)

    def built(problem: Problem, candidate: None, target: Target, name: str) -> Kernel:
        return build(problem, target, name)

    return Template(name, problem, candidates, built)
