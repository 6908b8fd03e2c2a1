"""Common subexpressions, equal initializers, and what nobody uses."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.passes import pipeline, sharing
from graphopt.rewrite.driver import run_passes
from graphopt.rewrite.editor import Editor
from tests import support


def _optimized(text: str, opset: int = 17, level: int = 1, **initializers: np.ndarray) -> onnx.ModelProto:
    result = graphopt.optimize(support.model(text, opset, **initializers), level=level)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    return result.to_proto()


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("a = Exp(x) b = Exp(x) c = Add(a, b) y = Sub(c, x)", ["Exp", "Add", "Sub"]),
        ("a = Add(x, z) b = Add(z, x) c = Mul(a, b) y = Sub(c, x)", ["Add", "Mul", "Sub"]),
        ("a = Sub(x, z) b = Sub(z, x) y = Mul(a, b)", ["Sub", "Sub", "Mul"]),
        ("a = Elu<alpha = 1.0>(x) b = Elu<alpha = 2.0>(x) y = Add(a, b)", ["Elu", "Elu", "Add"]),
        ("a = Clip(x, z0) b = Clip(x, , z0) y = Add(a, b)", ["Clip", "Clip", "Add"]),
    ],
)
def test_common_subexpressions(text: str, operators: list[str]) -> None:
    proto = _optimized(f"g (float[4] x, float[4] z, float z0) => (float[4] y) {{ {text} }}")
    assert sorted(support.op_types(proto)) == sorted(operators)


def test_two_equal_outputs_keep_their_names() -> None:
    proto = _optimized("g (float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Exp(x) }")
    assert [value.name for value in proto.graph.output] == ["y", "z"]
    assert support.op_types(proto) == ["Exp", "Exp"]


def test_inside_a_branch_the_outer_result_is_used() -> None:
    proto = _optimized(
        """g (float[4] x, bool f) => (float[4] y, float[4] z) {
            z = Exp(x)
            y = If(f) <
                then_branch = t () => (float[4] a) { e = Exp(x) a = Neg(e) },
                else_branch = e () => (float[4] b) { b = Neg(x) }
            >
        }"""
    )
    branch = next(a.g for node in proto.graph.node for a in node.attribute if a.name == "then_branch")
    assert [node.op_type for node in branch.node] == ["Neg"]


@pytest.mark.fires("share-equal-initializers")
def test_equal_initializers_are_stored_once() -> None:
    weight = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32)
    other = weight.copy()
    other[50, 51] += 1
    proto = _optimized(
        "g (float[n,100] x) => (float[n,100] y) { p = MatMul(x, a) q = MatMul(p, b) y = MatMul(q, c) }",
        level=0, a=weight, b=weight.copy(), c=other,
    )  # fmt: skip
    assert len(proto.graph.initializer) == 2
    reads = [node.input[1] for node in proto.graph.node]
    assert reads[0] == reads[1] != reads[2]


@pytest.mark.parametrize(
    ("bias", "stored"),
    [("repeated", 2), ("ones", 6), ("different", 10)],  # one weight, one bias; five weights, one bias; all ten
)
def test_many_large_weights_are_compared_where_small_ones_repeat(
    bias: str, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LARGE", 1000)
    monkeypatch.setattr(sharing, "FREE_TO_READ", 1000)
    generator = np.random.default_rng(0)
    weights = np.repeat(generator.standard_normal((1, 20, 20)).astype(np.float32), 5, axis=0)
    biases = {
        "repeated": np.repeat(generator.standard_normal((1, 20)).astype(np.float32), 5, axis=0),
        "ones": np.ones((5, 20), np.float32),
        "different": generator.standard_normal((5, 20)).astype(np.float32),
    }[bias]
    steps = " ".join(
        f"p{i} = MatMul({'x' if i == 0 else f's{i - 1}'}, w{i}) q{i} = Add(p{i}, b{i}) s{i} = Tanh(q{i})"
        for i in range(5)
    )
    given = {f"w{i}": weights[i] for i in range(5)} | {f"b{i}": biases[i] for i in range(5)}
    proto = _optimized(f"g (float[n,20] x) => (float[n,20] y) {{ {steps} y = Neg(s4) }}", **given)
    assert len(proto.graph.initializer) == stored


def test_positive_and_negative_zero_are_different_constants() -> None:
    proto = _optimized(
        "g (float[2] x) => (float[2] y) { p = Div(x, a) q = Div(x, b) y = Add(p, q) }",
        level=0, a=np.array([0.0, 1], np.float32), b=np.array([-0.0, 1], np.float32),
    )  # fmt: skip
    assert len(proto.graph.initializer) == 2


def test_nobody_reads_it() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1, "unused.domain" : 1]>
        g (float[4,4] x) => (float[?,?] y) <float[2] w = {1, 2}> {
            dead = Exp(x)
            deader = Neg(dead)
            y, indices = MaxPool<kernel_shape = [1]>(x)
        }
        <domain: "local", opset_import: ["" : 17]>
        f (a) => (b) { b = Neg(a) }""".replace("y, indices = MaxPool<kernel_shape = [1]>(x)", "y, place = TopK(x, k)")
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "k"))
    result = graphopt.optimize(proto)
    optimized = result.to_proto()
    assert support.op_types(optimized) == ["TopK"]
    assert [tensor.name for tensor in optimized.graph.initializer] == ["k"]
    assert not optimized.functions
    assert [entry.domain for entry in optimized.opset_import] == [""]


@pytest.mark.fires("lift-constants")
def test_a_lifted_constant_raises_the_ir_version_and_not_the_signature() -> None:
    proto = support.model(
        "g (float[2] x) => (float[2] y) { c = Constant<value_floats = [1.0, 2.0]>() y = Add(x, c) }",
        opset=12, ir_version=3,
    )  # fmt: skip
    result = graphopt.optimize(proto)
    optimized = result.to_proto()
    assert optimized.ir_version == 4
    assert [value.name for value in optimized.graph.input] == ["x"]


@pytest.mark.fires("reuse-initializer-inputs")
def test_old_initializer_inputs_stay_inputs() -> None:
    proto = support.model(
        "g (float[2,2] x, float[2,2] w, float[2] s) => (float[2,2] y) { p = MatMul(x, w) y = Mul(p, s) }",
        opset=9, ir_version=3, w=np.eye(2, dtype=np.float32), s=np.array([2, 3], np.float32),
    )  # fmt: skip
    result = graphopt.optimize(proto)
    optimized = result.to_proto()
    assert support.op_types(optimized) == ["MatMul"]
    assert [value.name for value in optimized.graph.input] == ["x", "w", "s"]
    assert {"w", "s"} == {tensor.name for tensor in optimized.graph.initializer}
    assert optimized.ir_version == 3  # the folded weight took the place of the one it was made of
    assert not result.signature_changes


@pytest.mark.parametrize(
    ("opset", "norm", "outputs", "kept"),
    [
        (13, "BatchNormalization", "a, b, c, d, e", 5),
        (15, "BatchNormalization<training_mode = 1>", "a, b, c", 3),
        (15, "BatchNormalization<training_mode = 0>", "a", 1),
    ],
)
def test_a_batch_normalization_that_trains_keeps_its_outputs(opset: int, norm: str, outputs: str, kept: int) -> None:
    """Before opset 14 the number of outputs says that it trains; from then on training needs all three."""
    ones = np.ones(3, np.float32)
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ {outputs} = {norm}(x, s, s, m, m) y = Exp(a) }}"
    result = graphopt.optimize(support.model(text, opset, s=ones, m=ones * 2))
    assert not result.rolled_back
    (node,) = [node for node in result.to_proto().graph.node if node.op_type == "BatchNormalization"]
    assert len(node.output) == kept


# What stands in the middle, and how many results its operator keeps of those that nothing reads.
UNREAD = {
    "the places of largest values": ("a, b = MaxPool<kernel_shape = [2], strides = [2]>(x)", 1),
    "the parts of a Split": ("a, b = Split<axis = 2>(x, halves)", 2),
    "results of a branch": (
        """a, b = If(f) <then_branch = t () => (float[2,3,4] c, float[2] d) { c = Abs(x) d = Neg(w) },
            else_branch = e () => (float[2,3,4] g, float[2] h) { g = Exp(x) h = Abs(w) }>""", 1,
    ),
    "results of a Scan": (
        """s, a, b = Scan<num_scan_inputs = 1, body = b (float[3,4] si, float[3,4] xi) => (float[3,4] so, float[3,4] yo,
            float[3,4] zo) { so = Add(si, xi) yo = Neg(so) zo = Exp(so) }>(z, x)""", 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_results_that_nothing_reads_go_where_the_operator_can_do_without(name: str) -> None:
    middle, kept = UNREAD[name]
    proto = support.model(
        f"g (float[2,3,4] x, bool f) => (float[A,B,C] y) {{ {middle} y = Sqrt(a) }}", 17,
        halves=np.array([2, 2]), w=np.ones(2, np.float32), z=np.zeros((3, 4), np.float32),
    )  # fmt: skip
    node = next(iter(_after("drop-unused-outputs", proto).graph.node))
    assert len(node.output) == kept


def _after(name: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after that pass alone."""
    editor = Editor(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())))
    run_passes(editor, pipeline.passes_named(name))
    result = ir.to_proto(editor.model)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result)
    return result
