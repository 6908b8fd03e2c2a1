"""The rows of the table of special cases that are one node each: overflow, ties, empty sets, NaN, infinity, places."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.routines.one_node import held, model, same
from tests.program.regions.running import run_lowered

PAGE = Path(__file__).parents[3] / "docs" / "kernels.md"
NAN, INF = np.float32(np.nan), np.float32(np.inf)
SIGNED, UNSIGNED = (np.int8, np.int16, np.int32, np.int64), (np.uint8, np.uint16, np.uint32, np.uint64)


def singles(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_integers_wrap(op: str, kind: type) -> None:
    limits = np.iinfo(kind)
    a = np.array([limits.max, limits.min, limits.max, 3], kind)
    b = np.array([1, 1, limits.max, 5], kind)
    same(op, [a, b])


@pytest.mark.parametrize("kind", SIGNED)
def test_the_least_integer_has_no_opposite(kind: type) -> None:
    least = np.array([np.iinfo(kind).min, -1], kind)
    held("Neg", [least], [np.array([np.iinfo(kind).min, 1], kind)])
    held("Abs", [least], [np.array([np.iinfo(kind).min, 1], kind)])


@pytest.mark.parametrize("op_type", ["Softplus", "Mish"])
def test_a_softplus_of_what_is_far_below_zero_has_all_its_digits(op_type: str) -> None:
    """log(1 + e^a) is e^a there, of which 1 + e^a keeps nothing."""
    a = np.linspace(-80, 20, 4097, dtype=np.float32)
    exact = np.log1p(np.exp(a.astype(np.float64)))
    exact = exact if op_type == "Softplus" else a * np.tanh(exact)
    lowered = lower(ir.from_proto(model(op_type, [a], [a], (), 20, {})), host())
    (found,) = run_lowered(lowered, {"x0": a})
    assert (np.abs(found - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize("kind", UNSIGNED)
def test_bits_beyond_the_type_are_shifted_out(kind: type) -> None:
    bits = np.iinfo(kind).bits
    x, by = np.full(4, np.iinfo(kind).max, kind), np.array([0, 1, bits - 1, bits], kind)
    left, right = ([int(x[0]) << int(one) & int(x[0]) for one in by], [int(x[0]) >> int(one) for one in by])
    held("BitShift", [x, by], [np.array(left, kind)], direction="LEFT")
    held("BitShift", [x, by], [np.array(right, kind)], direction="RIGHT")


def test_ties_go_to_the_even_number_and_the_first_place() -> None:
    same("Round", [singles(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)])
    x = np.array([[3, 1, 3, 3], [2, 2, 2, 2]], np.float32)
    for last in (0, 1):
        same("ArgMax", [x], axis=1, select_last_index=last)
        same("ArgMin", [x], axis=1, select_last_index=last)
    same("TopK", [x, np.array([3])], outputs=2, axis=1)
    same("MaxPool", [x.reshape(1, 1, 2, 4)], outputs=2, kernel_shape=[2, 2])
    numbers = np.array(0.5, np.float32), np.array(7, np.uint8)
    same("QuantizeLinear", [singles(0.25, 0.75, -0.25, 1.25), *numbers], opset=21)


@pytest.mark.parametrize(
    ("op", "nothing"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceL2", 0)],
)
def test_nothing_is_the_number_that_changes_nothing(op: str, nothing: float) -> None:
    held(op, [np.zeros((2, 0), np.float32), np.array([1])], [np.full((2, 1), nothing, np.float32)])


def test_a_mean_of_nothing_is_nan_and_a_product_over_nothing_zero() -> None:
    held("ReduceMean", [np.zeros((2, 0), np.float32), np.array([1])], [np.full((2, 1), np.nan, np.float32)])
    held("MatMul", [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)], [np.zeros((2, 3), np.float32)])


def test_nan_goes_through_what_compares() -> None:
    x, y = singles(NAN, 1, NAN, -1), singles(1, NAN, NAN, -2)
    for op in ("Max", "Min"):
        same(op, [x, y])
    held("ReduceMax", [x, np.array([0])], [singles(NAN)], keepdims=1)
    held("Clip", [x, np.float32(0), np.float32(1)], [singles(NAN, 1, NAN, 0)])
    same("Equal", [x, y])
    same("Less", [x, y])


def test_infinities_follow_ieee() -> None:
    x, y = singles(INF, INF, -INF, 0, 1, -1), singles(INF, -INF, 0, INF, 0, 0)
    for op in ("Add", "Mul", "Div"):
        same(op, [x, y])
    same("Exp", [singles(INF, -INF, 89, -200)])
    same("Sqrt", [singles(-1, INF, 0)])
    same("Log", [singles(-1, 0, INF)])


def test_places_beyond_the_data_are_moved_inside() -> None:
    """An index beyond its dim is no use that ONNX knows; nothing outside is read."""
    data = np.arange(4, dtype=np.float32)
    held("Gather", [data, np.array([9, -9, 1, -1])], [singles(3, 0, 1, 3)])


def test_each_row_of_the_table_names_a_test_file_that_is_there() -> None:
    section = PAGE.read_text().partition("## Special cases")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "`tests/" in line]
    files = {name for line in rows for name in re.findall(r"`(tests/[\w/]+\.py)`", line)}
    assert len(rows) > 20
    assert all((PAGE.parents[1] / name).is_file() for name in files)
