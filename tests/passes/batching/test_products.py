"""Products with one matrix are joined when they are independent and reading the matrix again would cost more."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.batching import products
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support

WIDE = 64


def batched(proto: onnx.ModelProto, **dims: int) -> list[str]:
    """The operators after the pass; the models are equal."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), (Pass("batch", 2, run=products.batch_equal_products),))
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result, **dims)
    return support.op_types(result)


def weights(**more: np.ndarray) -> dict[str, np.ndarray]:
    """W[64, 64], V[64, 64] and what is given."""
    generator = np.random.default_rng(1)
    made = {name: generator.standard_normal((WIDE, WIDE)).astype(np.float32) / 8 for name in "WV"}
    return made | more


def inputs(count: int, rows: int | str = 1) -> str:
    """x0, x1, ... [rows, 64]"""
    return ", ".join(f"float[{rows}, {WIDE}] x{place}" for place in range(count))


def outputs(count: int, rows: int | str = 1) -> str:
    """y0, y1, ... [rows, 64]"""
    return inputs(count, rows).replace(" x", " y")


def test_three_products_become_one() -> None:
    body = "y0 = MatMul (x0, W) y1 = MatMul (x1, W) y2 = MatMul (x2, W)"
    proto = support.model(f"g ({inputs(3)}) => ({outputs(3)}) {{ {body} }}", **weights())
    assert batched(proto) == ["Concat", "MatMul", "Split"]


@pytest.mark.fires("batch-equal-products")
def test_a_bias_comes_along() -> None:
    body = " ".join(f"y{place} = Gemm <transB = 1> (x{place}, W, b)" for place in range(4))
    bias = np.arange(WIDE, dtype=np.float32)
    proto = support.model(f"g ({inputs(4)}) => ({outputs(4)}) {{ {body} }}", **weights(b=bias))
    assert batched(proto) == ["Concat", "Gemm", "Split"]


def test_what_depends_on_another_product_is_of_a_later_level() -> None:
    body = """a = MatMul (x0, W) b = MatMul (x1, W) c = MatMul (x2, W)
        d = Tanh (a) e = Tanh (b) f = Tanh (c)
        y0 = MatMul (d, W) y1 = MatMul (e, W) y2 = MatMul (f, W)"""
    proto = support.model(f"g ({inputs(3)}) => ({outputs(3)}) {{ {body} }}", **weights())
    assert batched(proto).count("MatMul") == 2


def test_a_chain_has_nothing_to_join() -> None:
    body = "a = MatMul (x0, W) b = MatMul (a, W) c = MatMul (b, W) y0 = MatMul (c, W)"
    proto = support.model(f"g ({inputs(1)}) => ({outputs(1)}) {{ {body} }}", **weights())
    assert batched(proto) == ["MatMul"] * 4


def test_rows_that_the_first_product_does_not_precede() -> None:
    """x2's product stands first, and the operands of the others are computed behind it."""
    body = """y2 = MatMul (x2, W) z = Relu (y2) a = MatMul (x0, V) y0 = MatMul (a, W) b = Neg (x1)
        y1 = MatMul (b, W) y3 = Add (z, y0)"""
    proto = support.model(f"g ({inputs(3)}) => ({outputs(4)}) {{ {body} }}", **weights())
    assert batched(proto).count("MatMul") == 2


def test_many_rows_are_not_copied() -> None:
    body = "y0 = MatMul (x0, W) y1 = MatMul (x1, W) y2 = MatMul (x2, W)"
    proto = support.model(f"g ({inputs(3, 32)}) => ({outputs(3, 32)}) {{ {body} }}", **weights())
    assert batched(proto) == ["MatMul"] * 3


def test_a_bias_of_each_row_or_an_unknown_number_of_rows_stays() -> None:
    body = " ".join(f"y{place} = Gemm (x{place}, W, b)" for place in range(3))
    bias = np.arange(2 * WIDE, dtype=np.float32).reshape(2, WIDE)
    proto = support.model(f"g ({inputs(3, 2)}) => ({outputs(3, 2)}) {{ {body} }}", **weights(b=bias))
    assert batched(proto) == ["Gemm"] * 3
    body = "y0 = MatMul (x0, W) y1 = MatMul (x1, W) y2 = MatMul (x2, W)"
    proto = support.model(f"g ({inputs(3, 'n')}) => ({outputs(3, 'n')}) {{ {body} }}", **weights())
    assert batched(proto, n=2) == ["MatMul"] * 3
