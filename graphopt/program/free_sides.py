"""Operators along a dim that a run sets, spelled out with operators that have kernels of any size.

    GlobalAveragePool(x)            -->  ReduceMean(x)                      GlobalMaxPool alike, with ReduceMax
    Conv(x of [n, c, length], w)    -->  MatMul(w of [m, c k], Concat(Slice(x), ..., Slice(x)))
    ... k of 16 and more, stride s  -->  the same of the columns of x as [n, c, length / s, s], w filled up with zeros
    ... with a group for a channel  -->  Slice(x) * w[:, 0] + ... + Slice(x) * w[:, k - 1]
    Conv(x of [n, c, h, length], w as high as x)
                                    -->  the same of x as [n, c h, length]: a sequence, as exporters write it
    ConvTranspose(x, w)             -->  the same of x with zeros between its elements, and of w turned round

Kernels of convolutions and poolings are made for the sides of images that they have. Slices have the stride of a
convolution, and channels in groups are products of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import input_at, int_attribute, ints_attribute, required_input, string_attribute

POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
CONVOLUTIONS = ("Conv", "ConvTranspose")
REDUCED_BY_INPUT = 18  # the opset from which on these reductions take axes as an input
PADDED_BY_INPUT = 11
LONG = 16  # taps, from which on a convolution is cut in strides: fewer parts than taps


def spell_out_free_sides(model: ir.Model, sized: Sequence[ir.Model]) -> None:
    """Spell out what a model computes along sides that a run sets. The model is changed.

    `sized` are copies of it at sizes of which every one is another: sides that differ among them are free.
    """
    facts, known = Facts(model), [Facts(one) for one in sized]
    for node, *copies in zip(tuple(model.graph), *map(tuple, (one.graph for one in sized)), strict=True):
        if node.domain or node.op_type not in (*POOLS, *CONVOLUTIONS) or node.inputs[0] is None:
            continue
        shapes = [there.static_shape(required_input(one, 0)) for there, one in zip(known, copies, strict=True)]
        dims = [shape for shape in shapes if shape is not None]
        if len(dims) < len(shapes) or len({shape[2:] for shape in dims}) == 1:
            continue
        writer, rank = _Writer(model, facts, node), len(dims[0])
        if node.op_type in POOLS:
            writer.pool(rank)
        elif rank == 3:
            writer.convolution(dims[0][1])
        elif rank == 4 and node.op_type == "Conv":
            sides = [axis for axis in (2, 3) if len({shape[axis] for shape in dims}) == 1]
            if len(sides) == 1:
                writer.sequence(dims[0][1], sides[0], dims[0][sides[0]])


class _Writer:
    """The nodes that take the place of one."""

    def __init__(self, model: ir.Model, facts: Facts, node: ir.Node) -> None:
        self._model, self._facts, self._node = model, facts, node
        self._opset, self._made = facts.opset(node), list[ir.Node]()

    def pool(self, rank: int) -> None:
        """A reduction over all sides."""
        x, axes = self._node.inputs[0], list(range(2, rank))
        operator = POOLS[self._node.op_type]
        if self._opset < REDUCED_BY_INPUT:
            self._put(self._add(operator, [x], {"axes": axes}))
        else:
            self._put(self._add(operator, [x, self._constant(np.array(axes))]))

    def convolution(self, channels: int) -> None:
        """A product of the kernel and of the input as often as the kernel is long, or a sum for channels apart."""
        node = self._node
        w, (pads, (stride,), (dilation,)) = self._weights(), self._numbers(1)
        groups, turned = int_attribute(node, "group", 1), node.op_type == "ConvTranspose"
        x = node.inputs[0]
        if w is None or pads is None:
            return
        if turned:
            if groups not in (1, channels) or (groups > 1 and w.shape[1] > 1):
                return
            w = (w if groups > 1 else w.transpose(1, 0, 2))[:, :, ::-1]
            around, (more,) = (w.shape[2] - 1) * dilation, ints_attribute(node, "output_padding", (0,))
            pads = (around - pads[0], around - pads[1] + more)
        if min(pads) < 0:
            return
        x = self._with_zeros(x, channels, stride) if turned else x
        self._put(self._along(x, w, channels, pads, dilation, 1 if turned else stride))

    def sequence(self, channels: int, side: int, size: int) -> None:
        """An image whose kernel is as high as it is: its rows are channels, what is left is a length."""
        w, (pads, strides, dilations), at = self._weights(), self._numbers(2), side - 2
        x = self._node.inputs[0]
        if w is None or pads is None or min(pads) < 0:
            return
        taps, dilation = w.shape[side], dilations[at]
        reach, before, behind = (taps - 1) * dilation + 1, pads[at], pads[at + 2]
        if before + size + behind != reach:
            return
        spread = np.zeros((*w.shape[:2], reach, w.shape[5 - side]), w.dtype)
        spread[:, :, ::dilation] = w if side == 2 else w.transpose(0, 1, 3, 2)
        if side == 3:
            x = self._add("Transpose", [x], {"perm": [0, 1, 3, 2]})
        if before or behind:
            x = self._add("Pad", [x, self._constant(np.array([0, 0, before, 0, 0, 0, behind, 0]))])
        x = self._add("Reshape", [x, self._constant(np.array([0, channels * reach, -1]))])
        lines, other = spread.reshape(len(w), -1, spread.shape[3]), 1 - at
        made = self._along(x, lines, channels * reach, (pads[other], pads[other + 2]), dilations[other], strides[other])
        dims = np.array([0, len(w), 1, -1] if side == 2 else [0, len(w), -1, 1])
        self._put(self._add("Reshape", [made, self._constant(dims)]))

    def _weights(self) -> np.ndarray | None:
        """The kernel, of short floats as they are stored; None where it, the input's type or the opset is another."""
        node, weight = self._node, input_at(self._node, 1)
        w = None if weight is None else self._facts.array(weight)
        maker = None if weight is None else weight.producer()
        if w is None and maker is not None and maker.op_type == "Cast":
            w = self._facts.array(maker.inputs[0])
        is_plain = not ints_attribute(node, "output_shape") and self._opset >= PADDED_BY_INPUT
        return w if is_plain and self._facts.dtype(required_input(node, 0)) is ir.DataType.FLOAT else None

    def _numbers(self, rank: int) -> tuple[tuple[int, ...] | None, tuple[int, ...], tuple[int, ...]]:
        """Pads, strides and dilations; no pads where they follow from a length that a run sets."""
        node = self._node
        strides, dilations = (tuple(ints_attribute(node, one) or (1,) * rank) for one in ("strides", "dilations"))
        pads: tuple[int, ...] | None = tuple(ints_attribute(node, "pads") or (0,) * 2 * rank)
        kind, w = string_attribute(node, "auto_pad", "NOTSET"), input_at(node, 1)
        shape = None if w is None else self._facts.static_shape(w)
        if kind == "VALID":
            pads = (0,) * 2 * rank
        elif kind != "NOTSET":
            pads = None
            if shape is not None and node.op_type == "Conv" and set(strides) == {1}:
                around = [(taps - 1) * dilation for taps, dilation in zip(shape[2:], dilations, strict=True)]
                less, more = [one // 2 for one in around], [one - one // 2 for one in around]
                pads = (*less, *more) if kind == "SAME_UPPER" else (*more, *less)
        return pads, strides, dilations

    def _along(
        self, x: ir.Value | None, w: np.ndarray, channels: int, pads: Sequence[int], dilation: int, step: int
    ) -> ir.Value:
        """The convolution of [n, channels, length] with [m, channels / groups, taps], and its bias."""
        groups, bias, length = int_attribute(self._node, "group", 1), input_at(self._node, 2), w.shape[2]
        is_apart = groups > 1 and groups == channels == len(w)
        in_strides = step > 1 and length >= LONG and dilation == 1 and not is_apart
        if in_strides:  # taps up to a multiple of the stride, which weigh nothing
            w = np.pad(w, ((0, 0), (0, 0), (0, -length % step)))
            pads = (pads[0], pads[1] + -length % step)
        if any(pads):
            x = self._add("Pad", [x, self._constant(np.array([0, 0, pads[0], 0, 0, pads[1]]))])
        if groups > 1 and not is_apart:
            x = self._add("Reshape", [x, self._constant(np.array([0, groups, channels // groups, -1]))])
        axis = 3 if groups > 1 and not is_apart else 2
        columns: ir.Value | None
        if in_strides:
            columns = self._in_strides(x, channels // groups, w.shape[2] // step, axis, step)
        else:
            parts = [
                self._part(x, place * dilation, (length - 1 - place) * dilation, axis, step) for place in range(length)
            ]
            columns = parts[0] if length == 1 or is_apart else self._add("Concat", parts, {"axis": axis - 1})
        if not is_apart:
            rows = w.transpose(0, 2, 1).reshape(*((groups,) if groups > 1 else ()), len(w) // groups, -1)
            result = self._add("MatMul", [self._factor(rows), columns])
            if groups > 1:
                result = self._add("Reshape", [result, self._constant(np.array([0, len(w), -1]))])
        else:
            factors = [self._factor(w[:, :, place]) for place in range(length)]
            result, *others = (self._add("Mul", pair) for pair in zip(parts, factors, strict=True))
            for other in others:
                result = self._add("Add", [result, other])
        if bias is not None:
            column = self._add("Reshape", [bias, self._constant(np.array([-1, 1]))])
            result = self._add("Add", [result, column])
        return result

    def _in_strides(self, x: ir.Value | None, channels: int, count: int, axis: int, stride: int) -> ir.Value:
        """The columns of a kernel as long as so many strides: (tap, channel) by outputs, from stretches of a stride."""
        length = self._add("Gather", [self._add("Shape", [x]), self._constant(np.array([axis]))])
        step, begin = self._constant(np.array([stride])), self._constant(np.array([0]))
        whole = self._add("Mul", [self._add("Div", [length, step]), step])
        x = self._add("Slice", [x, begin, whole, self._constant(np.array([axis]))])
        x = self._add("Reshape", [x, self._constant(np.array([*[0] * axis, -1, stride]))])
        parts = [self._part(x, place, count - 1 - place, axis) for place in range(count)]
        frames = parts[0] if count == 1 else self._add("Concat", parts, {"axis": axis + 1})
        turned = self._add("Transpose", [frames], {"perm": [*range(axis - 1), axis + 1, axis - 1, axis]})
        rows = count * stride * channels
        return self._add("Reshape", [turned, self._constant(np.array([*[0] * (axis - 1), rows, -1]))])

    def _with_zeros(self, x: ir.Value | None, channels: int, stride: int) -> ir.Value | None:
        """The input with zeros between the elements of its length."""
        if stride == 1:
            return x
        apart = self._add("Reshape", [x, self._constant(np.array([0, channels, -1, 1]))])
        padded = self._add("Pad", [apart, self._constant(np.array([0, 0, 0, 0, 0, 0, 0, stride - 1]))])
        together = self._add("Reshape", [padded, self._constant(np.array([0, channels, -1]))])
        return self._part(together, 0, stride - 1)

    def _part(self, x: ir.Value | None, before: int, behind: int, axis: int = 2, step: int = 1) -> ir.Value | None:
        """The input without so many elements at the begin and at the end of its length, one of every step."""
        if not before and not behind and step == 1:
            return x
        end = -behind if behind else np.iinfo(np.int64).max
        return self._add("Slice", [x, *(self._constant(np.array([number])) for number in (before, end, axis, step))])

    def _factor(self, array: np.ndarray) -> ir.Value:
        """A part of the kernel, which is widened where it is of short floats."""
        made = self._constant(array)
        return made if array.dtype == np.float32 else self._add("Cast", [made], {"to": int(ir.DataType.FLOAT)})

    def _constant(self, array: np.ndarray) -> ir.Value:
        return self._add("Constant", [], {"value": ir.tensor(np.ascontiguousarray(array))})

    def _add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: dict[str, object] | None = None
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes=attributes or {})  # type: ignore[arg-type]
        node.outputs[0].name = f"{self._node.outputs[0].name}/{operator}{len(self._made)}"
        self._made.append(node)
        return node.outputs[0]

    def _put(self, result: ir.Value) -> None:
        output, graph = self._node.outputs[0], self._model.graph
        result.name, output.name = output.name, f"{output.name}/before"
        result.type, result.shape = output.type, output.shape
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        graph.insert_before(self._node, self._made)
        graph.remove(self._node, safe=True)
