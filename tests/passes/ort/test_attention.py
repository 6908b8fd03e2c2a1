"""Attention that is spelled out becomes MultiHeadAttention, or says why not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ort.attention import RULES
from tests.support import apply_rules, assert_equal, model, op_types

# Two heads of four numbers; five rows of queries.
SHAPES = {
    "apart": np.array([0, 0, 2, 4]), "wide": np.array([0, 0, 8]), "s": np.float32(0.5).reshape(()),
    "flat": np.array([-1, 8]), "m": np.triu(np.full((5, 5), -1e30, np.float32), 1).reshape(1, 1, 5, 5),
    "row": np.array([0, 0, 0, -1e30, 0], np.float32).reshape(1, 1, 1, 5),
}  # fmt: skip
QUERIES = "qa = Reshape(x, apart)  q = Transpose <perm = [0, 2, 1, 3]> (qa)  "
KEYS = "ka = Reshape(k, apart)  kt = Transpose <perm = [0, 2, 3, 1]> (ka)  "
VALUES = "va = Reshape(v, apart)  vh = Transpose <perm = [0, 2, 1, 3]> (va)  "
SCORES = "p = MatMul(q, kt)  "
RESULT = "w = Softmax <axis = -1> ({})  o = MatMul(w, vh)  ot = Transpose <perm = [0, 2, 1, 3]> (o)  "
END = "y = Reshape(ot, wide)"
ROWS = "float[N, 5, 8] x, float[N, 5, 8] k, float[N, 5, 8] v"
HEADS = QUERIES + KEYS + VALUES


def attention(body: str, given: str = ROWS, result: str = "N, 5, 8", opset: int = 17) -> onnx.ModelProto:
    return model(f"agraph ({given}) => (float[{result}] y) {{ {body} }}", opset, **SHAPES)


def becomes(proto: onnx.ModelProto, *kept: str) -> onnx.ModelProto:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    assert_equal(proto, result, rtol=1e-4, atol=1e-5, N=2, P=3)  # the Softmax is summed in another order
    return result


def stays(proto: onnx.ModelProto) -> None:
    _, log = apply_rules(proto, RULES)
    assert not log


@pytest.mark.parametrize(
    "scores",
    [
        SCORES + RESULT.format("p"),
        SCORES + "t = Mul(p, s)  " + RESULT.format("t"),
        SCORES + "t = Div(p, s)  " + RESULT.format("t"),
        SCORES + "t = Add(p, m)  " + RESULT.format("t"),
        SCORES + "u = Mul(p, s)  t = Add(m, u)  " + RESULT.format("t"),
        "qs = Mul(q, s)  p = MatMul(qs, kt)  " + RESULT.format("p"),
    ],
)
def test_every_spelling_becomes_the_operator(scores: str) -> None:
    becomes(attention(HEADS + scores + END), "MultiHeadAttention")


def test_a_mask_of_one_row_is_repeated() -> None:
    proto = attention(HEADS + SCORES + "t = Add(p, row)  " + RESULT.format("t") + END)
    becomes(proto, "Expand", "MultiHeadAttention")


def test_the_result_may_be_wanted_in_another_shape() -> None:
    proto = attention(HEADS + SCORES + RESULT.format("p") + "y = Reshape(ot, flat)", result="M, 8")
    becomes(proto, "MultiHeadAttention", "Reshape")


def test_keys_and_values_of_a_cache_stay_as_they_are() -> None:
    keys = "all = Concat <axis = 2> (old, k)  kt = Transpose <perm = [0, 1, 3, 2]> (all)  "
    body = QUERIES + keys + SCORES + RESULT.format("p").replace("vh", "v") + END
    given = "float[N,5,8] x, float[N,2,P,4] old, float[N,2,1,4] k, float[N,2,Q,4] v"
    result, _ = apply_rules(attention(body, given), RULES)
    assert op_types(result) == ["Concat", "MultiHeadAttention"]
    assert_equal(attention(body, given), result, rtol=1e-4, atol=1e-5, N=2, P=3, Q=4)


def test_one_row_of_queries_needs_no_transpose() -> None:
    body = "q = Reshape(x, apart_one)  " + KEYS + VALUES + SCORES
    body += "w = Softmax <axis = -1> (p)  o = MatMul(w, vh)  y = Reshape(o, wide_one)"
    proto = model(
        f"agraph (float[3,1,8] x, float[3,5,8] k, float[3,5,8] v) => (float[3,1,8] y) {{ {body} }}",
        **SHAPES, apart_one=np.array([3, 2, 1, 4]), wide_one=np.array([3, 1, 8]),
    )  # fmt: skip
    becomes(proto, "MultiHeadAttention")


@pytest.mark.parametrize(
    "body",
    [
        HEADS + SCORES + RESULT.format("p").replace("axis = -1", "axis = 2") + END,
        HEADS + SCORES + "t = Mul(p, p)  " + RESULT.format("t") + END,
        HEADS.replace("2, 3, 1", "2, 1, 3") + "kk = Relu(kt)  p = MatMul(q, kk)  " + RESULT.format("p") + END,
        "qa = Reshape(x, apart)  qt = Transpose <perm = [0, 2, 1, 3]> (qa)  q = Relu(qt)  "
        + KEYS + VALUES + SCORES + RESULT.format("p") + END,
    ],
)  # fmt: skip
def test_what_is_something_else_is_left_alone(body: str) -> None:
    given = ROWS if "kk" not in body else "float[N,5,8] x, float[N,4,8] k, float[N,4,8] v"
    stays(attention(body, given))


def test_scores_that_are_read_elsewhere_are_left_alone() -> None:
    proto = attention(HEADS + SCORES + RESULT.format("p") + END)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, ["N", 2, 5, 5]))
    stays(proto)


def test_a_mask_whose_columns_are_not_known_is_left_alone() -> None:
    stays(attention(HEADS + SCORES + "t = Add(p, g)  " + RESULT.format("t") + END, ROWS + ", float[1,1,5,M] g"))


def test_doubles_are_left_alone() -> None:
    proto = attention(HEADS + SCORES + RESULT.format("p") + END, ROWS.replace("float", "double"))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    stays(proto)
