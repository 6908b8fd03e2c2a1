"""Products and convolutions of bytes, with weights that are constant or a run's.

Sums are bit for bit those of ONNX Runtime. Requantized ones are bit for bit the exact product, rounded; ONNX Runtime
multiplies in float32 and may lie one step beside it where the product is close to the middle of two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.routines.one_node import expected, held, model, same

Arrays = Sequence[np.ndarray]


def drawn(kind: type, *shape: int) -> np.ndarray:
    """Values over a kind's whole range, the same ones for the same shape in whatever order tests run."""
    limits = np.iinfo(kind)
    return np.random.default_rng(shape).integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def scales(*shape: int) -> np.ndarray:
    return (np.random.default_rng((1, *shape)).random(shape) * 0.01 + 0.001).astype(np.float32)


def biases(count: int) -> np.ndarray:
    return np.random.default_rng((2, count)).integers(-900, 900, count).astype(np.int32)


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


def requantized(op: str, inputs: Arrays, known: Sequence[int] = (), **attributes: Any) -> np.ndarray:
    """Hold QLinearMatMul or QLinearConv to rational arithmetic, and that to ONNX Runtime; the result."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero, *bias = inputs
    along = (-1, *[1] * (b.ndim - 1)) if op == "QLinearConv" and b_scale.ndim else b_scale.shape
    apart = a.astype(np.float32) - a_zero, b.astype(np.float32) - b_zero.reshape(along)
    # Every product and every sum is an integer below 2**24.
    (sums,) = expected(
        model(op.removeprefix("QLinear"), apart, 1, [], 21, attributes), {"x0": apart[0], "x1": apart[1]}, "ort"
    )
    columns = sums.shape[1] if op == "QLinearConv" else sums.shape[-1]
    by_column = np.moveaxis(sums, 1, -1) if op == "QLinearConv" else sums
    each = [Fraction(float(a_scale)) * Fraction(float(one)) / Fraction(float(scale)) for one in np.ravel(b_scale)]
    each *= columns // len(each)
    added = bias[0].tolist() if bias else [0] * columns
    limits, flat = np.iinfo(zero.dtype), by_column.reshape(-1, columns).astype(int).tolist()
    exact = [[(one + more) * by for one, more, by in zip(row, added, each, strict=True)] for row in flat]
    steps = np.array([[min(max(round(one) + int(zero), limits.min), limits.max) for one in row] for row in exact])
    wanted = steps.reshape(by_column.shape).astype(zero.dtype)
    wanted = np.moveaxis(wanted, -1, 1) if op == "QLinearConv" else wanted
    held(op, inputs, [wanted], opset=21, known=known, **attributes)
    feeds = {f"x{at}": one for at, one in enumerate(inputs) if at not in known}
    (other,) = expected(model(op, inputs, 1, known, 21, attributes), feeds, "ort")
    beside = np.array([[abs(one % 1 - Fraction(1, 2)) < Fraction(1, 10_000) for one in row] for row in exact])
    beside = beside.reshape(by_column.shape)
    beside = np.moveaxis(beside, -1, 1) if op == "QLinearConv" else beside
    np.testing.assert_array_equal(other[~beside], wanted[~beside])
    return wanted


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("per", [(), (9,)])
def test_products(kind: type, per: tuple[int, ...]) -> None:
    a, b = drawn(kind, 2, 5, 40), drawn(np.int8, 40, 9)
    zero, zeros = np.array(5, kind), np.zeros(per, np.int8)
    (sums,) = same("MatMulInteger", [a, b, zero, zeros], known=[1, 2, 3])
    assert kernel_of("MatMulInteger", [a, b, zero, zeros], sums, [1, 2, 3]) == "quantized_product"
    scale = scales(*per)
    inputs = [a, single(0.02), zero, b, scale, zeros, single(0.3), np.array(9, kind)]
    requantized("QLinearMatMul", inputs, known=range(1, 8))


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
    inputs = [
        x,
        single(0.02),
        zero,
        weights,
        scales(8),
        np.zeros(8, np.int8),
        single(0.5),
        np.array(9, np.uint8),
        biases(8),
    ]
    requantized("QLinearConv", inputs, known=range(1, 9), **form)


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_products_with_weights_of_a_run(kinds: tuple[type, type], batch: tuple[int, ...]) -> None:
    a, b = drawn(kinds[0], *batch, 5, 40), drawn(kinds[1], *batch, 40, 19)
    zeros = [np.array(5, kinds[0]), np.array(9, kinds[1])]
    (sums,) = same("MatMulInteger", [a, b, *zeros])
    assert kernels_of("MatMulInteger", [a, b, *zeros], sums, []) == ["repack_product", "quantized_product"]
    same("MatMulInteger", [a, b, *zeros], known=[1])  # constant weights whose zero point a run gives
    inputs = [a, single(0.02), zeros[0], b, single(0.01), zeros[1], single(0.3), np.array(9, kinds[0])]
    made = requantized("QLinearMatMul", inputs)
    assert kernels_of("QLinearMatMul", inputs, made, []) == ["repack_product", "quantized_product"]


@pytest.mark.parametrize("form", [{"pads": [1, 1, 1, 1]}, {"group": 2, "strides": [2, 2]}], ids=str)
def test_convolutions_with_weights_of_a_run(form: dict[str, Any]) -> None:
    x, weights = drawn(np.uint8, 2, 4, 9, 10), drawn(np.int8, 8, 4 // form.get("group", 1), 3, 3)
    zero = np.array(7, np.uint8)
    (sums,) = same("ConvInteger", [x, weights, zero], **form)
    assert kernels_of("ConvInteger", [x, weights, zero], sums, [], **form) == ["repack", "quantized"]
    inputs = [
        x,
        single(0.02),
        zero,
        weights,
        scales(8),
        drawn(np.int8, 8),
        single(0.5),
        np.array(9, np.uint8),
        biases(8),
    ]
    made = requantized("QLinearConv", inputs, **form)
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
