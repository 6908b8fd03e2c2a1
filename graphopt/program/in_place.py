"""Results in the place of an operand: a sum where one of its terms stood, which nothing else needs.

A kernel may write over an operand of which it reads each element only to compute the one that takes its place. What
templates promise: the operands of an expression are read at the place that is written, by the block that writes it,
before it does so (kernels/templates/elementwise.py, epilogue.py). A row that is normalized, or of which a softmax is
taken, is read by one block, which writes none of the row before (normalization.py, softmax.py). A product whose tiles
have all columns reads its rows before it writes any, too (gemm_choice.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from graphopt.program.lifetimes import memory_problem
from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.region import Lowered, Region
from kernels.dtype import DType
from kernels.templates.attention.problem import Attention
from kernels.templates.axes import distinct_loads
from kernels.templates.convolution.problem import OUTPUT, Convolution
from kernels.templates.elementwise import Elementwise
from kernels.templates.gemm_choice import GemmCandidate, reads_ahead
from kernels.templates.gemm_problem import Gemm
from kernels.templates.normalization import NORMALIZED, Normalization
from kernels.templates.pooling_problem import Pooling
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.row_problem import RowProblem
from kernels.templates.softmax import SOFTMAX, Softmax
from kernels.tensor.expression import Buffer as Storage
from kernels.tensor.expression import Load, Variable
from memplan.bounds import live_bytes

Place = tuple[int, tuple[tuple[Variable, int], ...]]  # bytes from the start, and elements for a step of each variable


def in_place(lowered: Lowered) -> Lowered:
    """The same regions, in which temporaries take the bytes of one that is read for the last time as they are made.

    A larger one is kept for what is left of it only where no later step then needs more than this one did.
    """
    writers: dict[Buffer, list[int]] = {}
    for step, region in enumerate(lowered.regions):
        for one in region.writes:
            writers.setdefault(one, []).append(step)
    used: dict[Buffer, list[int]] = {}
    for step, region in enumerate(lowered.regions):
        for one in {place.buffer for place in region.places}:
            used.setdefault(one, []).append(step)
    live = _live(lowered)
    moved: dict[Buffer, Buffer] = {}
    for result, steps in writers.items():
        if result.role != "temporary":
            continue
        each = [overwritable(lowered, lowered.regions[step], result) for step in steps]
        for operand in each[0]:
            more = operand.size - result.size
            later = live[used[operand][-1] + 1 : used[result][-1] + 1]
            fits = operand.role == "temporary" and more >= 0
            fits = fits and (not more or max(later, default=0) + more < live[steps[0]])
            alike = all(operand in others for others in each)
            if fits and alike and _reads_ahead(lowered, operand, result, used, steps):
                moved[result] = moved.get(operand, operand)
                break
    regions = (
        replace(one, places=tuple(replace(at, buffer=moved.get(at.buffer, at.buffer)) for at in one.places))
        for one in lowered.regions
    )
    return replace(lowered, regions=tuple(regions))


def products_over(lowered: Lowered) -> set[str]:
    """The kernels that write over an operand that only tiles like theirs have read by then: none takes their place."""
    found = set()
    for region in lowered.regions:
        if isinstance(lowered.problems.get(region.kernel.name, (None, None))[1], Gemm):
            at = {one.name: place.buffer for one, place in zip(region.kernel.operands, region.places, strict=True)}
            found |= {region.kernel.name} if at["a"] == at["c"] else set()
    return found


def _live(lowered: Lowered) -> list[int]:
    """Bytes of temporaries at each step."""
    changes, found, now = dict(live_bytes(memory_problem(lowered))), list[int](), 0
    for step in range(len(lowered.regions)):
        now = changes.get(step, now)
        found.append(now)
    return found


def _reads_ahead(
    lowered: Lowered, operand: Buffer, result: Buffer, used: Mapping[Buffer, Sequence[int]], steps: Sequence[int]
) -> bool:
    """Whether from the first of `steps`, which write the result, none reads of the operand what is written over."""
    written: list[tuple[int, int]] = []
    for step in sorted({*steps, *(one for one in used[operand] if one > steps[0])}):
        region = lowered.regions[step]
        if step in steps:
            written += _extents(lowered, region, result)
        elif operand in region.writes or any(
            low < end and start < high for low, high in _extents(lowered, region, operand) for start, end in written
        ):
            return False
    return True


def _extents(lowered: Lowered, region: Region, buffer: Buffer) -> list[tuple[int, int]]:
    """The bytes of a buffer that a region may touch, from the first to behind the last of each operand."""
    pairs = list(zip(region.kernel.operands, region.places, strict=True))
    first = _first_bytes(lowered.problems[region.kernel.name][1] if region.kernel.name in lowered.problems else None)
    return [
        (at.offset + first.get(one.name, 0), at.offset + one.bytes) for one, at in pairs if at.buffer == buffer
    ]  # fmt: skip


def _first_bytes(problem: object) -> dict[str, int]:
    """By the name of an operand, the bytes before all that is touched of it; what is not known has none."""
    loads = [load for aim, read in _stored(problem).values() for load in (aim, *read)]
    if isinstance(problem, RowProblem):
        loads += [*problem.stores, *distinct_loads([problem.x, *problem.values])]
    found: dict[str, int] = {}
    if isinstance(problem, Gemm) and problem.arithmetic in ("f32", "rounded"):
        found |= {"a": problem.place_a.offset * DType.F32.bytes}
    for load in loads:
        place = load.buffer.position(load.indices)
        low = place.offset * load.dtype.bytes if all(step >= 0 for _, step in place.terms) else 0
        found[load.buffer.name] = min(low, found.get(load.buffer.name, low))
    return found


def overwritable(lowered: Lowered, region: Region, result: Buffer) -> list[Buffer]:
    """The buffers of which the region reads only the elements that it then writes over, were they its result's."""
    names = [operand.name for operand in region.kernel.operands]
    found = dict(zip(names, region.places, strict=True))
    outputs = [name for name, place in found.items() if place.buffer == result]
    problem = lowered.problems[region.kernel.name][1] if region.kernel.name in lowered.problems else None
    aims = _stored(problem)
    if isinstance(problem, Recurrent):  # it keeps its states to itself between the first step and the last
        aims = {name: aim for name, aim in aims.items() if name in outputs}
    if len(outputs) != 1 or set(aims) != set(outputs):
        return []
    (name,) = outputs
    aim, loads = aims[name]
    where, kept = _place(aim, found[name].offset), []
    for operand in dict.fromkeys(one.buffer.name for one in loads):
        buffer = found[operand].buffer
        read = [one for one in loads if one.buffer.name == operand]
        alone = sum(place.buffer == buffer for place in region.places) == 1
        alike = all(one.dtype.bytes == aim.dtype.bytes and _place(one, found[operand].offset) == where for one in read)
        if alone and alike:
            kept.append(buffer)
    if isinstance(problem, Gemm):
        a, chosen = found["a"], lowered.candidate(region.kernel)
        alone = sum(place.buffer == a.buffer for place in region.places) == 1
        moved, rest = divmod(found[name].offset - a.offset, DType.F32.bytes)
        if alone and not rest and isinstance(chosen, GemmCandidate):
            kept += [a.buffer] if reads_ahead(problem, chosen, lowered.target, moved) else []
    return kept


def _stored(problem: object) -> dict[str, tuple[Load, tuple[Load, ...]]]:
    """By the name of what a problem writes the element that is written, and what its expression reads."""
    match problem:
        case Attention():
            axes = tuple(
                Variable(name, size)
                for name, size in zip(
                    ("batch", "head", "row", "element"),
                    (problem.batch, problem.heads, problem.queries, problem.size), strict=True,
                )
            )  # fmt: skip
            q, output = (_of_heads(problem, name)[axes] for name in ("q", "output"))
            return {"output": (output, (q,))} if problem.size == problem.value_size else {}
        case Pooling():
            return _stored(problem.windows)
        case Convolution():
            aim = problem.here(problem.output.buffer(OUTPUT, problem.epilogue.dtype))
            return {OUTPUT: (aim, problem.epilogue.loads)}
        case Gemm():
            c, axes = problem.place_c, (*problem.batch_variables, problem.row, problem.column)
            shape = (*problem.batch, problem.rows, problem.columns)
            whole = Storage("c", problem.epilogue.dtype, shape, (*c.batch, c.row, c.column), c.offset)
            return {"c": (whole[axes], problem.epilogue.loads)}
        case Recurrent():
            axes = tuple(
                Variable(name, size)
                for name, size in (
                    ("direction", len(problem.directions)), ("row", problem.batch), ("unit", problem.hidden)
                )
            )  # fmt: skip
            shape = tuple(axis.extent for axis in axes)
            pairs = [("y_h", "initial_h"), *([("y_c", "initial_c")] if problem.cell == "lstm" else [])]
            return {
                name: (Storage(name, DType.F32, shape)[axes], (Storage(of, DType.F32, shape)[axes],))
                for name, of in pairs
            }  # fmt: skip
        case Normalization() | Softmax():
            read = distinct_loads([problem.x, *problem.values])
            loads = tuple(one for one in read if one.buffer not in (NORMALIZED, SOFTMAX))
            return {one.buffer.name: (one, loads) for one in problem.stores}
        case Elementwise():
            loads = tuple(distinct_loads(problem.values))
            return {one.buffer.name: (problem.load(one), loads) for one in problem.outputs}
    return {}


def _of_heads(problem: Attention, name: Literal["q", "output"]) -> Storage:
    lies, shape = problem.place(name), (problem.batch, problem.heads, problem.queries, problem.size)
    return Storage(name, DType.F32, shape, (lies.batch, lies.head, lies.row, 1), lies.offset)


def _place(load: Load, start: int) -> Place:
    """Where a load reads, in a buffer in which its operand starts at so many bytes."""
    position = load.buffer.position(load.indices)
    steps = {variable: step for variable, step in position.terms if step and variable.extent != 1}
    return start + position.offset * load.dtype.bytes, tuple(sorted(steps.items(), key=lambda one: one[0].name))
