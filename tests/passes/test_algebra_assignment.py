"""Assignments to a slice, x[:, 1:] = y, which exporters write as scatters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.algebra_checks import build, ints, leaves
from tests.passes.refusing import refuses

TEXT = "g (float[3, 4] X, float[{}] Z) => (float[3, 4] Y) {{ a = Neg(X) b = ScatterND(a, i, Z) Y = Exp(b) }}"


def _box(*bounds: tuple[int, int]) -> np.ndarray:
    """The index of every element of a box."""
    return np.stack(np.meshgrid(*(np.arange(*bound) for bound in bounds), indexing="ij"), axis=-1)


@pytest.mark.parametrize(
    ("indices", "dims", "expected"),
    [
        (_box((0, 3), (1, 4)), "3, 3", ["Neg", "Slice", "Concat", "Exp"]),
        (_box((0, 3), (1, 3)), "3, 2", ["Neg", "Slice", "Slice", "Concat", "Exp"]),
        (_box((1, 3), (1, 4)), "2, 3", ["Neg", "Slice", "Concat", "Slice", "Concat", "Exp"]),
        (_box((1, 3)), "2, 4", ["Neg", "Slice", "Concat", "Exp"]),
        (_box((0, 3), (0, 4)), "3, 4", ["Exp"]),
        (_box((2, 3), (0, 1)), "1, 1", ["Neg", "Slice", "Concat", "Slice", "Concat", "Exp"]),
    ],
    ids=["columns", "inner columns", "rows and columns", "rows", "everything", "an element"],
)
def test_an_assignment_to_a_slice(indices: np.ndarray, dims: str, expected: list[str]) -> None:
    after = leaves(build(TEXT.format(dims), i=indices), expected)
    assert "ScatterND" not in [node.op_type for node in after.graph.node]


def test_indices_of_a_grid_that_is_never_made() -> None:
    """As torch's older exporter writes x[:, 1:] = y: ranges that are expanded to all elements."""
    text = """g (float[3, 4] X, float[3, 3] Z) => (float[3, 4] Y) {
        a = Neg(X) r = Expand(row, whole) c = Expand(column, whole) s = Unsqueeze(r, last) d = Unsqueeze(c, last)
        i = Concat<axis = -1>(s, d) b = ScatterND(a, i, Z) Y = Exp(b)
    }"""
    weights = {"row": ints(0, 1, 2)[:, None], "column": ints(1, 2, 3), "whole": ints(3, 3), "last": ints(-1)}
    leaves(build(text, **weights), ["Neg", "Slice", "Concat", "Exp"])


def test_indices_of_a_range_that_is_too_long_to_be_written_out() -> None:
    """Folding leaves 3,000 numbers that three make."""
    text = """g (float[3, 3000] X, float[3, 2999] Z) => (float[3, 3000] Y) {
        n = Range(one, limit, one) r = Reshape(n, rows) a = Neg(X)
        row = Expand(three, whole) column = Expand(r, whole) s = Unsqueeze(row, last) d = Unsqueeze(column, last)
        i = Concat<axis = -1>(s, d) b = ScatterND(a, i, Z) Y = Exp(b)
    }"""
    weights = {"one": ints(1)[0], "limit": ints(3000)[0], "rows": ints(1, 2999), "three": ints(0, 1, 2)[:, None]}
    leaves(build(text, **weights, whole=ints(3, 2999), last=ints(-1)), ["Neg", "Slice", "Concat", "Exp"])


@pytest.mark.parametrize(
    ("indices", "dims", "reason"),
    [
        (_box((0, 3), (1, 4))[:, ::-1], "3, 3", "the indices are no box in order"),
        (_box((0, 3), (0, 4, 2)), "3, 2", "the indices are no box in order"),
        (_box((0, 3), (-2, 0)), "3, 2", "an index counts from the end"),
        (np.repeat(_box((0, 3), (1, 2)), 2, axis=1), "3, 2", "the indices are no box in order"),
        (ints(0, 2)[:, None], "2, 4", "the indices are no box in order"),
    ],
    ids=["turned round", "every other one", "from the end", "twice the same", "some rows"],
)
def test_another_scatter_stays(indices: np.ndarray, dims: str, reason: str) -> None:
    refuses("scatter-to-box", reason, build(TEXT.format(dims), i=np.ascontiguousarray(indices)))


def test_what_is_added_up_stays() -> None:
    text = TEXT.format("3, 3").replace("ScatterND(", 'ScatterND<reduction = "add">(')
    refuses("scatter-to-box", "updates are added up", build(text, i=_box((0, 3), (1, 4))))


def test_a_slice_along_three_axes_stays() -> None:
    text = "g (float[3, 3, 3] X, float[2, 2, 2] Z) => (float[3, 3, 3] Y) { a = ScatterND(X, i, Z) Y = Exp(a) }"
    proto = build(text, i=_box((1, 3), (1, 3), (1, 3)))
    refuses("scatter-to-box", "the slice is along more than 2 axes", proto)


def test_indices_that_are_given_stay() -> None:
    text = "g (float[3] X, int64[2, 1] i, float[2] Z) => (float[3] Y) { a = ScatterND(X, i, Z) Y = Exp(a) }"
    refuses("scatter-to-box", "'i' is not a constant", build(text))
