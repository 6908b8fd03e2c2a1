"""What a kernel for a range of sizes is built of: one candidate, two, and blocks for several workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.program.choosing import APART, Chooser, dims_in, problem_at
from kernels.kernel import Kernel
from kernels.size import Dim, at, free
from kernels.target import host
from kernels.templates.bits import BitsProduct
from kernels.templates.bits_any import BITS_OF_ANY_ROWS, of_one_row
from kernels.templates.gemm import GEMM, Gemm, GemmCandidate
from kernels.templates.template import Template

ROWS = Dim("rows", 1, 64, 0)
SMALL, LARGE = GemmCandidate(2, 1, 4, 4, "constant"), GemmCandidate(4, 2, 4, 2, "constant")
Estimate = Callable[[int, GemmCandidate], float]


def _template(estimate: Estimate, share: Callable[[int, GemmCandidate], GemmCandidate] | None = None) -> Any:
    """Products of two candidates whose times are given by the number of rows."""

    def candidates(problem: Gemm, _: object) -> tuple[GemmCandidate, ...]:
        return tuple(sorted((SMALL, LARGE), key=lambda one: estimate(problem.rows, one)))

    return Template(
        "gemm", Gemm, candidates, GEMM.build, lambda problem, one, _: estimate(problem.rows, one),
        None if share is None else lambda problem, one, _: share(problem.rows, one),
    )  # fmt: skip


def _kernel(template: Template[Any, Any]) -> Kernel:
    return Chooser(template, Gemm(free(ROWS), 64, 16), Gemm(64, 64, 16), (ROWS,), host()).kernel("product")


def test_one_candidate_that_is_never_much_slower_is_alone() -> None:
    kernel = _kernel(_template(lambda rows, one: rows if one is LARGE else rows * (APART if rows > 7 else 1)))
    assert kernel.choice == str(LARGE) and kernel.name == "product" and kernel.shared is None
    assert [one.name for one in kernel.operands] == ["a", "b", "c", "sizes"]


@pytest.mark.parametrize("form", [None, lambda one: one.vectors, lambda _: "one"])
def test_two_candidates_for_several_dims_have_weights_of_one_form(
    form: Callable[[GemmCandidate], object] | None,
) -> None:
    """They are told apart by the product of the dims, here; of other forms one serves all, though it loses more."""
    columns = Dim("columns", 1, 2, 1)
    plain = _template(lambda rows, one: 2 if (one is SMALL) != (rows <= 35) else 1)
    chooser = Chooser(
        replace(plain, form=form), Gemm(free(ROWS) * free(columns), 64, 16), Gemm(64 * 2, 64, 16), (ROWS, columns),
        host(),
    )  # fmt: skip
    kernel = chooser.kernel("product")
    is_parted = form is not None and form(SMALL) == form(LARGE)
    assert kernel.choice == (f"{SMALL} up to rows*columns=33, then {LARGE}" if is_parted else str(LARGE))
    if is_parted:
        few, many = (GEMM.build(chooser.problem, one, host()) for one in (SMALL, LARGE))
        for rows, across in ((1, 1), (4, 2), (33, 1), (33, 2), (64, 2)):
            sizes, wanted = {"rows": rows, "columns": across}, few if rows * across <= 33 else many
            counts = [one.blocks if one.run_blocks is None else one.run_blocks for one in (kernel, wanted)]
            assert at(counts[0], sizes) == at(counts[1], sizes)


def test_two_candidates_are_told_apart_by_one_dim() -> None:
    """Where that says which is faster, and no product of dims does."""

    def estimate(problem: Gemm, one: GemmCandidate, _: object = None) -> float:
        return 2.0 if (one is SMALL) != (problem.columns <= 16) else 1.0

    def candidates(problem: Gemm, _: object) -> tuple[GemmCandidate, ...]:
        return tuple(sorted((SMALL, LARGE), key=lambda one: estimate(problem, one)))

    columns = Dim("columns", 1, 64, 1)
    template = Template("gemm", Gemm, candidates, GEMM.build, estimate, form=lambda _: "one")
    problem = Gemm(free(ROWS), free(columns), 16)
    kernel = Chooser(template, problem, Gemm(64, 64, 16), (ROWS, columns), host()).kernel("product")
    assert kernel.choice == f"{SMALL} up to columns=16, then {LARGE}"


@pytest.mark.parametrize("turn", [1, 7, 33])
def test_two_candidates_share_a_range_that_none_serves_alone(turn: int) -> None:
    """The size at which one begins to lose is found; each reads the weights as it packs them."""
    kernel = _kernel(_template(lambda rows, one: rows * (2 if (one is SMALL) != (rows <= turn) else 1)))
    assert kernel.choice == f"{SMALL} up to rows={turn}, then {LARGE}"
    assert [one.name for one in kernel.operands] == ["a", "b", "c", "b.again", "sizes"]
    few, many = (GEMM.build(Gemm(free(ROWS), 64, 16), one, host()) for one in (SMALL, LARGE))
    for rows in range(1, ROWS.most + 1):
        wanted = few if rows <= turn else many
        counts = [one.blocks if one.run_blocks is None else one.run_blocks for one in (kernel, wanted)]
        assert at(counts[0], {"rows": rows}) == at(counts[1], {"rows": rows}) <= kernel.blocks


def test_blocks_for_several_workers_are_those_that_lose_least_at_any_size() -> None:
    """Of few rows one block is all; the blocks that one row wants serve many rows as well, and not the reverse."""
    cut = replace(SMALL, panel_stretch=1)
    kernel = _kernel(_template(lambda rows, one: rows, lambda rows, one: cut if rows < 16 else one))
    assert kernel.shared is not None and kernel.shared.blocks > kernel.blocks


def test_two_candidates_have_blocks_for_several_workers_too() -> None:
    def slow(rows: int, one: GemmCandidate) -> float:
        return rows * (2 if (one.rows == SMALL.rows) != (rows <= 7) else 1)

    kernel = _kernel(_template(slow, lambda rows, one: replace(one, row_stretch=1, panel_stretch=1)))
    assert kernel.shared is not None and kernel.shared.name == "product_shared"
    assert kernel.shared.operands == kernel.operands


def test_a_problem_says_which_dims_it_follows_from() -> None:
    other = Dim("batch", 1, 3, 1)
    assert dims_in(Gemm(free(ROWS) * free(other), 64, 16)) == {ROWS, other} and not dims_in(Gemm(3, 64, 16))
    assert problem_at(Gemm(free(ROWS) * free(other), 64, 16), {"rows": 5, "batch": 2}) == Gemm(10, 64, 16)


def test_one_row_by_codes_has_its_own_template_and_the_same_constants() -> None:
    product = BitsProduct(free(ROWS), 200, 64, 4, 32, "codes")
    greatest = replace(product, rows=ROWS.most)
    kernel = Chooser(BITS_OF_ANY_ROWS, product, greatest, (ROWS,), host()).kernel("codes")
    one = of_one_row(replace(product, rows=1), host()).kernel(replace(product, rows=1), host())
    assert kernel.choice.startswith(f"{one.choice}, then ")
    assert [operand.name for operand in kernel.operands] == ["a", "b", "scales", "zeros", "c", "sizes"]
    assert kernel.operand("b").packing == one.operand("b").packing


def test_rows_by_codes_are_right_at_every_size() -> None:
    """None, one, which has a kernel of its own, and several."""
    rng = np.random.default_rng(4)
    columns, depth = 200, 64
    codes, zeros = rng.integers(0, 256, (columns, 2, 16), np.uint8), rng.integers(0, 256, columns, np.uint8)
    scales = rng.random(columns * 2, np.float32)
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "b", "s", "z"], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4, block_size=32
    )
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", depth), ("y", columns))]
    weights = [onnx.numpy_helper.from_array(one, name) for one, name in ((codes, "b"), (scales, "s"), (zeros, "z"))]
    graph = onnx.helper.make_graph([node], "codes", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    program = graphopt.compile(model, dims={"n": (0, 5)}, threads=1)
    whole = np.stack([codes & 15, codes >> 4], -1).reshape(columns, 2, 32).astype(np.float64)
    offsets = np.stack([zeros & 15, zeros >> 4], -1).astype(np.float64)
    b = ((whole - offsets[..., None]) * scales.reshape(columns, 2, 1)).reshape(columns, depth).T
    for rows in (0, 1, 2, 5, 1):
        x = rng.standard_normal((rows, depth), np.float32)
        np.testing.assert_allclose(program.run(None, {"x": x})[0], x.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)
