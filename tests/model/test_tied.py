"""Dims that are known from others, as they meet in an operator; formulas that a caller writes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.model.tied import equal_dims


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]>\n{text}')


CHAIN = parsed(
    """
g (float[1, 4, 1, a] scores, float[1, 4, b, 8] values, float[c, 8] more) => (float[p, q, r, s] y) {
    x = MatMul(scores, values)
    z = Concat<axis = 0>(more, more)
    w = Add(values, more)
    y = MatMul(x, w_t)
    w_t = Transpose<perm = [0, 1, 3, 2]>(w)
}
""".replace("    y = MatMul(x, w_t)\n    w_t", "    w_t").replace("(w)\n", "(w)\n    y = MatMul(x, w_t)\n")
)


def test_dims_that_meet_are_equal() -> None:
    assert equal_dims(ir.from_proto(CHAIN), ["a"]) == {"b": ("a", 0), "c": ("b", 0)}
    assert equal_dims(ir.from_proto(CHAIN), ["c"]) == {"b": ("c", 0), "a": ("b", 0)}


def test_a_longer_one_is_equal_but_for_a_step() -> None:
    model = parsed("""
    g (float[a, 8] past, float[1, 8] row, float[b, 8] scale) => (float[p, 8] y) {
        all = Concat<axis = 0>(past, row)
        y = Mul(all, scale)
    }
    """)
    assert equal_dims(ir.from_proto(model), ["a"]) == {"b": ("a", 1)}
    assert equal_dims(ir.from_proto(model), ["b"]) == {"a": ("b", -1)}
    made = graphopt.compile(model, dims={"a": (1, 6)}, threads=1)
    for rows in (1, 4, 6):
        past, scale = np.ones((rows, 8), np.float32), np.full((rows + 1, 8), 3, np.float32)
        np.testing.assert_array_equal(made(past=past, row=past[:1], scale=scale)["y"], scale)


def test_dims_that_may_be_one_are_not_tied_to_a_number() -> None:
    model = parsed("g (float[a, 8] x, float[8] y) => (float[a, 8] z) { z = Add(x, y) }")
    assert equal_dims(ir.from_proto(model), []) == {}


LOOKUP = parsed("""
g (int64[1, m] mask, float[1, n] x) => (float[1, k] y) {
    wide = Cast<to = 1>(mask)
    total = ReduceSum<keepdims = 1>(wide)
    y = Mul(x, total)
}
""")


def test_formulas_of_a_caller() -> None:
    made = graphopt.compile(LOOKUP, dims={"n": "1..8", "m": "2*n + 1"}, threads=1)
    for size in (1, 5, 8):
        x = np.arange(size, dtype=np.float32)[None]
        found = made(mask=np.ones((1, 2 * size + 1), np.int64), x=x)["y"]
        np.testing.assert_array_equal(found, x * (2 * size + 1))
    with pytest.raises(OptionError, match=r"'m' has neither a size nor a range; .* a formula of those that have one"):
        graphopt.compile(LOOKUP, dims={"n": (1, 8)})
    with pytest.raises(OptionError, match="'m' would be -1 at the least sizes"):
        graphopt.compile(LOOKUP, dims={"n": (1, 8), "m": "n - 2"})


def test_names_that_are_formulas() -> None:
    model = ir.from_proto(LOOKUP)
    model.graph.inputs[0].shape = ir.Shape([1, "n + 2"])
    made = graphopt.compile(ir.to_proto(model), dims={"n": (1, 8)}, threads=1)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(made(mask=np.ones((1, 5), np.int64), x=x)["y"], 5 * x)
