"""A sum and its normalization become one operator that gives both, at level 3."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.ort.skips import RULE, skip_normalization
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests.support import assert_equal, model, op_types

WEIGHTS = {
    "k": np.linspace(0.5, 1.5, 8, dtype=np.float32), "b": np.linspace(-1, 1, 8, dtype=np.float32),
    "axes": np.array([-1]), "e": np.float32(1e-5).reshape(()),
}  # fmt: skip
GIVEN = "float[N,3,8] x, float[N,3,8] z"
RMS = "q = Mul(a, a)  m = ReduceMean(q, axes)  v = Add(m, e)  r = Sqrt(v)  n = Div(a, r)  "


def skipped(proto: onnx.ModelProto, blocked: frozenset[tuple[str, str]] = frozenset()) -> onnx.ModelProto:
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy, blocked=blocked), [Pass(RULE, 3, run=skip_normalization)])
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    return result


def norm(body: str, given: str = GIVEN) -> onnx.ModelProto:
    return model(f"agraph ({given}) => (float[N,3,8] y) {{ {body} }}", 18, **WEIGHTS)


@pytest.mark.parametrize(
    "body, kept",
    [
        ("a = Add(x, z)  y = LayerNormalization(a, k, b)", ["SkipLayerNormalization"]),
        ("a = Add(x, z)  y = LayerNormalization <axis = 2> (a, k)", ["SkipLayerNormalization"]),
        ("a = Add(x, z)  n = LayerNormalization(a, k)  y = Mul(n, a)", ["SkipLayerNormalization", "Mul"]),
        ("a = Add(x, z)  c = Relu(a)  n = LayerNormalization(a, k)  y = Mul(n, c)", ["SkipLayerNormalization", *"RM"]),
        ("a = Add(x, z)  " + RMS + "y = Add(n, a)", ["SkipSimplifiedLayerNormalization", "Add"]),
    ],
)
def test_a_sum_and_its_normalization_become_one(body: str, kept: list[str]) -> None:
    proto = norm(body)
    result = skipped(proto)
    assert op_types(result) == [{"R": "Relu", "M": "Mul"}.get(kind, kind) for kind in kept]
    assert_equal(proto, result, rtol=1e-4, atol=1e-5, N=2)  # the kernel sums in another order


@pytest.mark.fires("skip-normalization")
def test_the_sum_may_be_an_output() -> None:
    proto = norm("a = Add(x, z)  y = LayerNormalization(a, k)")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["N", 3, 8]))
    result = skipped(proto)
    assert op_types(result) == ["SkipLayerNormalization"]
    assert [value.name for value in result.graph.output] == ["y", "a"]
    assert_equal(proto, result, rtol=1e-4, atol=1e-5, N=2)


@pytest.mark.parametrize(
    "body, given",
    [
        ("a = Add(x, b)  y = LayerNormalization(a, k)", GIVEN),
        ("a = Mul(x, z)  y = LayerNormalization(a, k)", GIVEN),
        ("a = Add(x, z)  y = LayerNormalization(a, g)", GIVEN + ", float[8] g"),
        ("a = Add(x, z)  y = LayerNormalization(a, h)", GIVEN + ", float[3, 8] h"),
        ("a = Add(x, z)  " + RMS.replace("Mul(a, a)", "Mul(a, x)") + "y = Add(n, a)", GIVEN),
    ],
)
def test_what_is_something_else_is_left_alone(body: str, given: str) -> None:
    proto = norm(body, given)
    assert op_types(skipped(proto)) == op_types(proto)


def test_what_was_taken_back_is_not_done_again() -> None:
    proto = norm("a = Add(x, z)  y = LayerNormalization(a, k)")
    assert op_types(skipped(proto, frozenset({(RULE, "y")}))) == ["Add", "LayerNormalization"]
