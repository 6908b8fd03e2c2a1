"""Dims that are named by formulas of others."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from graphopt.model.dimensions import change_dims, symbols_of
from graphopt.model.formulas import formula_at
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
