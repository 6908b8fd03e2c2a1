"""What regions refuse, each by a model that is refused for that alone and by its message."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.errors import ModelError, NotLowered
from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.images.batch_norm import without_batch_norm
from graphopt.program.regions.lower import lower
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.target import named
from tests import support

TARGET = named("x86-64-v3")
F4 = np.dtype("f4")

REFUSED = {
    # scatters
    "ScatterElements 's' combines by 'xor', which has no kernel": "g (float[4] x, int64[2] i, float[2] u) =>"
        " (float[4] y) { [s] y = ScatterElements<reduction = \"xor\">(x, i, u) }",
    # rows and attention
    "the dims of 'y' are not all numbers": "g (float[4,5] x, int64[1] a) => (float[n,k] y) { y = ReduceMean(x, a) }",
    "Attention 'a' has a cache of .1, 3, 1, 4., which does not fit": "g (float[1,2,3,4] q, float[1,3,1,4] p) =>"
        " (float[1,2,3,4] y, float[1,2,4,4] k, float[1,2,4,4] v) { [a] y, k, v = Attention(q, q, q, , p, p) }",
    "'q' of .1, 3, 8. has no 3 heads": "g (float[1,3,8] q) => (float[1,3,8] y) {"
        " y = Attention<q_num_heads = 3, kv_num_heads = 3>(q, q, q) }",
    # recurrence
    "GRU 'g' has the activation cosine, which is none of ONNX": "g (float[3,2,4] x) => (float[3,1,2,5] y) {"
        " [g] y = GRU<hidden_size = 5, activations = [\"Sigmoid\", \"Cosine\"]>(x, w_gru, r) }",
    # learned models
    "LinearClassifier 'c' has labels that are texts": "g (float[2,3] x) => (string[2] y, float[2,2] z) {"
        " [c] y, z = ai.onnx.ml.LinearClassifier<classlabels_strings = [\"a\", \"b\"], coefficients = [1.0]>(x) }",
    # what no rule of regions knows
    "Foo 'f' has no kernel": "g (float[4,5] x) => (float[4,5] y) { [f] y = other.Foo(x) }",
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_the_node_and_the_reason_are_named(message: str) -> None:
    proto = support.model(
        REFUSED[message], 23, 10, r=np.ones((1, 15, 5), F4), w_gru=np.ones((1, 15, 4), F4),
    )  # fmt: skip
    with pytest.raises(NotLowered, match=message):
        lower(ir.from_proto(proto), TARGET)


def test_batch_normalizations_of_a_training_or_of_computed_statistics_stay() -> None:
    trained = support.model(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[3] a, float[3] b) {"
        " [n] y, a, b = BatchNormalization<training_mode = 1>(x, s, s, s, s) }", 15, s=np.ones(3, F4),
    )  # fmt: skip
    free = support.model(
        "g (float[2,3,4] x, float[3] m) => (float[2,3,4] y) { [n] y = BatchNormalization(x, s, s, m, s) }", 15,
        s=np.ones(3, F4),
    )  # fmt: skip
    for proto in (trained, free):
        left = without_batch_norm(ir.from_proto(proto))
        assert [node.op_type for node in left.graph] == ["BatchNormalization"]
    plain = support.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model = ir.from_proto(plain)
    assert without_batch_norm(model) is model, "there is nothing to take out"


def test_a_value_larger_than_any_machine_is_refused() -> None:
    text = "g (float[65536,65536,65537] x) => (float[65536,65536,65537] y) { y = Relu(x) }"
    with pytest.raises(ModelError, match="'x' has 281,479,271,677,952 elements, more than any machine has"):
        lower(ir.from_proto(support.model(text)), TARGET)


def _scope() -> Scope:
    return Scope(ir.from_proto(support.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")), TARGET)


def test_a_constant_that_only_repeats_is_written_out_up_to_two_gigabytes() -> None:
    splat = np.broadcast_to(np.float32(1), (1 << 20, 513))
    with pytest.raises(ModelError, match=r"'w' repeats a few numbers; .* 2,151,677,952 bytes, more than 2,147,483,648"):
        _scope().keep("constant", "w", splat, DType.F32)
    kept = _scope()
    view = kept.keep("constant", "w", np.broadcast_to(np.float32(1), (3, 4)), DType.F32)
    assert view.is_dense and view.shape == (3, 4) and kept.constants[view.buffer].array.tolist() == [[1.0] * 4] * 3


def test_a_value_is_not_read_before_it_is_computed() -> None:
    model = ir.from_proto(support.model("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    with pytest.raises(NotLowered, match="'y' is read before it is computed"):
        Scope(model, TARGET).place(model.graph.outputs[0])


def test_a_value_without_a_type_is_refused() -> None:
    model = ir.from_proto(support.model("g (float[2] x) => (float[2] y) { a = other.Foo(x) y = Relu(a) }"))
    with pytest.raises(NotLowered, match="the element type of 'a' is not known"):
        Scope(model, TARGET).dtype(next(iter(model.graph)).outputs[0])


def test_a_view_has_no_negative_strides() -> None:
    view = View.dense(Buffer(0, "input", 24, "input", "x"), DType.F32, (6,))
    with pytest.raises(ValueError, match="a reversed slice is a copy"):
        view.sliced(0, 5, 6, -1)
    assert view.sliced(0, 0, 0, -1).shape == (0,), "of no elements any step will do"
