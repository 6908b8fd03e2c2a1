"""Products on matrix units: their results, their choice, and what refuses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.run import aligned
from kernels.target import host, x86_64_amx, x86_64_v4
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm_problem import Gemm
from kernels.templates.matrix import Matrix
from kernels.templates.units.product import UNIT_PRODUCT
from kernels.templates.units.product_choice import UnitProduct
from kernels.tensor.expression import Buffer, relu
from kernels.tensor.scalars import narrow, widen
from kernels.units.write import NoMatrixUnit
from tests.kernels.guard import run_guarded
from tests.kernels.units.test_units import has_units


def problem(rows: int, columns: int, depth: int, batch: tuple[int, ...] = ()) -> Gemm:
    """A product with a bias and a relu."""
    plain = Gemm(rows, columns, depth, batch)
    bias = Buffer("bias", DType.F32, (columns,))
    return Gemm(
        rows, columns, depth, batch, epilogue=Epilogue(relu(ACCUMULATED[()] + bias[plain.column])), arithmetic="rounded"
    )


def rounded(array: np.ndarray) -> np.ndarray:
    """Numbers as bfloat16 holds them."""
    return np.asarray(widen(narrow(array, DType.BF16), DType.BF16), np.float64)


@has_units
@pytest.mark.parametrize("candidate", [None, UnitProduct(1, 1), UnitProduct(2, 2, 1), UnitProduct(2, 3, 8)])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(32, 32, 64), (128, 300, 77), (17, 33, 33), (5, 16, 100), (40, 70, 544), (2, 1, 1)]
)
def test_products_are_those_of_rounded_numbers(
    rows: int, columns: int, depth: int, candidate: UnitProduct | None
) -> None:
    gemm, generator = problem(rows, columns, depth), np.random.default_rng(rows)
    kernel = UNIT_PRODUCT.build(gemm, candidate or UNIT_PRODUCT.candidates(gemm, host())[0], host(), "product")
    a, b, bias = (
        generator.standard_normal(dims).astype(np.float32) for dims in ((rows, depth), (depth, columns), columns)
    )
    packing = kernel.operand("b").packing
    assert packing is not None
    arrays = {"a": a, "b": packing.pack(b), "bias": bias, "c": aligned(rows * columns)}
    found_by = run_guarded(kernel, {name: one for name, one in arrays.items() if name != "c"})
    arrays["c"] = found_by["c"]
    wanted = np.maximum(rounded(a) @ rounded(b) + bias, 0)
    found = arrays["c"].reshape(rows, columns)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()  # sums of float32


@has_units
def test_rows_of_a_batch_lie_apart() -> None:
    gemm = replace(problem(20, 24, 40, (3,)), a=Matrix(50, 1, (1100,), 7), b=Matrix(24, 1, (0,)))
    kernel, generator = UNIT_PRODUCT.kernel(gemm, host()), np.random.default_rng(0)
    a, b = generator.standard_normal(kernel.operand("a").elements), generator.standard_normal((40, 24))
    packing = kernel.operand("b").packing
    assert packing is not None
    arrays = {
        "a": a.astype(np.float32), "b": packing.pack(b.astype(np.float32)), "bias": aligned(24),
        "c": aligned(3 * 20 * 24),
    }  # fmt: skip
    found_by = run_guarded(kernel, {name: one for name, one in arrays.items() if name != "c"})
    arrays["c"] = found_by["c"]
    for number in range(3):
        own = np.lib.stride_tricks.as_strided(arrays["a"][7 + 1100 * number :], (20, 40), (200, 4))
        wanted = np.maximum(rounded(own) @ rounded(b.astype(np.float32)), 0)
        assert np.abs(arrays["c"].reshape(3, 20, 24)[number] - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_code_for_a_processor_with_units_is_compiled_anywhere() -> None:
    kernel = UNIT_PRODUCT.kernel(problem(64, 64, 64), x86_64_amx())
    assert kernel.module.uses_units and kernel.operand("b").dtype is DType.BF16
    assert "tdpbf16ps" in assembly(kernel.module.text(), x86_64_amx())


@pytest.mark.parametrize(
    ("gemm", "target"),
    [
        (problem(64, 64, 64), x86_64_v4()),
        (problem(1, 64, 64), x86_64_amx()),  # as fast as its weights are read
        (replace(problem(64, 64, 64), constant_b=False), x86_64_amx()),
        (replace(problem(64, 64, 64), a=Matrix(1, 64)), x86_64_amx()),
    ],
)
def test_what_no_unit_computes_is_refused(gemm: Gemm, target: object) -> None:
    with pytest.raises(NoMatrixUnit, match="has no matrix unit for this product of rounded numbers"):
        UNIT_PRODUCT.candidates(gemm, target)  # type: ignore[arg-type]


def test_blocks_for_several_workers_have_the_same_operands() -> None:
    kernel = UNIT_PRODUCT.kernel(problem(128, 768, 256), replace(x86_64_amx(), workers=4))
    assert kernel.blocks == 1 and kernel.shared is not None and kernel.shared.blocks >= 8
