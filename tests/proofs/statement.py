"""A statement that z3 decides: what a rule claims, and a claim beside it that must be refuted.

`premise => claim` is proved by showing that its negation has no model. So that no proof is empty, `wrong`, the claim
without its side condition (or of the rule's false neighbor, where there is no condition), must have a counterexample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import z3

STEPS = 40_000_000  # z3's own, for one question; as many as all questions together take


@dataclass(frozen=True)
class Proof:
    """One identity of one or more rules, over one theory."""

    rules: tuple[str, ...]
    text: str  # with the theory: "x * 1 = x, Float16"
    premise: z3.BoolRef
    claim: z3.BoolRef
    wrong: z3.BoolRef

    @property
    def title(self) -> str:
        """What a test report shows."""
        return f"{self.rules[0]}: {self.text}"

    def holds(self) -> z3.CheckSatResult:
        """unsat when the claim follows from the premise."""
        return _check(z3.And(self.premise, z3.Not(self.claim)))

    def premise_can_hold(self) -> z3.CheckSatResult:
        """sat when the premise does not contradict itself."""
        return _check(self.premise)

    def refuted(self) -> z3.CheckSatResult:
        """sat when the wrong claim has a counterexample."""
        return _check(z3.Not(self.wrong))


@cache
def _check(question: z3.BoolRef) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("rlimit", STEPS)
    solver.add(question)
    return solver.check()


TRUE = z3.BoolVal(True)


def proof(rules: str, text: str, claim: object, *, wrong: object, premise: object = TRUE) -> Proof:
    """A Proof; `rules` are names with commas between them."""
    parts = []
    for part in (premise, claim, wrong):
        if isinstance(part, Sequence):
            part = z3.And(*part)
        assert isinstance(part, z3.BoolRef), f"{text}: {part!r} is no formula"
        parts.append(part)
    return Proof(tuple(name.strip() for name in rules.split(",")), text, *parts)
