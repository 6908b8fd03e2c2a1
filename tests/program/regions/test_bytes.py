"""Products and convolutions of bytes with constant weights: the kernels for bytes, bit for bit as ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.routines.one_node import model, same

GENERATOR = np.random.default_rng(0)


def drawn(kind: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return GENERATOR.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def single(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def kernel_of(op: str, inputs: Sequence[np.ndarray], result: np.ndarray, known: Sequence[int], **given: Any) -> str:
    """The name of the one kernel that computes a node."""
    (region,) = lower(ir.from_proto(model(op, inputs, [result], known, 21, given)), host()).regions
    return region.kernel.name.rpartition("_")[0]


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("per", [(), (9,)])
def test_products(kind: type, per: tuple[int, ...]) -> None:
    a, b = drawn(kind, 2, 5, 40), drawn(np.int8, 40, 9)
    zero, zeros = np.array(5, kind), np.zeros(per, np.int8)
    (sums,) = same("MatMulInteger", [a, b, zero, zeros], known=[1, 2, 3])
    assert kernel_of("MatMulInteger", [a, b, zero, zeros], sums, [1, 2, 3]) == "quantized_product"
    scale = (GENERATOR.random(per) * 0.01 + 0.001).astype(np.float32)
    inputs = [a, single(0.02), zero, b, scale, zeros, single(0.3), np.array(9, kind)]
    same("QLinearMatMul", inputs, known=range(1, 8), opset=21)


FORMS: list[dict[str, Any]] = [
    {"pads": [1, 1, 1, 1]}, {"group": 2, "strides": [2, 2], "pads": [0, 1, 2, 1]}, {"dilations": [2, 2]},
    {"group": 4, "pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_convolutions(form: dict[str, Any]) -> None:
    x, weights = drawn(np.uint8, 2, 4, 9, 10), drawn(np.int8, 8, 4 // form.get("group", 1), 3, 3)
    zero = np.array(7, np.uint8)
    (sums,) = same("ConvInteger", [x, weights, zero], known=[1, 2], **form)
    assert kernel_of("ConvInteger", [x, weights, zero], sums, [1, 2], **form) == "quantized"
    scale = (GENERATOR.random(8) * 0.01 + 0.001).astype(np.float32)
    bias = GENERATOR.integers(-900, 900, 8).astype(np.int32)
    inputs = [x, single(0.02), zero, weights, scale, np.zeros(8, np.int8), single(0.5), np.array(9, np.uint8), bias]
    same("QLinearConv", inputs, known=range(1, 9), opset=21, **form)


def test_weights_that_a_run_gives_are_loops() -> None:
    a, b = drawn(np.uint8, 4, 6), drawn(np.int8, 6, 3)
    (sums,) = same("MatMulInteger", [a, b])
    assert kernel_of("MatMulInteger", [a, b], sums, []) == "routine"
    x, weights = drawn(np.uint8, 1, 2, 5, 5), drawn(np.int8, 3, 2, 3, 3)
    (sums,) = same("ConvInteger", [x, weights, np.array(7, np.uint8)])
    assert kernel_of("ConvInteger", [x, weights, np.array(7, np.uint8)], sums, []) == "routine"
