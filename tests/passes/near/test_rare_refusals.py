"""Conditions that refuse rarely: the graph of a near miss with its text changed in one place, and the reason given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.errors import OptionError
from graphopt.passes.algebra import arithmetic
from tests import support
from tests.passes.near.test_taken_back import changed, graph_of
from tests.passes.recurrent.unrolled_cells import gru
from tests.passes.refusing import pass_refuses, refusal, refuses


def near(name: str, *changes: tuple[str, str]) -> onnx.ModelProto:
    """The graph of that name, one text after the other replaced by another."""
    text = onnx.printer.to_text(graph_of(name))
    for old, new in changes:
        assert old in text, f"{old!r} is not in {text}"
        text = text.replace(old, new)
    return onnx.parser.parse_model(text)


HEADS = (
    ("cut_k =  {2,5,4,8}", "cut_k =  {2,5,-1,8}"),
    ("float[2,5,32] k, float[2,5,32] v", "float[2,5,W] k, float[2,5,W] v"),
)
ATTENTION, MANY_HEADS = "attention-of-three-axes", "multi-head-attention"
MASKED = f"{MANY_HEADS}.masked"
RULES = [
    refusal(ATTENTION, "it has three axes",
            near(ATTENTION, ("o = Attention (", "o = Attention <q_num_heads = 4, kv_num_heads = 4> ("))),
    refusal(ATTENTION, "the number of heads is not known", near(ATTENTION, *HEADS)),
    refusal("rotary-embedding-of-neighbors", "the two tensors do not lie side by side",
            near("rotary-embedding-of-neighbors", ("five =  {4}", "five =  {3}"))),
    refusal(ATTENTION, "the size of 'q4' is not known", support.model(
        """g (float[K,W,32] q, float[N,n] z, float[N,5,32] k, float[N,5,32] v) => (float[N,n,32] y) {
            s = Shape(z) c = Concat<axis = 0>(s, rest) a = Reshape(q, c) q4 = Transpose<perm = [0, 2, 1, 3]>(a)
            b = Reshape(k, cut) k4 = Transpose<perm = [0, 2, 1, 3]>(b)
            d = Reshape(v, cut) v4 = Transpose<perm = [0, 2, 1, 3]>(d)
            o = Attention(q4, k4, v4) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, join) }""",
        23, 10, rest=np.array([4, -1]), cut=np.array([0, 5, 4, 8]), join=np.array([0, 0, 32]))),
    refusal("guard-of-softmax", "two masks together may shut out a row", near(
        "guard-of-softmax", ("a = Add (s, m)", "b = Add (s, m)\n a = Add (b, other)"),
        ("float[2,4,5,8] v)", "float[2,4,5,8] v, bool[3,5] keep)"),
        ("t = Transpose", "other = Where (keep, nothing, shut)\n t = Transpose"),
        ("<float nothing", "<float shut = {-3.4028235e+38}, float nothing"))),
    refusal("guard-of-softmax", "the Softmax is not over the last axis", near(
        "guard-of-softmax", ("Softmax <axis: int = -1>", "Softmax <axis: int = 2>"))),
    refusal("add-zero", "'c' holds no number",
            support.model("g (float[0] x) => (float[0] y) { b = Add(x, c) y = Abs(b) }", c=np.zeros(0, np.float32))),
    refusal("regroup-product", "the merged constant is too small for its type", support.model(
        "g (float[3] x) => (float[3] y) { b = Mul(x, c) y = Mul(b, d) }", c=np.float32(1e-30), d=np.float32(1e-9))),
    refusal("gelu-with-bias", "what is added is no vector along the last axis",
            near("gelu-with-bias", ("float[6] b", "float[1,6] b"))),
    refusal(MANY_HEADS, "the product is another one", near(MASKED, ("[2,2,5,4] k", "[2,2,5,K] k"))),
    refusal(MANY_HEADS, "the mask widens the scores", near(MASKED, ("[2,1,3,5] m", "[M,1,3,5] m"))),
    refusal("stack-of-steps", "before opset 10 a Slice only runs forwards", support.model(
        """g (float[2,3] x) => (float[2,3] y) { p = Gather<axis = 0>(x, one) q = Gather<axis = 0>(x, none)
            u = Unsqueeze<axes = [0]>(p) v = Unsqueeze<axes = [0]>(q) y = Concat<axis = 0>(u, v) }""",
        9, one=np.array(1), none=np.array(0))),
    refusal("shape-of-some-dims", "Shape gives int64", support.model(
        "g (float[N,3] x) => (int32[1] y) { s = Shape(x) c = Cast<to = 6>(s) y = Slice(c, none, one) }",
        none=np.array([0]), one=np.array([1]))),
    refusal("constant-reshape-target", "it has no target",
            support.model("g (float[6] x) => (float[2,3] y) { y = Reshape<shape = [2, 3]>(x) }", 4)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), RULES)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)


CELLS = "roll-up-cells"
STEP = "x1 = Gather <axis: int = 1> (x, at1)"
PASSES = [
    refusal("attention-with-cache", "it is told how many keys count", near(
        "attention-with-cache", ("opset_import: [\"\" : 23]", "opset_import: [\"\" : 24]"),
        ("float[2,4,n,8] pv)", "float[2,4,n,8] pv, int64[2] count)"),
        ("(q, nk, nv)", '(q, nk, nv, "", "", "", count)'))),
    refusal("skip-normalization", "the scale is of another type", near(
        "skip-normalization", ("LayerNormalization (a, k, b)", "RMSNormalization (a, k)"), (": 18]", ": 23]"),
        ("float[N,3,8]", "float16[N,3,8]"))),
    refusal("skip-normalization", "its scale or bias is no vector of the last axis",
            near("skip-normalization", ("float[8] k", "float[1,8] k"))),
    refusal("skip-normalization", "its scale or bias is no vector of the last axis",
            near("skip-normalization", ("float[8] b", "float[1,8] b"))),
    refusal(CELLS, "the first state has another shape than the rest", near(CELLS, ("float[2,4] h", "float[1,4] h"))),
    refusal(CELLS, "the inputs of the steps differ in shape",
            near(CELLS, (STEP, "x1 = Identity (other)"), ("float[2,3,3] x", "float[2,3,3] x, float[M,3] other"))),
    refusal(CELLS, "the states differ in shape", near(CELLS, ("float[2,3,3] x", "float[1,3,3] x"))),
    refusal(CELLS, "the size of the state or of the input is not known",
            near(CELLS, ("float[2,3,3] x", "float[2,3,F] x"))),
    refusal("merge-small-projections", "a vector has no rows", support.model(
        """g (float[4] x) => (float[2] y, float[2] z, float[2] t)
            { y = MatMul(x, w) z = MatMul(x, v) t = MatMul(x, u) }""",
        **{name: np.full((4, 2), ord(name), np.float32) for name in "wvu"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "proto"), PASSES)
def test_a_pass_says_which_condition_refuses(
    name: str, reason: str, proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_refuses(name, reason, proto, monkeypatch)


def a_gate_of_one_column() -> onnx.ModelProto:
    """Every update gate is one number for a sample, which the new state broadcasts."""
    proto = gru(3)
    for tensor in proto.graph.initializer:
        if tensor.name in ("Wz", "Rz", "bz", "sz"):
            narrow = np.ascontiguousarray(numpy_helper.to_array(tensor)[..., :1])
            tensor.CopyFrom(numpy_helper.from_array(narrow, tensor.name))
    return proto


def a_product_outside() -> onnx.ModelProto:
    """The steps stand in a branch, but for one product of an input."""
    proto = gru(3)
    outside = [node for node in proto.graph.node if node.op_type == "Gather" or node.output[0] == "xz1"]
    inside = [node for node in proto.graph.node if node not in outside]
    given = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    (result,) = proto.graph.output
    inside[-1].output[0] = "inner"
    value = onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, [2, 4])
    other = onnx.helper.make_tensor_value_info("others", onnx.TensorProto.FLOAT, [2, 4])
    branch = onnx.helper.make_graph(inside, "then", [], [value])
    skipped = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["xz1"], ["others"])], "else", [], [other])
    choice = onnx.helper.make_node("If", ["c"], [result.name], then_branch=branch, else_branch=skipped)
    del proto.graph.node[:]
    proto.graph.node.extend([*outside, choice])
    proto.graph.input.append(given)
    return proto


@pytest.mark.parametrize(
    ("reason", "proto"),
    [
        ("a weight has not the shape of a gate", a_gate_of_one_column()),
        ("MatMul 'xz1' belongs to an outer graph", a_product_outside()),
    ],
)
def test_cells_that_are_no_operator(reason: str, proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    support.session(proto)
    pass_refuses(CELLS, reason, proto, monkeypatch)


def test_a_large_weight_that_others_read_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator would hold a second copy of 77 kB; of small weights it may."""
    for width, rolled in ((4, True), (80, False)):
        proto = near(CELLS, ("float[2,4] h", f"float[2,{width}] h"), ("[2,3,4] y)", f"[2,3,{width}] y, float[R,R3] r)"))
        draw = np.random.default_rng(0)
        shapes = {"W": (3, 3 * width), "R": (width, 3 * width), "B": (3 * width,), "S": (3 * width,)}
        for tensor in proto.graph.initializer:
            if tensor.name in shapes:
                array = draw.standard_normal(shapes[tensor.name]).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        proto.graph.node.append(onnx.helper.make_node("Neg", ["R"], ["r"]))
        if rolled:
            assert changed(CELLS, proto, frozenset()).log
        else:
            pass_refuses(CELLS, "weight 'R' is read elsewhere too", proto, monkeypatch)


# What an operator of an older opset says that the newer one cannot; the opset it is at, and the one it is lifted to.
NORM = "float[2,3,4] x, float[{0}] s, float[{0}] b, float[{0}] m, float[{0}] v"
LIFTS = {
    "its coordinate_transformation_mode was taken out": (12, 13, support.model(
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] roi = {}> { y = Resize<mode = "nearest",
            coordinate_transformation_mode = "tf_half_pixel_for_nn">(x, roi, s) }""", 12,
        s=np.array([1, 1, 2, 2], np.float32))),
    "one side grows and another shrinks": (10, 11, support.model(
        "g (float[1,1,4,4] x) => (float[1,1,8,2] y) { y = Resize(x, s) }", 10, s=np.array([1, 1, 2, 0.5], np.float32))),
    "it has statistics for each activation": (8, 9, support.model(
        f"g ({NORM.format('3,4')}) => (float[2,3,4] y) {{ y = BatchNormalization<spatial = 0>(x, s, b, m, v) }}", 8)),
    "its channels are not known": (20, 21, support.model(
        "g (float[2,C,4] x, float[2] s, float[2] b) => (float[2,C,4] y) "
        "{ y = GroupNormalization<num_groups = 2>(x, s, b) }", 20)),
    "it runs over a batch of sequences": (8, 9, support.model(
        """g (float[1,2] s, float[1,3,2] x) => (float[1,2] e, float[1,3,2] y) { e, y = Scan<num_scan_inputs = 1,
            body = b (float[2] si, float[2] xi) => (float[2] so, float[2] yo) { so = Add(si, xi) yo = Neg(so) }>
            ( , s, x) }""", 8)),
    "no lift is known (it has no attribute 'height_scale' any more)": (6, 7, support.model(
        "g (float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Upsample<height_scale = 2.0, width_scale = 2.0>(x) }", 6)),
}  # fmt: skip


@pytest.mark.parametrize("reason", LIFTS)
def test_a_lift_says_what_the_newer_operator_has_no_more(reason: str) -> None:
    before, after, proto = LIFTS[reason]
    assert proto.opset_import[0].version == before
    with pytest.raises(OptionError) as refused:
        graphopt.optimize(proto, opset=after, level=0)
    assert f"opset={after}: " in str(refused.value) and reason in str(refused.value)


@pytest.mark.parametrize("rule", [rule.name for rule in arithmetic.RULES if rule.name != "sum-of-two"])
def test_before_opset_7_operands_are_aligned_by_attributes(rule: str) -> None:
    """Each rule of arithmetic on the graph in which it fires, in opset 6."""
    proto = graph_of(rule)
    proto.opset_import[0].version = 6
    if not changed(rule, proto, frozenset()).log:
        refuses(rule, "before opset 7 the operands broadcast by attributes", proto)
    else:
        assert all(len(node.input) == 1 for node in proto.graph.node), "nothing to be aligned"
