"""`inline=True` puts functions in place of their calls, where their operators mean the same there."""

from __future__ import annotations

import onnx
import pytest

import graphopt
from graphopt.errors import ModelError
from tests import support

CALLS = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
g (float[2,3] x) => (float[2,3] y) { a = local.twice(x) y = local.shift<by = 2.0>(a) }
<domain: "local", opset_import: ["" : VERSION]>
shift <by> (a) => (b) { c = Constant<value_float: float = @by>() b = Add(a, c) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
twice (a) => (b) { c = local.shift<by = 1.0>(a) b = Add(c, c) }
"""


def _inlined(version: int) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(CALLS.replace("VERSION", str(version)))
    result = graphopt.optimize(proto, inline=True)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    return result.to_proto()


def test_functions_within_functions_are_inlined_and_then_optimized() -> None:
    result = _inlined(17)
    assert not result.functions
    assert set(support.op_types(result)) == {"Add"}


def test_without_the_request_functions_stay() -> None:
    proto = onnx.parser.parse_model(CALLS.replace("VERSION", "17"))
    assert len(graphopt.optimize(proto).to_proto().functions) == 2


@pytest.mark.fires("inline-functions")
def test_a_function_of_another_opset_stays() -> None:
    result = _inlined(13)
    assert [function.name for function in result.functions] == ["shift"]
    assert "shift" in support.op_types(result)


def test_a_run_that_stops_before_it_leaves_the_functions() -> None:
    proto = onnx.parser.parse_model(CALLS.replace("VERSION", "17"))
    result = graphopt.optimize(proto, inline=True, stop_after=0)
    assert len(result.to_proto().functions) == 2


def test_versions_of_domains_of_functions_alone_say_nothing() -> None:
    """jax2onnx gives such a domain one version in the model and another in each function."""
    proto = onnx.parser.parse_model(
        CALLS.replace("VERSION", "17").replace('"" : 17, "local" : 1', '"" : 17, "local" : 9', 1)
    )
    proto.functions[0].opset_import.append(onnx.helper.make_opsetid("unused", 5))
    proto.opset_import.append(onnx.helper.make_opsetid("unused", 4))
    proto.functions[1].opset_import[1].version = 3
    result = graphopt.optimize(proto, inline=True)
    assert result.verification.passed and not result.to_proto().functions
    assert graphopt.compile(proto).verification.passed
    assert graphopt.memory(proto).record.arena > 0


def test_a_function_of_another_opset_is_named_where_it_has_to_be_inlined() -> None:
    proto = onnx.parser.parse_model(CALLS.replace("VERSION", "13"))
    with pytest.raises(ModelError) as refusal:
        graphopt.memory(proto)
    assert str(refusal.value) == (
        "the function 'shift' has operators of version 13 of the domain 'ai.onnx', the model of version 17; "
        "'graphopt optimize --opset 17' makes them alike."
    )
    assert graphopt.memory(graphopt.optimize(proto, opset=17).to_proto()).record.arena > 0
