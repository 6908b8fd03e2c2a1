"""Matrix products as tasks on the PTX machine, beside the processor's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.panel import HELD_BYTES
from kernels.ptx.tasks.product import product
from kernels.target import cuda
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.matrix import Matrix
from kernels.tensor.expression import Buffer, Cast, Expression, clip, gelu, relu
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Case, beside, check

SIZES = st.one_of(st.integers(1, 9), st.integers(10, 70), st.sampled_from([64, 65, 128, 129]))


@st.composite
def products(draw: Any) -> tuple[Gemm, int]:
    rows, columns, depth = draw(SIZES), draw(SIZES), draw(st.one_of(st.just(0), SIZES, SIZES))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=1)))
    constant, apart = draw(st.booleans()), tuple(int(np.prod(batch[one + 1 :])) for one in range(len(batch)))
    a = draw(st.sampled_from([None, Matrix(1, rows, tuple(one * rows * depth for one in apart))]))
    shared = not batch or draw(st.booleans())
    b_row, b_column = draw(st.sampled_from([(columns, 1), (1, depth)]))
    b = Matrix(b_row, b_column, tuple(0 if shared else one * depth * columns for one in apart))
    c = draw(st.sampled_from([None, Matrix(columns + 3, 1, tuple(one * rows * (columns + 3) for one in apart), 1)]))
    plain = Gemm(rows, columns, depth, batch, a, b, c, constant)
    bias = Buffer("bias", DType.F32, (columns,))[plain.column]
    scale = Buffer("scale", DType.F32, (rows,))[plain.row]
    residual = Buffer("residual", DType.F32, (rows, columns))[plain.row, plain.column]
    x: Expression = ACCUMULATED[()]
    values = [x, x + bias, relu(x + bias + residual), gelu(x), x * scale, clip(x, -0.5, 0.5), Cast(DType.F16, x)]
    kept = draw(st.sampled_from([DType.F32, DType.F16, DType.BF16])) if constant else DType.F32
    return replace(plain, epilogue=Epilogue(draw(st.sampled_from(values))), b_dtype=kept), draw(st.integers(0, 999))


def case(gemm: Gemm, seed: int, name: str, target: Any = SM_90) -> Case:
    """Two sums in other orders, each with a rounding of 2^-24 for each step of the depth; elements are of size 1."""
    count = gemm.place_b.elements(gemm.depth, gemm.columns, gemm.batch)
    b = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    if gemm.b_dtype is DType.F16:
        b = b.astype(np.float16)
    elif gemm.b_dtype is DType.BF16:
        b = (b.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    rounded = 2.0**-10 if gemm.epilogue.dtype is DType.F16 else 0.0
    return beside(GEMM, gemm, name, seed, 2 * (gemm.depth + 2) * 2.0**-24 + rounded, target, b=b)


@settings(deadline=None, max_examples=3)
@given(st.lists(products(), min_size=4, max_size=4), st.sampled_from([SM_80, SM_90]))
def test_any_size_place_and_epilogue(some: list[tuple[Gemm, int]], target: Any) -> None:
    check([case(gemm, seed, f"product_{number}", target) for number, (gemm, seed) in enumerate(some)], target)


def test_tails_of_tiles_on_each_side() -> None:
    """One more and one less than whole tiles; few multiprocessors make the tiles large."""
    few = replace(SM_90, workers=1)
    gemms = [Gemm(31, 65, 33), Gemm(33, 63, 31), Gemm(127, 129, 9), Gemm(64, 64, 32)]
    assert len({product(one, few, "product").candidate for one in gemms}) > 1
    check([case(one, 1, f"product_{number}", few) for number, one in enumerate(gemms)], few)


def test_nan_and_infinity_pass_through() -> None:
    plain = Gemm(12, 20, 40, constant_b=False)
    gemm = replace(plain, epilogue=Epilogue(relu(ACCUMULATED[()])))
    a = np.ones((12, 40), np.float32)
    a[1, 3], a[2, 39], a[3, 0] = np.nan, np.inf, -np.inf
    check([beside(GEMM, gemm, "product", 0, 2e-6, a=a, b=np.ones((40, 20), np.float32))])


def test_few_rows_of_a_depth_that_is_longer_than_what_is_held() -> None:
    """The first 1,024 places of B come to shared memory before the block waits, the others are read where they lie."""
    gemm = Gemm(2, 11, 1100, constant_b=True)
    kernel = product(gemm, SM_90, "long")
    assert kernel.prelude == "long_prelude" and kernel.scratch_bytes == 4 * 256 * 2 + HELD_BYTES
    check([case(gemm, 5, "long")], SM_90)
    assert not product(gemm, cuda("sm_75"), "older").prelude, "before Ampere nothing is copied ahead"
