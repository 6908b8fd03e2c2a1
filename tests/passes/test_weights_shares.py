"""A number on one share of a Split reaches the weights above it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.weights.shares import number_through_split
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests.passes.refusing import pass_refuses
from tests.support import assert_equal, model, op_types

WEIGHTS = {
    "w": np.random.default_rng(0).uniform(0.5, 1.5, (4, 12)).astype(np.float32), "z": np.ones(12, np.float32),
    "half": np.array(0.5, np.float32), "rows": np.array([-1, 4]), "back": np.array([2, 3, 12]),
}  # fmt: skip
GPT2 = """agraph (float[2,3,4] x) => (float[2,4,3] y, float[2,3,4] v) {
    f = Reshape(x, rows)  c = Gemm(f, w, z)  r = Reshape(c, back)
    q, k, v = Split <axis = 2> (r)
    t = Transpose <perm = [0,2,1]> (q)  s = Mul(t, half)  u = Transpose <perm = [0,2,1]> (k)  y = Add(s, u) }"""


def run(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), [Pass("shares", 2, run=number_through_split)])
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    return result


TURN = "Transpose <perm = [0,2,1]>"
FACTORS = {
    "product with the first": f"t = {TURN} (q)  s = Mul(t, half)  u = {TURN} (k)",
    "division of the second": f"u = {TURN} (q)  t = {TURN} (k)  s = Div(t, half)",
}


@pytest.mark.fires("number-through-split")
@pytest.mark.parametrize("name", FACTORS)
def test_the_scale_of_one_share_reaches_its_columns(name: str) -> None:
    proto = model(GPT2.replace(FACTORS["product with the first"], FACTORS[name]), 13, **WEIGHTS)
    result = run(proto)
    assert op_types(result) == ["Reshape", "Gemm", "Reshape", "Split", "Transpose", "Transpose", "Add"]
    assert_equal(proto, result, rtol=1e-5, atol=1e-5)  # one more rounding of a weight


STAYS = {
    "another axis": GPT2.replace("axis = 2", "axis = 1")
    .replace("2,4,3] y", "A,B,C] y")
    .replace("2,3,4] v", "D,E,F] v"),
    "a share that is a result": GPT2.replace("float[2,3,4] v", "float[2,3,4] v, float[2,3,4] q"),
    "a share that is read": GPT2.replace("Add(s, u)", "Mul(s, h)").replace("s = Mul", "h = Relu(t)  s = Mul"),
    "a factor that is a result": GPT2.replace("2,4,3] y", "2,4,3] y, float[2,4,3] s"),
    "no weights": GPT2.replace("float[2,3,4] x)", "float[2,3,4] x, float[4,12] o)").replace("f, w, z", "f, o, z"),
}


def test_an_axis_that_the_caller_of_a_function_gives_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13, "mine" : 1]>
        g (float[2,2] x) => (float[1,2] y, float[1,2] k) { y, k = mine.halves<axis = 0>(x) }
        <opset_import: ["" : 13], domain: "mine">
        halves <axis>(x) => (y, k) {
            half = Constant<value = float {0.5}>() w = Constant<value = float[2,2] {1, 2, 3, 4}>()
            f = Cast<to = 1>(x) m = MatMul(f, w) q, k = Split<axis: int = @axis>(m) s = Mul(q, half) y = Neg(s)
        }"""
    )
    onnx.checker.check_model(proto)
    pass_refuses("number-through-split", "the Split has open attributes", proto, monkeypatch)


@pytest.mark.parametrize("name", STAYS)
def test_near_misses_stay(name: str) -> None:
    proto = model(STAYS[name], 13, **WEIGHTS)
    assert op_types(run(proto)) == op_types(proto)
