"""Results in the place of an operand: a sum where one of its terms stood, which nothing else needs.

A kernel may write over an operand of which it reads each element only to compute the one that takes its place. What
templates promise: the operands of an expression are read at the place that is written, by the block that writes it,
before it does so (kernels/templates/elementwise.py, epilogue.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.region import Lowered, Region
from kernels.templates.axes import distinct_loads
from kernels.templates.convolution.problem import OUTPUT, Convolution
from kernels.templates.elementwise import Elementwise
from kernels.templates.gemm_problem import Gemm
from kernels.templates.pooling import Pooling
from kernels.tensor.expression import Buffer as Storage
from kernels.tensor.expression import Load, Variable

Place = tuple[int, tuple[tuple[Variable, int], ...]]  # bytes from the start, and elements for a step of each variable


def in_place(lowered: Lowered) -> Lowered:
    """The same regions, in which temporaries take the bytes of one that is read for the last time as they are made."""
    writers = Counter(one for region in lowered.regions for one in region.writes)
    last = {one: step for step, region in enumerate(lowered.regions) for one in (*region.reads, *region.writes)}
    moved: dict[Buffer, Buffer] = {}
    regions = []
    for step, region in enumerate(lowered.regions):
        for result in region.writes:
            if result.role != "temporary" or writers[result] > 1:
                continue
            for operand in _overwritable(lowered, region, result):
                if operand.role == "temporary" and operand.size == result.size and last[operand] == step:
                    moved[result] = moved.get(operand, operand)
                    break
        places = tuple(replace(one, buffer=moved.get(one.buffer, one.buffer)) for one in region.places)
        regions.append(replace(region, places=places))
    return replace(lowered, regions=tuple(regions))


def _overwritable(lowered: Lowered, region: Region, result: Buffer) -> Iterator[Buffer]:
    """The buffers of which the region reads only the elements that it then writes over, were they its result's."""
    names = [operand.name for operand in region.kernel.operands]
    found = dict(zip(names, region.places, strict=True))
    outputs = [name for name, place in found.items() if place.buffer == result]
    aims = _stored(lowered.problems[region.kernel.name][1]) if region.kernel.name in lowered.problems else {}
    if len(outputs) != 1 or set(aims) != set(outputs):
        return
    (name,) = outputs
    aim, loads = aims[name]
    where = _place(aim, found[name].offset)
    for operand in dict.fromkeys(one.buffer.name for one in loads):
        buffer = found[operand].buffer
        read = [one for one in loads if one.buffer.name == operand]
        alone = sum(place.buffer == buffer for place in region.places) == 1
        alike = all(one.dtype.bytes == aim.dtype.bytes and _place(one, found[operand].offset) == where for one in read)
        if alone and alike:
            yield buffer


def _stored(problem: object) -> dict[str, tuple[Load, tuple[Load, ...]]]:
    """By the name of what a problem writes the element that is written, and what its expression reads."""
    match problem:
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
        case Elementwise():
            loads = tuple(distinct_loads(problem.values))
            return {one.buffer.name: (problem.load(one), loads) for one in problem.outputs}
    return {}


def _place(load: Load, start: int) -> Place:
    """Where a load reads, in a buffer in which its operand starts at so many bytes."""
    position = load.buffer.position(load.indices)
    steps = {variable: step for variable, step in position.terms if step and variable.extent != 1}
    return start + position.offset * load.dtype.bytes, tuple(sorted(steps.items(), key=lambda one: one[0].name))
