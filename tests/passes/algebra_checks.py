"""Hands for the tests of algebra: models with weights, and did the rules leave these operators or all alone?"""

from __future__ import annotations

import numpy as np
import onnx

from graphopt.passes.algebra import RULES
from graphopt.rewrite.rule import Rule
from tests.support import apply_rules, assert_equal, model, op_types

STANDARD: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.level <= 2)

# Rewrites that only move data, or compute with integers, are held to the last bit. Regrouped float constants and
# another order of summation round differently, a few units in the last place of float32.
EXACT = 0.0
ROUNDING = 2e-6


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def build(text: str, opset: int = 17, /, **weights: object) -> onnx.ModelProto:
    """A model from ONNX text; the weights are arrays or NumPy numbers."""
    return model(text, opset, 8, **{name: np.asarray(weight) for name, weight in weights.items()})


def leaves(proto: onnx.ModelProto, expected: list[str], tolerance: float = EXACT, **dims: int) -> onnx.ModelProto:
    """The rules fire, these operators remain, and the outputs are equal within the tolerance."""
    after, log = apply_rules(proto, STANDARD)
    assert op_types(after) == expected
    assert log
    assert_equal(proto, after, rtol=tolerance, atol=tolerance, **dims)
    return after


def refuses(proto: onnx.ModelProto) -> None:
    """No rule fires."""
    after, log = apply_rules(proto, STANDARD)
    assert log == []
    assert op_types(after) == op_types(proto)


def constants(proto: onnx.ModelProto) -> dict[str, list[float]]:
    """The initializers that some node reads, flattened."""
    read = {name for node in proto.graph.node for name in node.input}
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        for tensor in proto.graph.initializer
        if tensor.name in read
    }
