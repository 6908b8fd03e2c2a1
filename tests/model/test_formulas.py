"""Dims that are named by formulas of others."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
import sympy

from graphopt.model import dims
from graphopt.model.dimensions import change_dims, symbols_of
from graphopt.model.formulas import dim_at, expression_of, formula_at
from kernels.size import Dim, free
from tests import support


def _model(dim: str) -> onnx.ModelProto:
    model = support.model("g (float[past,4] p, float[1,n] m) => (float[past,4] y) { y = Relu(p) }", 18)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = dim
    return model


def test_a_dim_that_is_a_formula_follows_what_is_fixed() -> None:
    model = ir.from_proto(_model("2*past + 1"))
    change_dims(model, {}, {"past": 8})
    assert list(model.graph.inputs[1].shape or ()) == [1, 17] and symbols_of(model) == []


@pytest.mark.parametrize("dim", ["past - 9", "other + 1", "past +", "past ** 2", "f(past)", "(" * 400])
def test_other_names_stay(dim: str) -> None:
    model = ir.from_proto(_model(dim))
    change_dims(model, {}, {"past": 8})
    assert symbols_of(model) == [dim]


def test_a_formula_has_whole_numbers_and_floors() -> None:
    assert formula_at("floor(n/2 + 1/2)", {"n": 7}) == 4
    assert formula_at("n // 2", {"n": 7}) == 3
    assert formula_at("n / 2", {"n": 7}) is None


def test_a_dim_is_read_as_it_is_and_not_as_its_text() -> None:
    """Twice "past + 1" is not 2*past + 1, and "Dim.1" is no attribute of Dim."""
    past, side = dims.symbol("past + 1"), dims.symbol("Dim.1")
    assert dim_at(2 * past, {"past": 7}) == 16
    sizes = {"Dim.1": 7, "n": 3}
    n = dims.symbol("n")
    for dim, size in (
        (side + 1, 8), (dims.floor(side / 2 + sympy.Rational(1, 2)), 4), (side * n - 2, 19), (n**2, 9), (5, 5),
        (sympy.Max(side, 9) - sympy.Min(n, 2), 7), (dims.floor((side - n) / 3), 1),
    ):  # fmt: skip
        assert dim_at(dim, sizes) == size
    assert dim_at(dims.symbol("?1") + n, sizes) is None
    assert dim_at(sympy.sqrt(n), sizes) is None


@pytest.mark.parametrize(
    "text",
    ["32*n", "n*p + 3", "n // 2", "(3*n + p) // 4 - 1", "Max(n, p) - Min(n, 4)", "(n // 3 + 1) // p", "n*(p // 2)"],
)
def test_a_size_is_written_as_a_dim(text: str) -> None:
    """The dim gives what the formula gives, read again or with numbers in it."""
    known = {"n": free(Dim("n", 1, 40, 0)), "p": free(Dim("p", 1, 9, 1))}
    size = formula_at(text, known)
    assert size is not None
    dim = expression_of(size)
    for point in ({"n": 1, "p": 1}, {"n": 7, "p": 2}, {"n": 40, "p": 9}, {"n": 18, "p": 5}):
        numbers = {dims.symbol(name): number for name, number in point.items()}
        assert sympy.sympify(dim).subs(numbers) == formula_at(text, point)
        assert "// p" in text or dim_at(dim, point) == formula_at(text, point)
