"""What each condition of the rules for weights refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.weights import products
from tests import support
from tests.passes.refusing import refusal, refuses


def numbers(*shape: int, kind: type = np.float32) -> np.ndarray:
    """Different numbers from 0.5 on."""
    return (np.arange(int(np.prod(shape)), dtype=kind) / 8 + 0.5).reshape(shape).astype(kind)


W, V = numbers(4, 4), numbers(4, 4) + 1
KERNEL = numbers(2, 2, 3, 3)
TWO = np.float32(2).reshape(())
X, Y = "float[3,4] x", "float[A,B] y"
IMAGE, PIXELS = "float[1,2,6,6] x", "float[A,B,C,D] y"


def graph(body: str, given: str = X, result: str = Y, opset: int = 17, /, **constants: np.ndarray) -> onnx.ModelProto:
    """w and v are matrices of 4 x 4, k is a kernel of 3 x 3, two is 2."""
    return support.model(f"g ({given}) => ({result}) {{ {body} }}", opset,
                         **{"w": W, "v": V, "k": KERNEL, "two": TWO, **constants})  # fmt: skip


RULE = "product-of-products"
SPLAT = "c = ConstantOfShape<value = float[1] {2.0}>(many)  "
PRODUCTS = [
    refusal(RULE, "the constants stand on different sides",
            graph("a = MatMul(x, w)  y = MatMul(v, a)", "float[4,4] x")),
    refusal(RULE, "a weight is no matrix", graph("a = MatMul(x, w)  y = MatMul(a, b)", X, "float[A] y", b=W[0])),
    refusal(RULE, "the outer product turns its data",
            graph("a = MatMul(x, w)  y = Gemm<transA = 1>(a, v)", "float[4,4] x")),
    refusal(RULE, "the bias of a product from the left stays",
            graph("m = MatMul(w, x)  a = Add(m, b)  y = MatMul(v, a)", "float[4,3] x", b=W[:, :1])),
    refusal(RULE, "Gemm needs a third operand before opset 11",
            graph("a = MatMul(x, w)  y = Gemm(a, v)", X, Y, 9)),
    refusal(RULE, "a weight is one number repeated and stays so",
            graph(SPLAT + "a = MatMul(x, c)  y = MatMul(a, b)", "float[3,20] x", many=np.array([20, 20]),
                  b=numbers(20, 20))),
    refusal(RULE, "'w' is read elsewhere too", graph("a = MatMul(x, w)  b = MatMul(a, w)  y = Relu(b)")),
    refusal(RULE, "a bias differs from row to row",
            graph("m = MatMul(x, w)  a = Add(m, b)  y = MatMul(a, v)", b=W[:3])),
    refusal(RULE, "a bias does not fit",
            graph("m = MatMul(x, w)  a = Add(m, b)  y = MatMul(a, v)", "float[3,1] x", w=W[:1, :1], v=V[:, :1],
                  b=W[0])),
    refusal("number-to-weights-above", "Mul 'y' does not compute with floats",
            graph("y = Mul(x, c)", "int32[3,4] x", "int32[A,B] y", c=np.array(3, np.int32))),
]  # fmt: skip


def padded(pool: str, pads: str = "x, p", given: str = IMAGE, result: str = PIXELS, opset: int = 17, /,
           **constants: np.ndarray) -> onnx.ModelProto:  # fmt: skip
    """A Pad, and an operator with a window behind it."""
    whole = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), **constants}
    return graph(f"d = Pad({pads})  y = {pool}", given, result, opset, **whole)


MAXIMUM = "MaxPool<kernel_shape = [3, 3]>(d)"
AVERAGE = "AveragePool<kernel_shape = [3, 3]>(d)"
OLD_PAD = "d = Pad<pads = [0,0,1,1,0,0,1,1]>(x)  y = "
LOW = np.float32(-np.inf).reshape(())
PADS = [
    refusal("pad-into-average-pool", "count_include_pad came with opset 7", graph(OLD_PAD + AVERAGE, IMAGE, PIXELS, 6)),
    refusal("pad-into-average-pool", "the padding is 2.0, not 0", padded(AVERAGE, "x, p, two")),
    refusal("pad-into-max-pool", "its indices are read",
            graph("d = Pad(x, p, low)  y, i = MaxPool<kernel_shape = [3, 3]>(d)", IMAGE,
                  PIXELS + ", int64[A,B,C,D] i", p=np.array([0, 0, 1, 1, 0, 0, 1, 1]), low=LOW)),
    refusal("pad-into-max-pool", "the size is rounded up",
            padded("MaxPool<kernel_shape = [3, 3], ceil_mode = 1>(d)", "x, p, low", low=LOW)),
    refusal("pad-into-max-pool", "the Pad belongs to an outer graph",
            graph(f"""d = Pad(x, p, low)  y = If(c) <then_branch = a () => ({PIXELS[:-1]}t) {{ t = {MAXIMUM} }},
                else_branch = b () => ({PIXELS[:-1]}u) {{ u = {MAXIMUM} }}>""", IMAGE + ", bool c", PIXELS,
                  p=np.array([0, 0, 1, 1, 0, 0, 1, 1]), low=LOW)),
    refusal("pad-into-conv", "the pads do not fit the data", padded("Conv(d, k)", p=np.array([0, 0, 1, 1]))),
    refusal("pad-into-conv", "the pads do not fit the data", padded("Conv<pads = [1, 1]>(d, k)")),
    refusal("pad-into-conv", "the number the Pad fills in is not constant",
            padded("Conv(d, k)", "x, p, c", IMAGE + ", float c")),
    refusal("pad-into-conv", "the Pad has no pads", graph("d = Pad(x)  y = Conv(d, k)", IMAGE, PIXELS, 10)),
]  # fmt: skip

STATISTICS = {name: numbers(4) for name in ("s", "b", "m", "v")}
OF_TWO = {name: numbers(2) for name in ("s", "b", "m", "v")}


def normal(body: str, given: str = X, result: str = Y, opset: int = 17, /, **constants: np.ndarray) -> onnx.ModelProto:
    """`bn(value)` is a BatchNormalization of four channels."""
    body = body.replace("bn(", "BatchNormalization(").replace(" of ", ", s, b, m, v")
    return graph(body, given, result, opset, **{**STATISTICS, **constants})


NORMALIZATIONS = [
    refusal("batchnorm-after-layer", "the channels do not agree",
            normal("a = MatMul(x, w)  y = bn(a of )", **OF_TWO)),
    refusal("batchnorm-before-layer", "Relu 'a' is in front, no BatchNormalization",
            normal("a = Relu(x)  y = MatMul(a, w)")),
    refusal("batchnorm-before-layer", "the channels it normalizes are not those of the weight",
            normal("a = bn(x of )  y = MatMul(a, w)", "float[2,4,4] x", "float[A,B,C] y")),
    refusal("batchnorm-before-layer", "the channels do not agree",
            normal("a = bn(x of )  y = MatMul(a, w)", **OF_TWO)),
    refusal("affine-before-batchnorm", "the data has no channel axis",
            normal("a = Mul(x, two)  y = bn(a of )", "float[4] x", "float[A] y")),
    refusal("affine-before-batchnorm", "the constant may widen 'x'",
            normal("a = Mul(x, c)  y = bn(a of )", "float[3,C] x", c=numbers(4))),
    refusal("batchnorm-after-layer", "a variance is not positive",
            normal("a = MatMul(x, w)  y = bn(a of )", v=-numbers(4))),
    refusal("affine-after-batchnorm", "Relu 'a' is in front, no BatchNormalization",
            normal("a = Relu(x)  y = Mul(a, two)")),
    refusal("affine-before-batchnorm", "it is in training mode",
            graph("y = BatchNormalization<is_test = 0, consumed_inputs = [0, 0]>(x, s, b, m, v)", X, Y, 6,
                  **STATISTICS)),
    refusal("affine-before-batchnorm", "a parameter of BatchNormalization 'y' is no vector",
            normal("y = bn(x of )", s=numbers(1, 4))),
    refusal("affine-before-batchnorm", "a variance is not positive",
            normal("a = Mul(x, two)  y = bn(a of )", v=-numbers(4))),
    refusal("affine-before-batchnorm", "a parameter of BatchNormalization 'y' is not a constant",
            graph("y = BatchNormalization(x, s, s, s, s)", X + ", float[4] s")),
]  # fmt: skip

GEMMS = [
    refusal("matmul-add-to-gemm", "before opset 7 operands are aligned by attributes",
            graph("a = MatMul(x, w)  y = Add(a, x)", X, Y, 6)),
    refusal("matmul-add-to-gemm", "the product is not one of floating point matrices",
            graph("a = Gemm(x, z)  y = Add(a, x)", "int32[4,4] x, int32[4,4] z", "int32[A,B] y")),
    refusal("transpose-of-gemm", "Gemm needs a third operand before opset 11",
            graph("a = MatMul(x, w)  y = Transpose(a)", X, Y, 10)),
    refusal("transpose-of-gemm", "the product is not one of two floating point matrices",
            graph("a = MatMul(x, z)  y = Transpose(a)", "int32[4,4] x, int32[4,4] z", "int32[A,B] y")),
    refusal("transpose-of-gemm", "an operand is dequantized, and the quantized kernel would be lost",
            graph("d = DequantizeLinear(q, two)  a = MatMul(x, d)  y = Transpose(a)", X + ", int8[4,4] q")),
    refusal("number-to-weights-above", "alpha is a float32 number",
            graph("a = Gemm(x, z)  y = Mul(a, c)", "double[4,4] x, double[4,4] z", "double[A,B] y", c=np.array(2.0))),
    refusal("number-to-weights-above", "the factor does not fit a float32 number",
            graph("a = Gemm<alpha = 1e30>(x, z)  y = Mul(a, c)", "float[4,4] x, float[4,4] z",
                  c=np.float32(1e30).reshape(()))),
]  # fmt: skip

BOTH = "float[4,4] x, float[4,4] z"
FACTORS = [
    refusal("number-to-weights-above", "no weights within reach",
            graph("a0 = MatMul(x, w)  " + "  ".join(f"a{i + 1} = Transpose(a{i})" for i in range(13))
                  + "  y = Mul(a13, two)", "float[4,4] x")),
    refusal("number-to-weights-above", "Mul 'a' multiplies two computed tensors",
            graph("a = Mul(x, z)  b = Transpose(a)  y = Mul(b, two)", BOTH)),
    refusal("number-to-weights-above", "the factor is zero",
            graph("a = Mul(x, w)  b = Transpose(a)  y = Mul(b, none)", BOTH, none=np.float32(0).reshape(()))),
    refusal("number-to-weights-above", "'large' is large",
            graph("a = Mul(x, large)  b = Transpose(a)  y = Mul(b, two)", "float[300,300] x", large=numbers(300, 300))),
    refusal("number-to-weights-below", "no factor within reach",
            graph("a0 = Mul(x, two)  " + "  ".join(f"a{i + 1} = Transpose(a{i})" for i in range(13))
                  + "  y = MatMul(a13, w)", "float[4,4] x")),
    refusal("numbers-of-both-operands", "the product of the two numbers does not fit FLOAT",
            graph("a = Mul(x, c)  b = Mul(z, c)  y = MatMul(a, b)", BOTH, c=np.float32(1e30).reshape(()))),
    refusal("number-to-weights-above", "before opset 7 operands are aligned by attributes",
            graph("a = MatMul(x, w)  y = Mul<broadcast = 1>(a, two)", X, Y, 6)),
    refusal("number-to-weights-above", "the constant may widen the tensor",
            graph(SPLAT + "a = MatMul(x, w)  y = Mul(a, c)", X, "float[A,B,C] y", many=np.array([100, 1, 1]))),
    refusal("number-to-weights-above", "the constant adds dims to the tensor",
            graph("a = MatMul(x, w)  y = Mul(a, c)", X, "float[A,B,C] y", c=TWO.reshape(1, 1, 1))),
    refusal("number-to-weights-above", "the factor is infinite or not a number",
            graph("a = MatMul(x, w)  y = Mul(a, c)", c=np.float32(np.inf).reshape(()))),
    refusal("number-to-weights-above", "'x' is an input or a constant",
            graph("a = MatMul(x, z)  y = Mul(a, two)", BOTH)),
    refusal("number-to-weights-below", "the factor is not positive",
            graph("a = Mul(x, c)  b = Relu(a)  y = MatMul(b, w)", c=-TWO)),
]  # fmt: skip

LAYERS = [
    refusal("scale-before-layer", "'a' is a result of the graph",
            graph("a = Mul(x, two)  y = MatMul(a, w)  z = MatMul(a, v)", X,
                  "float[A,B] y, float[C,D] z, float[E,F] a")),
    refusal("scale-before-layer", "before opset 7 Gemm broadcasts by an attribute",
            graph("a = Gemm<broadcast = 1>(x, w, c)  y = Mul<broadcast = 1>(a, two)", X, Y, 6, c=W[0])),
    refusal("affine-after-layer", "the constant is empty",
            graph("a = MatMul(x, w)  y = Mul(a, c)", "float[0,4] x", c=np.zeros((0, 4), np.float32))),
    refusal("affine-after-layer", "a number to fold is infinite or not a number",
            graph("a = MatMul(x, w)  y = Mul(a, c)", c=np.full(4, np.inf, np.float32))),
    refusal("number-to-weights-above", "MatMul 'a' belongs to an outer graph",
            graph("""a = MatMul(x, w)  y = If(c) <then_branch = s () => (float[3,4] t) { t = Mul(a, two) },
                else_branch = r () => (float[3,4] u) { u = Mul(a, two) }>""", X + ", bool c")),
    refusal("shift-before-layer", "before opset 7 operands are aligned by attributes",
            graph("a = MatMul(x, w)  y = Add<broadcast = 1>(a, two)", X, Y, 6)),
    refusal("affine-after-layer", "the weight of MatMul 'a' is empty",
            graph("a = MatMul(x, w)  y = Mul(a, two)", "float[3,0] x", w=np.zeros((0, 4), np.float32))),
    refusal("affine-before-batchnorm", "before opset 7 operands are aligned by attributes",
            graph("a = Mul<broadcast = 1>(x, two)  y = BatchNormalization<is_test = 1, consumed_inputs = [0, 0]>"
                  "(a, s, b, m, v)", X, Y, 6, **STATISTICS)),
    refusal("affine-after-layer", "the folded bias would be larger than the two it replaces",
            graph("a = Gemm(x, w, c)  y = Add(a, d)", "float[300,4] x", w=numbers(4, 300), c=numbers(300, 1),
                  d=numbers(300))),
    refusal("affine-after-layer", "a folded number does not fit FLOAT",
            graph("a = Gemm(x, w, b)  y = Mul(a, c)", w=W * 1e-30, b=W[0] * 1e30, c=np.float32(1e30).reshape(()))),
    refusal("batchnorm-before-layer", "a ConvTranspose does not apply all its weights at the border",
            normal("a = bn(x of )  y = ConvTranspose(a, k)", IMAGE, PIXELS, **OF_TWO)),
    refusal("shift-before-layer", "the weight is no matrix",
            graph("a = Add(x, two)  m = MatMul(a, b)  y = Add(m, two)", "float[2,3,4] x", "float[A,B,C] y",
                  b=numbers(2, 4, 4))),
]  # fmt: skip

FLAT = "m = MatMul(x, w)  a = Add(m, b)  y = Reshape(a, to)"
B, TO, CUBE = W[0], np.array([0, 0, 4]), "float[2,3,4] x"
FLAT_GEMM = [
    refusal("flat-gemm", "Gemm broadcasts its bias only since opset 7",
            graph("m = MatMul(x, w)  a = Add<broadcast = 1>(m, b)  y = Reshape(a, to)", CUBE, Y, 6, b=B, to=TO)),
    refusal("flat-gemm", "Gemm is not used for INT32",
            graph(FLAT, CUBE.replace("float", "int32"), "int32[A,B,C] y", w=W.astype(np.int32), b=B.astype(np.int32),
                  to=TO)),
    refusal("flat-gemm", "x has two dims: MatMul and Add become a Gemm as they are",
            graph(FLAT, b=B, to=np.array([12]))),
    refusal("flat-gemm", "the weight is not a matrix",
            graph(FLAT, CUBE, "float[A,B,C] y", w=numbers(2, 4, 4), b=B, to=TO)),
    refusal("flat-gemm", "the added constant is not one per column",
            graph(FLAT, CUBE, "float[A,B,C] y", b=numbers(3, 4), to=TO)),
    refusal("flat-gemm", "x is neither the result of a Reshape nor read by several projections",
            graph(FLAT, CUBE, "float[A,B,C] y", b=B, to=TO)),
    refusal("flat-gemm", "the result has more than one unknown dimension",
            graph("x = Reshape(x0, same)  " + FLAT, "float[N,M,4] x0", "float[A,B,C,D] y", b=B, same=np.array([0, 0,
                  4]),
                  to=np.array([0, 0, 2, 2]))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "proto"),
    [*PRODUCTS, *PADS, *NORMALIZATIONS, *GEMMS, *FACTORS, *LAYERS, *FLAT_GEMM],
)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)


def test_large_matrices_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MOST_WORK", 4 * 4 * 4 - 1)  # one multiplication less than the two take
    proto = graph("a = MatMul(x, w)  y = MatMul(a, v)")
    refuses(RULE, "the matrices are too large to multiply here", proto)
