"""Chains of elementwise operations: a thread computes some elements, neighbours those that lie side by side."""

from __future__ import annotations

from kernels.kernel import Kernel, operands_of
from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.leaves import Places, ThreadElements
from kernels.ptx.tasks.threads import MOST_ELEMENTS, THREADS, Block, NoTask, each_of, span, write_task
from kernels.target import Target
from kernels.templates.axes import Axis, distinct, fused, indices_of, place
from kernels.templates.elementwise import Elementwise, vector_axis
from kernels.templates.streams import inputs_of
from kernels.tensor.expression import Binary, Unary

MOST = 4  # elements of a thread whose loads are under way together


def elementwise(problem: Elementwise, target: Target, name: str) -> Kernel:
    """The task: operands are the buffers that are read, by name, then the outputs."""
    stores = tuple(problem.load(output) for output in problem.outputs)
    places = [*indices_of(problem.values), *(place(one) for one in stores)]
    axes = fused(problem.axes, places)
    along = vector_axis(axes, stores, places)
    axes = (*(axis for axis in axes if axis != along), along)
    if problem.elements > MOST_ELEMENTS:
        raise NoTask("there are more elements than 32 bits count.")
    each = each_of(problem.elements, target)
    wide = min(MOST, each)
    operands = operands_of(inputs_of(problem.values), (output.buffer for output in problem.outputs))
    operations = sum(isinstance(node, Unary | Binary) for node in distinct(problem.values))

    def body(block: Block) -> None:
        block.turns(each, lambda first: turn(block, first), wide)

    def turn(block: Block, first: Value) -> None:
        f = block.f
        numbers = [f.add(first, THREADS * one) for one in range(wide)]
        inside = [block.below(one, problem.elements) for one in numbers]
        safe = joined([block.least(one, problem.elements - 1) for one in numbers])
        leaves = ThreadElements(block, spread(block, safe, axes))
        values = [value.split() for value in leaves.values(problem.values)]
        for number, there in enumerate(inside):

            def put(number: int = number) -> None:
                at = ThreadElements(block, spread(block, safe.split()[number], axes))
                for some, one in zip(values, stores, strict=True):
                    at.store(some[number % len(some)], one)

            f.when(there, put)

    blocks = -(-problem.elements // span(each, wide))
    return write_task(
        target, name, operands, blocks, body, flops=operations * problem.elements, candidate=f"{each} of a thread"
    )  # fmt: skip


def spread(block: Block, number: Value, axes: tuple[Axis, ...]) -> Places:
    """The place on each axis of the element with a number in row-major order."""
    return dict(zip(axes, block.split(number, tuple(axis.extent for axis in axes)), strict=True))
