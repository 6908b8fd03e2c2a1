"""Convolutions to few channels as ones to the channels of several pixels: the lanes of a vector would lie idle else.

    y[row, 4 i + p, c] = sum of x[row + r, 4 i + p + k] w[c, r, k]

is a convolution of stride 4 along a row to 4 x 3 channels, with windows 3 columns wider and zeros in the weights. Where
channels lie side by side its result is that of the narrow one. Last layers of networks that make images are such.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.program.regions.fusion import Tree
from graphopt.program.regions.images.convert import turning
from graphopt.program.regions.images.image import layout_of
from graphopt.program.regions.images.sources import reads_numbers_alone
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.scope import Scope
from kernels.templates.convolution.problem import Convolution


def pixels_of(scope: Scope, node: ir.Node, tree: Tree, problem: Convolution) -> int:
    """How many pixels of a row to take as channels: 1 where more are not estimated to be faster.

    What follows must have no operands but single numbers.
    """
    channels, target = problem.output.channels, scope.target
    most = target.lanes() // channels
    plain = problem.strides[2] == problem.dilations[2] == 1 and problem.kernel[2] > 1 and problem.groups == 1
    spread = problem.transposed or problem.input_dilations != (1, 1, 1) or problem.output.order == "NCHWc"
    if scope.steady or target.is_gpu or most < 2 or not plain or spread or not reads_numbers_alone(scope, tree):
        return 1
    width = problem.output.size[2]
    template = convolution_template(scope, node, problem)
    turned = turning(problem.output, target) if problem.output.order == "NCHW" else 0.0
    times = {1: scope.likely(template, problem)}
    for pixels in range(2, most + 1):
        if width % pixels == 0:
            times[pixels] = scope.likely(template, wider(problem, pixels)) + turned
    return min(times, key=lambda pixels: times[pixels])


def wider(problem: Convolution, pixels: int) -> Convolution:
    """The convolution whose channels are those of so many pixels."""
    if pixels == 1:
        return problem
    batch, channels, (depth, height, width) = problem.output.batch, problem.output.channels, problem.output.size
    return replace(
        problem,
        output=layout_of((batch, channels * pixels, depth, height, width // pixels), "NHWC"),
        kernel=(*problem.kernel[:2], problem.kernel[2] + pixels - 1),
        strides=(*problem.strides[:2], pixels),
    )


def spread_weights(weights: npt.NDArray[np.generic], pixels: int) -> npt.NDArray[np.generic]:
    """Its weights: those of each pixel begin a column further."""
    channels, depth, *window = weights.shape
    found = np.zeros((pixels, channels, depth, *window[:-1], window[-1] + pixels - 1), weights.dtype)
    for pixel in range(pixels):
        found[pixel, ..., pixel : pixel + window[-1]] = weights
    return found.reshape(pixels * channels, depth, *found.shape[3:])
