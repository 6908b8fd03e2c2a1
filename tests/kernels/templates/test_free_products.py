"""Products whose columns or depth only the run knows: at every size of a range against NumPy, between guard pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.errors import Undecided
from kernels.size import free
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm, GemmCandidate, build
from kernels.templates.matrix import Matrix
from kernels.tensor.expression import Buffer, relu
from tests.kernels.targets import HERE
from tests.kernels.templates.test_any_size import LENGTH, SIZES, AnySize, _close, _random

DEPTH = 21


@pytest.mark.parametrize("target", HERE, ids=str)
@pytest.mark.parametrize("stored", ["by rows", "by columns"])
def test_any_number_of_columns(stored: str, target: Target) -> None:
    """As scores are made of queries and keys, with a mask for each row and a number for each column behind it."""
    across = stored == "by rows"

    def make(batch: Any, length: Any) -> Gemm:
        b = Matrix(length, 1, (DEPTH * length,)) if across else Matrix(1, DEPTH, (DEPTH * length,))
        plain = Gemm(length, length, DEPTH, (batch,), b=b, constant_b=False)
        mask, bias = Buffer("mask", DType.F32, (length, length)), Buffer("bias", DType.F32, (length,))
        places = (plain.row, plain.column) if across else (plain.column, plain.row)  # or with its columns apart
        value = relu(ACCUMULATED[()] * mask[places] + bias[plain.column])
        return replace(plain, epilogue=Epilogue(value))

    kernel = AnySize(GEMM, make, target)
    for batch, length in SIZES:
        a, b = _random(batch, length, DEPTH), _random(batch, DEPTH, length)
        mask, bias = _random(length, length), _random(length)
        given = b if across else np.ascontiguousarray(b.transpose(0, 2, 1))
        found = kernel(batch, length, {"a": a, "b": given, "mask": mask, "bias": bias})
        _close(found, np.maximum(a @ b * (mask if across else mask.T) + bias, 0))


@pytest.mark.parametrize("target", HERE, ids=str)
def test_any_depth(target: Target) -> None:
    """As values are weighed, and with A by columns."""
    plain = AnySize(GEMM, lambda b, s: Gemm(7, 19, s, (b,), constant_b=False), target)
    turned = AnySize(GEMM, lambda b, s: Gemm(7, 19, s, (b,), a=Matrix(1, 7, (7 * s,)), constant_b=False), target)
    for batch, length in SIZES:
        a, b = _random(batch, 7, length), _random(batch, length, 19)
        _close(plain(batch, length, {"a": a, "b": b}), a @ b)
        _close(turned(batch, length, {"a": np.ascontiguousarray(a.transpose(0, 2, 1)), "b": b}), a @ b)


def test_any_columns_and_depth_at_once() -> None:
    kernel = AnySize(GEMM, lambda b, s: Gemm(b, s, s, b=Matrix(1, s), constant_b=False), HERE[0])
    for batch, length in SIZES:
        a, b = _random(batch, length), _random(length, length)
        _close(kernel(batch, length, {"a": a, "b": b}), a @ b.T)


def test_other_arithmetics_are_refused() -> None:
    problem = Gemm(4, free(LENGTH), 8, arithmetic="u8s8", epilogue=Epilogue(Buffer("acc", DType.I32, ())[()]))
    with pytest.raises(Undecided, match="columns and depth of a product of u8s8 cannot be of any size"):
        build(problem, GemmCandidate(4, 2, 1, 1, "constant"), HERE[0], "any")
