"""A program whose products and convolutions are rounded to bfloat16, as far as the measured error allows.

All of them are rounded first. Where an output is then further from the model's than the tolerance, groups of regions
are rounded alone, and the errors that they make measured: rounding is noise, whose squares add up. Groups are taken
that save most time for their error, one that would cost too much is cut in two, and the program of those that are taken
has the last word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import onnx_ir as ir

from graphopt.check.comparison import Comparison
from graphopt.check.feeds import NOTHING
from graphopt.check.noise import Case
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.tolerance import LIMITS, Difference
from graphopt.check.verification import OFF, Verification
from graphopt.errors import NotLowered, VerificationError
from graphopt.flows.asked import Asked, in_form, optimized
from graphopt.flows.comparing import reference_of
from graphopt.model.tensors import tensors_of
from graphopt.program.contents import decided_contents, with_contents
from graphopt.program.costs import costs_of
from graphopt.program.deploy import session
from graphopt.program.deploy.compiled import Compiled, Rounding, Whole
from graphopt.program.make import Family, Program, make, runnable
from graphopt.program.regions.precision import Precision
from graphopt.program.regions.rounding import RoundedRegion, rounded_regions
from memplan.compiling import telling

TOLERANCE = 1e-2  # of the largest element of an output
TRIES = 8  # programs of groups of regions
KEPT = (0.9, 0.6, 0.3)  # of the tolerance that groups may make by their own errors, one after the other
NOT_WHOLE = "operators without kernels run in ONNX Runtime"
NOT_FASTER = "no product or convolution of it would be faster rounded"
Judged = tuple[Verification, Mapping[str, float]]  # of a program: the verdict, and each output's error


@dataclass(frozen=True, slots=True)
class Within:
    """A program that keeps the tolerance, and what was measured of it."""

    made: Whole
    verdict: Verification
    rounding: Rounding


@dataclass(frozen=True, slots=True)
class _Group:
    """Regions one after the other, and the error of a program that rounds them alone."""

    regions: tuple[RoundedRegion, ...]
    error: float

    @property
    def worth(self) -> float:
        """Operations for the error's square."""
        flops = sum(one.flops for one in self.regions)
        return flops / self.error**2 if self.error else math.inf


def beyond(tolerance: float) -> str:
    """Why nothing is rounded, as a clause."""
    return f"whatever is rounded, an output is off by more than {tolerance:.0e} of its largest element"


def made_rounded(original: ir.Model, asked: Asked, family: Family | None) -> Compiled | str:
    """The program; why nothing of it is rounded where there is none."""
    tolerance = tolerance_of(asked)
    held = sum(tensor.nbytes for tensor in tensors_of(original))
    started = time.perf_counter()
    asked.progress("optimizing")
    work = optimized(original)
    known = decided_contents(work, [one.feed for one in asked.given])
    model = optimized(with_contents(work, known)) if known else work

    def program_of(wide: frozenset[str], *, last: bool = False) -> Whole:
        asked.progress("making kernels")
        with telling(asked.progress):
            made = make(
                model, asked.target, asked.name, asked.exact, asked.memory_budget, asked.not_here, asked.threads,
                costs_of(asked.machine), asked.tuning if last else None, known or NOTHING, family, "bundle",
                asked.ram, Precision("bf16", wide),
            )  # fmt: skip
        if not isinstance(made, Whole):
            raise NotLowered(f"{NOT_WHOLE}.")
        return made

    try:
        made = program_of(frozenset(), last=True)
    except NotLowered:
        return NOT_WHOLE
    if not (regions := rounded_regions(made.lowered)):
        return NOT_FASTER

    program, not_compared = runnable(made, asked.target, asked.not_here)
    seconds = time.perf_counter() - started
    if program is None:
        rounding = Rounding({}, tolerance, len(regions), 0)
        return Compiled(
            in_form(made, model, asked),
            asked.target,
            seconds,
            OFF,
            asked.not_here,
            not_compared,
            None,
            held,
            asked.digest,
            rounding,
        )
    with Workplace() as workplace:
        reference = reference_of(workplace, original, asked.given, None, known or NOTHING)

        def judged(found: Whole) -> Judged:
            asked.progress("comparing with ONNX Runtime")
            ready, _ = runnable(in_form(found, model, asked), asked.target, asked.not_here)
            assert ready is not None, "the first one could be run"
            return measured(reference, original, ready, tolerance)

        taken = within(made, tolerance, program_of, judged)
        if taken is None:
            return beyond(tolerance)
    seconds = time.perf_counter() - started
    return Compiled(
        in_form(taken.made, model, asked),
        asked.target, seconds, taken.verdict, asked.not_here, None, None, held, asked.digest,
        taken.rounding,
    )  # fmt: skip


def tolerance_of(asked: Asked) -> float:
    """What was asked for, in shares of an output's largest element."""
    return TOLERANCE if asked.tolerance is None else asked.tolerance


class MakeRounded(Protocol):
    """Makes the program in which some regions stay in float32; the `last` one is tuned."""

    def __call__(self, wide: frozenset[str], *, last: bool = False) -> Whole:
        """The program; raises NotLowered where there is none."""


def within(made: Whole, tolerance: float, program_of: MakeRounded, judged: Callable[[Whole], Judged]) -> Within | None:
    """The program whose measured error keeps the tolerance: `made`, or one that rounds less; None: there is none."""
    regions = rounded_regions(made.lowered)
    verdict, errors = judged(made)
    wide: frozenset[str] = frozenset()
    if not fits(errors, tolerance):
        wide = _chosen(regions, lambda some: _largest(judged(program_of(some))[1]), tolerance)
        if len(wide) == len(regions):
            return None
        made = program_of(wide, last=True)
        verdict, errors = judged(made)
        if not fits(errors, tolerance):
            return None
    return Within(made, verdict, Rounding(dict(errors), tolerance, len(regions) - len(wide), len(wide)))


def measured(
    reference: Reference, original: ir.Model, program: Program, tolerance: float
) -> tuple[Verification, dict[str, float]]:
    """The verdict, and for each output the largest difference in shares of its largest element, over all feeds.

    An element that is infinite or NaN on one side alone counts as infinitely far, unless a program in float32 may have
    it: where the model's own rounding decides, or where ONNX's evaluator has it. Raises VerificationError where several
    threads do not give what one gives.
    """
    names = [value.name or "" for value in original.graph.outputs]
    errors, worst = dict.fromkeys((one for one in names if one not in reference.excluded), 0.0), 0.0
    alone = program.another(threads=1) if isinstance(program, session.Program) and program.is_shared else None
    comparison = Comparison(reference, names, program=True)
    for case in comparison.cases:
        feed = {name: np.asarray(value) for name, value in case.feed.items()}
        try:
            outputs = program.run(None, feed)
        except CannotRun as error:
            return reference.verdict("different", f"the result cannot be run: {error}"), dict.fromkeys(errors, math.inf)
        if alone is not None:
            pairs = zip(outputs, alone.run(None, feed), strict=True)
            if any(one.tobytes() != other.tobytes() for one, other in pairs):
                raise VerificationError("several threads do not give what one gives; nothing was written.")
        for name, one, other in zip(names, case.outputs, outputs, strict=True):
            if name in errors and isinstance(one, np.ndarray):
                distance, largest = _distance(comparison, name, case, one, np.asarray(other))
                worst = max(worst, distance)
                errors[name] = max(errors[name], distance / largest if distance else 0.0)
    passed = fits(errors, tolerance)
    reason = None if passed else f"off by {_largest(errors):.1e} of the largest element, more than {tolerance:.0e}"
    difference = Difference(worst, _largest(errors), reason)
    verdict = reference.verdict("verified" if passed else "different", reason, difference, len(comparison.cases))
    return msgspec.structs.replace(verdict, tolerance=dict.fromkeys(LIMITS, tolerance)), errors


def _distance(comparison: Comparison, name: str, case: Case, one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays, and the largest element of the first, where both are finite."""
    if one.size != other.size:
        return math.inf, 1.0
    other = other.reshape(one.shape)
    wanted, found = one.astype(np.float64), other.astype(np.float64)
    usable = np.isfinite(wanted) & np.isfinite(found)
    if (np.isfinite(wanted) != np.isfinite(found)).any():
        kept = np.where(usable, one, other)  # differs from the first in what is not finite alone
        if comparison.difference(name, case, one, kept).reason is not None:
            return math.inf, 1.0
    if not usable.any():
        return 0.0, 1.0
    return float(np.abs(wanted - found)[usable].max()), float(np.abs(wanted[usable]).max()) or 1.0


def _largest(errors: Mapping[str, float]) -> float:
    return max(errors.values(), default=0.0)


def fits(errors: Mapping[str, float], tolerance: float) -> bool:
    """Whether every output keeps the tolerance."""
    return _largest(errors) <= tolerance


def _chosen(
    regions: Sequence[RoundedRegion], error_of: Callable[[frozenset[str]], float], tolerance: float
) -> frozenset[str]:
    """The results that stay in float32; all of them where no choice keeps the tolerance.

    `error_of(wide)` is the measured error of a program that rounds all others.
    """
    every = frozenset(one.name for one in regions)
    tries = 0

    def group(some: Sequence[RoundedRegion]) -> _Group:
        nonlocal tries
        tries += 1
        return _Group(tuple(some), error_of(every - {one.name for one in some}))

    def halves(some: Sequence[RoundedRegion]) -> list[_Group]:
        middle = (len(some) + 1) // 2
        return [group(part) for part in (some[:middle], some[middle:]) if part]

    groups = halves(regions)
    while tries < TRIES:
        taken = _taken(groups, KEPT[0] * tolerance)
        left = [one for one in groups if one not in taken and len(one.regions) > 1]
        if not left:
            break
        largest = max(left, key=lambda one: sum(region.flops for region in one.regions))
        groups = [*(one for one in groups if one is not largest), *halves(largest.regions)]
    for share in KEPT:
        rounded = {region.name for one in _taken(groups, share * tolerance) for region in one.regions}
        if rounded and error_of(every - rounded) <= tolerance:
            return every - rounded
    return every


def _taken(groups: Sequence[_Group], tolerance: float) -> list[_Group]:
    """Groups whose errors together stay within a tolerance, those that are worth most first."""
    found, squares = [], 0.0
    for one in sorted(groups, key=lambda one: -one.worth):
        if squares + one.error**2 <= tolerance**2:
            found.append(one)
            squares += one.error**2
    return found
