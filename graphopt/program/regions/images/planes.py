"""Convolutions along planes alone as convolutions down the rows of flat images, where that is faster.

A kernel of several planes, one row and one column sees the same pixel of each plane. An image whose rows are the
planes, with all pixels of a plane as columns, lies in memory as the planes do; its kernel has rows alone, and faster
algorithms. Networks for videos have such kernels (D. Tran et al., A Closer Look at Spatiotemporal Convolutions, 2018).
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from graphopt.program.regions.fusion import Tree
from graphopt.program.regions.images.sources import ImageReader, reads_images_alike
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.scope import Scope
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.tensor.expression import Expression, Index


def planes_as_rows(scope: Scope, node: ir.Node, tree: Tree, problem: Convolution) -> Convolution | None:
    """The convolution of flat images in the place of one along planes; None where it is not estimated to be faster.

    What follows reads numbers, numbers for each channel and images that lie as the result does.
    """
    (count, *window), (_, *strides), (_, *pads) = problem.kernel, problem.strides, problem.pads
    if scope.steady or scope.target.is_gpu or count == 1 or problem.transposed or problem.input_dilations != (1, 1, 1):
        return None
    sides = problem.input, problem.output
    if window != [1, 1] or strides != [1, 1] or pads != [0, 0] or sides[0].size[1:] != sides[1].size[1:]:
        return None
    if any(one.stored != one.size for one in sides) or not reads_images_alike(scope, tree, problem.output):
        return None
    flat = replace(
        problem, input=_flat(problem.input), output=_flat(problem.output), kernel=(1, count, 1),
        strides=(1, problem.strides[0], 1), dilations=(1, problem.dilations[0], 1), pads=(0, problem.pads[0], 0),
    )  # fmt: skip
    template = convolution_template(scope, node, problem)
    return flat if scope.likely(template, flat) < scope.likely(template, problem) else None


def _flat(layout: Layout) -> Layout:
    """The same elements as images whose rows are the planes."""
    planes, height, width = layout.size
    return replace(layout, size=(1, planes, height * width))


class FlatReader(ImageReader):
    """Reads images that lie as the result does as the flat ones that the loops go through."""

    def outside(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        """As it lies."""
        image = self._images.get(value)
        if image is not None and self._scope.constant(value) is None:
            return self.blocked(replace(image, layout=_flat(image.layout)))
        return super().outside(value, at)
