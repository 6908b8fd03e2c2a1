"""The reference interpreter: a tensor program on NumPy arrays, as it is written, with no schedule.

It is the oracle of every kernel and shares nothing with the lowering. Arrays have the buffers' logical shapes and
`DType.numpy` types (bfloat16 as uint16); strides and offsets do not matter here. `scalars` says what operations give.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels.errors import KernelsError
from kernels.tensor import scalars
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    Index,
    Load,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.program import Program, Stage
from kernels.tensor.storage import Array
from kernels.tensor.traverse import postorder


class InvalidInput(KernelsError):
    """An array that does not fit the buffer it is given for."""


def interpret(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every output by name. Raises InvalidInput for a missing array or one of another shape or type."""
    arrays = {buffer.name: _given(buffer, inputs) for buffer in program.inputs}
    with np.errstate(all="ignore"):
        for stage in program.stages:
            if stage.name not in arrays:
                arrays[stage.name] = np.zeros(stage.buffer.shape, stage.buffer.dtype.numpy)
            _run(stage, arrays)
    return {buffer.name: arrays[buffer.name] for buffer in program.outputs}


def evaluate(value: Expression, arrays: Mapping[str, Array], axes: tuple[Variable, ...]) -> Array:
    """The values of an expression over all values of `axes`, one dim per axis, rounded to its type.

    `arrays` holds the buffers that are read, by name. This is how an epilogue is evaluated on a whole result.
    """
    with np.errstate(all="ignore"):
        values = _evaluate(value, arrays, _grid(axes))
        shape = tuple(axis.extent for axis in axes)
        return scalars.narrow(np.broadcast_to(values, shape), value.dtype)


def _given(buffer: Buffer, inputs: Mapping[str, Array]) -> Array:
    if buffer.name not in inputs:
        raise InvalidInput(f"no array is given for input '{buffer.name}'")
    array = np.asarray(inputs[buffer.name])
    if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy:
        raise InvalidInput(
            f"input '{buffer.name}' is {buffer.dtype.value}{list(buffer.shape)}, "
            f"the array is {array.dtype}{list(array.shape)}"
        )
    return array


def _run(stage: Stage, arrays: dict[str, Array]) -> None:
    reduction = stage.reduction
    inner = reduction.axes if reduction else ()
    grid = _grid(stage.axes + inner)
    operand = reduction.operand if reduction else stage.value
    values = np.broadcast_to(_evaluate(operand, arrays, grid), tuple(v.extent for v in stage.axes + inner))
    if reduction:
        values = scalars.reduce(reduction.op, values, len(inner), operand.dtype)
    if stage.elements == 0:
        return
    place = tuple(_index(one, _grid(stage.axes)) for one in stage.indices)
    arrays[stage.name][place] = scalars.narrow(values, stage.buffer.dtype)


def _grid(axes: tuple[Variable, ...]) -> dict[Variable, Array]:
    """Each axis as an array that varies along its own dim only."""
    return {
        axis: np.arange(axis.extent).reshape([-1 if axis is other else 1 for other in axes]) for axis in axes
    }  # fmt: skip


def _index(one: Index, grid: Mapping[Variable, Array]) -> Array:
    total = np.asarray(one.offset)
    for variable, factor in one.terms:
        total = total + grid[variable] * np.asarray(factor)
    return total


def _evaluate(value: Expression, arrays: Mapping[str, Array], grid: Mapping[Variable, Array]) -> Array:
    values: dict[int, Array] = {}
    for node in postorder(value):
        operands = [values[id(operand)] for operand in node.operands]
        values[id(node)] = _node(node, operands, arrays, grid)
    return values[id(value)]


def _node(
    value: Expression, operands: list[Array], arrays: Mapping[str, Array], grid: Mapping[Variable, Array]
) -> Array:
    match value:
        case Number(constant, kind):
            return scalars.number(constant, kind)
        case Position(one):
            return _index(one, grid)
        case Load(buffer, indices):
            return _load(buffer, [_index(one, grid) for one in indices], arrays[buffer.name])
        case Unary(op, operand):
            return scalars.unary(op, operands[0], operand.dtype)
        case Binary(op, left, _):
            return scalars.binary(op, operands[0], operands[1], left.dtype)
        case Compare(op, _, _):
            return scalars.compare(op, operands[0], operands[1])
        case Select():
            return np.where(operands[0], operands[1], operands[2])
        case Cast(kind, operand):
            return scalars.cast(operands[0], operand.dtype, kind)
        case Reduce():
            raise KernelsError("a reduction inside an expression: give it a stage of its own")
    raise AssertionError(f"no rule for {type(value).__name__}")


def _load(buffer: Buffer, indices: list[Array], array: Array) -> Array:
    # Both sides of a Select are evaluated here: what lies outside is read at the edge and then not chosen. (That a load
    # which is used lies inside was shown when the program was made.)
    if array.size == 0:
        shape = np.broadcast_shapes(*(one.shape for one in indices))
        return np.zeros(shape, scalars.compute_type(buffer.dtype))
    place = tuple(np.clip(one, 0, size - 1) for one, size in zip(indices, buffer.shape, strict=True))
    return scalars.widen(array[place], buffer.dtype)
