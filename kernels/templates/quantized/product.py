"""Matrix products of bytes: MatMulInteger, QLinearMatMul, and products and Gemms between quantization nodes.

    accumulated[batch, row, column] = sum over the depth of (a - a_zero) * (b - b_zero[column])      as int32

A product is a convolution of one tap whose pixels are the rows of A; a transposed A is an image whose channels each
have a plane of their own. Everything else, blocks and tiles and the copy of what does not lie ready, is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.size import bound
from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized import build as convolutions
from kernels.templates.quantized.arithmetic import ByteArithmetic
from kernels.templates.quantized.build import Bytewise
from kernels.templates.quantized.packing import TilePacking
from kernels.templates.quantized.problem import X_ZERO, QuantizedConvolution
from kernels.templates.quantized.repack import Weights, build_repack
from kernels.templates.template import Template
from kernels.tensor.expression import Index, Variable

_NAMES = {INPUT: "a", WEIGHTS: "b", X_ZERO: "a_zero", OUTPUT: "c"}


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """C[batch, rows, columns] = epilogue(A[batch, rows, depth] B[depth, columns]), A and B dense.

    The epilogue's variables are `batch_variable`, `row` and `column`. A batch with one B for all is one tall matrix.
    """

    rows: int
    columns: int
    depth: int
    batch: int = 1  # more than one: each matrix has a B of its own, which is no constant
    a_dtype: DType = DType.U8
    b_dtype: DType = DType.I8
    a_zero: int | None = 0  # None: the operand "a_zero" of one element
    b_zero: tuple[int, ...] | None = (0,)  # one, or one per column; None: an operand of `repacking`
    constant_b: bool = True  # else the operand "b" is what the kernel of `repacking` makes of it
    transposed_a: bool = False  # stored as (batch, depth, rows)
    transposed_b: bool = False  # stored as (batch, columns, depth)
    epilogue: Epilogue = field(default_factory=lambda: Epilogue(ACCUMULATED_INTEGER[()]))
    zero_per_column: bool = False  # whether the zero points of a B that is no constant are one for each column

    @property
    def convolution(self) -> QuantizedConvolution:
        """The same as a convolution of one tap."""
        size = (1, 1, self.rows)
        geometry = Convolution(
            Layout(self.batch, self.depth, size, "NCHW" if self.transposed_a else "NHWC"),
            Layout(self.batch, self.columns, size, "NHWC"),
            (1, 1, 1),
            epilogue=self.epilogue,
        )
        return QuantizedConvolution(
            geometry, self.a_dtype, self.b_dtype, self.a_zero, self.b_zero, self.constant_b,
            weights_per_image=bound(self.batch) > 1, zero_per_channel=self.zero_per_column,
        )  # fmt: skip

    @property
    def batch_variable(self) -> Variable:
        """The epilogue's variable of the batch."""
        return Variable("image", self.batch)

    @property
    def row(self) -> Variable:
        """The epilogue's variable of rows."""
        return Variable("column", self.rows)  # of the image that A is

    @property
    def column(self) -> Index:
        """The column, as an index for the epilogue's operands."""
        return self.convolution.geometry.channel


@dataclass(frozen=True, slots=True)
class ProductPacking:
    """A constant B of shape (depth, columns), or (columns, depth) where it is transposed, as tiles."""

    tiles: TilePacking
    transposed: bool

    @property
    def elements(self) -> int:
        """Bytes of the packed form."""
        return self.tiles.elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed form, int8."""
        geometry = self.tiles.problem.geometry
        if self.transposed:
            return self.tiles.pack(array)
        return self.tiles.pack(array.reshape(geometry.depth, geometry.output.channels).T)


def candidates(
    product: QuantizedProduct, target: Target, arithmetic: ByteArithmetic | None = None
) -> tuple[Bytewise, ...]:
    """Candidates, the likely best first."""
    return convolutions.candidates(product.convolution, target, arithmetic)


def estimate(product: QuantizedProduct, candidate: Bytewise, target: Target) -> float:
    """Nanoseconds of all blocks on one core."""
    return convolutions.estimate(product.convolution, candidate, target)


def build(product: QuantizedProduct, candidate: Bytewise, target: Target, name: str = "product") -> Kernel:
    """The kernel: operands "a", "b", "a_zero" where that is no constant, those of the epilogue, "c"."""
    made = convolutions.build(product.convolution, candidate, target, name)
    return replace(made, operands=tuple(_renamed(product, one) for one in made.operands))


QUANTIZED_PRODUCT = Template("quantized_product", QuantizedProduct, candidates, build, estimate)


def _renamed(product: QuantizedProduct, operand: Operand) -> Operand:
    packing = operand.packing
    if isinstance(packing, TilePacking):
        return replace(operand, name="b", packing=ProductPacking(packing, product.transposed_b))
    return replace(operand, name=_NAMES.get(operand.name, operand.name))


def repacking(product: QuantizedProduct, candidate: Bytewise, target: Target, name: str = "repack") -> Kernel:
    """The kernel that makes the operand "b" of a B that is no constant.

    Its operands are "weights", "weights_zero" where that is no constant, and "packed".
    """
    packing = TilePacking(product.convolution, candidate.arithmetic, target.lanes(), candidate.vectors)
    size = product.depth * product.columns
    place = Weights(product.depth, 1, 0, size) if product.transposed_b else Weights(1, product.columns, 0, size)
    return build_repack(packing, place, target, name)
