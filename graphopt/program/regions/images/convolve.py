"""Conv and ConvTranspose as regions, with the elementwise nodes behind them as epilogue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import (
    OF_ANY_SIDES,
    input_at,
    int_attribute,
    ints_attribute,
    required_input,
)
from graphopt.model.operators.padding import padding
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.columns import are_columns_faster
from graphopt.program.regions.images.convert import turning
from graphopt.program.regions.images.image import Image, layout_of
from graphopt.program.regions.images.phases import cut_of, lower_phases
from graphopt.program.regions.images.planes import FlatReader, planes_as_rows
from graphopt.program.regions.images.side_by_side import pixels_of, spread_weights, wider
from graphopt.program.regions.images.sources import (
    ImageReader,
    block_of,
    by_strides,
    channels_last,
    image_of,
    merging_of,
    result_layout,
    vector_image,
    vector_layout,
)
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.scope import Places, Scope
from graphopt.program.regions.weights import weights_of
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, whole
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.tensor.expression import Expression

CONVOLUTIONS = ("Conv", "ConvTranspose")


def lower_convolution(scope: Scope, tree: Tree) -> None:
    """The region of a convolution and its epilogue."""
    node, root = tree.anchor, root_of(tree).outputs[0]
    assert node is not None, "the tree of a convolution has one"
    name = f"{node.op_type} '{node.name or node.outputs[0].name}'"
    given = weights_of(scope.facts, required_input(node, 1))
    if given is None:
        raise NotLowered(f"{name} has weights that are known only when it runs.")
    weights, stored = given
    if scope.dtype(node.outputs[0]) is not DType.F32:
        raise NotLowered(f"{name} is not of float32.")
    any_sides = OF_ANY_SIDES in node.metadata_props
    if node.op_type == "ConvTranspose" and not any_sides and _is_faster_as_columns(scope, node, weights.shape):
        raise NotLowered(f"{name} is faster as a product whose columns are summed.")
    if node.op_type == "ConvTranspose" and _by_phases(scope, tree, node, weights, stored, any_sides=any_sides):
        return
    problem, source = _problem(scope, node, root, weights.shape)
    problem = replace(problem, output=scope.laid(root, problem.output), weights_dtype=stored)
    problem, source = _side_by_side_where_faster(scope, node, problem, source)
    pixels = pixels_of(scope, node, tree, problem)
    flat = planes_as_rows(scope, node, tree, problem)
    frame = flat or wider(problem, pixels)
    reader = (FlatReader if flat else ImageReader)(scope, tree, frame)
    at = reader.at(len(scope.shape(root)))
    sums: Expression = ACCUMULATED[()]
    bias = input_at(node, 2)
    if bias is not None:
        array = scope.constant(bias)
        if array is None:
            raise NotLowered(f"{name} has a bias that is known only when it runs.")
        sums = sums + reader.per_channel(bias, array, at, pixels)
    reader.accumulated[node.outputs[0]] = sums
    value = sums if root is node.outputs[0] else reader.value(root, at)
    if problem.sees_one_channel:  # a few weights for each channel, which its kernel wants wide
        weights, stored = np.asarray(scope.constant(required_input(node, 1)), np.float32), DType.F32
    computed = replace(frame, epilogue=Epilogue(value), weights_dtype=stored)
    kernel = scope.kernel(convolution_template(scope, node, computed), computed)
    weights = spread_weights(weights, pixels) if pixels > 1 else weights
    packed = scope.weight("weights", node.outputs[0].name, weights, kernel.operand("weights"))
    output = problem.output if pixels == 1 else layout_of(scope.shape(root), "NHWC")
    made = scope.image(root, output)
    places: Places = {**reader.buffers, "x": source.place, "weights": packed, "y": made.place}
    scope.add(kernel, places, (node, *tree.in_order))
    if any_sides:
        by_strides(scope, root)


def _problem(scope: Scope, node: ir.Node, root: ir.Value, weights: tuple[int, ...]) -> tuple[Convolution, Image]:
    x, shape = required_input(node, 0), scope.shape(node.outputs[0])
    source, window = image_of(scope, x), weights[2:]
    rank, size, out = len(window), scope.shape(x)[2:], shape[2:]
    groups = int_attribute(node, "group", 1)
    strides, dilations = ints_attribute(node, "strides", (1,) * rank), ints_attribute(node, "dilations", (1,) * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        cut = cut_of(node, size, out, reach, strides)
        before = tuple(span - 1 - one for span, one in zip(reach, cut, strict=True))
        return Convolution(
            source.layout, result_layout(scope, root), whole(window, 1), dilations=whole(dilations, 1),
            pads=whole(before, 0), groups=groups, input_dilations=whole(strides, 1), transposed=True,
        ), source  # fmt: skip
    before, _ = padding(node, size, out, reach, strides)
    merging, output = 1, result_layout(scope, root)
    if OF_ANY_SIDES in node.metadata_props:
        source, output = channels_last(scope, x), layout_of(shape, "NHWC")
        merging = merging_of(scope.target, groups, weights[1])
    elif groups == shape[1] == weights[0] and weights[1] == 1 and groups > 1:
        source = vector_image(scope, x)  # each channel alone: only channels side by side are fast
        output = _like(source.layout, shape)
    return Convolution(
        source.layout,
        output,
        whole(window, 1),
        whole(strides, 1),
        whole(dilations, 1),
        whole(before, 0),
        groups,
        merging=merging,
    ), source


def _side_by_side_where_faster(
    scope: Scope, node: ir.Node, problem: Convolution, source: Image
) -> tuple[Convolution, Image]:
    """The convolution of a copy whose channels lie side by side, where they lie apart and it is estimated to pay.

    The convolutions that read the same value share the copy.
    """
    x, target, one = required_input(node, 0), scope.target, problem
    if source.layout.order != "NCHW" or problem.transposed or target.is_gpu:
        return problem, source
    if scope.steady:  # whatever the number of images is, the kernel is one
        one = replace(problem, input=replace(problem.input, batch=1), output=replace(problem.output, batch=1))
    block, few = block_of(target), source.layout.channels < block_of(target)
    copied = replace(one, input=vector_layout((one.input.batch, *source.shape[1:]), block))
    templates = [convolution_template(scope, node, way) for way in (one, copied)]
    if few and not isinstance(templates[1].candidates(copied, target)[0], Winograd):
        return problem, source  # a few channels are as near to other kernels where they lie apart
    apart, together = (scope.likely(*way) for way in zip(templates, (one, copied), strict=True))
    readers = sum(use.node.op_type == "Conv" for use in x.uses())
    if apart <= together + turning(one.input, target) / readers:
        return problem, source
    made = vector_image(scope, x)
    return replace(problem, input=made.layout), made


def _like(layout: Layout, shape: tuple[int, ...]) -> Layout:
    return layout_of(shape, layout.order, layout.block)


def _is_faster_as_columns(scope: Scope, node: ir.Node, weights: tuple[int, ...]) -> bool:
    return are_columns_faster(scope, node, weights, lambda: _problem(scope, node, node.outputs[0], weights)[0])


def _by_phases(
    scope: Scope, tree: Tree, node: ir.Node, weights: npt.NDArray[np.generic], stored: DType, *, any_sides: bool
) -> bool:
    """Lower a ConvTranspose without zeros in its input; False where it must be done with them."""
    size, out, window = scope.shape(required_input(node, 0))[2:], scope.shape(node.outputs[0])[2:], weights.shape[2:]
    ones = (1,) * len(size)
    strides, dilations = ints_attribute(node, "strides", ones), ints_attribute(node, "dilations", ones)
    if int_attribute(node, "group", 1) != 1 or dilations != ones:
        return False
    cut = cut_of(node, size, out, window, strides)
    done = lower_phases(scope, tree, weights, stored, strides, cut, any_sides=any_sides)
    if any_sides and not done:
        raise NotLowered(f"ConvTranspose '{node.name or node.outputs[0].name}' is joined by what lies otherwise.")
    return done
