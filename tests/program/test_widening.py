"""Operators of short floats are computed in float32 where kernels are, and many numbers make it worth it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.program.widening import WIDE_WHERE_MANY, widened
from tests import support

CASES = {
    "Einsum": 'g (float16[32,40] x) => (float16[40,32] y) { y = Einsum<equation = "ij->ji">(x) }',
    "Softmax": "g (float16[32,40] x) => (float16[32,40] y) { y = Softmax(x) }",
    "LogSoftmax": "g (float16[32,40] x) => (float16[32,40] y) { y = LogSoftmax(x) }",
    "LayerNormalization": "g (float16[32,40] x, float16[40] w) => (float16[32,40] y) { y = LayerNormalization(x, w) }",
    "RMSNormalization": "g (float16[32,40] x, float16[40] w) => (float16[32,40] y) { y = RMSNormalization(x, w) }",
    "GroupNormalization": """g (float16[1,4,16,20] x, float16[4] w) => (float16[1,4,16,20] y) {
        y = GroupNormalization<num_groups = 2>(x, w, w) }""",
    "CumSum": "g (float16[32,40] x) => (float16[32,40] y) { y = CumSum(x, axis) }",
    "GridSample": "g (float16[1,1,32,40] x, float16[1,4,4,2] w) => (float16[1,1,4,4] y) { y = GridSample(x, w) }",
    "Resize": """g (float16[1,1,32,40] x) => (float16[1,1,64,80] y) {
        y = Resize<mode = "linear">(x, , twice) }""",
    "Attention": """g (float16[1,2,32,40] x) => (float16[1,2,32,40] y) { y = Attention(x, x, x) }""",
    **{
        name: f"g (float16[32,40] x) => (float16[32,1] y) {{ y = {name}(x, axes) }}"
        for name in sorted(WIDE_WHERE_MANY) if name.startswith("Reduce")
    },
}  # fmt: skip
CONSTANTS = {"axis": np.array(1), "axes": np.array([1]), "twice": np.array([1, 1, 2, 2], np.float32)}


def parsed(text: str) -> onnx.ModelProto:
    """A model of opset 23 with those constants that it reads."""
    return support.model(text, 23, ir_version=10, **{name: one for name, one in CONSTANTS.items() if name in text})


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("name", sorted(WIDE_WHERE_MANY))
def test_many_numbers_are_computed_in_float32_and_few_as_they_are(name: str) -> None:
    model = ir.from_proto(parsed(CASES[name]))
    casts = [node for node in widened(model).graph if node.op_type == "Cast"]
    assert {node.attributes["to"].as_int() for node in casts} == {1, 10}
    assert name in operators(widened(model))
    assert widened(model, 1 << 20) is model
    program = graphopt.compile(parsed(CASES[name]), threads=1)  # held to what ONNX Runtime gives
    assert program.verification.passed and not program.fallback


def test_many_is_a_number_of_elements() -> None:
    text = "g (float16[{0},32] x) => (float16[{0},32] y) {{ y = Softmax(x) }}"
    few, many = (ir.from_proto(parsed(text.format(rows))) for rows in (31, 32))
    assert widened(few) is few
    assert operators(widened(many)) == ["Cast", "Softmax", "Cast"]
    assert operators(widened(few, 0)) == ["Cast", "Softmax", "Cast"], "as the sizes of a range have it"


def test_what_only_moves_numbers_and_caches_of_a_decoder_stay_short() -> None:
    nearest = "g (float16[1,1,32,40] x) => (float16[1,1,64,80] y) { y = Resize(x, , twice) }"
    cached = """g (float16[1,2,1,40] x, float16[1,2,32,40] past) => (float16[1,2,1,40] y, float16[1,2,33,40] k) {
        y, k, v = Attention(x, x, x, , past, past) }"""
    for text in (nearest, cached):
        model = ir.from_proto(parsed(text))
        assert widened(model, 0) is model


def test_float32_stays() -> None:
    model = ir.from_proto(parsed("g (float[32,40] x) => (float[32,40] y) { y = Softmax(x) }"))
    assert widened(model) is model
