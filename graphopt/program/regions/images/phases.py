"""ConvTranspose without its zeros: one convolution for each row of a stride, which writes every stride-th row.

    y[s j + p] = sum over m of x[j + d - m] w[r + s m]    with r = (p + pad) mod s and d = (p + pad) // s

Along rows, each phase p is a convolution with the taps that it really has. Along columns, all phases are output
channels of one convolution: the channels of neighbouring columns follow one another in memory, so that its result, s
times as many channels at each column, is the image itself, s times as wide. Rows of other phases are a halo to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.nodes import input_at, required_input
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.image import layout_of
from graphopt.program.regions.images.sources import (
    ImageReader,
    block_of,
    by_strides,
    channels_last,
    image_of,
    reads_images_alike,
)
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.scope import Places, Scope
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout, Triple
from kernels.templates.convolution.problem import Convolution, whole
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.tensor.expression import Expression, Index


@dataclass(frozen=True, slots=True)
class Phase:
    """Output places s j + p along one dim: which taps see the inputs from `low` (relative to j) on."""

    low: int
    taps: tuple[int | None, ...]  # of the kernel; None: no tap sees that input


def phase(number: int, stride: int, taps: int, pad: int) -> Phase:
    """The phase p = `number`."""
    first, ahead = (number + pad) % stride, (number + pad) // stride
    seen: dict[int, int | None] = {ahead - m: first + stride * m for m in range(-(-(taps - first) // stride))}
    seen = seen or {0: None}
    low = min(0, *seen)  # pads are not negative: inputs before the first tap are seen with weights of zero
    return Phase(low, tuple(seen.get(place) for place in range(low, max(seen) + 1)))


def _joined(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Phases that all start and end at the same inputs."""
    low = min(one.low for one in phases)
    high = max(one.low + len(one.taps) for one in phases)
    found = []
    for one in phases:
        before, after = one.low - low, high - one.low - len(one.taps)
        found.append(Phase(low, (None,) * before + one.taps + (None,) * after))
    return tuple(found)


def kernels_of(window: Triple, strides: Triple, pads: Triple) -> list[tuple[Phase, tuple[Phase, ...]]]:
    """Of each phase of rows its taps, and those of all phases of columns."""
    columns = _joined([phase(number, strides[2], window[2], pads[2]) for number in range(strides[2])])
    return [(phase(number, strides[1], window[1], pads[1]), columns) for number in range(strides[1])]


def convolution_of(rows: Phase, columns: Sequence[Phase], given: Layout, made: Layout) -> Convolution:
    """The convolution of a phase of rows: its result has the channels of all phases of columns."""
    kernel = 1, len(rows.taps), len(columns[0].taps)
    return Convolution(given, made, kernel, pads=(0, -rows.low, -columns[0].low))


def has_phases(window: Triple, strides: Triple, pads: Triple, out: Triple) -> bool:
    """Whether a result of this size consists of whole phases along rows and columns."""
    is_plane = window[0] == 1 == strides[0] and not pads[0]
    return is_plane and not (out[1] % strides[1] or out[2] % strides[2]) and strides != (1, 1, 1)


def lower_phases(
    scope: Scope, tree: Tree, weights: npt.NDArray[np.generic], stored: DType, strides: Sequence[int],
    pads: Sequence[int], *, any_sides: bool = False,
) -> bool:  # fmt: skip
    """The regions of a ConvTranspose of one group without dilation; False where its sizes do not fit this form.

    `any_sides`: with kernels that take the sides of images from the run.
    """
    node, root = tree.anchor, root_of(tree).outputs[0]
    assert node is not None, "the tree of a convolution has one"
    shape, stride = scope.shape(root), whole(strides, 1)
    out, window, pad = whole(shape[2:], 1), whole(weights.shape[2:], 1), whole(pads, 0)
    block = block_of(scope.target)
    blocked = shape[1] % block == 0 and not any_sides
    final = layout_of(shape, "NCHWc" if blocked else "NHWC", block)
    width = block if blocked else shape[1]  # channels of a block
    if not has_phases(window, stride, pad, out):
        return False
    reader_of = partial(_Reader, scope, tree, final, stride[2])
    if not reads_images_alike(scope, tree, final):
        return False
    source = (channels_last if any_sides else image_of)(scope, required_input(node, 0))
    result = scope.image(root, final, apart=False)
    whole_weights = weights.reshape(*weights.shape[:2], *window[1:])
    for number, (rows, columns) in enumerate(kernels_of(window, stride, pad)):
        steps = out[2] // stride[2]
        output = Layout(
            shape[0], shape[1] * stride[2], (out[0], out[1] // stride[1], steps), final.order,
            width * stride[2], (0, 0, number * steps), (0, 0, (stride[1] - 1 - number) * steps),
        )  # fmt: skip
        problem = replace(convolution_of(rows, columns, source.layout, output), weights_dtype=stored)
        reader = reader_of(problem)
        at = reader.at(len(shape))
        sums: Expression = ACCUMULATED[()]
        bias = input_at(node, 2)
        if bias is not None:
            sums = sums + reader.outside(bias, at)
        reader.accumulated[node.outputs[0]] = sums
        value = sums if root is node.outputs[0] else reader.value(root, at)
        problem = replace(problem, epilogue=Epilogue(value))
        kernel = scope.kernel(convolution_template(scope, node, problem), problem)
        arranged = _arranged(whole_weights, rows, columns, width)
        packed = scope.weight(f"weights {number}", node.outputs[0].name, arranged, kernel.operand("weights"))
        places: Places = {**reader.buffers, "x": source.place, "weights": packed, "y": result.place}
        scope.add(kernel, places, (node, *tree.in_order))
    if any_sides:
        by_strides(scope, root)
    return True


def _arranged(
    weights: npt.NDArray[np.generic], rows: Phase, columns: Sequence[Phase], width: int
) -> npt.NDArray[np.generic]:
    """Weights (channels, output channels, rows, columns) as those of a phase of rows, a block's columns together."""
    depth, channels = weights.shape[:2]
    taps = len(rows.taps), len(columns[0].taps)
    made = np.zeros((channels // width, len(columns), width, depth, *taps), weights.dtype)
    for number, across in enumerate(columns):
        for r, row in enumerate(rows.taps):
            for c, column in enumerate(across.taps):
                if row is not None and column is not None:
                    made[:, number, :, :, r, c] = weights[:, :, row, column].T.reshape(-1, width, depth)
    return made.reshape(channels * len(columns), depth, 1, *taps)


class _Reader(ImageReader):
    """Reads operands as the convolution sees its result: blocks of several columns."""

    def __init__(self, scope: Scope, tree: Tree, final: Layout, columns: int, frame: Convolution) -> None:
        super().__init__(scope, tree, frame)
        self._final, self._columns = final, columns

    def outside(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        array = self._scope.constant(value)
        if array is None:
            image = self._images[value]
            return self.blocked(replace(image, layout=self._frame.output))
        width = self._frame.output.block // self._columns
        repeated = np.repeat(array.reshape(-1, 1, width), self._columns, axis=1)
        purpose = f"constant of {self._columns}x{width}"
        return self.load(self._scope.filled(value, purpose, repeated.reshape(-1, *(1,) * (len(at) - 2))), at)
