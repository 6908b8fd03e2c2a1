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
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import NOTHING
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, Workplace
from graphopt.check.tolerance import LIMITS, Difference
from graphopt.check.verification import OFF, Verification
from graphopt.errors import VerificationError
from graphopt.flows.asked import Asked, optimized
from graphopt.flows.comparing import reference_of
from graphopt.model.tensors import tensors_of
from graphopt.program.contents import decided_contents, with_contents
from graphopt.program.costs import costs_of
from graphopt.program.deploy import session
from graphopt.program.deploy.compiled import Compiled, Rounding, Whole
from graphopt.program.make import Family, Program, make, runnable
from graphopt.program.regions.precision import Precision
from graphopt.program.regions.region import Lowered
from kernels.dtype import DType
from kernels.templates.dots.image import DOT_CONVOLUTION
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.recurrent.step import RecurrentStep
from kernels.templates.template import Template
from kernels.templates.units.image import UNIT_CONVOLUTION
from kernels.templates.units.product import UNIT_PRODUCT
from memplan.compiling import telling

TOLERANCE = 1e-2  # of the largest element of an output
ROUNDING = (UNIT_PRODUCT, UNIT_CONVOLUTION, DOT_PRODUCT, DOT_CONVOLUTION)  # templates of kernels that round
TRIES = 8  # programs of groups of regions
KEPT = (0.9, 0.6, 0.3)  # of the tolerance that groups may make by their own errors, one after the other
SPECIAL = "special"  # feeds with infinities, of which a program promises nothing


@dataclass(frozen=True, slots=True)
class _Region:
    """A product or convolution that was rounded: its origin's name, and how many operations it has."""

    name: str
    flops: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Regions one after the other, and the error of a program that rounds them alone."""

    regions: tuple[_Region, ...]
    error: float

    @property
    def worth(self) -> float:
        """Operations for the error's square."""
        flops = sum(one.flops for one in self.regions)
        return flops / self.error**2 if self.error else math.inf


def made_rounded(original: ir.Model, asked: Asked, family: Family | None) -> Compiled | None:
    """The program; None where nothing of it may be rounded, or where not all of it has kernels."""
    tolerance = TOLERANCE if asked.tolerance is None else asked.tolerance
    held = sum(tensor.nbytes for tensor in tensors_of(original))
    started = time.perf_counter()
    asked.progress("optimizing")
    work = optimized(original)
    known = decided_contents(work, [one.feed for one in asked.given])
    model = optimized(with_contents(work, known)) if known else work

    def program_of(wide: frozenset[str], *, last: bool = False) -> Whole | None:
        asked.progress("making kernels")
        with telling(asked.progress):
            made = make(
                model, asked.target, asked.name, asked.exact, asked.memory_budget, asked.not_here, asked.threads,
                costs_of(asked.machine), asked.tuning if last else None, known or NOTHING, family, asked.form,
                asked.ram, Precision("bf16", wide),
            )  # fmt: skip
        return made if isinstance(made, Whole) else None

    made = program_of(frozenset(), last=True)
    if made is None or not (regions := rounded_regions(made.lowered)):
        return None
    program, not_compared = runnable(made, asked.target, asked.not_here)
    seconds = time.perf_counter() - started
    if program is None:
        rounding = Rounding({}, tolerance, len(regions), 0)
        return Compiled(
            made, asked.target, seconds, OFF, asked.not_here, not_compared, None, held, asked.digest, rounding
        )
    with Workplace() as workplace:
        reference = reference_of(workplace, original, asked.given, None, known or NOTHING)

        def errors_of(wide: frozenset[str]) -> tuple[Whole | None, Verification, Mapping[str, float]]:
            found = program_of(wide)
            if found is None or found.program is None:
                return None, OFF, {}
            return found, *measured(reference, original, found.program, tolerance)

        asked.progress("comparing with ONNX Runtime")
        verdict, errors = measured(reference, original, program, tolerance)
        wide: frozenset[str] = frozenset()
        if not _fits(errors, tolerance):
            wide = _chosen(regions, lambda some: _largest(errors_of(some)[2]), tolerance)
            if len(wide) == len(regions):
                return None
            made = program_of(wide, last=True)
            assert made is not None and made.program is not None, "it was made before"
            verdict, errors = measured(reference, original, made.program, tolerance)
            if not _fits(errors, tolerance):
                return None
    seconds = time.perf_counter() - started
    rounding = Rounding(dict(errors), tolerance, len(regions) - len(wide), len(wide))
    return Compiled(made, asked.target, seconds, verdict, asked.not_here, None, None, held, asked.digest, rounding)


def rounded_regions(lowered: Lowered) -> tuple[_Region, ...]:
    """Those of a program whose kernels round, in its order; several kernels of one are one."""
    found: dict[str, int] = {}
    for region in lowered.regions:
        known = lowered.problems.get(region.kernel.name)
        if known is not None and _rounds(*known):
            name = region.nodes[0].name
            found[name] = found.get(name, 0) + region.kernel.flops
    return tuple(_Region(name, flops) for name, flops in found.items())


def _rounds(template: Template[Any, Any], problem: object) -> bool:
    layer = problem.layer if isinstance(problem, RecurrentStep) else problem
    return template in ROUNDING or (isinstance(layer, Recurrent) and layer.r_dtype is DType.BF16)


def measured(
    reference: Reference, original: ir.Model, program: Program, tolerance: float
) -> tuple[Verification, dict[str, float]]:
    """The verdict, and for each output the largest difference in shares of its largest element, over all feeds.

    An element that is infinite or NaN on one side alone counts as infinitely far. Raises VerificationError where
    several threads do not give what one gives.
    """
    names = [value.name or "" for value in original.graph.outputs]
    errors, worst = dict.fromkeys((one for one in names if one not in reference.excluded), 0.0), 0.0
    alone = program.another(threads=1) if isinstance(program, session.Program) and program.is_shared else None
    cases = [case for case in reference.cases if case.draw != SPECIAL]
    for case in cases:
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
                distance, largest = _distance(one, np.asarray(other))
                worst = max(worst, distance)
                errors[name] = max(errors[name], distance / largest if distance else 0.0)
    passed = _fits(errors, tolerance)
    reason = None if passed else f"off by {_largest(errors):.1e} of the largest element, more than {tolerance:.0e}"
    difference = Difference(worst, _largest(errors), reason)
    verdict = reference.verdict("verified" if passed else "different", reason, difference, len(cases))
    return msgspec.structs.replace(verdict, tolerance=dict.fromkeys(LIMITS, tolerance)), errors


def _distance(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays, and the largest element of the first."""
    wanted, found = (array.astype(np.float64).reshape(-1) for array in (one, other))
    if wanted.size != found.size:
        return math.inf, 1.0
    usable = np.isfinite(wanted)
    if (usable != np.isfinite(found)).any():
        return math.inf, 1.0
    if not usable.any():
        return 0.0, 1.0
    return float(np.abs(wanted - found)[usable].max()), float(np.abs(wanted[usable]).max()) or 1.0


def _largest(errors: Mapping[str, float]) -> float:
    return max(errors.values(), default=0.0)


def _fits(errors: Mapping[str, float], tolerance: float) -> bool:
    return _largest(errors) <= tolerance


def _chosen(
    regions: Sequence[_Region], error_of: Callable[[frozenset[str]], float], tolerance: float
) -> frozenset[str]:
    """The results that stay in float32; all of them where no choice keeps the tolerance.

    `error_of(wide)` is the measured error of a program that rounds all others.
    """
    every = frozenset(one.name for one in regions)
    tries = 0

    def group(some: Sequence[_Region]) -> _Group:
        nonlocal tries
        tries += 1
        return _Group(tuple(some), error_of(every - {one.name for one in some}))

    def halves(some: Sequence[_Region]) -> list[_Group]:
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
