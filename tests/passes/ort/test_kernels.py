"""What the installed ONNX Runtime has is asked of it, and what it lacks is refused in words."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.model.facts import Facts
from graphopt.passes.ort.kernels import kernels, require_kernel
from graphopt.rewrite.rule import Match, Refused, bind
from tests.support import model


def _match() -> Match:
    loaded = ir.from_proto(model("agraph (float[2] x) => (float[2] y) { y = Relu(x) }"))
    (node,) = loaded.graph
    return Match(node, bind(node), Facts(loaded))


def test_an_operator_that_is_there_is_accepted() -> None:
    assert "tensor(float)" in kernels()["Gelu"]
    require_kernel(_match(), "Gelu", ir.DataType.FLOAT)


def test_a_missing_operator_is_named() -> None:
    with pytest.raises(Refused, match="has no BiasSoftmax on the CPU"):
        require_kernel(_match(), "BiasSoftmax", ir.DataType.FLOAT)


def test_a_missing_type_is_named() -> None:
    with pytest.raises(Refused, match="has no Gelu for float16 on the CPU"):
        require_kernel(_match(), "Gelu", ir.DataType.FLOAT16)


def test_a_kernel_for_a_type_that_the_operator_does_not_take_is_none() -> None:
    """ONNX Runtime registers SkipLayerNormalization for doubles, and its schema refuses them when a model is loaded."""
    with pytest.raises(Refused, match="has no SkipLayerNormalization for double on the CPU"):
        require_kernel(_match(), "SkipLayerNormalization", ir.DataType.DOUBLE)
