"""One program for ranges of sizes, compared with the model at several of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import onnx_ir as ir

from graphopt.check.given import Given
from graphopt.check.runner import Workplace
from graphopt.check.verification import OFF, Verification
from graphopt.errors import NotLowered, OptionError, VerificationError
from graphopt.flows.asked import BY_SIZE, CUTTING, GROWTH, Asked, optimized
from graphopt.flows.comparing import compared, reference_of, way_on
from graphopt.flows.ranges import FreeDims, compared_points, point_of
from graphopt.flows.source import resize
from graphopt.model.bodies import put_bodies
from graphopt.model.facts import Facts
from graphopt.model.operators.contrib import CACHES
from graphopt.model.tensors import tensors_of
from graphopt.program.caches import caches_of
from graphopt.program.costs import costs_of
from graphopt.program.deploy.compiled import Compiled, Whole
from graphopt.program.deploy.custom.operators import Operators, operators_of_whole
from graphopt.program.deploy.hybrid import parted_of
from graphopt.program.free_sides import spell_out_free_sides
from graphopt.program.kinks import kinks_of
from graphopt.program.make import make_ranged
from graphopt.program.regions.region import NO_CACHES, Cache
from graphopt.program.sized_inputs import with_sized_inputs
from graphopt.program.steps import steps_of
from kernels.size import at
from memplan.compiling import telling


def of_ranges(original: ir.Model, asked: Asked, free: FreeDims) -> Compiled:
    """One program for all sizes of the dims, compared with the model at several of them."""
    if asked.memory_budget is not None:
        raise OptionError(
            "a memory budget of the arena is kept for one size; give dims numbers, or a budget of the process."
        )
    model_bytes = sum(tensor.nbytes for tensor in tensors_of(original))
    dims = free.dims
    started = time.perf_counter()

    def sized(source: ir.Model, point: Sequence[int]) -> ir.Model:
        model = source.clone()
        resize(model, {}, free.at(point))
        return model

    def make_of(source: ir.Model, *, computing: bool) -> Whole:
        """`computing`: with sizes that the model computes with; else they only say how large something is."""
        work = source.clone()
        points = (
            [dim.most for dim in dims],
            [dim.most + 1 for dim in dims],
            [max(dim.least, dim.most // 2 | 1) for dim in dims],
        )
        spell_out_free_sides(work, [sized(work, point) for point in points])
        caches = _caches(work, free) if asked.caches else NO_CACHES
        held = with_sized_inputs(work, free.formula) if computing else ()
        kinks = kinks_of(source, free.formula)
        skip = BY_SIZE | CUTTING if kinks else BY_SIZE

        def model_of(point: Sequence[int]) -> ir.Model:
            return optimized(sized(work, point), skip=skip, growth=GROWTH)

        return make_ranged(
            dims, model_of, asked.target, asked.name, asked.exact, asked.not_here, asked.threads,
            costs_of(asked.machine), held, caches, kinks, steps_of(source, free.formula), asked.ram,
        )  # fmt: skip

    asked.progress("optimizing")
    work = optimized(original)
    if not asked.caches:
        work = _in_memory_of_their_own(work)
    asked.progress("making kernels")
    with telling(asked.progress):
        made, refusals = None, []
        for source, computing in ((work, True), (original, True), (work, False)):  # of work all sizes share the weights
            try:
                made = make_of(source, computing=computing)
                break
            except NotLowered as error:
                refusals.append(error)
        if made is None:
            raise _refusal(original, asked, free, refusals[0])
    seconds = time.perf_counter() - started
    given = operators_of_whole(work, made.linked, asked.target, asked.threads) if asked.form == "onnxruntime" else made
    if made.program is None:
        return Compiled(
            given, asked.target, seconds, OFF, asked.not_here, asked.not_here, None, model_bytes, asked.digest
        )
    program = given if isinstance(given, Operators) else made.program
    examples: dict[tuple[int, ...], list[Given]] = {}
    for one in asked.given:
        examples.setdefault(point_of(original, free, one.feed), []).append(one)
    points = list(dict.fromkeys((*compared_points(dims), *examples)))
    verdicts = []
    with Workplace() as workplace:
        for point in points:
            said = ", ".join(f"{name}={size}" for name, size in free.at(point).items())
            asked.progress(f"comparing with ONNX Runtime at {said}")
            model = sized(original, point)
            try:
                reference = reference_of(workplace, model, examples.get(point, ()), asked.tolerance)
                verdicts.append(compared(reference, model, program))
            except VerificationError as error:
                raise VerificationError(f"at {said} {error}") from error
            if not verdicts[-1].passed:
                raise VerificationError(
                    f"the program does not give what ONNX Runtime gives at {said}: {verdicts[-1].reason}; nothing was "
                    f"written{way_on(verdicts[-1].max_rel)}."
                )
    verdict = _together(verdicts, [free.sizes_at(point) for point in points])
    return Compiled(given, asked.target, seconds, verdict, asked.not_here, None, None, model_bytes, asked.digest)


def _refusal(original: ir.Model, asked: Asked, free: FreeDims, first: NotLowered) -> NotLowered:
    """Why there is no program: operators without a kernel at any size, else what the `first` attempt says."""
    model = original.clone()
    resize(model, {}, free.at([dim.most for dim in free.dims]))
    try:
        parted = parted_of(optimized(model), asked.target, exact=asked.exact)
    except NotLowered as error:
        return error
    if not parted.missing:
        return first
    return NotLowered(
        f"{parted.refusal}, so this model has no program for a range of sizes; in Python, graphopt.compile(model) "
        "without one runs just these in ONNX Runtime."
    )


def _caches(model: ir.Model, free: FreeDims) -> dict[str, Cache]:
    """Outputs in the memory of inputs, with room for the greatest sizes. Raises OptionError where there are none."""
    facts, most = Facts(model), {dim.name: dim.most for dim in free.dims}
    found = {}
    for value in model.graph.outputs:
        past = caches_of(model).get(value.name or "")
        sizes = [dim if isinstance(dim, int) else free.formula(dim) for dim in facts.shape(value) or ()]
        if past is not None and sizes and all(size is not None for size in sizes):
            found[value.name or ""] = Cache(past, tuple(at(size, most) for size in sizes if size is not None))
    if not found:
        raise OptionError("the model has no caches: no output begins with the rows of an input; leave caches out.")
    return found


def _in_memory_of_their_own(model: ir.Model) -> ir.Model:
    """The model with the bodies of what could grow where it lies: there alone memory has the same dims in every run."""
    if not any(node.domain == CACHES for node in model.graph):
        return model
    work = model.clone()
    put_bodies(work, lambda _: [node for node in work.graph if node.domain == CACHES])
    return optimized(work)


def _together(verdicts: Sequence[Verification], sizes: Sequence[dict[str, int]]) -> Verification:
    """One verdict of those at several sizes, all of which are that the results are equal."""
    return msgspec.structs.replace(
        max(verdicts, key=lambda one: one.max_rel), feeds=sum(one.feeds for one in verdicts), sizes=tuple(sizes),
        max_abs=max(one.max_abs for one in verdicts), rounding=max(one.rounding for one in verdicts),
    )  # fmt: skip
