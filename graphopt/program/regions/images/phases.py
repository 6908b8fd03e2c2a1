"""ConvTranspose without its zeros: one convolution for each row of a stride, which writes every stride-th row.

So it is along planes of volumes too.

    y[s j + p] = sum over m of x[j + d - m] w[r + s m]    with r = (p + pad) mod s and d = (p + pad) // s

Along planes and rows, each phase p is a convolution with the taps that it really has. Along columns, all phases are
output channels of one convolution: the channels of neighbouring columns follow one another in memory, so that its
result, s times as many channels at each column, is the image itself, s times as wide. Planes and rows of other phases
are a halo to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.nodes import input_at, ints_attribute, required_input, string_attribute
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


Kernel = tuple[Phase, Phase, tuple[Phase, ...]]  # a phase of planes and one of rows, and all phases of columns


def kernels_of(window: Triple, strides: Triple, pads: Triple) -> list[tuple[tuple[int, int], Kernel]]:
    """Of each phase of planes and of rows its numbers, its taps, and those of all phases of columns."""
    columns = _joined([phase(number, strides[2], window[2], pads[2]) for number in range(strides[2])])
    planes, rows = (
        [phase(number, strides[axis], window[axis], pads[axis]) for number in range(strides[axis])] for axis in (0, 1)
    )
    return [((d, h), (plane, row, columns)) for d, plane in enumerate(planes) for h, row in enumerate(rows)]


def convolution_of(kernel: Kernel, given: Layout, made: Layout) -> Convolution:
    """The convolution of a phase: its result has the channels of all phases of columns."""
    planes, rows, columns = kernel
    window = len(planes.taps), len(rows.taps), len(columns[0].taps)
    return Convolution(given, made, window, pads=(-planes.low, -rows.low, -columns[0].low))


def has_phases(strides: Triple, out: Triple) -> bool:
    """Whether a result of this size consists of whole phases along every dim."""
    return not any(size % step for size, step in zip(out, strides, strict=True)) and strides != (1, 1, 1)


def output_of(shape: Sequence[int], strides: Triple, number: tuple[int, int], final: Layout, width: int) -> Layout:
    """Where a phase of planes and one of rows write: in the result, whose other planes and rows are a halo.

    `width` counts the channels of a block of the result.
    """
    out = whole(shape[2:], 1)
    size = out[0] // strides[0], out[1] // strides[1], out[2] // strides[2]
    before = 0, number[0] * size[1], number[1] * size[2]
    after = 0, (strides[0] - 1 - number[0]) * size[1], (strides[1] - 1 - number[1]) * size[2]
    return Layout(shape[0], shape[1] * strides[2], size, final.order, width * strides[2], before, after)


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
    if not has_phases(stride, out) or (any_sides and (window[0], stride[0]) != (1, 1)):
        return False
    reader_of = partial(_Reader, scope, tree, final, stride[2])
    if not reads_images_alike(scope, tree, final):
        return False
    source = (channels_last if any_sides else image_of)(scope, required_input(node, 0))
    result = scope.image(root, final, apart=False)
    whole_weights = weights.reshape(*weights.shape[:2], *window)
    for number, (phases, kernel_taps) in enumerate(kernels_of(window, stride, pad)):
        output = output_of(shape, stride, phases, final, width)
        problem = replace(convolution_of(kernel_taps, source.layout, output), weights_dtype=stored)
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
        arranged = _arranged(whole_weights, kernel_taps, width)
        packed = scope.weight(f"weights {number}", node.outputs[0].name, arranged, kernel.operand("weights"))
        places: Places = {**reader.buffers, "x": source.place, "weights": packed, "y": result.place}
        scope.add(kernel, places, (node, *tree.in_order))
    if any_sides:
        by_strides(scope, root)
    return True


def _arranged(weights: npt.NDArray[np.generic], kernel: Kernel, width: int) -> npt.NDArray[np.generic]:
    """Weights (channels, output channels, planes, rows, columns) as those of a phase, a block's columns together."""
    planes, rows, columns = kernel
    depth, channels = weights.shape[:2]
    taps = len(planes.taps), len(rows.taps), len(columns[0].taps)
    made = np.zeros((channels // width, len(columns), width, depth, *taps), weights.dtype)
    for number, across in enumerate(columns):
        for at in np.ndindex(*taps):
            own = planes.taps[at[0]], rows.taps[at[1]], across.taps[at[2]]
            if None not in own:
                made[:, number, :, :, *at] = weights[:, :, *own].T.reshape(-1, width, depth)
    return made.reshape(channels * len(columns), depth, *taps)


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


def cut_of(
    node: ir.Node, size: Sequence[int], out: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """How much is cut off the start of each dim of a ConvTranspose's result."""
    rank = len(size)
    automatic = string_attribute(node, "auto_pad", "NOTSET")
    more = ints_attribute(node, "output_padding", (0,) * rank)
    if automatic == "NOTSET" and "output_shape" not in node.attributes:
        return ints_attribute(node, "pads", (0,) * (2 * rank))[:rank]
    # total = stride * (size - 1) + output padding + reach - output, halved as ConvTranspose says
    total = [
        max(0, step * (s - 1) + extra + span - o)
        for s, o, span, step, extra in zip(size, out, reach, strides, more, strict=True)
    ]
    return tuple(one // 2 if automatic == "SAME_UPPER" else one - one // 2 for one in total)
