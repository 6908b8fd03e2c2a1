"""Products, convolutions and layers whose weights lie in fewer bits, and products of float64."""

from __future__ import annotations

from dataclasses import replace

from kernels.dtype import DType
from kernels.templates.bits import BITS_PRODUCT, BitsProduct
from kernels.templates.convolution.choose import DIRECT
from kernels.templates.convolution.problem import convolution
from kernels.templates.convolution.winograd import WINOGRAD
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.recurrent.build import RECURRENT
from kernels.templates.recurrent.problem import Recurrent
from tests.kernels.recorded.cases import Case


def narrow() -> list[Case]:
    """Small ones with rests and some of a network's size."""
    three = convolution(1, 64, 64, (28, 28), (3, 3), pads=(1,) * 4, order="NCHWc")
    rests = convolution(2, 5, 21, (9, 13), (3, 2), strides=(2, 1), dilations=(1, 2), order="NHWC")
    late = convolution(1, 512, 512, (7, 7), (3, 3), pads=(1,) * 4, order="NCHWc")
    small = replace(three, weights_dtype=DType.F16)
    return [
        Case("a product of float16", GEMM, Gemm(128, 300, 768, b_dtype=DType.F16)),
        Case("a product of float16 with rests", GEMM, Gemm(29, 77, 65, b_dtype=DType.F16), (65, 77)),
        Case("one row of bfloat16", GEMM, Gemm(1, 1000, 512, b_dtype=DType.BF16), (512, 1000)),
        Case("a product of float64", GEMM, Gemm(29, 77, 300, arithmetic="f64"), (300, 77)),
        Case("two computed matrices of float64", GEMM, Gemm(40, 70, 33, arithmetic="f64", constant_b=False)),
        Case("four bits", BITS_PRODUCT, BitsProduct(64, 300, 500, 4, 32, "codes")),
        Case("one row of two bits", BITS_PRODUCT, BitsProduct(1, 300, 512, 2, 16)),
        Case("direct, float16", DIRECT, small, (64, 64, 3, 3)),
        Case("direct with rests, bfloat16", DIRECT, replace(rests, weights_dtype=DType.BF16), (21, 5, 3, 2)),
        Case("direct in parts, float16", DIRECT, replace(late, weights_dtype=DType.F16)),
        Case("Winograd, float16", WINOGRAD, small, (64, 64, 3, 3)),
        Case("LSTM, float16", RECURRENT, Recurrent("lstm", 5, 3, 24, r_dtype=DType.F16), (1, 96, 24)),
    ]
