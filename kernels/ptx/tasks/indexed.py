"""Gathers and scatters: a thread for each element of the result, or a few.

A thread of a scatter begins with what stood at its element, and goes through all updates in their order: it takes those
that are for it. So no two threads write the same element, and of several updates of one the last counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Value
from kernels.ptx.tasks.elementwise import MOST
from kernels.ptx.tasks.threads import MOST_ELEMENTS, THREADS, Block, NoTask, each_of, span, write_task
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.indexed import Indexed, combined, dense_tail, operands_of

_UPDATES = 1024  # of a scatter, that each element goes through


def indexed(problem: Indexed, target: Target, name: str) -> Kernel:
    """The task; its operands are those of the template. Raises NoTask for a scatter of many updates."""
    sizes = (
        *problem.dims,
        *problem.data_strides,
        *problem.plain_strides,
        *problem.index_strides,
        problem.data_elements,
    )
    if any(is_free(one) for one in (*sizes, *(one.size for one in problem.components))):
        raise NoTask("sizes that only a run knows have no task.")
    is_gather = problem.direction == "gather"
    elements = problem.plain_elements if is_gather else problem.data_elements
    if elements > MOST_ELEMENTS:
        raise NoTask("there are more elements than 32 bits count.")
    outer = problem.dims[: len(problem.dims) - dense_tail(problem)]
    if not is_gather and prod(outer) > _UPDATES:
        raise NoTask(f"a scatter has {prod(outer):,} updates; elements go through {_UPDATES:,} at most.")
    each = each_of(elements, target)
    wide = min(MOST, each) if is_gather else 1
    kind = types.scalar(problem.dtype)

    def turn(block: Block, first: Value) -> None:
        f = block.f
        numbers = [f.add(first, THREADS * one) for one in range(wide)]
        near = [block.least(one, elements - 1) for one in numbers]
        values = [
            _gathered(block, problem, one) if is_gather else _scattered(block, problem, one, outer) for one in near
        ]
        for number, value in zip(numbers, values, strict=True):
            aim = block.at(block.pointers["output"], number, kind)
            f.when(block.below(number, elements), partial(f.store, value, aim))

    def body(block: Block) -> None:
        if elements:
            block.turns(each, lambda first: turn(block, first), wide)

    return write_task(
        target, name, operands_of(problem), -(-elements // span(each, wide)), body, candidate=f"{each} of a thread"
    )  # fmt: skip


def _place(block: Block, at: Sequence[Value], strides: Sequence[int]) -> Value:
    f, total = block.f, block.word(0)
    for where, stride in zip(at, strides, strict=False):
        total = f.add(total, f.mul(where, stride))
    return total


def _data_at(block: Block, problem: Indexed, at: Sequence[Value]) -> Value:
    """Where a position's element lies in the data: indices count from the end where negative, and stay inside."""
    f, kind = block.f, types.scalar(problem.index_dtype)
    index_at, place = _place(block, at, problem.index_strides), _place(block, at, problem.data_strides)
    for number, component in enumerate(problem.components):
        address = block.at(block.pointers["indices"], f.add(index_at, number * problem.component_step), kind)
        index = f.convert("sext", "i64", f.load(kind, address))
        wrapped = f.select(f.compare("slt", index, f.integer(0)), f.add(index, component.size), index)
        inside = f.minimum(f.maximum(wrapped, f.integer(0)), f.integer(component.size - 1))
        place = f.add(place, f.mul(f.convert("trunc", "i32", inside), component.stride))
    return place


def _gathered(block: Block, problem: Indexed, number: Value) -> Value:
    f, kind = block.f, types.scalar(problem.dtype)
    place = _data_at(block, problem, block.split(number, problem.dims))
    return f.load(kind, block.at(block.pointers["data"], place, kind))


def _scattered(block: Block, problem: Indexed, number: Value, outer: tuple[int, ...]) -> Value:
    f, kind = block.f, types.scalar(problem.dtype)
    length = prod(problem.dims[len(outer) :])
    if problem.filler is None:
        begun = f.load(kind, block.at(block.pointers["data"], number, kind))
    else:
        begun = f.convert("bitcast", kind, f.number(f"i{8 * problem.dtype.bytes}", problem.filler))
    if not problem.plain_elements:
        return begun

    def update(position: Value, held: tuple[Value, ...]) -> Sequence[Value]:
        at = block.split(position, outer)
        distance = f.sub(number, _data_at(block, problem, at))

        def taken() -> Sequence[Value]:
            place = f.add(_place(block, at, problem.plain_strides), distance)
            new = f.load(kind, block.at(block.pointers["updates"], place, kind))
            return (combined(f, problem, held[0], new),)

        return f.when(block.below(distance, length), taken, lambda: held)

    (value,) = f.loop(block.word(0), block.word(prod(outer)), 1, update, (begun,))
    return value
