"""ConvTranspose as one product of its weights and pixels, whose columns are summed, where that is likely to be faster.

Convolutions write vectors of channels: where a result has few of them, most lanes compute nothing. The product has a
row for each weight of a channel and a column for each pixel, and reaches the processor's peak; summing its columns
(`routines/row_sums.py`) costs a pass over them. Groups of a few channels have no product: rows are summed, each times
its weight, as convolutions see zeros between their pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import onnx_ir as ir

from graphopt.model.nodes import int_attribute, ints_attribute, required_input
from graphopt.program.regions.images.convert import turning
from graphopt.program.regions.images.image import layout_of
from graphopt.program.regions.images.phases import convolution_of, cut_of, has_phases, kernels_of, output_of
from graphopt.program.regions.images.sources import block_of, result_layout, vector_layout
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.routines.row_sums import FEW, PIECE, are_bands, are_gathered
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.templates.convolution.problem import Convolution, whole
from kernels.templates.cost import nanoseconds
from kernels.templates.gemm import GEMM
from kernels.templates.gemm_problem import Gemm

SURELY = 1.1  # times faster: estimates of products and convolutions are further off than that
SUMMED, GATHERED = 2.0, 1.2  # cycles for an element of a column: one by one, a stride apart, and by vectors


def are_columns_faster(
    scope: Scope, node: ir.Node, weights: tuple[int, ...], otherwise: Callable[[], Convolution]
) -> bool:
    """By estimate; weights of these dims. `otherwise` makes the convolution of an image with zeros between its pixels.

    Programs for many sizes have convolutions always, as GPUs do.
    """
    target, x, result = scope.target, required_input(node, 0), scope.shape(node.outputs[0])
    groups, ones = int_attribute(node, "group", 1), (1,) * len(weights[2:])
    strides = ints_attribute(node, "strides", ones)
    if scope.steady or target.is_gpu or strides == ones or scope.dtype(x) is not DType.F32:
        return False
    shape = scope.shape(x)
    (batch, channels, *size), rows = shape, prod(weights[1:])
    vectors, bands = are_gathered(weights[-1], size[-1]), are_bands(groups, weights[1], weights[2:], size)
    if groups > 1 and not (channels // groups <= FEW and vectors):
        return False
    if groups == 1 and DType.F32.bytes * prod(weights[2:]) * prod(size) > PIECE and not bands:
        return False  # the columns of one channel take much memory
    given = scope.images[x].layout if x in scope.images else layout_of(shape, "NCHW")
    final, stride = vector_layout(result, block_of(target)), whole(strides, 1)
    phases = groups == 1 and ints_attribute(node, "dilations", ones) == ones
    if phases and has_phases(stride, whole(result[2:], 1)):
        pads = whole(cut_of(node, size, result[2:], weights[2:], strides), 0)
        if final.order == "NCHWc" and result[1] % final.block:
            final = layout_of(result, "NHWC")
        problems = [
            convolution_of(taps, given, output_of(result, stride, number, final, final.block))
            for number, taps in kernels_of(whole(weights[2:], 1), stride, pads)
        ]
    else:
        problems = [otherwise()]
    as_convolutions = sum(scope.likely(convolution_template(scope, node, one), one) for one in problems)
    passing = batch * rows * prod(size)
    if groups > 1:  # rows of the operand are summed, times their weights
        as_columns = nanoseconds(GATHERED * passing * channels, target)
    else:
        moved = 2 * DType.F32.bytes * passing
        as_columns = scope.likely(GEMM, Gemm(rows, prod(size), channels, (batch,), constant_b=False))
        as_columns += nanoseconds((GATHERED if vectors else SUMMED) * passing + moved / target.rate(moved), target)
    lie = given, result_layout(scope, node.outputs[0])
    as_columns += sum(turning(one, target) for one in lie if one.order == "NCHWc")
    return SURELY * as_columns < as_convolutions
