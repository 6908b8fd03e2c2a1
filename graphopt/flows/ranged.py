"""One program for ranges of sizes, compared with the model at several of them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from graphopt.check.given import Given
from graphopt.check.runner import Workplace
from graphopt.check.verification import OFF
from graphopt.errors import NotLowered, OptionError
from graphopt.flows.asked import ATTENTION, BY_SIZE, CUTTING, GROWTH, Asked, in_form, optimized, tidied
from graphopt.flows.held_to_sizes import Point, Unequal, equal_at, within_at
from graphopt.flows.ranges import FreeDims, compared_points, point_of
from graphopt.flows.rounded import NOT_FASTER, beyond, tolerance_of
from graphopt.flows.source import require_fit
from graphopt.model.bodies import put_bodies
from graphopt.model.dimensions import DimValue, change_dims
from graphopt.model.facts import Facts
from graphopt.model.operators.contrib import CACHES
from graphopt.model.tensors import tensors_of
from graphopt.program.caches import caches_of
from graphopt.program.costs import costs_of
from graphopt.program.cuts import OtherConstant
from graphopt.program.deploy.compiled import Compiled, Rounding, Whole
from graphopt.program.deploy.hybrid import parted_of
from graphopt.program.free_sides import spell_out_free_sides
from graphopt.program.kinks import kinks_of
from graphopt.program.make import Program, make_ranged, runnable
from graphopt.program.regions.precision import FLOAT32, Precision
from graphopt.program.regions.region import NO_CACHES, Cache
from graphopt.program.regions.rounding import rounded_regions
from graphopt.program.sized_inputs import with_sized_inputs
from graphopt.program.steps import steps_of
from graphopt.program.unifying import other_ranges
from kernels.size import at
from kernels.target import Target
from kernels.templates.dots.product_choice import are_faster
from memplan.compiling import telling

MOST_CORNERS = 8  # of the ranges, at which a model is looked at before a program is made


class NoKernelOfAnySides(NotLowered):
    """A program that was to have convolutions with kernels of any sides."""


def of_ranges(original: ir.Model, asked: Asked, free: FreeDims) -> Compiled:
    """One program for all sizes of the dims, compared with the model at several of them."""
    if asked.memory_budget is not None:
        raise OptionError(
            "a memory budget of the arena is kept for one size; give dims numbers, or a budget of the process."
        )
    model_bytes = sum(tensor.nbytes for tensor in tensors_of(original))
    dims = allowed = free.dims
    asked.progress("looking at sizes")
    _look_at_corners(original, free)
    free.promise(original)
    started = time.perf_counter()
    refused: dict[tuple[object, ...], NotLowered] = {}

    def sized(source: ir.Model, sizes: Mapping[str, DimValue]) -> ir.Model:
        model = source.clone()
        change_dims(model, {}, sizes)
        return model

    def make_of(
        source: ir.Model, free: FreeDims, precision: Precision, *, computing: bool, ranges: bool, quickly: bool
    ) -> Whole:
        """`computing`: with sizes that the model computes with; else they only say how large something is.

        `ranges`: what follows from a Range is computed by every run too. Convolutions with kernels of any sides are
        spelled out where the program cannot have these; not `quickly` where it is constants that differ.
        """
        try:
            return attempt(source, free, precision, computing, ranges, with_kernels)
        except NoKernelOfAnySides as error:
            if quickly and _is_of_constants(error):
                raise
            return attempt(source, free, precision, computing, ranges, None)

    def attempt(
        source: ir.Model, free: FreeDims, precision: Precision, computing: bool, ranges: bool, kernels: Target | None
    ) -> Whole:
        """The same with `kernels` of any sides for a target, or without any."""
        work, dims = source.clone(), free.dims
        points = (
            [dim.most for dim in dims],
            [dim.most + 1 for dim in dims],
            [max(dim.least, dim.most // 2 | 1) for dim in dims],
        )
        copies = [sized(work, free.at(point)) for point in points]
        # What is rounded is no sum of points, and is as fast without.
        exact = asked.exact or (precision != FLOAT32 and are_faster(asked.target))
        spelled_out = spell_out_free_sides(work, copies, free.formula, exact=exact, target=kernels)
        caches = _caches(work, free) if asked.caches else NO_CACHES
        held = with_sized_inputs(work, free.formula, with_ranges=ranges) if computing else ()
        way = id(source), id(free), str(held), precision, kernels
        if way in refused:  # no size is computed with, or no Range is there
            raise refused[way]
        work = tidied(work)
        kinks, steps = kinks_of(source, free.formula), steps_of(source, free.formula, spelled_out.steps)
        skip = (
            BY_SIZE
            | (CUTTING if kinks else frozenset())
            | (ATTENTION if "Attention" in spelled_out.kinds else frozenset())
        )

        def model_of(point: Sequence[int]) -> ir.Model:
            return optimized(sized(work, free.at(point)), skip=skip, growth=GROWTH)

        try:
            return make_ranged(
                dims, model_of, asked.target, asked.name, asked.exact, asked.not_here, asked.threads,
                costs_of(asked.machine), held, caches, kinks, steps, asked.ram, precision, allowed,
            )  # fmt: skip
        except NotLowered as error:
            if not spelled_out.kept:
                refused[way] = error
                raise
            refused[way] = NoKernelOfAnySides(str(error))
            raise refused[way] from error

    with_kernels = None if asked.target.is_gpu else asked.target
    asked.progress("optimizing")
    work = optimized(original)
    if not asked.caches:
        work = _in_memory_of_their_own(work)
    asked.progress("making kernels")
    precision = Precision(asked.precision)
    with telling(asked.progress):
        made, refusals = None, []
        # Of work all sizes share the weights.
        ways = [(work, True, False), (work, True, True), (original, True, False), (work, False, False)]
        # Tensors of two dims that are greatest together may be equal by chance: then only other sizes tell them apart.
        apart = free.apart()
        frees = (free,) if apart == free else (free, apart)
        # Where constants differ, a way that computes them is more likely than another form of the same.
        left = deque((way, dims_apart, True) for way, dims_apart in itertools.product(ways, frees))
        while left and made is None:
            way, dims_apart, quickly = left.popleft()
            source, computing, ranges = way
            make_one = partial(make_of, source, dims_apart, computing=computing, ranges=ranges, quickly=quickly)
            try:
                made = make_one(precision)
            except NotLowered as error:
                refusals.append(error)
                if quickly and _is_of_constants(error):
                    others = [one for one in left if one[0] is way]
                    left = deque([one for one in left if one[0] is not way])
                    left.extend((*others, (way, dims_apart, False)))
        if made is None:
            raise _refusal(original, asked, free, refusals[0])
    is_rounded, not_rounded = bool(rounded_regions(made.lowered)), None
    if asked.precision != "float32" and not is_rounded:
        asked, not_rounded = replace(asked, tolerance=None), NOT_FASTER  # the tolerance was the rounding's
    seconds = time.perf_counter() - started

    def runs(made: Whole) -> Program:
        program, _ = runnable(in_form(made, work, asked), asked.target, None)
        assert program is not None, "it is for this machine"
        return program

    def program_of(wide: frozenset[str], *, last: bool = False) -> Whole:
        asked.progress("making kernels")
        return make_one(replace(precision, wide=wide))

    if made.program is None:
        rounding = Rounding({}, tolerance_of(asked), len(rounded_regions(made.lowered)), 0) if is_rounded else None
        return Compiled(
            in_form(made, work, asked),
            asked.target, seconds, OFF, asked.not_here, asked.not_here, None, model_bytes, asked.digest,
            rounding, not_rounded,
        )  # fmt: skip
    examples: dict[tuple[int, ...], list[Given]] = {}
    for one in asked.given:
        examples.setdefault(point_of(original, free, one.feed), []).append(one)
    points = [
        Point(free.at(point), free.sizes_at(point), examples.get(point, []))
        for point in dict.fromkeys((*compared_points(dims), *examples))
    ]

    def model_at(point: Point) -> ir.Model:
        return sized(original, point.dims)

    remade = None
    with Workplace() as workplace:
        taken = within_at(workplace, model_at, points, made, program_of, runs, asked) if is_rounded else None
        if taken is not None:
            made, verdict, rounding = taken.made, taken.verdict, taken.rounding
        else:
            if is_rounded:
                not_rounded = beyond(tolerance_of(asked))
                made, asked = make_one(FLOAT32), replace(asked, tolerance=None)
            try:
                verdict, rounding = equal_at(workplace, model_at, points, runs(made), asked), None
            except Unequal as error:
                if asked.exact:
                    raise
                remade, asked = error.reason, replace(asked, exact=True)
                asked.progress("making kernels")
                made = make_one(FLOAT32)
                verdict, rounding = equal_at(workplace, model_at, points, runs(made), asked), None
    seconds = time.perf_counter() - started if is_rounded else seconds
    return Compiled(
        in_form(made, work, asked),
        asked.target, seconds, verdict, asked.not_here, None, remade, model_bytes, asked.digest, rounding,
        not_rounded,
    )  # fmt: skip


def _is_of_constants(error: BaseException | None) -> bool:
    """Whether constants differ between sizes, in what caused a refusal."""
    while error is not None:
        if isinstance(error, OtherConstant):
            return True
        error = error.__cause__
    return False


def _look_at_corners(original: ir.Model, free: FreeDims) -> None:
    """Raises NotLowered where the model does not run at a corner of the ranges, or in their middle.

    What it would take to make a program is spared, which then could not be compared there.
    """
    corners = itertools.product(*((dim.least, dim.most) for dim in free.dims))
    middle = tuple(max(dim.least, dim.most // 2 | 1) for dim in free.dims)
    for point in dict.fromkeys((*itertools.islice(corners, MOST_CORNERS), middle)):
        model = original.clone()
        change_dims(model, {}, free.at(point))
        try:
            require_fit(model, free.sizes_at(point))
        except OptionError as error:
            ways = ", or ".join(("give a range that the model takes", *other_ranges(free.dims)))
            raise NotLowered(f"{str(error).rstrip('.')}; {ways}.") from error


def _refusal(original: ir.Model, asked: Asked, free: FreeDims, first: NotLowered) -> NotLowered:
    """Why there is no program: operators without a kernel at any size, else what the `first` attempt says."""
    model = original.clone()
    change_dims(model, {}, free.at([dim.most for dim in free.dims]))
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
