"""Folding by net bytes, and what is never folded."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.passes import folding
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support


def _fold(proto: onnx.ModelProto, rtol: float = 0) -> onnx.ModelProto:
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, [Pass("fold-constants", 1, run=folding.fold_constants)])
    result = ir.to_proto(editor.model)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result, rtol=rtol, atol=0, n=3)
    return result


def test_a_cone_of_constants_becomes_its_value() -> None:
    proto = support.model(
        "g (float[4] x) => (float[4] y) { b = Mul(a, a) c = Neg(b) d = Exp(c) y = Add(x, d) }",
        a=np.arange(4, dtype=np.float32),
    )
    assert support.op_types(_fold(proto)) == ["Add"]


def test_what_grows_the_file_is_not_folded_but_what_feeds_it_is() -> None:
    """Range gives 80 kB from 24 bytes: it stays. The addition below it is computed."""
    proto = support.model(
        "g (int64[1] x) => (int64[n] y) { limit = Add(half, half) r = Range(zero, limit, one) y = Add(x, r) }",
        half=np.array(5000), zero=np.array(0), one=np.array(1),
    )  # fmt: skip
    assert support.op_types(_fold(proto)) == ["Range", "Add"]


def test_a_repeated_value_is_not_written_out() -> None:
    proto = support.model(
        "g (float[n] x) => (float[1000,1000] y) { e = Expand(one, shape) f = Mul(e, two) y = Add(x, f) }".replace(
            "float[n]", "float[1]"
        ),
        one=np.array(1.0, np.float32), two=np.array(2.0, np.float32), shape=np.array([1000, 1000]),
    )  # fmt: skip
    folded = _fold(proto)
    assert support.op_types(folded) == ["ConstantOfShape", "Add"]
    assert folded.ByteSize() < 1000


def test_a_transposed_weight_replaces_the_weight() -> None:
    proto = support.model(
        "g (float[n,64] x) => (float[n,128] y) { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }",
        w=np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32),
    )
    result = graphopt.optimize(proto)
    assert "Transpose" not in support.op_types(result.to_proto())
    assert result.after.bytes <= result.before.bytes


def test_a_weight_that_is_read_twice_is_not_copied() -> None:
    proto = support.model(
        """g (float[n,64] x, float[n,128] z) => (float[n,128] y, float[n,64] v) {
            t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) v = MatMul(z, w)
        }""",
        w=np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32),
    )
    assert support.op_types(_fold(proto)) == ["Transpose", "MatMul", "MatMul"]


def test_dequantized_weights_are_never_folded() -> None:
    proto = support.model(
        "g (float[n,4] x) => (float[n,4] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }",
        q=np.ones((4, 4), np.int8), s=np.array(0.5, np.float32),
    )  # fmt: skip
    result = graphopt.optimize(proto)
    assert support.op_types(result.to_proto()) == ["DequantizeLinear", "MatMul"]


@pytest.mark.parametrize(
    "line", ["r = RandomNormal<shape = [4]>()", "r = Bernoulli(a)", "r, m = Dropout(a, half, yes)"]
)
def test_random_operators_are_never_folded(line: str) -> None:
    proto = support.model(
        f"g (float[4] x) => (float[4] y) {{ {line} y = Add(x, r) }}",
        a=np.full(4, 0.5, np.float32), half=np.array(0.5, np.float32), yes=np.array(True),
    )  # fmt: skip
    result = graphopt.optimize(proto)
    assert len(result.to_proto().graph.node) == 2
    assert result.verification.excluded == ("y",)


def test_half_precision_is_folded_as_onnxruntime_computes_it() -> None:
    a = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float16)
    proto = support.model(
        "g (float16[8,8] x) => (float16[8,8] y) { b = MatMul(a, a) c = Softmax(b) d = MatMul(c, a) y = Mul(x, d) }", a=a
    )
    # The folded value is stored in half precision; the original keeps float32 up to the product: one rounding more.
    assert support.op_types(_fold(proto, rtol=2e-3)) == ["Mul"]


def test_strings_are_folded() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1] x) => (float[1] y, string[2] z) {
            a = Constant<value_strings = ["x", "y"]>()
            b = Constant<value_strings = ["1"]>()
            z = StringConcat(a, b)
            y = Relu(x)
        }"""
    )
    result = graphopt.optimize(proto)
    assert result.verification.passed
    assert support.op_types(result.to_proto()) == ["Relu"]


def test_a_node_that_changes_joins_the_cone_above_it() -> None:
    """A later turn sees the changed node alone: 32 kB above it were too much to write out, 256 bytes are not."""
    proto = support.model(
        """g (float[1,64] x) => (float[1,64] y) {
            b = Mul(column, row) c = Exp(b) d = ReduceSum(c, first) y = Add(x, d) }""",
        column=np.linspace(0, 1, 128, dtype=np.float32).reshape(128, 1), first=np.array([0]),
        row=np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64),
    )  # fmt: skip
    editor = Editor(ir.from_proto(proto))
    folding.fold_constants(editor, [node for node in editor.model.graph if node.op_type == "ReduceSum"])
    assert support.op_types(ir.to_proto(editor.model)) == ["Add"]


@pytest.mark.fires("expand-last")
def test_an_expansion_that_its_reader_makes_by_itself_is_not_written_out() -> None:
    result = graphopt.optimize(
        support.model(
            """g (float[64,32] x) => (float[64,32] y) {
                a = Expand(row, sizes) b = Cast<to = 1>(a) c = Sub(b, half) y = Add(x, c) }""",
            row=np.arange(32).reshape(1, 32), sizes=np.array([64, 32]), half=np.array(0.5, np.float32),
        )
    )  # fmt: skip
    assert result.verification.passed
    assert support.op_types(result.to_proto()) == ["Add"]
    assert {tuple(tensor.dims) for tensor in result.to_proto().graph.initializer} == {(1, 32)}


def test_a_bias_that_is_expanded_from_one_number_is_written_for_the_rules_that_read_it() -> None:
    """The exporter writes a missing bias as Expand(0, [channels]); BatchNormalization folds into the Conv anyway."""
    ones = np.ones(40, np.float32)
    result = graphopt.optimize(
        support.model(
            """g (float[1,2,5,5] x) => (float[1,40,5,5] y) {
                bias = Expand(zero, channels) c = Conv(x, w, bias) y = BatchNormalization(c, two, one, one, two) }""",
            zero=np.array(0, np.float32), channels=np.array([40]), w=np.ones((40, 2, 1, 1), np.float32), one=ones,
            two=ones * 2,
        )
    )  # fmt: skip
    assert result.verification.passed
    assert support.op_types(result.to_proto()) == ["Conv"]


@pytest.mark.parametrize(("opset", "largest", "left"), [(8, 159, ["Expand", "Add"]), (8, 160, ["Add"]), (9, 159, None)])
def test_a_large_repeated_number_is_written_only_where_an_operator_repeats_it(
    opset: int, largest: int, left: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty numbers of four bytes; ConstantOfShape came with opset 9."""
    monkeypatch.setattr(folding, "LARGEST", largest)
    monkeypatch.setattr("graphopt.rewrite.rule.SPLAT_BYTES", 64)
    proto = support.model(
        "g (float[1] x) => (float[40] y) { e = Expand(one, shape) y = Add(x, e) }", opset,
        one=np.float32(2), shape=np.array([40]),
    )  # fmt: skip
    assert support.op_types(_fold(proto)) == (["ConstantOfShape", "Add"] if left is None else left)


def test_weights_that_a_training_batchnorm_standardizes_are_folded() -> None:
    """As NFNets and BiT have them: a BatchNormalization with the statistics of the weights themselves."""
    proto = support.model(
        """g (float[1,3,4,4] x) => (float[1,2,2,2] y) {
            f = Reshape(w, flat) s, mean, var = BatchNormalization<training_mode = 1>(f, gain, zero, past, spread)
            v = Reshape(s, square) y = Conv(x, v)
        }""",
        w=np.arange(54, dtype=np.float32).reshape(2, 3, 3, 3) ** 0.5, flat=np.array([1, 2, 27]),
        square=np.array([2, 3, 3, 3]), gain=np.array([1, 2], np.float32), zero=np.zeros(2, np.float32),
        past=np.full(2, 3, np.float32), spread=np.full(2, 5, np.float32),
    )  # fmt: skip
    assert support.op_types(_fold(proto, rtol=1e-5)) == ["Conv"]


def test_a_training_batchnorm_that_changes_its_inputs_is_not_folded() -> None:
    """Before opset 14 running statistics were no results of their own."""
    proto = support.model(
        """g (float[1,2,3] x) => (float[1,2,3] y) {
            s, mean, var = BatchNormalization(w, gain, zero, zero, gain) y = Add(x, s)
        }""",
        13, w=np.ones((1, 2, 3), np.float32), gain=np.ones(2, np.float32), zero=np.zeros(2, np.float32),
    )  # fmt: skip
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, [Pass("fold-constants", 1, run=folding.fold_constants)])
    assert [node.op_type for node in editor.model.graph] == ["BatchNormalization", "Add"]


def test_what_decides_a_dim_is_written_out_beyond_the_budget() -> None:
    """Places of all 2,000 ones are 16 kB out of 8 bytes, and all that follows has known dims."""
    proto = support.model(
        """g (float[2000,3] x) => (float[m,3] y) {
            all = ConstantOfShape<value = int64[1] {1}>(shape) places = NonZero(all) flat = Squeeze(places, first)
            y = Gather(x, flat)
        }""",
        shape=np.array([2000]), first=np.array([0]),
    )  # fmt: skip
    folded = _fold(proto)
    assert "NonZero" not in support.op_types(folded)
    assert ir.from_proto(onnx.shape_inference.infer_shapes(folded)).graph.outputs[0].shape[0] == 2000
