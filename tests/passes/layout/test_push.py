"""Whole regions: Transposes go where that leaves fewer of them, and nothing is touched where it does not."""

from __future__ import annotations

import onnx
import pytest

import graphopt
from models import channels_last
from tests.passes.layout.pushing import build, leaves, pushed, transposes, weight
from tests.support import assert_equal, op_types

IMAGE = "g (float[N, 4, 6, 3] X)"
VARIANTS = channels_last.variants()


@pytest.mark.parametrize("name", VARIANTS)
def test_channel_last_networks_end_at_their_least_number(name: str) -> None:
    proto, least = VARIANTS[name]
    result = graphopt.optimize(proto)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    assert transposes(result.to_proto()) == least


def test_a_residual_sum_is_turned_once() -> None:
    text = (
        f"{IMAGE} => (float[N, 4, 6, 3] Y) {{ a = FIRST(X) b = Conv(a, W) c = LAST(b) d = Add(c, X) e = FIRST(d)"
        " f = Conv(e, W) h = LAST(f) Y = Add(h, d) }"
    )
    after = leaves(build(text, W=weight(3, 3, 1, 1)), 2, N=2)
    assert op_types(after) == ["Transpose", "Conv", "Add", "Conv", "Add", "Transpose"]


def test_fewer_elements_are_moved_where_the_number_stays() -> None:
    text = f"{IMAGE} => (float[N, 3, 1, 1] Y) {{ a = ReduceMax<axes = [1, 2]>(X) b = Relu(a) Y = FIRST(b) }}"
    before = build(text)
    assert not pushed(before)[1], "it stands at the smallest tensor already"
    text = f"{IMAGE} => (float[N, 3, 1, 1] Y) {{ a = FIRST(X) b = Relu(a) Y = ReduceMax<axes = [2, 3]>(b) }}"
    after = leaves(build(text), 1, N=2)
    assert op_types(after) == ["Relu", "ReduceMax", "Transpose"]


def test_an_output_in_the_other_layout_keeps_its_transpose_and_name() -> None:
    text = (
        f"{IMAGE} => (float[N, 3, 4, 6] Y, float[N, 4, 6, 3] Z)"
        " { a = FIRST(X) b = Conv(a, W) Z = LAST(b) d = Relu(Z) Y = FIRST(d) }"
    )
    before = build(text, W=weight(3, 3, 1, 1))
    after = leaves(before, 2, N=2)
    assert [value.name for value in after.graph.output] == ["Y", "Z"]


def test_an_input_that_is_returned_in_both_layouts() -> None:
    text = f"{IMAGE} => (float[N, 3, 4, 6] Y, float[N, 4, 6, 3] Z) {{ Y = FIRST(X) a = Abs(Y) b = Neg(a) Z = LAST(b) }}"
    leaves(build(text), 1, N=2)


def test_a_branch_reads_the_value_as_it_was() -> None:
    text = (
        f"{IMAGE} => (float[N, 3, 4, 6] Y, float[N, 4, 6, 3] Z) {{ a = LAST(X) k = ReduceSum<keepdims = 0>(X)"
        " h = Greater(k, zero) b = LAST(a) c = Relu(b) Y = FIRST(c)"
        " Z = If<then_branch = t () => (float[N, 4, 6, 3] p) { q = FIRST(c) p = FIRST(q) },"
        " else_branch = e () => (float[N, 4, 6, 3] r) { s = FIRST(c) r = FIRST(s) }>(h) }"
    ).replace("float[N, 3, 4, 6] Y", "float[N, 6, 3, 4] Y")
    before = build(text, zero=weight(1)[0] * 0)
    after, _ = pushed(before)
    assert_equal(before, after, rtol=0, atol=0, N=2)


def test_inside_a_function() -> None:
    body = (
        '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>'
        " g (float[N, 3, 4, 6] X) => (float[N, 3, 4, 6] Y) { Y = f.block(X) }"
        ' <domain: "f", opset_import: ["" : 17]> block (x) => (y)'
        " { a = Transpose<perm = [0, 2, 3, 1]>(x) w = Constant<value = float[3] {1.0, 2.0, 3.0}>() b = Mul(a, w)"
        " y = Transpose<perm = [0, 3, 1, 2]>(b) }"
    )
    before = onnx.parser.parse_model(body)
    after, _ = pushed(before)
    assert [node.op_type for node in after.functions[0].node if node.op_type != "Constant"] == ["Mul"]
    assert_equal(before, after, rtol=0, atol=0, N=2)


@pytest.mark.parametrize(
    "body",
    [
        "a = FIRST(X) b = Conv(a, W) Y = LAST(b)",  # nothing is between
        "a = FIRST(X) b = Conv(a, W) c = LAST(b) d = NonZero(c) Y = Cast<to = 1>(d)",
        "a = FIRST(X) s = Softmax<axis = 1>(a) b = Conv(s, W) Y = LAST(b)",  # one is needed on each side
        "a = FIRST(X) b = Conv(a, W) c = LAST(b) d = LRN<size = 3>(c) e = FIRST(d) f = Conv(e, W) Y = LAST(f)",
        "a = FIRST(X) r, m = Dropout(a, ratio, yes) Y = LAST(r)",
    ],
)
def test_leaves_alone(body: str) -> None:
    result = "float[P, Q] Y" if "NonZero" in body else "float[N, A, B, C] Y"
    before = build(f"{IMAGE} => ({result}) {{ {body} }}", W=weight(3, 3, 1, 1), ratio=weight(1)[0], yes=True)
    assert not pushed(before)[1]


def test_softmax_before_opset_13_flattens_and_stays() -> None:
    text = f"{IMAGE} => (float[N, 4, 6, 3] Y) {{ a = FIRST(X) b = Softmax<axis = 1>(a) Y = LAST(b) }}"
    assert not pushed(build(text, 11))[1]


def test_a_linear_resize_does_not_leave_channels_first() -> None:
    text = f'{IMAGE} => (float[N, P, Q, 3] Y) {{ a = FIRST(X) b = Resize<mode = "linear">(a, , s) Y = LAST(b) }}'
    scales = weight(4) * 0 + [1, 1, 2, 2]
    assert not pushed(build(text, s=scales.astype("float32")))[1]


@pytest.mark.parametrize(
    "after",
    ["Y = FIRST(b) Z = FIRST(b)", "Y = FIRST(b) Z = Identity(Y)", "Y = FIRST(b) c = FIRST(b) Z = Abs(c)"],
)
def test_outputs_that_turn_out_to_be_one_tensor_keep_their_names(after: str) -> None:
    text = (
        f"g (float[N, 3, 4, 6] X) => (float[N, 3, 4, 6] Y, float[N, 3, 4, 6] Z) {{ a = LAST(X) b = Relu(a) {after} }}"
    )
    result = leaves(build(text), 0, N=2)
    assert [output.name for output in result.graph.output] == ["Y", "Z"] and op_types(result)[0] == "Relu"


def test_a_default_of_an_input_is_no_constant() -> None:
    text = f"{IMAGE[:-1]}, float[3] W) => (float[N, 3, 4, 6] Y) {{ a = Add(X, W) b = Relu(a) Y = FIRST(b) }}"
    before = build(text, W=weight(3))
    assert not pushed(before)[1], "it could be overridden"


def test_a_change_that_is_blocked_is_not_made() -> None:
    proto, _ = VARIANTS["plain"]
    result = graphopt.optimize(proto, skip=["push-transposes"], verify=False)
    assert transposes(result.to_proto()) > 1


def test_each_prefix_of_a_run_is_equal() -> None:
    proto, _ = VARIANTS["residual"]
    whole = graphopt.optimize(proto, verify=False)
    pushes = [item.number for item in whole.rewrites if item.rule == "push-transposes"]
    assert len(pushes) > 3
    for number in (pushes[0], pushes[len(pushes) // 2]):
        cut = graphopt.optimize(proto, stop_after=number, verify=False)
        assert_equal(proto, cut.to_proto(), rtol=1e-4, atol=1e-5)
