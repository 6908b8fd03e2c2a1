"""Products of one tensor with three constant matrices become one product and a Split."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.weights.projections import merge_projections, merge_projections_of_attention
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests.support import assert_equal, model, op_types

_DRAWN = np.random.default_rng(0)
WEIGHTS = {
    **{name: _DRAWN.standard_normal((4, 6)).astype(np.float32) for name in ("q", "k")},
    "v": _DRAWN.standard_normal((4, 2)).astype(np.float32),
    **{name: _DRAWN.standard_normal(6).astype(np.float32) for name in ("a", "b")},
    "c": _DRAWN.standard_normal(2).astype(np.float32),
    "wide": _DRAWN.standard_normal((3, 6)).astype(np.float32),
}
IO = "g (float[N,3,4] x) => (float[N,3,6] Q, float[N,3,6] K, float[N,3,2] V)"
PLAIN = f"{IO} {{ Q = MatMul(x, q)  K = MatMul(x, k)  V = MatMul(x, v) }}"
BIASED = f"""{IO} {{ mq = MatMul(x, q)  Q = Add(mq, a)  mk = MatMul(x, k)  K = Add(b, mk)
                    mv = MatMul(x, v)  V = Add(mv, c) }}"""


def run(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), [Pass("projections", 2, run=merge_projections)])
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    return result


FIRES = {
    "without bias": (PLAIN, ["MatMul", "Split"]),
    "with bias": (BIASED, ["MatMul", "Add", "Split"]),
    "one without bias": (
        BIASED.replace("mk = MatMul(x, k)  K = Add(b, mk)", "K = MatMul(x, k)"), ["MatMul", "Add", "Split"],
    ),
    "a sum that is no bias": (
        BIASED.replace("Add(b, mk)", "Add(wide, mk)"), ["MatMul", "Add", "Split", "Add"],
    ),
    "x is read elsewhere too": (
        PLAIN.replace("float[N,3,2] V", "float[N,3,2] V, float[N,3,4] y").replace(") }", ")  y = Neg(x) }"),
        ["MatMul", "Split", "Neg"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("name", FIRES)
def test_three_become_one(name: str, opset: int) -> None:
    text, expected = FIRES[name]
    proto = model(text, opset, **WEIGHTS)
    result = run(proto)
    assert op_types(result) == expected
    assert_equal(proto, result, rtol=2e-6, atol=2e-6, N=2)  # a wider product may be summed in another order


STAYS = {
    "two products": PLAIN.replace(", float[N,3,2] V", "").replace("V = MatMul(x, v)", ""),
    "a weight that is read twice": PLAIN.replace("x, k", "x, q"),
    "a weight that is an input": PLAIN.replace("x) =>", "x, float[4,6] w) =>").replace("x, k", "x, w"),
    "x on the right": "g (float[N,4,3] x) => (float[N,6,3] Q, float[N,6,3] K, float[N,2,3] V) "
    "{ Q = MatMul(qt, x)  K = MatMul(kt, x)  V = MatMul(vt, x) }",
    "another x": PLAIN.replace("x, k", "z, k").replace("x) =>", "x, float[N,3,4] z) =>"),
}


@pytest.mark.parametrize("name", STAYS)
def test_near_misses_stay(name: str) -> None:
    proto = model(STAYS[name], 17, **WEIGHTS, **{f"{name}t": WEIGHTS[name].T.copy() for name in "qkv"})
    assert op_types(run(proto)) == op_types(proto)


def for_attention(rows: int, more: str = "") -> list[str]:
    """The operators after the pass that merges what one Attention reads."""
    text = f"""g (float[1,3,{rows}] x) => (float[1,3,8] y{", float[1,3,8] K" if more else ""}) {{
        Q = MatMul(x, wq) K = MatMul(x, wk) V = MatMul(x, wv)
        y = Attention<q_num_heads = 2, kv_num_heads = 2>(Q, K, V) }}"""
    weights = {name: _DRAWN.standard_normal((rows, 8)).astype(np.float32) / rows for name in ("wq", "wk", "wv")}
    proto = model(text, 23, 10, **weights)
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), [Pass("projections", 2, run=merge_projections_of_attention)])
    result = ir.to_proto(copy)
    assert_equal(proto, result, rtol=1e-4, atol=1e-6)
    return op_types(result)


def test_queries_keys_and_values_of_one_attention_become_one() -> None:
    assert for_attention(512) == ["MatMul", "Split", "Attention"]


def test_short_sums_do_not_pay_for_the_dealing_out() -> None:
    assert for_attention(64).count("MatMul") == 3


def test_keys_that_are_returned_too_stay_apart() -> None:
    assert for_attention(512, "K").count("MatMul") == 3


@pytest.mark.parametrize(("columns", "late"), [(256, False), (257, True)])
def test_large_matrices_are_joined_when_they_are_needed(columns: int, late: bool) -> None:
    """From 65,536 elements on; until then only the parts are in memory."""
    sizes = {"q": 100, "k": 100, "v": columns - 200}
    outputs = ", ".join(f"float[2,{size}] {name.upper()}" for name, size in sizes.items())
    text = f"g (float[2,256] x) => ({outputs}) {{ Q = MatMul(x, q) K = MatMul(x, k) V = MatMul(x, v) }}"
    weights = {name: _DRAWN.standard_normal((256, size)).astype(np.float32) for name, size in sizes.items()}
    copy = ir.from_proto(model(text, 17, **weights))
    run_passes(Editor(copy), [Pass("projections", 2, run=merge_projections)])
    (merged,) = (value.const_value for node in copy.graph if node.op_type == "MatMul" for value in node.inputs[1:])
    assert isinstance(merged, ir.LazyTensor) == late
    np.testing.assert_array_equal(merged.numpy(), np.concatenate(list(weights.values()), axis=1))
