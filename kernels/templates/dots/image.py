"""Direct convolutions on dot products of bfloat16: float32 rounded on the way, sums and epilogue in float32.

A block rounds its window of the input into scratch, where two channels side by side are a word. To what follows, the
window is an image of words with half as many channels, and a step takes a word where it took a number
(`Convolution.pairs`): tiles, blocks and their order are the direct convolution's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.size import bound
from kernels.target import Target
from kernels.templates.convolution.direct import DirectBuilder
from kernels.templates.convolution.direct_block import DenseGroups
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.places import channel_of_group
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.stage import each_pixel, write_stage
from kernels.templates.convolution.steps import DirectPacking
from kernels.templates.convolution.ways import family
from kernels.templates.dots.image_choice import candidates, estimate, of_pairs, repeats, share
from kernels.templates.template import Template
from kernels.templates.units.rounding import PAIR, Rounded, round_pixel
from kernels.units.instructions import LANES


def build(problem: Convolution, candidate: Direct, target: Target, name: str = "convolution") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return _DotImageBuilder(problem, candidate, target, name).kernel()


DOT_CONVOLUTION = Template(
    "convolution", Convolution, candidates, build, estimate, share, repeats, family, variant="dots"
)


@dataclass(frozen=True, slots=True)
class _PairPacking:
    """Packed weights of pairs of input channels, of a convolution that is given in single numbers."""

    given: Convolution
    words: DirectPacking

    @property
    def elements(self) -> int:
        """Numbers of all groups, those that fill up words included."""
        return 2 * self.words.elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        given = self.given
        if given.transposed:
            single = array.reshape(given.groups, given.depth, given.width, *given.kernel)
        else:
            single = array.reshape(given.output.channels, given.depth, *given.kernel)
        even = np.zeros((len(single), 2 * self.words.problem.depth, *single.shape[2:]), array.dtype)
        even[:, : given.depth] = single
        pairs = np.stack([even[:, 0::2], even[:, 1::2]], axis=-1)
        return self.words.pack(pairs.view(np.uint32)[..., 0]).view(array.dtype)


@dataclass(frozen=True, slots=True)
class _RoundedBlocks:
    """Blocks of words of a window, whose pixels are rounded from so many channels of the input."""

    source: Layout
    copy: Layout
    channels: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Whole blocks, and one that is not."""
        whole, rest = divmod(self.channels, 2 * self.copy.block)
        return whole, 1 if rest else 0

    @property
    def step(self) -> int:
        """Elements of the input from one block to the next."""
        return _channels_at(self.source, 2 * self.copy.block)

    def pixels(self, f: Function, origin: Value, target: Value, count: int, apart: tuple[int, int], kind: int) -> None:
        """Round pixels of a whole block, or of the last one."""
        numbers, words = 2 * self.copy.block, types.vector("i32", LANES)
        valid = numbers if kind == 0 else self.channels % numbers

        def pixel(source: Value, aim: Value) -> None:
            for first in range(0, numbers, PAIR):
                at = f.at(source, _channels_at(self.source, first))
                rounded = f.convert("bitcast", words, round_pixel(f, self.source, at, min(PAIR, valid - first)))
                f.store_lanes(rounded, f.at(aim, first // 2), min(LANES, (numbers - first) // 2))

        each_pixel(f, origin, target, count, apart, pixel)


def _channels_at(layout: Layout, channels: int) -> int:
    """Elements from a pixel's first channel to one so many further."""
    block, lane = divmod(channels, layout.block)
    return block * layout.block_stride + lane


class _DotImageBuilder(DirectBuilder):
    """Writes a direct convolution of pairs whose blocks make their windows themselves."""

    def __init__(self, problem: Convolution, candidate: Direct, target: Target, name: str) -> None:
        super().__init__(of_pairs(problem), candidate, target, name)
        self._given = problem

    def kernel(self) -> Kernel:
        return replace(super().kernel(), flops=bound(self._given.flops), traffic=bound(self._given.traffic))

    def operands(self) -> tuple[Operand, ...]:
        return self._given.operands(Rounded(_PairPacking(self._given, self.packing)), DType.BF16)

    def first_channel(self, f: Function, x: Value, image: Value, group: Value) -> Value:
        depth = self._given.depth * self.dense[0].groups.together
        return channel_of_group(f, self._given.input, depth, x, image, group)

    def write_copy(self, dense: DenseGroups, left: int, prefix: str) -> str:
        blocks = _RoundedBlocks(self._given.input, dense.source, self._given.depth * dense.groups.together)
        return write_stage(self.module, self._given, dense.source, left, prefix=prefix, blocks=blocks)
