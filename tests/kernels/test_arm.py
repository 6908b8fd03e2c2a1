"""Kernels for ARM64 and RISC-V, run under an emulator: exact where the arithmetic is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.target import Target, aarch64, riscv64
from kernels.templates.attention.build import build as build_attention
from kernels.templates.attention.problem import Attention
from kernels.templates.attention.problem import candidates as attention_candidates
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import Gemm, build, candidates
from kernels.tensor.expression import Buffer, relu
from tests.kernels.arm import needs_arm, run_emulated

pytestmark = needs_arm
TARGETS = pytest.mark.parametrize("target", (aarch64(), riscv64()), ids=("arm", "riscv"))


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (7, 13, 9), (33, 50, 21), (4, 64, 130)])
@pytest.mark.parametrize("constant", [True, False])
@TARGETS
def test_products_of_small_integers_are_exact(
    rows: int, columns: int, depth: int, constant: bool, target: Target, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(-4, 5, (rows, depth)).astype(np.float32)
    b = generator.integers(-4, 5, (depth, columns)).astype(np.float32)
    bias = generator.integers(-4, 5, columns).astype(np.float32)
    plain = Gemm(rows, columns, depth)
    epilogue = Epilogue(relu(ACCUMULATED[()] + Buffer("bias", DType.F32, (columns,))[plain.column]))
    gemm = Gemm(rows, columns, depth, constant_b=constant, epilogue=epilogue)
    for candidate in candidates(gemm, target)[:2]:
        kernel = build(gemm, candidate, target)
        packing = kernel.operand("b").packing
        stored = b if packing is None else packing.pack(b)
        got = run_emulated(kernel, {"a": a, "b": stored, "bias": bias}, tmp_path)["c"]
        assert (got.reshape(rows, columns) == np.maximum(a @ b + bias, 0)).all()


@TARGETS
def test_attention(target: Target, tmp_path: Path) -> None:
    one = Attention(1, 2, 9, 21, 12, causal=True, past=12)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, rows, 12)).astype(np.float32) for rows in (9, 21, 21))
    kernel = build_attention(one, attention_candidates(one, target)[0], target)
    got = run_emulated(kernel, {"q": q, "k": k, "v": v}, tmp_path)["output"].reshape(2, 9, 12)
    scores = q.astype(np.float64) @ k.transpose(0, 2, 1) / np.sqrt(12)
    scores = np.where(np.arange(21) <= np.arange(9)[:, None] + 12, scores, -np.inf)
    weights = np.exp(scores)
    exact = weights / weights.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(got, exact, rtol=4e-6, atol=4e-6)  # as on other targets: see test_attention
