"""Products and convolutions of bytes, with weights that are constant or a run's: bit for bit as ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.routines.one_node import held, model, same

GENERATOR = np.random.default_rng(0)


def drawn(kind: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return GENERATOR.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def single(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def kernels_of(
    op: str, inputs: Sequence[np.ndarray], result: np.ndarray, known: Sequence[int], **given: Any
) -> list[str]:
    """The names of the kernels that compute a node."""
    regions = lower(ir.from_proto(model(op, inputs, [result], known, 21, given)), host()).regions
    return [region.kernel.name.rpartition("_")[0] for region in regions]


def kernel_of(op: str, inputs: Sequence[np.ndarray], result: np.ndarray, known: Sequence[int], **given: Any) -> str:
    """The name of the one kernel that computes a node."""
    (name,) = kernels_of(op, inputs, result, known, **given)
    return name


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


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_products_with_weights_of_a_run(kinds: tuple[type, type], batch: tuple[int, ...]) -> None:
    a, b = drawn(kinds[0], *batch, 5, 40), drawn(kinds[1], *batch, 40, 19)
    zeros = [np.array(5, kinds[0]), np.array(9, kinds[1])]
    (sums,) = same("MatMulInteger", [a, b, *zeros])
    assert kernels_of("MatMulInteger", [a, b, *zeros], sums, []) == ["repack_product", "quantized_product"]
    same("MatMulInteger", [a, b, *zeros], known=[1])  # constant weights whose zero point a run gives
    inputs = [a, single(0.02), zeros[0], b, single(0.01), zeros[1], single(0.3), np.array(9, kinds[0])]
    (made,) = same("QLinearMatMul", inputs, opset=21)
    assert kernels_of("QLinearMatMul", inputs, made, []) == ["repack_product", "quantized_product"]


@pytest.mark.parametrize("form", [{"pads": [1, 1, 1, 1]}, {"group": 2, "strides": [2, 2]}], ids=str)
def test_convolutions_with_weights_of_a_run(form: dict[str, Any]) -> None:
    x, weights = drawn(np.uint8, 2, 4, 9, 10), drawn(np.int8, 8, 4 // form.get("group", 1), 3, 3)
    zero = np.array(7, np.uint8)
    (sums,) = same("ConvInteger", [x, weights, zero], **form)
    assert kernels_of("ConvInteger", [x, weights, zero], sums, [], **form) == ["repack", "quantized"]
    scale, zeros = (GENERATOR.random(8) * 0.01 + 0.001).astype(np.float32), drawn(np.int8, 8)
    bias = GENERATOR.integers(-900, 900, 8).astype(np.int32)
    inputs = [x, single(0.02), zero, weights, scale, zeros, single(0.5), np.array(9, np.uint8), bias]
    (made,) = same("QLinearConv", inputs, opset=21, **form)
    assert kernels_of("QLinearConv", inputs, made, [], **form) == ["repack", "quantized"]


def test_what_the_templates_leave_to_loops() -> None:
    x, weights = drawn(np.uint8, 1, 4, 5, 5), drawn(np.int8, 4, 1, 3, 3)
    (sums,) = same("ConvInteger", [x, weights], group=4)
    assert kernel_of("ConvInteger", [x, weights], sums, [], group=4) == "routine", "single channels"
    a, b = drawn(np.uint8, 2, 4, 6), drawn(np.int8, 3, 1, 6, 3)
    (sums,) = same("MatMulInteger", [a, b])
    assert kernel_of("MatMulInteger", [a, b], sums, []) == "routine", "a batch that is broadcast"
    a, b, zeros = drawn(np.uint8, 4, 6), drawn(np.int8, 6, 3), drawn(np.uint8, 4)
    sums = (a.astype(np.int32) - zeros[:, None]) @ b.astype(np.int32)
    held("MatMulInteger", [a, b, zeros], [sums])
    assert kernel_of("MatMulInteger", [a, b, zeros], sums, []) == "routine", "a zero point for each row"
