"""A convolution of bytes: what is summed, and how its operands are stored and quantised.

    accumulated[o, p] = sum over channels and taps of (x[c, p * stride + tap * dilation - pad] - x_zero)
                                                      * (weights[o, c, tap] - weights_zero[o])      as int32

exactly (modulo 2**32), where places outside the image hold the zero point and so add nothing. What follows (bias,
activation, dequantization, quantization) is the epilogue, an expression of ACCUMULATED_INTEGER. Sizes and layouts are
those of a `Convolution`; a halo around the input holds the zero point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Operand, Packing, operands_of
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.tensor.expression import Buffer, Expression, Load

X_ZERO, WEIGHTS_ZERO = "x_zero", "weights_zero"
BYTES = (DType.U8, DType.I8)


class InvalidQuantized(KernelsError):
    """Types, zero points or layouts that a convolution of bytes does not take."""


@dataclass(frozen=True, slots=True)
class QuantizedConvolution:
    """A convolution whose elements are bytes.

    Raises InvalidQuantized for other types, blocked layouts, zeros between inputs and zero points that do not fit.
    """

    geometry: Convolution  # with the epilogue of ACCUMULATED_INTEGER
    x_dtype: DType = DType.U8
    weights_dtype: DType = DType.I8
    x_zero: int | None = 0  # None: the operand "x_zero" of one element
    weights_zero: tuple[int, ...] | None = (0,)  # one, or one per output channel; None: see `constant_weights`
    constant_weights: bool = True  # else the operand "weights" is what a kernel of `repack` makes of them
    weights_per_image: bool = False  # whether each image of the batch has weights of its own; not for constant ones
    zero_per_channel: bool = False  # whether the operand of zero points has one for each output channel

    def __post_init__(self) -> None:
        geometry = self.geometry
        if self.x_dtype not in BYTES or self.weights_dtype not in BYTES:
            raise InvalidQuantized(
                f"a convolution of bytes takes u8 or i8, not {self.x_dtype.value} and {self.weights_dtype.value}."
            )
        if geometry.transposed or geometry.input_dilations != (1, 1, 1):
            raise InvalidQuantized("a transposed convolution of bytes is not built: dequantize it.")
        for layout in (geometry.input, geometry.output):
            if layout.order == "NCHWc":
                raise InvalidQuantized("bytes are stored in the order NHWC or NCHW, not in blocks of channels.")
        if self.constant_weights and (self.weights_zero is None or self.weights_per_image):
            raise InvalidQuantized("constant weights have constant zero points, and are the same for all images.")
        zeros = self.weights_zero or (limits(self.weights_dtype)[0],)
        if len(zeros) not in (1, geometry.output.channels):
            raise InvalidQuantized(
                f"{len(zeros)} zero points for {geometry.output.channels} output channels: give one, or one for each."
            )
        for dtype, given in ((self.x_dtype, (self.x_zero or 0,)), (self.weights_dtype, zeros)):
            low, high = limits(dtype)
            if not all(low <= zero <= high for zero in given):
                raise InvalidQuantized(f"a zero point of {dtype.value} lies from {low} to {high}.")
        if geometry.epilogue == Epilogue():
            object.__setattr__(self, "geometry", replace(geometry, epilogue=Epilogue(ACCUMULATED_INTEGER[()])))

    def with_epilogue(self, value: Expression) -> QuantizedConvolution:
        """The same convolution with an expression of ACCUMULATED_INTEGER stored."""
        return replace(self, geometry=replace(self.geometry, epilogue=Epilogue(value)))

    def per_channel(self, name: str, dtype: DType) -> Load:
        """An operand of one number per output channel, for an epilogue."""
        return Buffer(name, dtype, (self.geometry.output.channels,))[self.geometry.channel]

    def like_output(self, name: str, dtype: DType) -> Load:
        """An operand stored exactly as the output is, for an epilogue."""
        return self.geometry.here(self.geometry.output.buffer(name, dtype))

    @property
    def weight_sets(self) -> int:
        """How many sets of weights there are."""
        return self.geometry.input.batch if self.weights_per_image else 1

    def operands(self, packing: Packing) -> tuple[Operand, ...]:
        """The table of arguments: input, packed weights, the input's zero point if asked for, epilogue, output."""
        geometry = self.geometry
        weights = Operand(WEIGHTS, "input", DType.I8, self.weight_sets * packing.elements)
        if self.constant_weights:
            weights = Operand(WEIGHTS, "constant", DType.I8, packing.elements, packing)
        return (
            Operand(INPUT, "input", self.x_dtype, geometry.input.elements),
            weights,
            *((Operand(X_ZERO, "input", self.x_dtype, 1),) if self.x_zero is None else ()),
            *operands_of(geometry.epilogue.buffers),
            Operand(OUTPUT, "output", geometry.epilogue.dtype, geometry.output.elements),
        )


def limits(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    bits = 8 * dtype.bytes
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
