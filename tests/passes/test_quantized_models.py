"""Quantized models: integers stay what they are, Q/DQ go only where that shows, weights stay quantized."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphopt
import models
from bench.quantized import compare
from graphopt.passes.pipeline import Layout, Target
from graphopt.passes.quantization import RULES
from tests.support import apply_rules, assert_equal, model, op_types, session

HALF = np.array(0.5, np.float32)


def _typed(kind: int, values: list[int], dims: tuple[int, ...], name: str) -> onnx.TensorProto:
    """A tensor of a type that NumPy has not."""
    return onnx.helper.make_tensor(name, kind, dims, values)


def _fires(text: str, expected: list[str], opset: int = 17, /, **weights: np.ndarray) -> onnx.ModelProto:
    """The rules leave these operators, and the outputs are the same bit for bit."""
    before = model(text, opset, 10 if opset > 18 else 8, **weights)
    after, log = apply_rules(before, RULES)
    assert op_types(after) == expected
    assert log
    assert_equal(before, after, rtol=0, atol=0)
    return after


def _refuses(text: str, opset: int = 17, /, **weights: np.ndarray) -> None:
    before = model(text, opset, 10 if opset > 18 else 8, **weights)
    after, log = apply_rules(before, RULES)
    assert log == []
    assert op_types(after) == op_types(before)


# -- the zoo ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "layout"), [("standard", None), ("ort", None), ("standard", "nhwc")])
def test_every_quantized_tensor_of_a_network_is_the_same(target: Target, layout: Layout | None) -> None:
    original = models.load("resnet18_qdq")
    result = graphopt.optimize(original, target=target, layout=layout, verify=False).to_proto()
    found = compare(original, result, factors=(1.0,))
    assert found.compared == found.after == 31  # two of 33 are only moved in between
    assert found.different == ()
    assert found.outputs == 0.0


def test_every_dequantized_weight_of_a_language_model_is_the_same() -> None:
    original = models.load("bert_small_dynquant")
    result = graphopt.optimize(original, verify=False).to_proto()
    found = compare(original, result, "DequantizeLinear", factors=(1.0,))
    assert (found.before, found.compared, found.different) == (3, 3, ())


# -- pairs --------------------------------------------------------------------------------------------------------

PAIR = "g (KIND[2,3] q) => (KIND[2,3] y) { x = DequantizeLinear(q, s, z) y = QuantizeLinear(x, t, w) }"


def _pair(kind: np.dtype, **other: np.ndarray) -> dict[str, np.ndarray]:
    given = {"s": np.array(0.1, np.float32), "t": np.array(0.1, np.float32)}
    return given | {"z": np.array(3, kind), "w": np.array(3, kind)} | other


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_a_pair_with_equal_parameters_goes(kind: str) -> None:
    _fires(PAIR.replace("KIND", kind), ["Identity"], **_pair(np.dtype(kind)))


@pytest.mark.parametrize("kind", ["int16", "uint16"])
def test_a_pair_of_16_bits_goes(kind: str) -> None:
    before = model(PAIR.replace("KIND", kind).replace("2,3", "n"), 21, 10, **_pair(np.dtype(kind)))
    after, _ = apply_rules(before, RULES)
    assert op_types(after) == ["Identity"]
    all_of_them = np.arange(np.iinfo(kind).min, np.iinfo(kind).max + 1).astype(kind)
    (same,) = session(before).run(None, {"q": all_of_them})
    assert np.array_equal(same, all_of_them)


@pytest.mark.parametrize(
    "other",
    [
        {"t": np.array(0.2, np.float32)},
        {"w": np.array(4, np.int8)},
        {"s": np.array(2e37, np.float32), "t": np.array(2e37, np.float32)},
        {"s": np.array(-0.1, np.float32), "t": np.array(-0.1, np.float32)},
        {"w": np.array(3, np.uint8)},
    ],
    ids=["scale", "zero point", "overflow", "negative scale", "type"],
)
def test_a_pair_with_other_parameters_stays(other: dict[str, np.ndarray]) -> None:
    text = PAIR.replace("KIND[2,3] y", "uint8[2,3] y" if other.get("w", HALF).dtype == np.uint8 else "int8[2,3] y")
    _refuses(text.replace("KIND", "int8"), **_pair(np.dtype("int8"), **other))


def test_quantizing_is_never_undone() -> None:
    _refuses("g (float[4] x) => (float[4] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }", s=HALF)


def test_a_pair_with_scales_along_other_axes_stays() -> None:
    text = """g (int8[3,3] q) => (int8[3,3] y) {
        x = DequantizeLinear<axis = 0>(q, s, z) y = QuantizeLinear<axis = 1>(x, s, z)
    }"""
    scales = np.array([0.1, 0.2, 0.3], np.float32)
    _refuses(text, s=scales, z=np.zeros(3, np.int8))
    _fires(text.replace("axis = 0", "axis = 1"), ["Identity"], s=scales, z=np.zeros(3, np.int8))


def test_a_pair_of_blocks_stays() -> None:
    _refuses(
        """g (int8[4,2] q) => (int8[4,2] y) {
            x = DequantizeLinear<axis = 0, block_size = 2>(q, s, z)
            y = QuantizeLinear<axis = 0, block_size = 2>(x, s, z)
        }""",
        21,
        s=np.full((2, 2), 0.5, np.float32),
        z=np.zeros((2, 2), np.int8),
    )


@given(
    scale=st.floats(2.0**-149, 2.0**119, width=32, exclude_min=False),
    zero=st.integers(-128, 127),
)
def test_what_was_dequantized_is_found_again(scale: float, zero: int) -> None:
    """The arithmetic of the two operators, over all integers of 8 bits."""
    integers = np.arange(-128, 128)
    step = np.float32(scale)
    number = (integers - zero).astype(np.float32) * step
    assert np.array_equal(np.rint(number / step) + zero, integers)


# -- movement -----------------------------------------------------------------------------------------------------

MOVE = """g (uint8[1,4,4,4] q) => (uint8[?,?,?,?] y) {
    x = DequantizeLinear(q, s, z) m = MOVER y = QuantizeLinear(x_or_m, s, z)
}""".replace("x_or_m", "m")
PARAMETERS = {"s": np.array(0.1, np.float32), "z": np.array(7, np.uint8)}


@pytest.mark.parametrize(
    "mover",
    [
        "Transpose<perm = [0, 2, 3, 1]>(x)",
        "Reshape(x, shape)",
        "MaxPool<kernel_shape = [2, 2], pads = [1, 1, 1, 1]>(x)",
        "Slice(x, one, three, one)",
        "Gather<axis = 1>(x, one)",
        "Concat<axis = 1>(x, x)",
    ],
)
def test_moved_integers_need_not_be_dequantized(mover: str) -> None:
    shape, one, three = (np.array(numbers) for numbers in ([1, 2, 8, 4], [1], [3]))
    expected = mover.partition("<")[0].partition("(")[0]
    _fires(MOVE.replace("MOVER", mover), [expected], **PARAMETERS, shape=shape, one=one, three=three)


def test_a_concat_of_tensors_with_other_scales_stays() -> None:
    text = """g (int8[2] a, int8[2] b) => (int8[4] y) {
        c = DequantizeLinear(a, s) d = DequantizeLinear(b, t) e = Concat<axis = 0>(c, d) y = QuantizeLinear(e, s, z)
    }"""
    zero = np.array(0, np.int8)
    _refuses(text, s=HALF, t=np.array(0.25, np.float32), z=zero)
    _fires(text, ["Concat"], s=HALF, t=HALF.copy(), z=zero)


def test_an_average_and_a_result_that_is_read_elsewhere_stay() -> None:
    _refuses(MOVE.replace("MOVER", "AveragePool<kernel_shape = [2, 2]>(x)"), **PARAMETERS)
    text = MOVE.replace("MOVER", "Transpose(x)").replace("[?,?,?,?] y", "[4,4,4,1] y, float[4,4,4,1] m")
    _refuses(text, **PARAMETERS)


def test_a_dequantized_tensor_that_others_read_stays_for_them() -> None:
    text = MOVE.replace("MOVER", "Transpose(x)").replace("[?,?,?,?] y", "[4,4,4,1] y, float[1,4,4,4] v")
    _fires(text.replace("m = ", "v = Sqrt(x) m = "), ["DequantizeLinear", "Sqrt", "Transpose"], **PARAMETERS)


def test_a_maximum_of_16_bits_stays() -> None:
    text = MOVE.replace("MOVER", "MaxPool<kernel_shape = [2, 2]>(x)").replace("uint8", "int16")
    _refuses(text, 21, s=HALF, z=np.array(0, np.int16))
    _fires(
        MOVE.replace("MOVER", "Transpose(x)").replace("uint8", "int16"),
        ["Transpose"],
        21,
        s=HALF,
        z=np.array(0, np.int16),
    )


# -- clamps -------------------------------------------------------------------------------------------------------

CLAMP = "g (float[64] x) => (KIND[64] y) { a = CLAMPED y = QuantizeLinear(a, s, z) }"
SMALL = np.array(0.02, np.float32)


def test_a_relu_whose_zeros_are_the_lowest_integers_goes() -> None:
    text = CLAMP.replace("CLAMPED", "Relu(x)")
    _fires(text.replace("KIND", "uint8"), ["QuantizeLinear"], s=SMALL, z=np.array(0, np.uint8))
    _fires(text.replace("KIND", "int8"), ["QuantizeLinear"], s=SMALL, z=np.array(-128, np.int8))
    _refuses(text.replace("KIND", "uint8"), s=SMALL, z=np.array(1, np.uint8))
    _refuses(text.replace("KIND", "int8"), s=SMALL, z=np.array(0, np.int8))


def test_a_clip_at_the_ends_of_the_integers_goes() -> None:
    text = CLAMP.replace("CLAMPED", "Clip(x, low, high)").replace("KIND", "uint8")
    low, zero, scale = np.array(0, np.float32), np.array(0, np.uint8), np.array(6 / 255, np.float32)
    _fires(text, ["QuantizeLinear"], s=scale, z=zero, low=low, high=np.array(6, np.float32))
    _refuses(text, s=scale, z=zero, low=low, high=np.array(5, np.float32))


# -- whole runs ---------------------------------------------------------------------------------------------------


def _optimized(proto: onnx.ModelProto) -> onnx.ModelProto:
    result = graphopt.optimize(proto)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    return result.to_proto()


def _weight_types(proto: onnx.ModelProto) -> set[int]:
    read = {node.input[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    return {tensor.data_type for tensor in proto.graph.initializer if tensor.name in read}


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "FLOAT8E4M3FN", "INT8", "INT16"])
@pytest.mark.parametrize("mover", ["Transpose<perm = [1, 0]>(d)", "Reshape(d, shape)"])
@pytest.mark.parametrize("twice", [False, True], ids=["read once", "read twice"])
def test_weights_stay_quantized(kind: str, mover: str, twice: bool) -> None:
    also = "u = DequantizeLinear(w, t) v = MatMul(x, u)" if twice else "v = Neg(x)"
    proto = model(
        f"""g (float[n,4] x) => (float[n,4] y, float[n,4] v) {{
            d = DequantizeLinear(w, s) e = {mover} y = MatMul(x, e) {also}
        }}""",
        21, 10, s=HALF, t=np.array(0.25, np.float32), shape=np.array([4, 4]),
    )  # fmt: skip
    number = getattr(onnx.TensorProto, kind)
    proto.graph.initializer.append(_typed(number, [index % 7 for index in range(16)], (4, 4), "w"))
    after = _optimized(proto)
    assert _weight_types(after) == {number}
    assert "Cast" not in op_types(after)


def test_a_scale_for_each_channel_moves_with_its_axis() -> None:
    proto = model(
        """g (float[n,4] x) => (float[n,3] y) {
            d = DequantizeLinear<axis = 0>(w, s, z) e = Transpose<perm = [1, 0]>(d) y = MatMul(x, e)
        }""",
        w=np.arange(12, dtype=np.int8).reshape(3, 4),
        s=np.array([0.5, 0.25, 0.125], np.float32),
        z=np.array([1, 2, 3], np.int8),
    )
    after = _optimized(proto)
    assert op_types(after) == ["DequantizeLinear", "MatMul"]
    assert after.graph.node[0].attribute[0].i == 1
    assert_equal(proto, after, rtol=0, atol=0, n=3)


def test_weights_of_blocks_stay_where_they_are() -> None:
    proto = model(
        """g (float[n,4] x) => (float[n,4] y) {
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s) e = Transpose<perm = [1, 0]>(d) y = MatMul(x, e)
        }""",
        21, 10, s=np.array([[0.5, 0.25, 0.125, 1], [1, 2, 3, 4]], np.float32),
    )  # fmt: skip
    proto.graph.initializer.append(_typed(onnx.TensorProto.INT4, list(range(-8, 8)), (4, 4), "w"))
    after = _optimized(proto)
    assert "DequantizeLinear" in op_types(after)
    assert _weight_types(after) == {onnx.TensorProto.INT4}
    assert_equal(proto, after, rtol=0, atol=0, n=3)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_models_of_half_precision_get_no_cast(kind: str) -> None:
    proto = model(
        f"""g ({kind}[n,4] x) => ({kind}[n,4] y) {{
            a = MatMul(x, w) b = Add(a, c) d = Relu(b) e = Relu(d) f = Transpose<perm = [1, 0]>(e)
            h = Transpose<perm = [1, 0]>(f) i = Mul(h, c) y = Mul(i, c)
        }}""",
        22, 10,
    )  # fmt: skip
    number = getattr(onnx.TensorProto, kind.upper())
    for name, dims in (("w", (4, 4)), ("c", (4,))):
        values = [index / 8 for index in range(int(np.prod(dims)))]
        proto.graph.initializer.append(onnx.helper.make_tensor(name, number, dims, values))
    after = _optimized(proto)
    assert "Cast" not in op_types(after)
    assert len(after.graph.node) < len(proto.graph.node)
    assert {tensor.data_type for tensor in after.graph.initializer} == {number}
