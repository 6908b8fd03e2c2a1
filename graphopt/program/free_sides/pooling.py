"""Poolings along sides that a run sets.

GlobalAveragePool(x)  -->  ReduceMean(x); GlobalMaxPool alike, with ReduceMax
MaxPool, AveragePool  -->  as they are, of rows and columns: their kernel takes sides from the run. Else
MaxPool(x)            -->  Max(Slice(x), ..., Slice(x)), of x with the least number around it
AveragePool(x)        -->  (Slice(x) + ... + Slice(x)) / taps, or by how many of them lie in the image
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model.nodes import int_attribute, ints_attribute
from graphopt.program.free_sides.convolution import PADDED_BY_INPUT, PLANE
from graphopt.program.free_sides.writer import Sides, Writer

POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
REDUCED_BY_INPUT = 18  # the opset from which on these reductions take axes as an input


def whole(writer: Writer, sides: Sides) -> None:
    """A reduction over all sides."""
    x, axes, operator = writer.x, list(range(2, 2 + sides.rank)), POOLS[writer.node.op_type]
    if writer.opset < REDUCED_BY_INPUT:
        writer.put(writer.add(operator, [x], {"axes": axes}))
    else:
        writer.put(writer.add(operator, [x, writer.constant(np.array(axes))]))


def largest(writer: Writer, sides: Sides) -> None:
    """The largest of what the taps of a window meet."""
    x = writer.x
    kind = writer.facts.dtype(x)
    if kind is None or not kind.is_floating_point() or len(writer.node.outputs) > 1:
        return
    if kind is ir.DataType.FLOAT and _is_kept(writer, sides):
        return
    parts = _met(writer, x, sides, writer.constant(np.array(-np.inf, kind.numpy())))
    if parts is not None:
        _put(writer, parts[0] if len(parts) == 1 else writer.add("Max", parts))


def average(writer: Writer, sides: Sides) -> None:
    """The sum of what the taps of a window meet, by their number or by that of those in the image."""
    x = writer.x
    if writer.facts.dtype(x) is not ir.DataType.FLOAT:
        return
    given, _, _ = writer.numbers(_taps(writer))
    if _is_kept(writer, sides):
        return
    pads, counts_pads = _pads(writer), any(given or (1,)) and int_attribute(writer.node, "count_include_pad", 0)
    parts = None if counts_pads and pads != given else _met(writer, x, sides, None)
    if parts is None:
        return
    taps = writer.constant(np.array(prod(_taps(writer)), np.float32))
    if any(pads or (1,)) and not counts_pads:
        # 1 for every element of the image, which no size alone makes a constant; a NaN is one in the sum too.
        least = writer.constant(np.array(-1, np.float32))
        inside = writer.add("Cast", [writer.add("Greater", [writer.add("Abs", [x]), least])], {"to": 1})
        counted = _met(writer, inside, sides, None)
        assert counted is not None, "as those of the image"
        taps = _sum(writer, counted)
    _put(writer, writer.add("Div", [_sum(writer, parts), taps]))


def _is_kept(writer: Writer, sides: Sides) -> bool:
    """Let the node stand where its kernel takes sides from the run."""
    pads, (_, strides, _) = _pads(writer), writer.numbers(_taps(writer))
    if writer.target is None or sides.rank > PLANE or pads is None:
        return False
    writer.keep(pads, _reach(writer), strides)
    return True


def _taps(writer: Writer) -> tuple[int, ...]:
    return tuple(ints_attribute(writer.node, "kernel_shape") or ())


def _pads(writer: Writer) -> tuple[int, ...] | None:
    """What lies around the image; where sides are rounded up, enough behind it for a window that is not whole.

    None where pads follow from the sides, and where a rounded window may begin behind the image, which none does.
    """
    taps = _taps(writer)
    pads, strides, _ = writer.numbers(taps)
    if pads is None or min(pads) < 0:
        return None
    if not int_attribute(writer.node, "ceil_mode", 0):
        return pads
    before, behind = pads[: len(taps)], pads[len(taps) :]
    if any(pad + step > reach for pad, step, reach in zip(behind, strides, _reach(writer), strict=True) if step > 1):
        return None
    return *before, *(pad + step - 1 for pad, step in zip(behind, strides, strict=True))


def _reach(writer: Writer) -> list[int]:
    """How many pixels a window spans along each side."""
    taps = _taps(writer)
    _, _, dilations = writer.numbers(taps)
    return [(count - 1) * dilation + 1 for count, dilation in zip(taps, dilations, strict=True)]


def _put(writer: Writer, result: ir.Value) -> None:
    taps, pads, reach = _taps(writer), _pads(writer), _reach(writer)
    _, strides, _ = writer.numbers(taps)
    if pads is None:  # a window for each begun stride
        pads = (*(one - 1 for one in reach), *(0 for _ in reach))
    made = writer.of_windows(result, writer.x, pads, reach, strides)
    writer.put(writer.channels_first(made, len(taps)))


def _sum(writer: Writer, parts: list[ir.Value]) -> ir.Value:
    total = parts[0]
    for one in parts[1:]:
        total = writer.add("Add", [total, one])
    return total


def _met(writer: Writer, x: ir.Value, sides: Sides, around: ir.Value | None) -> list[ir.Value] | None:
    """What each tap of the window meets, channels last, with `around` around the image; None where nobody says it."""
    taps, pads = _taps(writer), _pads(writer)
    _, strides, dilations = writer.numbers(taps)
    if writer.opset < PADDED_BY_INPUT:
        return None
    if pads is not None:
        image = writer.padded(writer.channels_last(x, sides.rank), pads, 1, around)
    else:
        surrounded = writer.surrounded(x, taps, around)
        if surrounded is None or int_attribute(writer.node, "ceil_mode", 0):
            return None
        image = writer.channels_last(surrounded, sides.rank)
    return writer.parts(image, taps, dilations, strides, 1)
