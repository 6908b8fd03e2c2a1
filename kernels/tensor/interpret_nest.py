"""Runs a nest one element at a time: slow, for tests that a schedule computes what its program computes.

It works on flat storages, so that strides, offsets and flattened accesses are the real ones. What may run in any order
runs in an unusual one: vectorized and parallel loops run backwards, and parallel loops after all that stands beside
them. Temporaries start as NaN (or as the smallest integer), so that a read before the first write shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels.dtype import DType
from kernels.tensor import scalars, storage
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
    Select,
    Unary,
    Variable,
)
from kernels.tensor.nest import Accumulate, Allocate, Loop, Nest, Node, Store
from kernels.tensor.storage import Array

_COMBINE = {"sum": "add", "prod": "mul", "min": "min", "max": "max"}


def interpret_nest(nest: Nest, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every output by name, from arrays as for `interpret`."""
    memory = {buffer.name: storage.store(buffer, inputs[buffer.name]) for buffer in nest.program.inputs}
    for buffer in nest.program.outputs:
        memory[buffer.name] = _undefined(buffer)
    with np.errstate(all="ignore"):
        blocks = [node for node in nest.body if isinstance(node, Loop) and node.kind == "parallel"]
        rest = [node for node in nest.body if not any(node is one for one in blocks)]
        _run((*rest, *reversed(blocks)), {}, memory)
    return {buffer.name: storage.view(buffer, memory[buffer.name]).copy() for buffer in nest.program.outputs}


def _undefined(buffer: Buffer) -> Array:
    count = storage.extent(buffer)
    if buffer.dtype is DType.BF16:
        return np.full(count, 0x7FC0, np.uint16)
    if buffer.dtype.held is not buffer.dtype and buffer.dtype is not DType.F16:
        return np.full(count, 0x7F, np.uint8)
    if buffer.dtype.is_float:
        return np.full(count, np.nan, buffer.dtype.numpy)
    return np.full(
        count, True if buffer.dtype is DType.BOOL else scalars.identity("max", buffer.dtype), buffer.dtype.numpy
    )


def _run(body: tuple[Node, ...], at: dict[Variable, int], memory: dict[str, Array]) -> None:
    for node in body:
        match node:
            case Loop(variable, inner, kind, _):
                order = range(variable.extent)
                for value in reversed(order) if kind in ("parallel", "vectorized") else order:
                    _run(inner, {**at, variable: value}, memory)
            case Allocate(buffer):
                memory[buffer.name] = _undefined(buffer)
            case Store(buffer, indices, value):
                _write(buffer, indices, _evaluate(value, at, memory), at, memory)
            case Accumulate(buffer, indices, op, value):
                place = _position(buffer, indices, at)
                before = scalars.widen(memory[buffer.name][place : place + 1], buffer.dtype)[0]
                term = _evaluate(value, at, memory)
                after = scalars.binary(_COMBINE[op], before, term, buffer.dtype)  # type: ignore[arg-type]
                _write(buffer, indices, after, at, memory)


def _position(buffer: Buffer, indices: tuple[Index, ...], at: Mapping[Variable, int]) -> int:
    for one, size in zip(indices, buffer.shape, strict=True):
        assert 0 <= one.at(at) < size, f"'{buffer.name}' of {size} elements is accessed at {one.at(at)}"
    return buffer.position(indices).at(at)


def _write(
    buffer: Buffer, indices: tuple[Index, ...], value: Array, at: Mapping[Variable, int], memory: dict[str, Array]
) -> None:
    memory[buffer.name][_position(buffer, indices, at)] = scalars.narrow(np.asarray(value), buffer.dtype)


def _evaluate(value: Expression, at: Mapping[Variable, int], memory: Mapping[str, Array]) -> Array:
    match value:
        case Number(constant, kind):
            return scalars.number(constant, kind)
        case Position(one):
            return np.asarray(one.at(at), np.int64)
        case Load(buffer, indices):
            place = _position(buffer, indices, at)
            return np.asarray(scalars.widen(memory[buffer.name][place : place + 1], buffer.dtype)[0])
        case Unary(op, operand):
            return scalars.unary(op, _evaluate(operand, at, memory), operand.dtype)
        case Binary(op, left, right):
            return scalars.binary(op, _evaluate(left, at, memory), _evaluate(right, at, memory), left.dtype)
        case Compare(op, left, right):
            return scalars.compare(op, _evaluate(left, at, memory), _evaluate(right, at, memory))
        case Select(condition, yes, no):
            return _evaluate(yes if _evaluate(condition, at, memory) else no, at, memory)
        case Cast(kind, operand):
            return scalars.cast(_evaluate(operand, at, memory), operand.dtype, kind)
    raise AssertionError(f"no rule for {type(value).__name__}")
