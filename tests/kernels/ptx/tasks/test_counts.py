"""Inner loops of products and convolutions, counted; and the bytes that tasks touch, beside those that are planned."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gpu.counts import LEAST, MOST, Counted, counted
from kernels.dtype import DType
from kernels.ptx.tasks.elementwise import elementwise
from kernels.ptx.tasks.indexed import indexed
from kernels.ptx.tasks.product import product
from kernels.ptx.tasks.touched import touched
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.elementwise import Elementwise, Output
from kernels.templates.gemm_problem import Gemm
from kernels.templates.indexed import gather
from kernels.templates.matrix import Matrix
from kernels.tensor.expression import Buffer, Variable
from tests.kernels.ptx.tasks.running import SM_90

PROBLEMS: dict[str, Gemm | Convolution] = {
    "product": Gemm(64, 128, 1024), "product with tails": Gemm(50, 75, 1000),
    "taps of whole slices": convolution(1, 64, 64, (9, 9), (3, 3), pads=(1, 1, 1, 1)),
    "places of other channels": convolution(1, 160, 64, (9, 9), (1, 7), pads=(0, 3, 0, 3)),
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, Counted]:
    return {one.name: one for one in counted(list(PROBLEMS.items()), SM_90)}


@pytest.mark.parametrize("name", PROBLEMS)
def test_inner_loops_multiply_and_read_without_conflicts(name: str, found: dict[str, Counted]) -> None:
    one = found[name]
    assert one.share is not None and one.share >= LEAST and one.conflicts == (0, 0)
    assert one.reads <= MOST and one.writes <= MOST


@pytest.mark.parametrize("name", PROBLEMS)
def test_estimates_know_how_many_instructions_multiply(name: str, found: dict[str, Counted]) -> None:
    one = found[name]
    assert one.share is not None and abs(one.estimated - one.share) < 0.06


def test_views_touch_less_than_their_storage() -> None:
    i, j = Variable("i", 3), Variable("j", 4)
    x, y = Buffer("x", DType.F32, (3, 4), (10, 2)), Buffer("y", DType.F32, (3, 4), (4, 1), 8)
    chain = Elementwise((i, j), (Output(y, x[i, j] + x[i, 0]),))
    assert touched(chain, elementwise(chain, SM_90, "chain")).operands == (48, 48)
    rows = Gemm(3, 4, 5, (), Matrix(9, 1))
    kernel = product(rows, SM_90, "rows")
    assert touched(rows, kernel).operands[0] == 60 and kernel.operands[0].bytes > 60


def test_what_indices_decide_is_said_at_most() -> None:
    problem = gather((100, 4), 0, (2,), DType.F32)
    found = touched(problem, indexed(problem, SM_90, "gather"))
    assert not found.exact and found.operands[0] == 1600
    assert not touched(None, indexed(problem, SM_90, "gather")).exact
    assert np.prod((100, 4)) * 4 == 1600
