"""Helpers of evaluators: operators on NumPy arrays, and on arrays of ints and symbols that hold what is known of dims.

An evaluator raises TypeError, ValueError or IndexError where NumPy, or the symbols, cannot say; nobody takes that for
the operator's fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, dims, nodes
from graphopt.model.reals import Real

Arrays = Sequence[np.ndarray | None]
Evaluator = Callable[[ir.Node, Arrays, int], np.ndarray | None]  # of inputs and opset; None where it cannot tell
MOST = 1 << 26  # elements of a result that is more than what is given, and of what repeats and would be written out


def present(*arrays: np.ndarray | None) -> list[np.ndarray]:
    """The arrays; raises TypeError where one is missing."""
    found = [array for array in arrays if array is not None]
    if len(found) != len(arrays):
        raise TypeError("an input is missing")
    return found


def numbers(array: np.ndarray | None) -> tuple[int, ...] | None:
    """The integers of an array; raises TypeError for a symbol."""
    return None if array is None else tuple(int(item) for item in array.reshape(-1))


def axes(node: ir.Node, inputs: Arrays, opset: int, since: int = 13) -> tuple[int, ...] | None:
    """The axes of Squeeze, Unsqueeze or a reduction: an attribute before `since`, an input after."""
    return nodes.ints_attribute(node, "axes") if opset < since else numbers(inputs[1] if len(inputs) > 1 else None)


def stored_elements(array: np.ndarray) -> int:
    """The elements that lie in memory; those of a broadcast view count once."""
    return math.prod(size for size, stride in zip(array.shape, array.strides, strict=True) if stride)


def elementwise(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray | None:
    """The function of broadcasting arrays; None where broadcasting would make too much of them."""
    elements = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    splat = all(constants.is_splat(array) or array.size == 1 for array in arrays)
    if elements > max(MOST, *(stored_elements(array) for array in arrays)) and not splat:
        return None
    return constants.elementwise(function, *arrays)


def ufunc(function: Callable[..., np.ndarray]) -> Evaluator:
    """An operator that NumPy has as a function of elements."""

    def run(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
        arrays = present(*inputs)
        if any(array.dtype.kind in "OSUV" for array in arrays):
            return None
        return elementwise(function, *arrays)

    return run


def symbols(function: Callable[..., object], *operands: np.ndarray | None) -> np.ndarray | None:
    """The function of every place of broadcasting arrays of ints and symbols; None where it cannot tell one."""
    if any(operand is None for operand in operands):
        return None
    arrays = np.broadcast_arrays(*[operand for operand in operands if operand is not None])
    result = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(result.shape):
        item = function(*(array[index] for array in arrays))
        if item is None:
            return None
        result[index] = item
    return result


def of_symbols(function: Callable[..., object]) -> Evaluator:
    """An operator on arrays of ints and symbols, from what it does with one element of each."""
    return lambda node, inputs, opset: symbols(function, *inputs)


def arithmetic(function: Callable[..., object]) -> Evaluator:
    """An operator that computes with dims, or with floats that are computed from them."""

    def compute(*items: object) -> object:
        result = function(*items)
        return result if isinstance(result, Real) else dims.normal(result)

    return of_symbols(compute)


def first_operand(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    """The first operand as it is."""
    return inputs[0]
