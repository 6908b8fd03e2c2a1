"""From a model to a program: optimize, lower, plan, emit, and compare with ONNX Runtime before anything is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.check.given import Feeds, Given, read_feeds
from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from graphopt.check.verification import OFF, Verification
from graphopt.errors import BudgetNotKept, BundleError, NotLowered, OptionError, VerificationError
from graphopt.memory.tiling.search import tile_within
from graphopt.model.dimensions import DimValue, change_dims
from graphopt.model.load import Source, load
from graphopt.passes import pipeline
from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.emulation import Emulated
from graphopt.program.deploy.folding import fold_constants
from graphopt.program.deploy.hybrid import Hybrid, make_hybrid, without_kernels
from graphopt.program.deploy.manifest import PlannedBuffer
from graphopt.program.deploy.session import Program
from graphopt.program.listing import Linked, link
from graphopt.program.order import in_best_order, within_budget
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.rewrite.optimizer import optimize_verified
from kernels.target import Target, TargetName, named, why_not_here

OPSET = 23  # of the private copy: attention and normalisations have operators of their own there
TILED_SHARES = (1.0, 0.85, 0.7, 0.55)  # of a budget: what tiles of the model are planned for
TILE_WORK = 30_000_000_000  # steps of searching, about as many nanoseconds
COMPARE_SECONDS = 300.0  # for the model's own runs in ONNX Runtime; a longer one is not waited for
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Whole:
    """A model that kernels compute from end to end."""

    program: Program | None  # None: for a processor that this machine cannot stand in for
    lowered: Lowered
    linked: Linked


@dataclass(frozen=True)
class Compiled:
    """A program that has been compared with the model it was made of, where this machine or an emulator can run it.

    What belongs to a whole program, as `linked` and `save`, raises BundleError where there is a `fallback`.
    """

    made: Whole | Hybrid
    target: Target
    seconds: float  # of everything but the comparison
    verification: Verification  # of the program beside ONNX Runtime; its status is "off" where it was not compared
    not_here: str | None = None  # why this machine cannot run the program, as a clause; None where it can
    not_compared: str | None = None  # why the program was not compared, as a clause; None where it was
    remade: str | None = None  # what was wrong with the first program, in whose place an exact one was made

    @property
    def max_abs(self) -> float:
        """The largest difference from ONNX Runtime; 0 where the program was not compared."""
        return self.verification.max_abs

    @property
    def max_rel(self) -> float:
        """The largest difference relative to each element and the largest beside it."""
        return self.verification.max_rel

    @property
    def fallback(self) -> tuple[str, ...]:
        """The operators (type and name) that run in ONNX Runtime, in order; empty for a whole program."""
        return self.made.fallback if isinstance(self.made, Hybrid) else ()

    @property
    def program(self) -> Program:
        """The loaded program; raises BundleError for one that this machine cannot run."""
        program = self._whole.program
        if program is None:
            raise BundleError(f"{self.not_here}; save the program, and run it where it is meant to run.")
        return program

    @property
    def lowered(self) -> Lowered:
        """The regions."""
        return self._whole.lowered

    @property
    def linked(self) -> Linked:
        """The listing, the weights and the memory plan."""
        return self._whole.linked

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names (None: all, in order), like ONNX Runtime's session."""
        return self._runner.run(names, feeds)

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """The outputs by name."""
        return self._runner(**feeds)

    def save(self, folder: str | os.PathLike[str], *, unchecked: bool = False) -> None:
        """Write the bundle.

        Raises BundleError, and VerificationError for a program that was not compared with its model, unless it is
        `unchecked` that is wanted.
        """
        linked = self.linked
        if self.not_compared is not None and not unchecked:
            raise VerificationError(
                f"the program was not compared with its model, so it is not saved: {self.not_compared}; pass "
                "unchecked=True to save it all the same."
            )
        problem, plan = linked.problem, linked.plan
        buffers = tuple(
            PlannedBuffer(one.name, plan.offsets[one.name], one.size, one.begin, one.end) for one in problem.buffers
        )
        write_bundle(folder, linked.listing, linked.weights, self.target, buffers=buffers)

    @property
    def _runner(self) -> Program | Hybrid:
        return self.made if isinstance(self.made, Hybrid) else self.program

    @property
    def _whole(self) -> Whole:
        if isinstance(self.made, Whole):
            return self.made
        raise BundleError(
            f"{without_kernels(self.made.missing)}, so this model is no program of its own: a bundle cannot "
            "hold what runs in ONNX Runtime; run it from Python."
        )


def compile_model(
    source: Source,
    *,
    target: TargetName = "host",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue] | None = None,
    exact: bool = False,
    memory_budget: int | None = None,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
    name: str = "model",
) -> Compiled:
    """A program for one size of every dim; `exact` leaves out kernels that round otherwise than a sum (Winograd).

    Its regions run in the order of the least arena; with `memory_budget` (bytes of the arena) some run again, or
    in tiles.

    Operators without a kernel run in ONNX Runtime and are listed in `fallback`. A program for a `target` that this
    machine cannot run has none; it is compared in an emulator where one is installed, else it says that it was not.

    A program that does not give what ONNX Runtime gives is made again, first with `exact` kernels, then of a model
    whose every rewrite has passed the check; `remade` of the result says why. `feeds` and `tolerance` are for the
    comparison.

    Raises ModelError, OptionError, NotLowered naming the operators when none of the model has a kernel, and
    VerificationError when no program gives what ONNX Runtime gives with its optimizations off.
    """
    machine = named(target)
    not_here = why_not_here(machine)
    original = load(source)
    if shapes or dims:
        change_dims(original, shapes or {}, dims or {})
    given = read_feeds(original, feeds)
    ways = [(exact, False), (True, False), (True, True)] if not exact else [(True, False), (True, True)]
    reference: Reference | None = None
    verdicts: list[Verification] = []
    seconds = 0.0
    with Workplace() as workplace:
        for exactly, checked in ways:
            started = time.perf_counter()
            made = _made(_optimized(original, checked=checked), machine, name, exactly, memory_budget, not_here)
            program, not_compared = _runnable(made, machine, not_here)
            seconds += time.perf_counter() - started
            if program is None:
                return Compiled(made, machine, seconds, OFF, not_here, not_compared)
            if reference is None:
                reference = _reference(workplace, original, given, tolerance)
            verdicts.append(_compared(reference, original, program))
            if verdicts[-1].passed:
                remade = None if len(verdicts) == 1 else verdicts[0].reason
                return Compiled(made, machine, seconds, verdicts[-1], not_here, None, remade)
    raise VerificationError(
        f"the program does not give what ONNX Runtime gives: {verdicts[-1].reason}; nothing was written."
    )


def _runnable(
    made: Whole | Hybrid, machine: Target, not_here: str | None
) -> tuple[Program | Hybrid | Emulated | None, str | None]:
    """What can be run here for the comparison; None with the reason where nothing can."""
    if isinstance(made, Hybrid):
        return made, None
    if not_here is None:
        return made.program, None
    try:
        return Emulated(made.linked.listing, made.linked.weights, machine), None
    except BundleError as error:
        return None, f"{not_here}; {error}"


def _made(
    model: ir.Model, target: Target, name: str, exact: bool, memory_budget: int | None, not_here: str | None
) -> Whole | Hybrid:
    try:
        lowered = lower(model, target, exact=exact)
    except NotLowered as error:
        folded = fold_constants(model)
        if folded is not model:
            return _made(folded, target, name, exact, memory_budget, not_here)
        if memory_budget is not None:
            raise OptionError(f"a memory budget is kept only by a program that has all kernels: {error}") from error
        if not_here is not None:
            raise OptionError(f"ONNX Runtime cannot run parts of the program, as {not_here}: {error}") from error
        _require_a_run(model)
        return make_hybrid(model, target, name, exact=exact)
    lowered = in_best_order(lowered) if memory_budget is None else _within(model, lowered, memory_budget, target, exact)
    linked = link(lowered, name)
    program = None if not_here is not None else Program(linked.listing, linked.weights, target)
    return Whole(program, lowered, linked)


def _within(model: ir.Model, lowered: Lowered, budget: int, target: Target, exact: bool) -> Lowered:
    """A program under a memory budget; of a model in tiles, where order and running kernels again are not enough.

    Tiles are planned before kernels are: a program may need more than the model then says, so they are made smaller
    until it fits.
    """
    try:
        return within_budget(lowered, budget)
    except BudgetNotKept as error:
        least = error.least
    for share in TILED_SHARES:
        tiled, regions = tile_within(model, int(budget * share), work=TILE_WORK)
        if not regions:
            break
        try:
            return within_budget(lower(tiled, target, exact=exact), budget)
        except BudgetNotKept as error:
            least = min(least, error.least)
    raise BudgetNotKept(budget, least)


def _optimized(original: ir.Model, *, checked: bool = False) -> ir.Model:
    """The model with the operators that kernels know best; the comparison at the end covers what passes do.

    `checked` holds every rewrite to the original, and takes back those that fail.
    """
    opset = original.graph.opset_imports.get("", 1)
    for wanted in (OPSET, None) if opset < OPSET <= onnx.defs.onnx_opset_version() else (None,):
        request = pipeline.Request(2, frozenset(), "standard", wanted, False, None, True)
        try:
            seconds = COMPARE_SECONDS if checked else None
            return optimize_verified(original, pipeline.stages(request), seconds=seconds).model
        except OptionError:  # no way to lift this model
            if wanted is None:
                raise
    raise AssertionError("the last way raises")


def _require_a_run(model: ir.Model) -> None:
    """Raise VerificationError for a model that ends ONNX Runtime: parts of it would be run in this process."""
    with Workplace() as workplace:
        if workplace.checker_error(model, full=True) is not None:
            reference = Reference(workplace, model, COMPARE_SECONDS)
            if reference.problem is not None:
                raise VerificationError(
                    f"the program cannot be compared, as its model does not run: {reference.problem}"
                )


def _reference(workplace: Workplace, original: ir.Model, given: Sequence[Given], tolerance: float | None) -> Reference:
    """The original's runs; raises VerificationError where it has none."""
    reference = Reference(workplace, original, COMPARE_SECONDS, given=given, tolerance=tolerance)
    if reference.problem is not None or reference.foreign:
        why = reference.problem or f"nothing here runs {', '.join(reference.foreign)}"
        raise VerificationError(f"the program cannot be compared, as its model does not run: {why}")
    return reference


def _compared(reference: Reference, original: ir.Model, program: Program | Hybrid | Emulated) -> Verification:
    names = [value.name or "" for value in original.graph.outputs]
    return reference.compare(
        lambda feed: program.run(None, {key: np.asarray(value) for key, value in feed.items()}), names, program=True
    )
