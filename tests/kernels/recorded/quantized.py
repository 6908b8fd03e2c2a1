"""Convolutions and products of bytes whose kernels are recorded."""

from __future__ import annotations

from dataclasses import replace

from kernels.dtype import DType
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.linear import requantize
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QUANTIZED_PRODUCT, QuantizedProduct
from kernels.templates.quantized.ways import QUANTIZED
from kernels.tensor.expression import Buffer, Cast, Number, clip
from tests.kernels.recorded.cases import Case

SUM = ACCUMULATED_INTEGER[()]
NARROW = Epilogue(requantize(SUM, Number(0.01), Number(3, DType.U8)))
CUT = Epilogue(Cast(DType.I8, Cast(DType.I32, clip(Cast(DType.F32, SUM) * 0.5, -8, 7))))


def _bytes(geometry: Convolution, epilogue: Epilogue = NARROW) -> QuantizedConvolution:
    return QuantizedConvolution(replace(geometry, epilogue=epilogue), x_zero=9)


def quantized() -> list[Case]:
    """Small ones with rests and some of a network's size."""
    pads = (1, 1, 1, 1)
    three = convolution(1, 32, 48, (14, 14), (3, 3), pads=pads, order="NHWC")
    rests = convolution(2, 5, 7, (9, 8), (3, 2), strides=(2, 1), dilations=(1, 2), order="NHWC", output_order="NCHW")
    grouped = convolution(1, 24, 12, (5, 6), (3, 3), groups=4, order="NHWC", halo=1)
    alone = convolution(1, 40, 40, (28, 28), (3, 3), pads=pads, groups=40, order="NHWC")
    wide = convolution(1, 20, 20, (1, 60), (1, 50), groups=20, order="NHWC")
    planes = convolution(1, 18, 18, (4, 5, 6), (2, 2, 2), groups=18, order="NHWC")
    single = convolution(1, 256, 64, (28, 28), (1, 1), order="NCHW")
    zeros = tuple(range(-3, 4))
    residual = QuantizedProduct(5, 20, 7)
    added = Buffer("r", DType.I32, (1, 5, 20))[residual.batch_variable, residual.row, residual.column]
    return [
        Case("3x3", QUANTIZED, _bytes(three), (48, 32, 3, 3)),
        Case("rests and zero points everywhere", QUANTIZED,
             QuantizedConvolution(rests, DType.I8, x_zero=-3, weights_zero=zeros), (7, 5, 3, 2)),
        Case("unsigned weights, a zero point given", QUANTIZED,
             QuantizedConvolution(rests, weights_dtype=DType.U8, x_zero=None), (7, 5, 3, 2)),
        Case("groups", QUANTIZED, _bytes(grouped), (12, 6, 3, 3)),
        Case("depthwise", QUANTIZED, _bytes(alone), (40, 1, 3, 3)),
        Case("depthwise, cut and not rounded", QUANTIZED, _bytes(alone, CUT), (40, 1, 3, 3)),
        Case("depthwise with more taps than registers", QUANTIZED, _bytes(wide), (20, 1, 1, 50)),
        Case("depthwise planes", QUANTIZED, _bytes(planes), (18, 1, 2, 2, 2)),
        Case("1x1, channels first", QUANTIZED, _bytes(single), (64, 256, 1, 1)),
        Case("a layer", QUANTIZED_PRODUCT, QuantizedProduct(128, 768, 768, epilogue=NARROW), (768, 768)),
        Case("one row", QUANTIZED_PRODUCT, QuantizedProduct(1, 1000, 512, a_dtype=DType.I8), (512, 1000)),
        Case("rests, transposed", QUANTIZED_PRODUCT,
             QuantizedProduct(29, 77, 65, transposed_a=True, transposed_b=True, b_zero=(5,)), (77, 65)),
        Case("computed matrices", QUANTIZED_PRODUCT,
             QuantizedProduct(9, 20, 33, 3, a_zero=None, b_zero=None, constant_b=False)),
        Case("a residual", QUANTIZED_PRODUCT, replace(residual, epilogue=Epilogue(SUM + added)), (7, 20)),
    ]  # fmt: skip
