"""Another layout of inputs and outputs: the signature changes, the numbers are the permuted ones."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from graphopt.check.relaid import relaid_fault
from graphopt.model.relayout import Relayout, relayout
from tests.support import model, op_types

TEXT = "g (float[N, 3, 4, 5] X, float[3] v) => (float[N, 3, 4, 5] Y) { a = Abs(X) Y = Neg(a) }"
LAST = (0, 2, 3, 1)


def _model() -> ir.Model:
    return ir.from_proto(model(TEXT))


def _declared(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_inputs_and_outputs_are_permuted() -> None:
    before, after = _model(), _model()
    change = Relayout({0: LAST}, {0: LAST})
    relayout(after, change)
    proto = ir.to_proto(after)
    onnx.checker.check_model(proto, full_check=True)
    assert op_types(proto) == ["Transpose", "Abs", "Neg", "Transpose"]
    assert [value.name for value in proto.graph.input] == ["X", "v"]
    assert _declared(proto.graph.input[0]) == ["N", 4, 5, 3] == _declared(proto.graph.output[0])
    assert relaid_fault(before, after, change) is None


def test_a_wrong_permutation_is_found() -> None:
    before, after = _model(), _model()
    relayout(after, Relayout({0: LAST}, {0: LAST}))
    fault = relaid_fault(before, after, Relayout({0: LAST}, {}))
    assert fault == "output 'Y' is not the permuted one (the shape is [2, 4, 5, 3], it was [2, 3, 4, 5])"


def test_nothing_to_change() -> None:
    assert not Relayout({}, {})


def test_an_output_that_is_declared_with_another_rank_loses_it() -> None:
    """As some exporters declare what they do not know: with no dims at all."""
    proto = model(TEXT)
    proto.graph.output[0].type.tensor_type.shape.ClearField("dim")
    before, after = ir.from_proto(proto), ir.from_proto(proto)
    assert after.graph.outputs[0].shape is not None and len(after.graph.outputs[0].shape) == 0
    change = Relayout({0: LAST}, {0: LAST})
    relayout(after, change)
    assert after.graph.outputs[0].shape is None
    assert relaid_fault(before, after, change) is None
