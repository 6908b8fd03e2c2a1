"""What rules ask of a node's operands: that they are there, hold one number, widen nothing, are of some type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.known import SMALL
from graphopt.rewrite.rule import Match

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
SIGNED = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64})
UNSIGNED = frozenset({ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})
INTEGERS = SIGNED | UNSIGNED
# The types that runtimes implement for the elementwise operators that a rule may put in place of another one.
COMMON = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64})

GROWTH = 65536  # bytes; a constant made beside an old one that others still read may be this large


def operand(match: Match, index: int = 0) -> ir.Value:
    """An input of the match's node; refuses when it is absent."""
    value = nodes.input_at(match.root, index)
    if value is None:
        match.refuse(f"input {index} of {match.root.op_type} is absent")
    return value


def read_once(node: ir.Node) -> bool:
    """Whether one node alone reads the node's results, so that they disappear with that reader."""
    readers = {reader for output in node.outputs for reader in output.consumers()}
    return len(readers) == 1 and not any(output.is_graph_output() for output in node.outputs)


def inner_node(match: Match, value: ir.Value | None, *types: str, alone: bool = True) -> ir.Node | None:
    """The standard node of one of `types` in the same graph that computes `value`, else None.

    With `alone`, only when nothing but one node reads its results.
    """
    node = None if value is None else value.producer()
    if node is None or node.op_type not in types or not nodes.is_standard(node) or node.graph is not match.root.graph:
        return None
    if nodes.has_reference_attributes(node) or (alone and not read_once(node)):
        return None
    return node


def uniform(match: Match, value: ir.Value | str) -> np.ndarray:
    """The number (a zero-dimensional array) that every element of a constant holds; refuses when they differ.

    Large constants are not read: a weight of one repeated number comes as a splat.
    """
    target = match[value] if isinstance(value, str) else value
    tensor = match.facts.tensor(target)
    match.require(tensor is None or tensor.size <= SMALL, f"'{target.name}' is a large constant")
    array = match.array(target)
    match.require(array.size > 0 and array.dtype.kind not in "OSU", f"'{target.name}' holds no number")
    first = np.asarray(array[(0,) * array.ndim])
    same = constants.is_splat(array) or bool((array == first).all())
    match.require(same, f"'{target.name}' holds different numbers")
    return first


def require_uniform(match: Match, value: ir.Value | str, number: float) -> None:
    """Refuse unless every element of the constant is exactly `number`."""
    target = match[value] if isinstance(value, str) else value
    match.require(bool(uniform(match, target) == number), f"'{target.name}' is not {number:g}")


def require_not_widened(match: Match, kept: ir.Value | str, constant: ir.Value | str) -> None:
    """Refuse unless broadcasting against the constant leaves the dims of `kept` as they are."""
    target = match[kept] if isinstance(kept, str) else kept
    if match.array(constant).ndim == 0:
        return
    match.require(match.shape(target) == match.shape(match.output), f"the constant may widen '{target.name}'")


def require_type(match: Match, value: ir.Value | str, allowed: frozenset[ir.DataType], what: str) -> ir.DataType:
    """The value's element type; refuses unless it is one of `allowed`, which the reason calls `what`."""
    kind = match.dtype(value)
    match.require(kind in allowed, f"elements of type {kind.name.lower()} are not {what}")
    return kind


def combine(
    match: Match, function: Callable[..., np.ndarray], left: ir.Value | str, right: ir.Value | str
) -> np.ndarray:
    """`function` of two constants in their own type: wrapping for integers, one rounding for floats.

    Refuses when the result would not be a normal number where the operands are, or when the file would grow.
    """
    first, second = match.array(left), match.array(right)
    integral = first.dtype.kind in "iu"
    wide = first.dtype if integral else np.dtype(np.float64)

    def run(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(*(np.asarray(array).astype(wide) for array in arrays))).astype(first.dtype)

    result = constants.elementwise(run, first, second)
    small = constants.is_splat(result) or result.nbytes <= max(first.nbytes, second.nbytes, GROWTH)
    match.require(small, "the merged constant would be larger than the two it replaces")
    if not integral:
        _require_normal(match, result, first, second)
    return result


def _require_normal(match: Match, result: np.ndarray, *sources: np.ndarray) -> None:
    """Refuse overflow and underflow: 1e-30 * 1e-30 would turn a product of normal numbers into 0."""
    probe = np.asarray(result[(0,) * result.ndim]) if constants.is_splat(result) else result
    values = np.abs(probe.astype(np.float64))
    tiny = 2.0**-14 if result.dtype.itemsize == 2 and result.dtype.kind == "f" else 2.0**-126
    match.require(bool(np.isfinite(values).all()), "the merged constant is not finite")
    zero = values == 0
    match.require(bool((zero | (values >= tiny)).all()), "the merged constant is too small for its type")
    if zero.any():
        given = any(bool((source == 0).any()) for source in sources)
        match.require(given, "the merged constant is too small for its type")
