"""Windows over images [N, C, ...]: convolutions and pools, with the zeros around an image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import constants, dims, nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.nodes import int_attribute, ints_attribute
from graphopt.model.operators.axes import channels_first
from graphopt.model.operators.gradients import regions, sampling
from graphopt.model.operators.gradients import windows as gradients
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.padding import padding
from graphopt.model.operators.parts import AttributeValue, Part, Range, Shape, Wanted
from graphopt.model.operators.record import Flops, Operator, no_flops, per_operand_element
from graphopt.model.operators.shapes import Result, first_type, source_shape


def _window_dims(node: ir.Node, facts: Knowledge) -> Result:
    """Conv and pools whose spatial dims are symbols: the arithmetic of the operator's specification.

    Of pools that round up there is a formula where no window can begin behind the image.
    """
    source = source_shape(node, facts)
    if source is None or dims.is_static(source) or len(source) < 3 or len(nodes.used_outputs(node)) > 1:
        return None
    spatial = len(source) - 2
    kernel: tuple[int, ...] | None = nodes.ints_attribute(node, "kernel_shape")
    channels: dims.Dim = source[1]
    if node.op_type == "Conv":
        weight = None if node.inputs[1] is None else facts.static_shape(node.inputs[1])
        if weight is None:
            return None
        kernel, channels = weight[2:], weight[0]
    padding, is_rounded_up = _padding_of(node), nodes.int_attribute(node, "ceil_mode", 0)
    if kernel is None or (padding != "NOTSET" and is_rounded_up):
        return None
    strides = nodes.ints_attribute(node, "strides") or (1,) * spatial
    dilations = nodes.ints_attribute(node, "dilations") or (1,) * spatial
    pads = (nodes.ints_attribute(node, "pads") if padding == "NOTSET" else None) or (0,) * (2 * spatial)
    if not len(kernel) == len(strides) == len(dilations) == len(pads) / 2 == spatial:
        return None  # the schema refuses it
    result: list[dims.Dim] = [source[0], channels]
    for axis in range(spatial):
        if padding.startswith("SAME"):
            steps = (sympy.sympify(source[2 + axis]) + strides[axis] - 1) / strides[axis]
            result.append(dims.floor(steps))
            continue
        reach, behind = dilations[axis] * (kernel[axis] - 1) + 1, pads[axis + spatial]
        if is_rounded_up and strides[axis] > 1:
            if behind + strides[axis] > reach:
                return None
            behind += strides[axis] - 1
        free = source[2 + axis] + pads[axis] + behind - reach
        if isinstance(free, int):
            result.append(free // strides[axis] + 1)
        else:
            result.append(dims.floor(sympy.sympify(free) / strides[axis] + 1))
    return (Known(first_type(node, facts), tuple(result), None),) * max(len(node.outputs), 1)


def _padding_of(node: ir.Node) -> str:
    return nodes.string_attribute(node, "auto_pad", "NOTSET")


def _pool_dims(node: ir.Node, facts: Knowledge) -> Result:
    """Pools that round up leave out a window that would begin behind the image: the schema says so since opset 22."""
    source, kernel = source_shape(node, facts), nodes.ints_attribute(node, "kernel_shape")
    if source is None or not dims.is_static(source) or kernel is None or _padding_of(node) != "NOTSET":
        return _window_dims(node, facts)
    if not nodes.int_attribute(node, "ceil_mode", 0) or len(source) != len(kernel) + 2:
        return None
    spatial = len(kernel)
    strides = nodes.ints_attribute(node, "strides") or (1,) * spatial
    dilations = nodes.ints_attribute(node, "dilations") or (1,) * spatial
    pads = nodes.ints_attribute(node, "pads") or (0,) * (2 * spatial)
    result: list[dims.Dim] = [source[0], source[1]]
    for axis, size in enumerate(source[2:]):
        assert isinstance(size, int), "all dims are numbers"
        free = size + pads[axis] + pads[axis + spatial] - dilations[axis] * (kernel[axis] - 1) - 1
        count = -(-free // strides[axis]) + 1
        result.append(count - 1 if (count - 1) * strides[axis] >= size + pads[axis] else count)
    indices = Known(ir.TensorType(ir.DataType.INT64), tuple(result), None)
    return (Known(first_type(node, facts), tuple(result), None), indices)[: max(len(node.outputs), 1)]


def _transposed_dims(node: ir.Node, facts: Knowledge) -> Result:
    """A ConvTranspose that says its spatial dims; the schema infers too few where they are below the operand's."""
    source, given = source_shape(node, facts), nodes.ints_attribute(node, "output_shape")
    weight = None if node.inputs[1] is None else facts.static_shape(node.inputs[1])
    if source is None or weight is None or given is None or len(given) != len(source) - 2:
        return None
    channels = weight[1] * nodes.int_attribute(node, "group", 1)
    return (Known(first_type(node, facts), (source[0], channels, *given), None),)


def _convolution_flops(weight: int, bias: int | None = None) -> Flops:
    """Each output element takes a product with the kernel, input `weight`, over the channels of one group."""

    def count(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
        added = prod(outputs[0]) if bias is not None and nodes.input_at(node, bias) is not None else 0
        return 2 * prod(outputs[0]) * prod(inputs[weight][1:]) + added

    return count


def _transposed_convolution_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Each input element is multiplied with the kernel for each output channel of its group."""
    bias = prod(outputs[0]) if nodes.input_at(node, 2) is not None else 0
    return 2 * prod(inputs[0]) * prod(inputs[1][1:]) + bias


def _pool_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    return prod(outputs[0]) * prod(nodes.ints_attribute(node, "kernel_shape") or (1,))


def _convolution_part(wanted: Wanted) -> Part | None:
    if wanted.axis == 1:
        return _channels_part(wanted)
    return _window_part(wanted, wanted.shapes[1][2:])


def _channels_part(wanted: Wanted) -> Part | None:
    """Whole groups of output channels: their rows of the weights, and their own channels of the image."""
    weights = wanted.shapes[1]
    groups = int_attribute(wanted.node, "group", 1)
    if any(value is not None and constants.of_initializer(value) is None for value in wanted.node.inputs[1:]):
        return None  # a tile would cut weights in every run
    if groups == 1:
        first, last, image = wanted.range.low, wanted.range.high, None
        attributes: dict[str, AttributeValue] = {}
    else:
        each = weights[0] // groups
        low, high = wanted.range.low // each, -(-wanted.range.high // each)
        first, last = low * each, high * each
        image = Range(1, low * weights[1], high * weights[1])
        attributes = {"group": high - low}
    rows = Range(0, first, last)
    return Part((image, *(rows if shape else None for shape in wanted.shapes[1:])), (first, last), attributes)


def _pool_part(wanted: Wanted) -> Part | None:
    if wanted.axis == 1:
        return wanted.same()
    return _window_part(wanted, nodes.ints_attribute(wanted.node, "kernel_shape") or ())


def _window_part(wanted: Wanted, kernel: Sequence[int]) -> Part | None:
    """Windows over an image: the range they reach; zeros stay only where the image ends."""
    if wanted.axis == 0:
        return wanted.same()
    rank, at = len(kernel), wanted.axis - 2
    if at < 0 or rank != len(wanted.result) - 2:
        return None
    strides = ints_attribute(wanted.node, "strides", (1,) * rank)
    dilations = ints_attribute(wanted.node, "dilations", (1,) * rank)
    size = wanted.shapes[0][2:]
    reach = [(k - 1) * step + 1 for k, step in zip(kernel, dilations, strict=True)]
    before, after = padding(wanted.node, size, wanted.result[2:], reach, strides)
    begin = wanted.range.low * strides[at] - before[at]
    end = (wanted.range.high - 1) * strides[at] - before[at] + reach[at]
    low, high = max(begin, 0), min(end, size[at])
    zeros = (low - begin, end - high)
    if high <= low or zeros[0] > before[at] or zeros[1] > after[at]:  # a window beyond the zeros: ceil_mode
        return None
    pads = [*before, *after]
    pads[at], pads[rank + at] = zeros
    changed: dict[str, AttributeValue] = {"pads": tuple(pads)}
    if "auto_pad" in wanted.node.attributes:
        changed["auto_pad"] = "NOTSET"
    return wanted.first(Range(wanted.axis, low, high), attributes=changed)


def _transposed_convolution_part(wanted: Wanted) -> Part | None:
    kernel = wanted.shapes[1][2:]
    rank, at = len(kernel), wanted.axis - 2
    if wanted.axis == 0:
        return wanted.same()
    automatic = nodes.string_attribute(wanted.node, "auto_pad", "NOTSET") != "NOTSET"
    if at < 0 or automatic or "output_shape" in wanted.node.attributes:
        return None
    strides = ints_attribute(wanted.node, "strides", (1,) * rank)
    dilations = ints_attribute(wanted.node, "dilations", (1,) * rank)
    pads = list(ints_attribute(wanted.node, "pads", (0,) * (2 * rank)))
    more = list(ints_attribute(wanted.node, "output_padding", (0,) * rank))
    step, reach = strides[at], (kernel[at] - 1) * dilations[at] + 1
    begin, end = wanted.range.low + pads[at], wanted.range.high + pads[at]  # in what all windows together write
    size = wanted.shapes[0][wanted.axis]
    low = max(0, min(-(-(begin - reach + 1) // step), begin // step, size - 1))
    high = min(size, (end - 1) // step + 1)
    written = (low * step, (high - 1) * step + reach)
    if end - written[1] >= step:
        return None
    pads[at], pads[rank + at] = begin - written[0], max(0, written[1] - end)
    more[at] = max(0, end - written[1])
    changed: dict[str, AttributeValue] = {"pads": tuple(pads), "output_padding": tuple(more)}
    return wanted.first(Range(wanted.axis, low, high), attributes=changed)


def _pool(name: str, gradient: GradientRule) -> Operator:
    return Operator(
        name=name, shape=_pool_dims, flops=_pool_flops, epilogue=True, part=_pool_part, images=(0,),
        gradient=gradient,
    )  # fmt: skip


def _global_pool(name: str, gradient: GradientRule | None = None, *, epilogue: bool = True) -> Operator:
    return Operator(
        name=name, flops=per_operand_element, epilogue=epilogue, axes=channels_first(2), images=(0,),
        gradient=gradient,
    )  # fmt: skip


OPERATORS = (
    Operator(
        name="Conv", shape=_window_dims, flops=_convolution_flops(1, 2), epilogue=True, part=_convolution_part,
        images=(0,), gradient=gradients.convolution,
    ),
    Operator(
        name="ConvTranspose", shape=_transposed_dims, flops=_transposed_convolution_flops, epilogue=True,
        part=_transposed_convolution_part, images=(0,), gradient=gradients.transposed_convolution,
    ),
    Operator(name="ConvInteger", flops=_convolution_flops(1), epilogue=True, images=(0,)),
    Operator(name="QLinearConv", flops=_convolution_flops(3), epilogue=True, images=(0,)),
    Operator(name="DeformConv", flops=_convolution_flops(1), images=(0, 2, 4), gradient=sampling.deformed),
    _pool("AveragePool", gradients.average),
    _pool("MaxPool", gradients.largest),
    Operator(name="LpPool", shape=_pool_dims, flops=_pool_flops, images=(0,), gradient=gradients.power_mean),
    _global_pool("GlobalAveragePool", gradients.global_average),
    _global_pool("GlobalMaxPool", gradients.global_largest),
    _global_pool("GlobalLpPool", gradients.global_power_mean, epilogue=False),
    Operator(name="MaxUnpool", flops=no_flops, gradient=gradients.unpooled),
    Operator(name="Col2Im", gradient=gradients.folded),
    Operator(name="MaxRoiPool", images=(0,), gradient=regions.largest),
    Operator(name="RoiAlign", images=(0,), gradient=regions.aligned),
    Operator(name="GridSample", images=(0,), gradient=sampling.grid_sampled),
)  # fmt: skip
