"""A convolution: what is computed, how its operands are stored, and what happens to each result before it is stored.

    size = (input - 1) * input_dilation + 1
    output = (size + pads_before + pads_after - ((kernel - 1) * dilation + 1)) // stride + 1

Everything has three spatial dims (depth, height, width); `convolution` takes one to three, as ONNX does. A transposed
convolution has zeros between the elements of its input (`input_dilations`) and mirrored weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Operand, Packing, operands_of
from kernels.size import is_free
from kernels.templates.convolution.layout import Layout, Order, Triple
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.narrow import NARROW
from kernels.tensor.expression import Buffer, Expression, Index, Load, Variable

INPUT, WEIGHTS, OUTPUT = "x", "weights", "y"


class InvalidConvolution(KernelsError):
    """Sizes that do not fit together."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of float32. Weights are given as (output channels, channels / groups, *kernel).

    Those of F16 and BF16 lie so in memory, and are widened by the kernel. One of `pairs` is of bfloat16: its channels
    are words of two numbers each, which a block rounds to a copy of its window. Groups whose channels lie side by side
    are computed together until they have a multiple of `merging` channels.

    Transposed weights are given as ONNX's ConvTranspose has them: (channels, output channels / groups, *kernel).
    """

    input: Layout
    output: Layout
    kernel: Triple
    strides: Triple = (1, 1, 1)
    dilations: Triple = (1, 1, 1)
    pads: Triple = (0, 0, 0)  # zeros before the first plane, row, column; those after follow from the output's size
    groups: int = 1
    epilogue: Epilogue = field(default_factory=Epilogue)
    input_dilations: Triple = (1, 1, 1)
    transposed: bool = False
    weights_dtype: DType = DType.F32
    pairs: bool = False
    merging: int = 1

    def __post_init__(self) -> None:
        if self.input.channels % self.groups or self.output.channels % self.groups:
            raise InvalidConvolution(
                f"{self.input.channels} channels to {self.output.channels} cannot be split into {self.groups} groups"
            )
        if min(*self.kernel, *self.strides, *self.dilations, *self.input_dilations) < 1 or min(self.pads) < 0:
            raise InvalidConvolution("kernel, strides and dilations must be positive, and pads not negative")
        if self.weights_dtype not in (DType.F32, *NARROW):
            raise InvalidConvolution(f"weights of {self.weights_dtype.value} are none that a convolution widens")
        if self.input.batch != self.output.batch:
            raise InvalidConvolution(f"{self.input.batch} images come in and {self.output.batch} go out")

    @property
    def depth(self) -> int:
        """Channels that one output channel sums over."""
        return self.input.channels // self.groups

    @property
    def width(self) -> int:
        """Output channels of one group."""
        return self.output.channels // self.groups

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        taps = self.kernel[0] * self.kernel[1] * self.kernel[2]
        places = self.output.size[0] * self.output.size[1] * self.output.size[2]
        return 2 * self.output.batch * self.output.channels * places * self.depth * taps

    @property
    def reach(self) -> Triple:
        """How many planes, rows, columns one output sees."""
        (a, b, c), (p, q, r) = self.kernel, self.dilations
        return (a - 1) * p + 1, (b - 1) * q + 1, (c - 1) * r + 1

    @property
    def spread(self) -> Triple:
        """The input's size with the zeros between its elements."""
        return _triple((s - 1) * d + 1 for s, d in zip(self.input.size, self.input_dilations, strict=True))

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel sees one input channel and each input channel one output channel."""
        return self.depth == 1 and self.width == 1 and self.groups > 1

    @property
    def sees_one_channel(self) -> bool:
        """Whether each output channel sees one input channel, which several may share: a depthwise multiplier."""
        return self.depth == 1 and self.groups > 1

    @property
    def has_halo(self) -> bool:
        """Whether the input is stored with all the zeros that the outputs at the borders see, and as tiles read it."""
        if self.pairs or self.input_dilations != (1, 1, 1):
            return False
        needed = zip(
            self.output.size, self.strides, self.reach, self.input.size, self.pads, self.input.before, self.input.after,
            strict=True,
        )  # fmt: skip
        return all(
            pad <= before and (out - 1) * stride + reach - pad <= size + after
            for out, stride, reach, size, pad, before, after in needed
        )

    @property
    def is_one_row(self) -> bool:
        """Whether a plane's pixels follow one another in the input, the output and all operands of the epilogue."""
        if self.input.size[1] == self.output.size[1] == 1:
            return True
        _, _, _, row, column, _ = self.variables
        width = self.output.size[2]
        places = [load.buffer.position(load.indices) for load in self.epilogue.loads]
        return all(one.row_stride == width * one.column_stride for one in (self.input, self.output)) and all(
            place.factor(row) == width * place.factor(column) for place in places
        )

    # Names for epilogues: an output element is (image, block, plane, row, column, lane).

    @property
    def variables(self) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
        """Image, block of channels, plane, row, column, and the channel inside its block."""
        out = self.output
        depth, height, width = out.size
        return (
            Variable("image", out.batch),
            Variable("block", out.blocks),
            Variable("plane", depth),
            Variable("row", height),
            Variable("column", width),
            Variable("lane", out.block),
        )

    @property
    def channel(self) -> Index:
        """The output channel, as an index for per-channel operands."""
        _, block, _, _, _, lane = self.variables
        return block * self.output.block + lane

    def here(self, buffer: Buffer) -> Load:
        """The element of a buffer with the output's six dims at the place that is computed."""
        return buffer[self.variables]

    def like_output(self, name: str) -> Load:
        """An operand stored exactly as the output is."""
        return self.here(self.output.buffer(name))

    def bias(self, name: str = "bias") -> Load:
        """An operand of one number per output channel."""
        return Buffer(name, DType.F32, (self.output.channels,))[self.channel]

    def with_epilogue(self, make: Callable[[Expression], Expression]) -> Convolution:
        """The same convolution with `make(accumulated)` stored."""
        return replace(self, epilogue=Epilogue(make(ACCUMULATED[()])))

    def operands(self, packing: Packing | None = None, weights: DType | None = None) -> tuple[Operand, ...]:
        """The table of arguments: input, packed weights where there are weights, the epilogue's operands, output.

        `weights` is the type of the packed ones; None: that in which they are given.
        """
        dtype = weights or self.weights_dtype
        return (
            Operand(INPUT, "input", DType.F32, self.input.elements),
            *((Operand(WEIGHTS, "constant", dtype, packing.elements, packing),) if packing else ()),
            *operands_of(self.epilogue.buffers),
            Operand(OUTPUT, "output", self.epilogue.dtype, self.output.elements),
        )

    @property
    def traffic(self) -> int:
        """Bytes that must move at least once."""
        weights = self.output.channels * self.depth * self.kernel[0] * self.kernel[1] * self.kernel[2]
        others = sum(operand.bytes for operand in operands_of(self.epilogue.buffers))
        weights *= self.weights_dtype.bytes
        return 4 * self.input.passing + weights + others + self.epilogue.dtype.bytes * self.output.passing


def of_any_sides(problem: Convolution) -> bool:
    """Whether only the run knows how many rows or columns there are."""
    return any(map(is_free, problem.output.size[1:]))


def output_size(
    size: Triple, kernel: Triple, strides: Triple, dilations: Triple, before: Triple, after: Triple
) -> Triple:
    """How many planes, rows and columns come out; raises InvalidConvolution when there are none."""
    found = _triple(
        (s + b + a - (k - 1) * d - 1) // stride + 1
        for s, k, stride, d, b, a in zip(size, kernel, strides, dilations, before, after, strict=True)
    )
    if min(found) < 1:
        raise InvalidConvolution(f"a kernel of {kernel} sees nothing whole in an input of {size} with its pads")
    return found


def convolution(
    batch: int,
    channels: int,
    output_channels: int,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    groups: int = 1,
    order: Order = "NCHW",
    output_order: Order | None = None,
    block: int = 16,
    halo: int | None = None,
    output_halo: int = 0,
) -> Convolution:
    """A convolution by ONNX's attributes (pads: all begins, then all ends); `halo`: None is none at all."""
    rank = len(size)
    ones, zeros = (1,) * rank, (0,) * rank
    given = tuple(pads) or zeros * 2
    before, after = whole(given[:rank], 0), whole(given[rank:], 0)
    steps, spacing, window = whole(strides or ones, 1), whole(dilations or ones, 1), whole(kernel, 1)
    sizes = whole(size, 1)
    out = output_size(sizes, window, steps, spacing, before, after)
    rims = [whole((rim,) * rank, 0) for rim in (halo or 0, output_halo)]
    target = output_order or order
    return Convolution(
        Layout(batch, channels, sizes, order, block if order == "NCHWc" else 0, rims[0], rims[0]),
        Layout(batch, output_channels, out, target, block if target == "NCHWc" else 0, rims[1], rims[1]),
        window,
        steps,
        spacing,
        before,
        groups,
    )


def whole(given: Sequence[int], otherwise: int) -> Triple:
    """One to three numbers as three: the missing ones come first."""
    if not 1 <= len(given) <= 3:
        raise InvalidConvolution(f"a convolution has one to three spatial dims, not {len(given)}")
    return _triple((*(otherwise,) * (3 - len(given)), *given))


def _triple(values: Iterable[int]) -> Triple:
    a, b, c = values
    return a, b, c
