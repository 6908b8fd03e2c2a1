"""What a caller of `compile` asks for, and what follows from it: the target, and the model that is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from graphopt.check.given import Given
from graphopt.errors import OptionError
from graphopt.machine.record import MachineRecord
from graphopt.memory.share import Budget
from graphopt.model.text import Progress
from graphopt.passes import pipeline
from graphopt.program.collected import collected
from graphopt.program.control import without_control_flow
from graphopt.program.core import with_core
from graphopt.program.deploy.compiled import Whole
from graphopt.program.deploy.custom.operators import Operators, operators_of_whole
from graphopt.program.expansion import expanded
from graphopt.program.labels import with_numbered_labels
from graphopt.program.make import COMPARE_SECONDS, Form
from graphopt.program.regions.precision import PrecisionName
from graphopt.program.subprograms import is_nested, undeclared, with_bodies
from graphopt.program.tuning import Tuning
from graphopt.program.widening import MANY, widened
from graphopt.rewrite.optimizer import optimize_verified
from kernels.target import Target, TargetName, named

BY_SIZE = frozenset({"merge-small-projections"})  # passes that are for small results
CUTTING = frozenset({"slice-of-everything"})  # rules that drop what cuts nothing at one size and something at others
ATTENTION = frozenset({"attention"})  # the rule that would put one in the place of what it was spelled out as
GROWTH = 1 << 26  # bytes that constants may add to a model of one size of many: enough for each of them
OPSET = 23  # of the private copy: attention and normalisations have operators of their own there


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller of `compile` asks for, but the model and its dims."""

    target: Target
    name: str
    exact: bool
    memory_budget: Budget | None
    ram: Budget | None
    not_here: str | None
    threads: int
    machine: MachineRecord | str | None
    tuning: Tuning | None
    given: Sequence[Given]
    tolerance: float | None
    progress: Progress
    digest: str  # of the model
    form: Form
    caches: bool
    precision: PrecisionName = "float32"


def in_form(made: Whole, model: ir.Model, asked: Asked) -> Whole | Operators:
    """A program in the form that was asked for: as it is, or as custom operators of its model."""
    return made if asked.form == "bundle" else operators_of_whole(model, made.linked, asked.target, asked.threads)


def planned_target(name: TargetName, machine: MachineRecord | str | None, threads: int) -> Target:
    """The target with what is known of its core, and of how many workers share a kernel: as asked, or all there are."""
    found = named(name)
    if found.is_gpu or found.architecture.is_bare:
        return found
    workers = threads or (machine.workers if isinstance(machine, MachineRecord) else 0)
    return replace(with_core(found, machine), workers=workers)


def optimized(
    original: ir.Model, *, checked: bool = False, skip: frozenset[str] = frozenset(), growth: int | None = None
) -> ir.Model:
    """The model with the operators that kernels know best; the comparison at the end covers what passes do.

    `checked` holds every rewrite to the original, and takes back those that fail. `skip` names what is left out:
    passes and rules that ask how large a result is, so that a model of one size of many keeps the steps of the others;
    for such a one `growth` says how many bytes constants may add, None: as many as usual.
    """

    def better(body: ir.Model) -> ir.Model:
        return optimized(body, checked=checked, skip=skip, growth=growth)

    work = _optimized(with_numbered_labels(original), skip, checked=checked, growth=growth)
    if is_nested(work):  # control flow in a body declares its dims first: those of the body's results follow from them
        work = with_bodies(work, better)
    open_ones = undeclared(work) + 1
    while undeclared(work) < open_ones:  # what one loop gives may tell how often the next one runs
        open_ones = undeclared(work)
        spelled_out = widened(expanded(without_control_flow(collected(expanded(work)))), 0 if skip else MANY)
        if spelled_out is not work:
            work = _optimized(spelled_out, skip, checked=checked, growth=growth)
    return with_bodies(work, better)


def tidied(model: ir.Model) -> ir.Model:
    """The model without what it computes twice, before it is copied for many sizes."""
    return optimize_verified(model, (pipeline.TIDY,), seconds=None, budget=GROWTH).model


def _optimized(original: ir.Model, skip: frozenset[str], *, checked: bool, growth: int | None) -> ir.Model:
    opset = original.graph.opset_imports.get("", 1)
    for wanted in (OPSET, None) if opset < OPSET <= onnx.defs.onnx_opset_version() else (None,):
        request = pipeline.Request(2, skip, "standard", wanted, True, None, True)
        try:
            seconds = COMPARE_SECONDS if checked else None
            return optimize_verified(original, pipeline.stages(request), seconds=seconds, budget=growth).model
        except OptionError:  # no way to lift this model
            if wanted is None:
                raise
    raise AssertionError("the last way raises")
