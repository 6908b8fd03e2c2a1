"""Products on dot products of bfloat16: their results, their choice, and what refuses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels.cores import known_core
from kernels.run import aligned
from kernels.size import Dim, free
from kernels.target import Target, host, x86_64_v4
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.dots.product_choice import NoDotProduct, are_faster, estimate, row_elements, serves, share
from kernels.templates.gemm import GEMM
from kernels.templates.gemm_choice import GemmCandidate
from kernels.templates.gemm_problem import Gemm
from kernels.templates.matrix import Matrix
from tests.kernels.guard import run_guarded
from tests.kernels.templates.test_any_size import SIZES, AnySize
from tests.kernels.templates.test_units import problem, rounded

has_pairs = pytest.mark.skipif(not host().has("avx512bf16"), reason="the processor has no dot products of bfloat16")


def zen4() -> Target:
    """AVX-512 with pairs of bfloat16, and the figures of a known core."""
    core = known_core("znver4", 64)
    assert core is not None
    plain = x86_64_v4()
    return replace(plain, core=core, features=(*plain.features, "+avx512bf16"))


@has_pairs
@pytest.mark.parametrize(
    "candidate", [None, GemmCandidate(6, 4, 1, 1, "constant"), GemmCandidate(3, 2, 2, 3, "constant", 32)]
)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(32, 32, 64), (128, 300, 77), (17, 33, 33), (5, 16, 100), (40, 70, 544), (2, 1, 1)]
)
def test_products_are_those_of_rounded_numbers(
    rows: int, columns: int, depth: int, candidate: GemmCandidate | None
) -> None:
    gemm, generator = problem(rows, columns, depth), np.random.default_rng(rows)
    kernel = DOT_PRODUCT.build(gemm, candidate or DOT_PRODUCT.candidates(gemm, host())[0], host(), "product")
    a, b, bias = (
        generator.standard_normal(dims).astype(np.float32) for dims in ((rows, depth), (depth, columns), columns)
    )
    packing = kernel.operand("b").packing
    assert packing is not None
    found = run_guarded(kernel, {"a": a, "b": packing.pack(b), "bias": bias})["c"].reshape(rows, columns)
    wanted = np.maximum(rounded(a) @ rounded(b) + bias, 0)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()  # sums of float32


@has_pairs
@pytest.mark.parametrize("tile", [(4, 2, None), (3, 1, 8), (8, 3, 16), None])
def test_rows_that_only_a_run_knows(tile: tuple[int, int, int | None] | None) -> None:
    """One tile of rows, which passes the depth alone, and several, by stretches of rows and of panels."""
    depth, columns, generator = 77, 70, np.random.default_rng(5)
    rows, vectors, part = tile or (0, 0, None)
    candidate = GemmCandidate(rows, vectors, 3, 2, "constant", part) if tile else None
    kernel = AnySize(DOT_PRODUCT, lambda batch, length: problem(batch * length, columns, depth), host(), candidate)
    b, bias = generator.standard_normal((depth, columns)).astype(np.float32), np.ones(columns, np.float32)
    for batch, length in SIZES:
        a = generator.standard_normal((batch * length, depth)).astype(np.float32)
        found = kernel(batch, length, {"a": a, "b": b, "bias": bias}).reshape(-1, columns)
        wanted = np.maximum(rounded(a) @ rounded(b) + bias, 0)
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()  # sums of float32


@has_pairs
def test_rows_may_lie_apart_and_matrices_in_a_batch() -> None:
    places = {"a": Matrix(50, 1, (50 * 20, 0)), "c": Matrix(24, 1, (3 * 20 * 24, 20 * 24))}
    gemm, generator = replace(problem(20, 24, 40, (2, 3)), **places), np.random.default_rng(0)
    kernel = DOT_PRODUCT.kernel(gemm, host())
    a = generator.standard_normal((2, 20, 50)).astype(np.float32)
    b, bias = generator.standard_normal((6, 40, 24)).astype(np.float32), np.zeros(24, np.float32)
    packing = kernel.operand("b").packing
    assert packing is not None
    size = kernel.operand("a").elements
    arrays = {"a": a.reshape(-1)[:size], "b": packing.pack(b), "bias": bias, "c": aligned(6 * 20 * 24)}
    found = run_guarded(kernel, {name: one for name, one in arrays.items() if name != "c"})["c"].reshape(6, 20, 24)
    for number in range(6):
        wanted = np.maximum(rounded(a[number // 3, :, :40]) @ rounded(b[number]), 0)
        assert np.abs(found[number] - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_several_workers_share_panels_and_the_same_weights() -> None:
    gemm, target = problem(64, 1024, 256), zen4()
    alone = DOT_PRODUCT.candidates(gemm, target)[0]
    shared = share(gemm, alone, target)
    assert shared.panel_stretch < alone.panel_stretch
    assert replace(shared, panel_stretch=alone.panel_stretch) == alone


def test_a_core_with_half_as_many_dot_products_is_not_faster() -> None:
    """Then they multiply as many numbers as float32 does, and rounding comes on top."""
    gemm, target = problem(128, 768, 768), zen4()
    plain = replace(gemm, arithmetic="f32")
    assert are_faster(target)
    wide = GEMM.estimate(plain, GEMM.candidates(plain, target)[0], target)  # type: ignore[misc]
    assert estimate(gemm, DOT_PRODUCT.candidates(gemm, target)[0], target) < 0.6 * wide
    slow = replace(target, core=replace(target.core, dot_products=0.5))
    assert not are_faster(slow) and not are_faster(x86_64_v4())
    assert estimate(gemm, DOT_PRODUCT.candidates(gemm, slow)[0], slow) > 0.9 * wide  # it reads fewer bytes


def test_rounded_rows_take_an_odd_number_of_lines() -> None:
    assert [row_elements(Gemm(2, 2, depth)) // 32 for depth in (1, 32, 33, 64, 2048)] == [1, 1, 3, 3, 65]


@pytest.mark.parametrize(
    "changed",
    [
        {"arithmetic": "f32"},
        {"constant_b": False},
        {"a": Matrix(1, 4)},  # columns that lie side by side
        {"rows": 0},
        {"columns": free(Dim("n", 2, 8, 0))},
        {"a": Matrix(free(Dim("n", 4, 8, 0)))},  # only a run knows how far rows lie apart
        {"depth": 0},
        {"columns": 0},
    ],
)
def test_others_are_refused(changed: dict[str, object]) -> None:
    gemm = replace(problem(4, 4, 4), **changed)  # type: ignore[arg-type]
    assert serves(problem(4, 4, 4), zen4())
    with pytest.raises(NoDotProduct, match="has no dot products for this product of rounded numbers"):
        DOT_PRODUCT.candidates(gemm, zen4())


def test_a_target_without_them_is_refused() -> None:
    with pytest.raises(NoDotProduct):
        DOT_PRODUCT.candidates(problem(4, 4, 4), x86_64_v4())
