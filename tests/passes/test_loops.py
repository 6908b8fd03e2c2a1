"""What is the same in every iteration leaves the loop, and nothing else does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.passes import loops
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support


def hoisted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the pass, checked and equal."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), (Pass("hoist", 1, run=loops.hoist_loop_invariants),))
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result)
    return result


def looping(body: str, trips: str = "three", more: str = "") -> onnx.ModelProto:
    """y = x, then the body for y_in -> y_out, as often as `trips` says."""
    inputs = "float[2, 4] x, int64 count" if trips == "count" else "float[2, 4] x"
    return support.model(
        f"""g ({inputs}) => (float[2, 4] y) {{ {more}
            y = Loop ({trips}, , x) <body = body (int64 i, bool going, float[2, 4] y_in)
                => (bool go, float[2, 4] y_out) {{ go = Identity (going) {body} }}>
        }}""".replace('"", x', ", x"),
        three=np.array(3),
        W=np.eye(4, dtype=np.float32) * 2,
    )


def body_of(proto: onnx.ModelProto) -> list[str]:
    """The operators inside the loop."""
    loop = next(node for node in proto.graph.node if node.op_type == "Loop")
    return [node.op_type for node in loop.attribute[0].g.node]


def test_a_product_of_outer_values_leaves_the_loop() -> None:
    result = hoisted(looping("p = MatMul (x, W) q = Relu (p) y_out = Add (y_in, q)"))
    assert support.op_types(result) == ["MatMul", "Relu", "Loop"]
    assert body_of(result) == ["Identity", "Add"]


def test_what_depends_on_the_iteration_stays() -> None:
    result = hoisted(looping("p = MatMul (y_in, W) n = Cast <to = 1> (i) y_out = Add (p, n)"))
    assert support.op_types(result) == ["Loop"]


def test_random_numbers_are_drawn_in_every_iteration() -> None:
    proto = looping("r = RandomNormalLike (x) s = Shape (r) t = Size (s) n = Cast <to = 1> (t) y_out = Add (y_in, n)")
    result = hoisted(proto)
    assert support.op_types(result) == ["Loop"]


@pytest.mark.fires("hoist-loop-invariants")
def test_a_loop_that_may_not_run_gives_up_only_what_cannot_fail() -> None:
    body = """k = Add (count, count) d = Div (k, count) n = Cast <to = 1> (d)
        r = Relu (x) a = Add (y_in, r) y_out = Add (a, n)"""
    result = hoisted(looping(body, trips="count"))
    assert "Relu" in support.op_types(result)  # of any float there is one
    assert "Div" not in support.op_types(result)  # by zero, where the loop would not have run


def test_a_result_of_the_body_stays_in_it() -> None:
    result = hoisted(looping("y_out = Relu (x)"))
    assert body_of(result) == ["Identity", "Relu"]


def test_constants_of_the_body_come_along() -> None:
    result = hoisted(looping("two = Constant <value_float = 2.0> () p = Mul (x, two) y_out = Add (y_in, p)"))
    assert support.op_types(result) == ["Constant", "Mul", "Loop"]


def test_an_inner_loop_hands_on_to_the_outer_one_and_that_to_the_graph() -> None:
    inner = """
        z = Loop (three, , y_in) <body = inner (int64 j, bool g, float[2, 4] z_in) => (bool h, float[2, 4] z_out)
            { h = Identity (g) p = MatMul (x, W) z_out = Add (z_in, p) }>
        y_out = Relu (z)"""
    result = hoisted(looping(inner))
    assert support.op_types(result) == ["MatMul", "Loop"]


HELD = "then_branch = t () => (float[4] u) <float[4] v = {1, 2, 3, 4}> { u = Add(s, v) }"
OTHER = "else_branch = e () => (float[4] z) <float[4] v = {4, 3, 2, 1}> { z = Mul(s, v) }"
HOLDING = {
    "hoist-loop-invariants": """g (float[4] x) => (float[4] y) <int64 three = {3}> { y = Loop(three, , x) <
        body = b (int64 i, bool going, float[4] s) => (bool go, float[4] t) <float[4] w = {1, 2, 3, 4}>
        { go = Identity(going) p = Mul(x, w) t = Add(s, p) }> }""",
    "resolve-constant-if": f"""g (float[4] s) => (float[4] y) <bool c = {{1}}, float[4] v = {{2, 2, 2, 2}}> {{
        k = Mul(s, v) r = If(c) <{HELD}, {OTHER}> y = Add(k, r) }}""",
    "unroll-loops": f"""g (float[4] x, bool c) => (float[4] y) <int64 three = {{3}}> {{ y = Loop(three, , x) <
        body = b (int64 i, bool going, float[4] s) => (bool go, float[4] t)
        {{ go = Identity(going) t = If(c) <{HELD}, {OTHER}> }}> }}""",
}  # fmt: skip


@pytest.mark.parametrize("rule", HOLDING)
def test_constants_of_inner_graphs_keep_their_names_in_the_callers_model(rule: str) -> None:
    """They get names of their own where they move to; the model that was given is read again, and is the same."""
    proto = support.model(HOLDING[rule])
    before = proto.SerializeToString()
    result = graphopt.optimize(proto, level=3)
    assert rule in {rewrite.rule for rewrite in result.rewrites} and result.verification.passed
    assert proto.SerializeToString() == before
    support.assert_equal(proto, result.to_proto())
