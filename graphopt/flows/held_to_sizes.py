"""A program for ranges of sizes, held to the model at several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import onnx_ir as ir

from graphopt.check.given import Given
from graphopt.check.runner import Workplace
from graphopt.check.verification import Verification
from graphopt.errors import VerificationError
from graphopt.flows.asked import Asked
from graphopt.flows.comparing import compared, reference_of, way_on
from graphopt.flows.rounded import Judged, MakeRounded, Within, measured, tolerance_of, within
from graphopt.model.dimensions import DimValue
from graphopt.program.deploy.compiled import Whole
from graphopt.program.make import Program
from graphopt.program.unifying import HALVED


@dataclass(frozen=True, slots=True)
class Point:
    """Some sizes: what the free dims are then, those that a run sets, and feeds of the user's for them."""

    dims: Mapping[str, DimValue]
    sizes: Mapping[str, int]
    given: Sequence[Given]

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.dims.items())


class Unequal(VerificationError):
    """A program that does not give what the model gives, and in what."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def equal_at(
    workplace: Workplace, model_at: Callable[[Point], ir.Model], points: Sequence[Point], program: Program, asked: Asked
) -> Verification:
    """The verdict that the program gives what the model gives at all points; raises Unequal naming another.

    `asked.tolerance` is that of float32. Raises VerificationError where the model does not run.
    """
    verdicts = []
    for point in points:
        asked.progress(f"comparing with ONNX Runtime at {point}")
        model = model_at(point)
        try:
            reference = reference_of(workplace, model, point.given, asked.tolerance)
            verdicts.append(compared(reference, model, program))
        except VerificationError as error:
            reason, name = str(error).rstrip("."), next(iter(point.sizes))
            raise VerificationError(
                f"at {point} {reason}; give a range that the model takes, or multiples, {name}={HALVED}*n for example."
            ) from error
        if not verdicts[-1].passed:
            reason = f"{verdicts[-1].reason}"
            raise Unequal(
                f"the program does not give what ONNX Runtime gives at {point}: {reason}; nothing was "
                f"written{way_on(verdicts[-1].max_rel)}.",
                reason,
            )
    return _together(verdicts, points)


def within_at(
    workplace: Workplace, model_at: Callable[[Point], ir.Model], points: Sequence[Point], made: Whole,
    program_of: MakeRounded, runnable: Callable[[Whole], Program], asked: Asked,
) -> Within | None:  # fmt: skip
    """The one whose error keeps the tolerance at all points: `made`, or one that rounds less; None: there is none."""
    tolerance = tolerance_of(asked)
    models = [model_at(point) for point in points]
    references = []
    for point, model in zip(points, models, strict=True):
        asked.progress(f"running ONNX Runtime at {point}")
        references.append(reference_of(workplace, model, point.given, None))

    def judged(found: Whole) -> Judged:
        asked.progress("comparing with ONNX Runtime")
        program = runnable(found)
        pairs = [measured(*one, program, tolerance) for one in zip(references, models, strict=True)]
        errors = {name: max(one[name] for _, one in pairs) for name in pairs[0][1]}
        return _together([verdict for verdict, _ in pairs], points), errors

    return within(made, tolerance, program_of, judged)


def _together(verdicts: Sequence[Verification], points: Sequence[Point]) -> Verification:
    """One verdict of those at several sizes: the worst."""
    return msgspec.structs.replace(
        max(verdicts, key=lambda one: one.max_rel), feeds=sum(one.feeds for one in verdicts),
        sizes=tuple(dict(one.sizes) for one in points), max_abs=max(one.max_abs for one in verdicts),
        rounding=max(one.rounding for one in verdicts), plain_rel=max(one.plain_rel for one in verdicts),
        rounded_feeds=sum(one.rounded_feeds for one in verdicts),
    )  # fmt: skip
