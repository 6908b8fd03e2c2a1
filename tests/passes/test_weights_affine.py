"""Arithmetic and BatchNormalization next to a layer fold into its weights, or say why they do not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes.weights import RULES
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests.support import apply_rules, assert_equal, model, op_types

# Folding rounds each weight once more: a few units of float32.
RTOL, ATOL = 2e-5, 2e-5


def numbers(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)


def batchnorm(channels: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: numbers(channels, seed=seed + place) for place, name in enumerate(("g", "b", "m", "v"))}


def folds_to(
    proto: onnx.ModelProto, *kept: str, rtol: float = RTOL, atol: float = ATOL, **dims: int
) -> onnx.ModelProto:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    assert_equal(proto, result, rtol=rtol, atol=atol, **dims)
    return result


def stays(proto: onnx.ModelProto) -> None:
    result, log = apply_rules(proto, RULES)
    assert not log
    assert op_types(result) == op_types(proto)


CONV = "agraph (float[N,4,6,6] x) => (float[N,4,4,4] y) {{ c = Conv {0} (x, w{1})\n {2} }}"
BEHIND = {
    "mul": "y = Mul(c, k)",
    "mul the other way round": "y = Mul(k, c)",
    "div": "y = Div(c, k)",
    "add": "y = Add(k, c)",
    "sub": "y = Sub(c, k)",
    "constant minus conv": "y = Sub(k, c)",
    "batchnorm": "y = BatchNormalization(c, g, b, m, v)",
    "mul then add": "d = Mul(c, k)\n y = Add(d, k)",
    "batchnorm, mul, add": "d = BatchNormalization(c, g, b, m, v)\n e = Mul(d, k)\n y = Add(e, k)",
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("bias", ["", ", z"])
@pytest.mark.parametrize("group", [1, 2])
def test_what_stands_behind_a_conv_folds_into_it(behind: str, bias: str, group: int) -> None:
    text = CONV.format(f"<group = {group}>", bias, BEHIND[behind])
    weights = {"w": numbers(4, 4 // group, 3, 3), "k": numbers(4, 1, 1, seed=3), "z": numbers(4, seed=4)}
    folds_to(model(text, **weights, **batchnorm(4)), "Conv", N=2)


@pytest.mark.parametrize("behind", ["mul", "add", "constant minus conv", "batchnorm"])
@pytest.mark.parametrize("group", [1, 2])
def test_what_stands_behind_a_transposed_conv_folds_into_it(behind: str, group: int) -> None:
    text = (
        CONV.format(f"<group = {group}>", "", BEHIND[behind])
        .replace("Conv", "ConvTranspose")
        .replace("4,4] y", "8,8] y")
    )
    weights = {"w": numbers(4, 4 // group, 3, 3), "k": numbers(1, 4, 1, 1, seed=3)}
    folds_to(model(text, **weights, **batchnorm(4)), "ConvTranspose", N=2)


@pytest.mark.parametrize(
    "opset, attributes", [(7, "<spatial = 1>"), (8, ""), (9, ""), (14, ""), (15, "<training_mode = 0>")]
)
def test_every_version_of_batchnorm_at_inference_folds(opset: int, attributes: str) -> None:
    text = CONV.format("", "", f"y = BatchNormalization {attributes} (c, g, b, m, v)")
    folds_to(model(text, opset, w=numbers(4, 4, 3, 3), **batchnorm(4)), "Conv")


@pytest.mark.parametrize("opset, attributes", [(7, "<spatial = 0>"), (14, "<training_mode = 1>")])
def test_other_batchnorms_stay(opset: int, attributes: str) -> None:
    text = CONV.format("", "", f"y = BatchNormalization {attributes} (c, g, b, m, v)")
    proto = model(text, opset, w=numbers(4, 4, 3, 3), **batchnorm(4))
    result, log = apply_rules_unchecked(proto)
    assert not log
    assert op_types(result) == ["Conv", "BatchNormalization"]


def apply_rules_unchecked(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[object]]:
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    editor = Editor(copy)
    run_passes(editor, [Pass("test", 2, RULES)])
    return ir.to_proto(copy), list(editor.log)


NEAR_MISSES = {
    "a constant that differs over space": (CONV.format("", "", "y = Mul(c, s)"), {"s": numbers(4, 4)}),
    "a constant per image that widens": (CONV.format("", "", "y = Mul(c, s)"), {"s": numbers(1, 1, 4, 1, 1)}),
    "division by the result": (CONV.format("", "", "y = Div(k, c)"), {}),
    "division by zero": (CONV.format("", "", "y = Div(c, s)"), {"s": np.zeros(1, np.float32)}),
    "a second reader": (CONV.format("", "", "d = Mul(c, k)\n y = Add(c, d)"), {}),
    "a computed bias": (CONV.format("", ", r", "y = Mul(c, k)").replace("6] x)", "6] x, float[4] r)"), {}),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_behind_a_conv_stay(name: str) -> None:
    text, more = NEAR_MISSES[name]
    stays(model(text, w=numbers(4, 4, 3, 3), k=numbers(4, 1, 1), **more))


def test_a_dequantized_weight_is_never_folded() -> None:
    text = CONV.format("", "", "y = Mul(c, k)").replace("{ c", "{ w = DequantizeLinear(q, h)\n c")
    stays(model(text, q=np.ones((4, 4, 3, 3), np.int8), h=numbers(), k=numbers(4, 1, 1)))


def test_a_large_shared_weight_stays_and_a_small_one_is_copied() -> None:
    text = """agraph (float[1,C,4,4] x) => (float[1,D,4,4] y, float[1,D,4,4] z) {
        c = Conv(x, w)  y = Mul(c, k)  z = Conv(x, w) }"""
    for channels, kept in ((4, ["Conv", "Conv"]), (80, ["Conv", "Mul", "Conv"])):
        proto = model(text.replace("C", str(channels)).replace("D", str(channels)).replace(f"{channels}onv", "Conv"),
                      w=numbers(channels, channels, 1, 1), k=numbers(channels, 1, 1))  # fmt: skip
        result, _ = apply_rules(proto, RULES)
        assert op_types(result) == kept
        assert_equal(proto, result, rtol=RTOL, atol=ATOL)


IN_FRONT = {
    "mul": "d = Mul(x, k)",
    "div": "d = Div(x, k)",
    "a single number": "d = Mul(x, n)",
    "add": "d = Add(x, k)",
    "sub": "d = Sub(x, k)",
    "constant minus x": "d = Sub(k, x)",
    "batchnorm": "d = BatchNormalization(x, g, b, m, v)",
}


@pytest.mark.parametrize("front", IN_FRONT)
@pytest.mark.parametrize("group", [1, 2])
def test_what_stands_in_front_of_an_unpadded_conv_folds_into_it(front: str, group: int) -> None:
    text = f"""agraph (float[N,4,6,6] x) => (float[N,6,4,4] y) {{
        {IN_FRONT[front]}
        y = Conv <group = {group}> (d, w) }}"""
    weights = {
        "w": numbers(6, 4 // group, 3, 3),
        "k": numbers(4, 1, 1, seed=3),
        "n": np.float32(0.3).reshape(()),
    }
    folds_to(model(text, **weights, **batchnorm(4)), "Conv")


@pytest.mark.parametrize(
    "front, kept",
    [("mul", ["Conv"]), ("add", ["Add", "Conv"]), ("batchnorm", ["BatchNormalization", "Conv"])],
)
def test_a_shift_does_not_pass_the_padding_of_a_conv(front: str, kept: list[str]) -> None:
    text = f"""agraph (float[1,4,6,6] x) => (float[1,6,6,6] y) {{
        {IN_FRONT[front]}
        y = Conv <pads = [1,1,1,1]> (d, w) }}"""
    folds_to(model(text, w=numbers(6, 4, 3, 3), k=numbers(4, 1, 1, seed=3), **batchnorm(4)), *kept)


def test_a_scale_passes_a_transposed_conv_and_a_shift_does_not() -> None:
    text = "agraph (float[1,4,6,6] x) => (float[1,6,8,8] y) {{ d = {}(x, k)\n y = ConvTranspose <group = 2> (d, w) }}"
    weights = {"w": numbers(4, 3, 3, 3), "k": numbers(4, 1, 1, seed=3)}
    folds_to(model(text.format("Mul"), **weights), "ConvTranspose")
    stays(model(text.format("Add"), **weights))


def test_a_constant_that_widens_the_data_stays() -> None:
    text = "agraph (float[1,1,6,6] x) => (float[1,6,4,4] y) { d = Mul(x, k)\n y = Conv(d, w) }"
    stays(model(text, w=numbers(6, 4, 3, 3), k=numbers(4, 1, 1)))


PRODUCTS = {
    "gemm * vector": ("c = Gemm(x, w, z)  y = Mul(c, k)", ["Gemm"]),
    "gemm with factors": ("c = Gemm <alpha = 0.5, beta = 2.0> (x, w, z)  d = Mul(c, k)  y = Add(d, z)", ["Gemm"]),
    "turned gemm": ("c = Gemm <transB = 1> (x, w, z)  y = Div(c, k)", ["Gemm"]),
    "gemm without bias": ("c = Gemm(x, w)  y = Sub(c, k)", ["Gemm"]),
    "gemm and batchnorm": ("c = Gemm(x, w, z)  y = BatchNormalization(c, g, b, m, v)", ["Gemm"]),
    "matmul * vector": ("c = MatMul(x, w)  y = Mul(c, k)", ["MatMul"]),
    "matmul and batchnorm": ("c = MatMul(x, w)  y = BatchNormalization(c, g, b, m, v)", ["Gemm"]),
    "constant minus matmul": ("c = MatMul(x, w)  y = Sub(k, c)", ["Gemm"]),
    "vector * x": ("d = Mul(k, x)  y = MatMul(d, w)", ["MatMul"]),
    "vector + x": ("d = Add(k, x)  y = MatMul(d, w)", ["Gemm"]),
    "batchnorm in front of gemm": (
        "d = BatchNormalization(x, g, b, m, v)  y = Gemm <alpha = 2.0, transB = 1> (d, w, z)", ["Gemm"],
    ),
    "rows": ("d = Mul(column, x)  c = MatMul(w, d)  y = Mul(c, column)", ["MatMul"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products_take_scales_and_shifts(name: str) -> None:
    body, kept = PRODUCTS[name]
    weights = {
        "w": numbers(4, 4),
        "k": numbers(4, seed=3),
        "z": numbers(4, seed=4),
        "column": numbers(4, 1, seed=5),
    }
    proto = model(f"agraph (float[4,4] x) => (float[4,4] y) {{ {body} }}", **weights, **batchnorm(4))
    folds_to(proto, *kept)


def test_a_product_of_three_dims_scales_with_the_bias_behind_it() -> None:
    text = """agraph (float[N,S,4] x) => (float[N,S,6] y) {
        f = Mul(x, a)  e = Add(f, b)  c = MatMul(e, w)  d = Add(c, z)  y = Mul(d, k) }"""
    weights = {
        "a": numbers(4),
        "b": numbers(4, seed=1),
        "w": numbers(4, 6),
        "z": numbers(6),
        "k": numbers(6, seed=3),
    }
    folds_to(model(text, **weights), "MatMul", "Add")


@pytest.mark.parametrize("body", ["c = MatMul(x, w)  y = Add(c, z)", "c = Add(x, b)  y = MatMul(c, w)"])
def test_a_product_of_three_dims_has_no_place_for_a_shift(body: str) -> None:
    stays(
        model(
            f"agraph (float[N,S,4] x) => (float[N,S,4] y) {{ {body} }}",
            w=numbers(4, 4),
            z=numbers(4),
            b=numbers(4),
        )
    )


def test_batchnorm_over_the_middle_axis_of_a_product_stays() -> None:
    text = "agraph (float[2,4,4] x) => (float[2,4,4] y) { c = MatMul(x, w)  y = BatchNormalization(c, g, b, m, v) }"
    stays(model(text, w=numbers(4, 4), **batchnorm(4)))


ALONE = {
    "two in a row": "c = BatchNormalization(x, g, b, m, v)  y = BatchNormalization <epsilon = 0.1> (c, v, m, b, g)",
    "mul and add behind": "c = BatchNormalization(x, g, b, m, v)  d = Mul(c, k)  y = Add(d, k)",
    "mul and add in front": "c = Mul(x, k)  d = Add(c, k)  y = BatchNormalization(d, g, b, m, v)",
    "taken from a constant": "c = Sub(k, x)  d = BatchNormalization(c, g, b, m, v)  y = Sub(k, d)",
    "division": "c = Div(x, k)  d = BatchNormalization(c, g, b, m, v)  y = Div(d, k)",
}


@pytest.mark.parametrize("name", ALONE)
def test_a_batchnorm_takes_the_arithmetic_around_it(name: str) -> None:
    text = f"agraph (float[N,4,3,3] x) => (float[N,4,3,3] y) {{ {ALONE[name]} }}"
    folds_to(model(text, k=numbers(4, 1, 1, seed=9), **batchnorm(4)), "BatchNormalization")


def test_a_batchnorm_does_not_take_what_differs_over_space() -> None:
    text = "agraph (float[N,4,3,3] x) => (float[N,4,3,3] y) { c = BatchNormalization(x, g, b, m, v)  y = Mul(c, k) }"
    stays(model(text, k=numbers(3), **batchnorm(4)))


def test_weights_of_one_repeated_number_stay_unwritten() -> None:
    """A 4 GB weight given as a ConstantOfShape: folding must not even allocate it."""
    text = """agraph (float[1,32768,1,1] x) => (float[1,32768,1,1] y) {
        w = ConstantOfShape <value = float[1] {0.5}> (s)
        p = ConstantOfShape <value = float[1] {2.0}> (t)
        c = Conv(x, w)  y = BatchNormalization(c, p, p, p, p) }"""
    proto = model(text, s=np.array([32768, 32768, 1, 1]), t=np.array([32768]))
    result, log = apply_rules(proto, RULES)
    assert [rewrite.rule for rewrite in log] == ["batchnorm-after-layer"]
    assert op_types(result)[-1] == "Conv" and set(op_types(result)[:-1]) == {"ConstantOfShape"}
    assert len(result.SerializeToString()) < 2000
    scale = 2.0 / np.sqrt(2.0 + 1e-5)
    fillers = [onnx.numpy_helper.to_array(node.attribute[0].t)[0] for node in result.graph.node[:-1]]
    np.testing.assert_allclose(sorted(fillers), sorted([0.5 * scale, 2.0 - 2.0 * scale]), rtol=1e-6)


def test_a_repeated_number_is_not_written_out_for_a_vector() -> None:
    text = """agraph (float[1,128,1,1] x) => (float[1,128,1,1] y) {
        w = ConstantOfShape <value = float[1] {0.5}> (s)
        c = Conv(x, w)  y = Mul(c, k) }"""
    stays(model(text, s=np.array([128, 128, 1, 1]), k=numbers(128, 1, 1)))


def test_half_precision_folds_when_it_fits() -> None:
    text = "agraph (float16[2,4] x) => (float16[2,4] y) { c = MatMul(x, w)  y = Mul(c, k) }"
    weights = {"w": numbers(4, 4, dtype=np.float16)}
    # one rounding of a float16 is 5e-4 relative
    folds_to(model(text, **weights, k=numbers(4, seed=3, dtype=np.float16)), "MatMul", rtol=4e-3, atol=4e-3)
    stays(model(text, w=np.full((4, 4), 60000, np.float16), k=np.full(4, 2, np.float16)))
    stays(model(text, w=np.full((4, 4), 0.001, np.float16), k=np.full(4, 0.001, np.float16)))


def test_bfloat16_is_rounded_once() -> None:
    """ONNX Runtime has no such kernels on the CPU: the numbers are read from the file."""
    text = "agraph (bfloat16[2,2] x) => (bfloat16[2,2] y) { c = MatMul(x, w)  y = Mul(c, k) }"
    bfloat16 = ir.DataType.BFLOAT16.numpy()
    result, _ = apply_rules(model(text, w=np.full((2, 2), 3, bfloat16), k=np.array([2, 0.5], bfloat16)), RULES)
    assert op_types(result) == ["MatMul"]
    folded = [onnx.numpy_helper.to_array(tensor) for tensor in result.graph.initializer if list(tensor.dims) == [2, 2]]
    np.testing.assert_array_equal(folded[-1].astype(np.float32), [[6, 1.5], [6, 1.5]])


@pytest.mark.parametrize("dtype", ["double", "int32"])
def test_doubles_fold_and_integers_stay(dtype: str) -> None:
    kind = {"double": np.float64, "int32": np.int32}[dtype]
    text = f"agraph ({dtype}[2,4] x) => ({dtype}[2,4] y) {{ c = MatMul(x, w)  y = Mul(c, k) }}"
    proto = model(text, w=np.arange(16).reshape(4, 4).astype(kind), k=np.arange(2, 6).astype(kind))
    if dtype == "double":
        folds_to(proto, "MatMul", rtol=1e-14, atol=1e-14)
    else:
        stays(proto)
