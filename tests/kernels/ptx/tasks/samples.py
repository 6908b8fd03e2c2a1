"""A small case of each task that uses shared memory or waits for other threads."""

from __future__ import annotations

import numpy as np

from kernels.dtype import DType
from kernels.ptx.tasks.convolution import convolution as convolution_task
from kernels.templates.attention.problem import Attention
from kernels.templates.convolution.problem import convolution
from kernels.templates.elementwise import Output
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.pooling import POOLING
from kernels.templates.pooling_problem import Pooling
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.reduction import REDUCTION, Reduction, reduced
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.tensor.expression import Buffer, Variable
from tests.kernels.ptx.tasks import test_attention, test_recurrent
from tests.kernels.ptx.tasks.running import SM_90, Case, beside
from tests.kernels.templates.convolution.oracle import sample


def samples() -> dict[str, Case]:
    """By name; tiles have tails on both sides."""
    i, j = Variable("i", 2), Variable("j", 1100)
    x, y, z = Buffer("x", DType.F32, (2, 1100)), Buffer("y", DType.F32, (2, 1100)), Buffer("y", DType.F32, (2,))
    image = convolution(1, 5, 9, (6, 7), (3, 3), pads=(1, 1, 1, 1))
    taken = sample(image, 1)
    expected = {"y": image.output.store(taken.expected.astype(np.float32))}
    given = {"x": image.input.store(taken.x), "weights": taken.weights}
    (step,) = test_recurrent.cases(Recurrent("lstm", 1, 2, 19), 1, "sample_recurrent", SM_90)
    softmax = Softmax((i,), (j,), x[i, j], (Output(y, SOFTMAX[()]),))
    total = Reduction((i,), (j,), "sum", x[i, j], (Output(z, reduced("sum", DType.F32)[()]),))
    pool = Pooling(convolution(1, 3, 3, (7, 6), (7, 6), groups=3), "average")
    return {
        "attention": test_attention.case(Attention(1, 2, 5, 270, 9, causal=True, past=265), 1, "sample_attention"),
        "tile": beside(GEMM, Gemm(19, 21, 45, constant_b=False), "sample_tile", 1, 2e-6),
        "few rows": beside(GEMM, Gemm(2, 21, 45, constant_b=False), "sample_few", 1, 2e-6),
        "convolution": Case(convolution_task(image, SM_90, "sample_convolution"), given, expected, 2e-6),
        "recurrent": step,
        "softmax": beside(SOFTMAX_ROWS, softmax, "sample_softmax", 1, 2e-6),
        "reduction": beside(REDUCTION, total, "sample_reduction", 1, 2e-6),
        "pooling": beside(POOLING, pool, "sample_pooling", 1, 2e-6),
    }
