"""What each condition of the rules for quantized models refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16

from tests import support
from tests.passes.refusing import refusal, refuses

HALF = np.float32(0.5).reshape(())
ZERO, ONE = np.array(0, np.uint8), np.array(1, np.uint8)
INT8 = np.arange(6, dtype=np.int8).reshape(2, 3)


def graph(body: str, given: str, result: str, opset: int = 19, /, **constants: np.ndarray) -> onnx.ModelProto:
    """Constants are the scale s, 0.5, and the zero point z, 0, unless they are given."""
    ir_version = 11 if opset >= 23 else 10
    text = f"g ({given}) => ({result}) {{ {body} }}"
    return support.model(text, opset, ir_version, **{"s": HALF, "z": ZERO, **constants})


AGAIN = "d = DequantizeLinear(q, s, z)  y = QuantizeLinear(d, s, z)"
BYTES = ("uint8[2,3] q", "uint8[A,B] y")
EIGHT_BIT_FLOATS = ("float8e4m3fn[2,3] q", "float8e4m3fn[A,B] y")
PAIRS = [
    refusal("quantize-what-was-dequantized", "quantized type is FLOAT8E4M3FN, not an integer of 4, 8 or 16 bits",
            graph("d = DequantizeLinear(q, s)  y = QuantizeLinear<output_dtype = 17>(d, s)", *EIGHT_BIT_FLOATS, 21)),
    refusal("quantize-what-was-dequantized", "the scale is neither float32 nor float16",
            graph(AGAIN, *BYTES, 23, s=np.array(0.5, bfloat16))),
    refusal("quantize-what-was-dequantized", "the steps of int16 are finer than float16",
            graph(AGAIN, "int16[2,3] q", "int16[A,B] y", 21, s=np.array(0.5, np.float16), z=np.array(0, np.int16))),
    refusal("quantize-what-was-dequantized", "only one of the two has a zero point",
            graph("d = DequantizeLinear(q, s)  y = QuantizeLinear(d, s, z)", *BYTES, z=ONE)),
    refusal("quantize-what-was-dequantized", "the two scales are not constant",
            graph(AGAIN.replace("s, z", "t, z"), "uint8[2,3] q, float t", "uint8[A,B] y")),
]  # fmt: skip

CHANNELS = np.array([1, 2, 3], np.float32)
MOVES = [
    refusal("move-integers", "Expand does not take integers yet",
            graph("d = DequantizeLinear(q, s, z)  e = Expand(d, to)  y = QuantizeLinear(e, s, z)", *BYTES, 7,
                  to=np.array([2, 3]))),
    refusal("move-integers", "the indices are read",
            graph("""d = DequantizeLinear(q, s, z)  m, i = MaxPool<kernel_shape = [1, 1]>(d)
                y = QuantizeLinear(m, s, z)""",
                  "uint8[1,2,3,3] q", "uint8[A,B,C,D] y")),
    refusal("move-integers", "there is a scale for each channel",
            graph("d = DequantizeLinear(q, s)  t = Transpose(d)  y = QuantizeLinear(t, s)", "uint8[3,3] q",
                  "uint8[A,B] y", s=CHANNELS)),
]  # fmt: skip

CLAMPED = "r = Relu(x)  y = QuantizeLinear(r, s, z)"
FLOATS = ("float[2,3] x", "uint8[A,B] y")
CLAMPS = [
    refusal("clamp-before-quantizing", "quantized type is FLOAT8E4M3FN, not an integer of 4, 8 or 16 bits",
            graph("r = Relu(x)  y = QuantizeLinear<output_dtype = 17>(r, s)", "float[2,3] x", "float8e4m3fn[A,B] y",
                  21)),
    refusal("clamp-before-quantizing", "the elements are not float32",
            graph(CLAMPED, "float16[2,3] x", "uint8[A,B] y", s=np.array(0.5, np.float16))),
    refusal("clamp-before-quantizing", "the scale is not float32",
            graph("r = Relu(x)  y = QuantizeLinear(r, s, z)", "float[2,3] x", "uint8[A,B] y", 23,
                  s=np.array(0.5, np.float16))),
    refusal("clamp-before-quantizing", "a scale is not a positive number", graph(CLAMPED, *FLOATS, s=-HALF)),
    refusal("clamp-before-quantizing", "the bounds cross",
            graph("r = Clip(x, high, s)  y = QuantizeLinear(r, s, z)", *FLOATS, high=np.float32(6).reshape(()))),
]  # fmt: skip

WEIGHT = "d = DequantizeLinear(w, s)  t = Transpose(d)  y = MatMul(x, t)"
PRODUCT = ("float[4,3] x", "float[A,B] y")
WEIGHTS = [
    refusal("move-data-before-dequantizing", "the DequantizeLinear belongs to an outer graph",
            graph("""d = DequantizeLinear(w, s)  y = If(c) <
                then_branch = a () => (float[3,2] t) { t = Transpose(d) },
                else_branch = b () => (float[3,2] u) { u = Transpose(d) }>""", "bool c", "float[3,2] y", w=INT8)),
    refusal("move-data-before-dequantizing",
            "the weight is read elsewhere too and would have to be moved in a type that few runtimes move",
            graph(f"{WEIGHT}  e = DequantizeLinear(w, s)", "float[4,3] x", "float[A,B] y, float[C,D] e", 21,
                  w=INT8.astype(np.int16))),
    refusal("move-data-before-dequantizing", "the new shape is not constant",
            graph("d = DequantizeLinear(w, s)  y = Reshape(d, to)", "int64[2] to", "float[A,B] y", w=INT8)),
    refusal("move-data-before-dequantizing", "the scales belong to an axis",
            graph("d = DequantizeLinear(w, s)  y = Reshape(d, to)", "float x", "float[A,B] y", w=INT8, s=CHANNELS,
                  to=np.array([3, 2]))),
]  # fmt: skip

CONV = """a = DequantizeLinear(q, s)  b = DequantizeLinear(w, t)  c = DequantizeLinear(n, u{})  y = Conv(a, b, c)"""
BIAS = np.array([1, 2], np.int32)


def conv(zero: str = "", **constants: np.ndarray) -> onnx.ModelProto:
    """A quantized Conv whose bias has another scale than its data and weights together."""
    whole = {"w": np.ones((2, 1, 1, 1), np.int8), "t": HALF, "n": BIAS, "u": np.float32(3).reshape(())}
    return graph(CONV.format(zero), "uint8[1,1,3,3] q", "float[A,B,C,D] y", 21, **{**whole, **constants})


BIASES = [
    refusal("bias-of-other-scale", "the bias is no int32", conv(n=BIAS.astype(np.int8))),
    refusal("bias-of-other-scale", "the bias is no float",
            conv(**{name: np.array(0.5, np.float16) for name in ("s", "t", "u")})),
    refusal("bias-of-other-scale", "the bias has a zero point", conv(", one", one=np.array(1, np.int32))),
    refusal("bias-of-other-scale", "the input has more than one scale", conv(s=np.array([0.5], np.float32).repeat(3))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), [*PAIRS, *MOVES, *CLAMPS, *WEIGHTS, *BIASES])
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
