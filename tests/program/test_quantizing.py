"""Layers between quantized tensors as sums of integers: which ones, and that they are exact to the last step."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bench.double import evaluate
from graphopt.program.quantizing import in_integers
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

GENERATOR = np.random.default_rng(0)
CONV = """g (uint8[1,3,8,8] x) => (uint8[1,5,8,8] y) {
    a = DequantizeLinear(x, xs, xz) b = DequantizeLinear<axis = 0>(w, ws, wz)
    c = Conv<pads = [1, 1, 1, 1]>(a, b, bias) y = QuantizeLinear(c, ys, yz)
}"""
RELU = CONV.replace("y = Quant", "r = Relu(c) y = Quant").replace("(c, ys, yz)", "(r, ys, yz)")
CLIP = CONV.replace("y = Quant", "r = Clip(c, low, high) y = Quant").replace("(c, ys, yz)", "(r, ys, yz)")
MATMUL = """g (uint8[2,7,12] x) => (uint8[2,7,5] y) {
    a = DequantizeLinear(x, xs, xz) b = DequantizeLinear(w, ws, wz) c = MatMul(a, b) y = QuantizeLinear(c, ys, yz)
}"""
GEMM = """g (uint8[7,12] x) => (uint8[7,5] y) {
    a = DequantizeLinear(x, xs, xz) b = DequantizeLinear<axis = 0>(w, ws, wz)
    c = Gemm<transB = 1>(a, b, bias) y = QuantizeLinear(c, ys, yz)
}"""


def numbers(*shape: int, kind: Any = np.int8, **other: Any) -> dict[str, Any]:
    """Constants of a layer with weights of such dims; zero points and scales along their first dim, unless given."""
    limits, outputs = ml_dtypes.iinfo(kind), shape[0]
    found = {
        "w": GENERATOR.integers(int(limits.min), int(limits.max), shape, endpoint=True).astype(kind),
        "ws": GENERATOR.uniform(0.001, 0.01, outputs).astype(np.float32), "wz": np.zeros(outputs, kind),
        "xs": np.float32(0.0173), "xz": np.uint8(117), "ys": np.float32(0.0421), "yz": np.uint8(121),
        "bias": GENERATOR.standard_normal(outputs).astype(np.float32), "low": np.float32(-0.2), "high": np.float32(0.7),
    }  # fmt: skip
    return {**found, **other}


def made(text: str, given: dict[str, Any]) -> tuple[onnx.ModelProto, ir.Model]:
    """The model, and what becomes of it."""
    used = {name: one for name, one in given.items() if f"{name}" in text.replace("(", " ").replace(")", " ").replace(
        ",", " ").split()}  # fmt: skip
    proto = support.model(text, 21, 10, **used)
    return proto, in_integers(ir.from_proto(proto))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("text", "given", "wanted"),
    [
        (CONV, numbers(5, 3, 3, 3), ["QLinearConv"]),
        (CONV, numbers(5, 3, 3, 3, kind=ml_dtypes.int4), ["QLinearConv"]),
        (CONV, numbers(5, 3, 3, 3, kind=np.uint8, ws=np.float32(0.004), wz=np.uint8(99)), ["QLinearConv"]),
        (RELU, numbers(5, 3, 3, 3), ["QLinearConv", "Max"]),
        (CLIP, numbers(5, 3, 3, 3), ["QLinearConv", "Max", "Min"]),
        (MATMUL, numbers(12, 5, ws=GENERATOR.uniform(0.001, 0.01, 5).astype(np.float32), wz=np.zeros(5, np.int8)),
         ["QLinearMatMul"]),
        (GEMM, numbers(5, 12), ["QLinearMatMul"]),
    ],
)  # fmt: skip
def test_a_layer_is_one_operator_and_every_element_that_of_exact_arithmetic(
    text: str, given: dict[str, Any], wanted: list[str]
) -> None:
    proto, found = made(text, given)
    assert operators(found) == wanted
    lowered = lower(found, host())
    assert len(lowered.regions) == 1  # bounds are part of the kernel
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    for _ in range(20):
        x = GENERATOR.integers(0, 255, shape, endpoint=True).astype(np.uint8)
        (y,) = run_lowered(lowered, {"x": x})
        np.testing.assert_array_equal(y, evaluate(proto, {"x": x}, {})["y"])


@pytest.mark.parametrize("text", [CONV, RELU, CLIP, MATMUL, GEMM], ids=["conv", "relu", "clip", "matmul", "gemm"])
@pytest.mark.parametrize(("x_kind", "y_kind"), [(np.uint16, np.uint16), (np.int16, np.int16), (np.uint8, np.uint16)])
def test_words_are_two_bytes(text: str, x_kind: Any, y_kind: Any) -> None:
    limits, dims = np.iinfo(x_kind), {MATMUL: (12, 5), GEMM: (5, 12)}.get(text, (5, 3, 3, 3))
    given = numbers(*dims, xs=np.float32(1.7e-4), xz=x_kind(limits.max // 3), ys=np.float32(3e-4), yz=y_kind(1234))
    if text == MATMUL:
        given |= {"ws": given["ws"][:5], "wz": given["wz"][:5]}
    names = {np.uint8: "uint8", np.uint16: "uint16", np.int16: "int16"}
    text = text.replace("(uint8", f"({names[x_kind]}", 1).replace("=> (uint8", f"=> ({names[y_kind]}", 1)
    proto, found = made(text, given)
    assert not {"Conv", "MatMul", "Gemm", "QuantizeLinear", "DequantizeLinear"} & set(operators(found))
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = GENERATOR.integers(limits.min, limits.max, shape, endpoint=True).astype(x_kind)
    (y,) = run_lowered(lower(found, host()), {"x": x})
    np.testing.assert_array_equal(y, evaluate(proto, {"x": x}, {})["y"])


def test_an_element_beside_a_tie_takes_the_step_of_exact_arithmetic() -> None:
    """Scales that are tenths in float32 put many products a millionth beside the middle of two steps."""
    given = numbers(64, 1, ws=np.full(64, 0.1, np.float32), xs=np.float32(0.1), ys=np.float32(0.02), xz=np.uint8(0))
    given["w"] = np.arange(-32, 32).astype(np.int8).reshape(64, 1)
    text = GEMM.replace("7,12", "256,1").replace("7,5", "256,64").replace(", bias)", ")")
    proto, found = made(text, given)
    x = np.arange(256).astype(np.uint8).reshape(256, 1)
    (y,) = run_lowered(lower(found, host()), {"x": x})
    exact = evaluate(proto, {"x": x}, {})["y"]
    np.testing.assert_array_equal(y, exact)
    plain = np.float32(x) * np.float32(given["w"].T) * np.float32(0.1) * np.float32(0.1) / np.float32(0.02)
    rounded = np.clip(np.rint(plain) + 121, 0, 255).astype(np.uint8)
    assert (rounded != exact).any()  # which float32 misses


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (CONV, numbers(5, 3, 3, 3, ys=GENERATOR.uniform(0.01, 0.02, 8).astype(np.float32), yz=np.zeros(8, np.uint8))),
        (CONV.replace("(uint8[1,5,8,8] y)", "(uint8[1,5,8,8] y, float[1,5,8,8] c)"), numbers(5, 3, 3, 3)),
        (CONV.replace("DequantizeLinear<axis = 0>(w, ws, wz)", "Identity(f)"),
         {**numbers(5, 3, 3, 3), "f": np.ones((5, 3, 3, 3), np.float32)}),
        (CONV.replace("uint8[1,3,8,8] x", "uint8[1,3,8,8] x, float xs"), numbers(5, 3, 3, 3)),
        (GEMM.replace("transB = 1", "transB = 1, alpha = 0.5"), numbers(5, 12)),
        (MATMUL, numbers(12, 5, ws=GENERATOR.uniform(0.1, 0.2, 12).astype(np.float32), wz=np.zeros(12, np.int8))),
        (CONV.replace("y = Quant", "r = Tanh(c) y = Quant").replace("(c, ys, yz)", "(r, ys, yz)"),
         numbers(5, 3, 3, 3)),
    ],
    ids=["axis", "read twice", "floats", "scale of a run", "alpha", "scales of rows", "tanh"],
)  # fmt: skip
def test_what_is_left_alone(text: str, given: dict[str, Any]) -> None:
    if "float xs" in text:
        given = {name: one for name, one in given.items() if name != "xs"}
    if text == MATMUL:
        text = text.replace("b = DequantizeLinear(", "b = DequantizeLinear<axis = 0>(")
    if given["ys"].ndim:
        text = text.replace("y = QuantizeLinear(", "y = QuantizeLinear<axis = 3>(")
    proto = support.model(text, 21, 10, **{
        name: one for name, one in given.items()
        if name in text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    })  # fmt: skip
    model = ir.from_proto(proto)
    assert in_integers(model) is model
