"""A result held to the recorded outputs of its original, one feed after the other: see `check.reference`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir
from msgspec import structs

from graphopt.check.noise import Case
from graphopt.check.tolerance import EQUAL, Difference, without_subnormals
from graphopt.check.verification import Status, Verification
from graphopt.model.dims import declared
from graphopt.model.rooms import let_go

PROGRAM = 3e-5  # relative: Winograd's transforms and short polynomials of a program, amplified by its layers


class Recorded(Protocol):
    """The recorded runs of an original, and what tells of a difference from them: a `Reference`."""

    model: ir.Model
    cases: list[Case]
    excluded: frozenset[str]
    engine: str

    def difference(
        self, name: str, case: Case, one: object, other: object, least: float = 0.0, *, summed: bool = False
    ) -> Difference:
        """That of one output."""

    def defined(self, name: str, case: Case, other: object, least: float) -> Difference | None:
        """That from what ONNX's own evaluator gives."""

    def verdict(
        self, status: Status, reason: str | None, worst: Difference | None = None, feeds: int = 0,
        least: float = 0.0, limited: str | None = None,
    ) -> Verification:  # fmt: skip
        """The verdict after so many feeds."""


class Comparison:
    """The comparison of a result with the original, one case after the other.

    A `program` promises nothing for infinities and NaN, and its kernels round otherwise than ONNX Runtime's, and give 0
    for subnormal numbers. Its dims are fixed: a drawn feed of which the original makes others is none for it. Where it
    differs from ONNX Runtime and gives what the ONNX reference evaluator gives, that is right, and the verdict says so.
    Where an output has other dims in the engine than the model declares, a program has those that are declared.
    """

    def __init__(self, reference: Recorded, names: Sequence[str], *, program: bool = False) -> None:
        self._reference, self._names = reference, names
        self._least = PROGRAM if program else 0.0
        self._program = program
        self._declared = {value.name: declared(value) for value in reference.model.graph.outputs} if program else {}
        self._overruled: list[str] = []
        self._worst, self._plain, self._rounded = EQUAL, 0.0, 0
        self._different: Verification | None = None
        self.cases = tuple(case for case in reference.cases if not (program and case.draw == "special"))
        self._passed_over = 0

    def take(self, case: Case, outputs: Sequence[object]) -> bool:
        """Compare the outputs that the result gave for a case; False where they differ, which ends the comparison."""
        if self._program and case.draw != "given" and not _same_dims(case.outputs, outputs):
            self._passed_over += 1
            if self._passed_over < len(self.cases):
                return True
        worst = EQUAL
        for name, one, other in zip(self._names, case.outputs, outputs, strict=True):
            if name in self._reference.excluded:
                continue
            found = self.difference(name, case, one, other)
            let_go(one)
            let_go(other)
            worst = worst.beside(found)
            if found.reason is not None:
                self._worst = self._worst.beside(worst)
                self._differ(f"output '{name}': {found.reason}", self._before(case) + 1)
                return False
        self._worst = self._worst.beside(worst)
        if worst.rounding:
            self._rounded += 1
        else:
            self._plain = max(self._plain, worst.max_rel)
        return True

    def difference(self, name: str, case: Case, one: object, other: object) -> Difference:
        """The difference of one output."""
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.size == other.size:
            one = one.reshape(other.shape) if self._declared.get(name) == other.shape else one
        found = self._reference.difference(name, case, one, other, self._least)
        if found.reason is None or not self._program:
            return found
        plain = without_subnormals(one), without_subnormals(other)
        again = self._reference.difference(name, case, *plain, self._least, summed=True)
        if again.reason is None:
            return again
        defined = self._reference.defined(name, case, other, self._least)
        if defined is None or defined.reason is not None:
            return found
        self._overruled.append(name)
        return defined

    def fail(self, case: Case, error: Exception) -> None:
        """The result could not be run on a case."""
        self._differ(f"the result cannot be run: {error}", self._before(case))

    def _before(self, case: Case) -> int:
        return next(number for number, other in enumerate(self._reference.cases) if other is case)

    def _differ(self, reason: str, feeds: int) -> None:
        self._different = self._reference.verdict("different", reason, self._worst, feeds, self._least)

    @property
    def verification(self) -> Verification:
        """The verdict: "verified" where no case differed."""
        feeds, limited = len(self._reference.cases) - self._passed_over, None
        if self._overruled:
            names = ", ".join(f"'{name}'" for name in dict.fromkeys(self._overruled))
            limited = f"{self._reference.engine} gives {names} otherwise than ONNX's own evaluator, whose results hold"
        if self._different is not None:
            return self._different
        found = self._reference.verdict("verified", None, self._worst, feeds, self._least, limited)
        return structs.replace(found, plain_rel=self._plain, rounded_feeds=self._rounded)


def _same_dims(some: Sequence[object], others: Sequence[object]) -> bool:
    return all(np.asarray(one).shape == np.asarray(other).shape for one, other in zip(some, others, strict=True)
               if isinstance(one, np.ndarray))  # fmt: skip
