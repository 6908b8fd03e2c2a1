"""Right pairs: the same function computed in another way, on which a check that is too strict raises an alarm."""

from __future__ import annotations

import numpy as np

from tests.check.pairs.pair import Right, weights

X = "g (float[n,4] x) => (float[n,4] y) "
TWO = "g (float[n] a, float[n] b) => (float[n] y) "
X8 = "g (float[n,8] x) => (float[n,8] y) "
IMAGE = "g (float[n,3,h,w] x) => (float[n,5,i,j] y) "
DENSE, SECOND = weights(1, 8, 8), weights(2, 8, 8)
VECTOR = weights(3, 8)


def _folded(variance: np.ndarray, epsilon: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A convolution with a normalization behind it, and the convolution into which that was folded."""
    kernel, scale, shift, mean = weights(4, 5, 3, 3, 3) / 5, weights(5, 5) + 1, weights(6, 5), weights(7, 5)
    apart = {"k": kernel, "scale": scale, "shift": shift, "mean": mean, "variance": variance.astype(np.float32)}
    factor = scale.astype(np.float64) / np.sqrt(apart["variance"].astype(np.float64) + epsilon)
    whole = {
        "k": (kernel * factor[:, None, None, None]).astype(np.float32),
        "b": (shift - mean * factor).astype(np.float32),
    }
    return apart, whole


TINY = _folded(np.array([1e-7, 1e-6, 1e-5, 1e-4, 1.0]), 1e-5)
TRAINED = _folded(np.array([0.31, 0.02, 1.7, 0.6, 4.2]), 1e-5)
CONV_BN = IMAGE + "{ c = Conv(x, k) y = BatchNormalization <epsilon = 0.00001> (c, scale, shift, mean, variance) }"
CONV = IMAGE + "{ y = Conv(x, k, b) }"
QUERY = "g (float[b,l,8] q, float[b,m,8] k, float[b,m,8] v) => (float[b,l,8] y) "
CUBE = "<float k = {0.044715}, float r = {0.7978846}, float one = {1.0}, float half = {0.5}, float three = {3.0}> "
HALVES = X + "<float half = {0.5}, float one = {1.0}, float root = {1.4142135}> "

RIGHT = (
    Right("a sum regrouped", "addition is associative up to the rounding of the largest term",
          "g (float[n] a, float[n] b, float[n] c) => (float[n] y) { s = Add(a, b) y = Add(s, c) }",
          "g (float[n] a, float[n] b, float[n] c) => (float[n] y) { s = Add(b, c) y = Add(a, s) }"),
    Right("a normalization of tiny variances, folded", "scale / sqrt(variance + epsilon) moves into the kernel",
          CONV_BN, CONV, *TINY),
    Right("a normalization as trained, folded", "scale / sqrt(variance + epsilon) moves into the kernel",
          CONV_BN, CONV, *TRAINED),
    Right("a saturated head", "the bias less the negated product; sigmoid(-14) is 8e-7",
          X8 + "<float low = {-14.0}> { m = MatMul(x, w) b = Add(m, low) y = Sigmoid(b) }",
          X8 + "<float low = {-14.0}> { c = Identity(low) m = MatMul(x, w) z = Neg(m) d = Sub(c, z) y = Sigmoid(d) }",
          {"w": DENSE * np.float32(0.1)}),
    Right("a softmax of large values", "what is subtracted from all of a row cancels",
          X + "<float big = {1000.0}, int64[1] axis = {1}> { l = Mul(x, big) y = Softmax <axis = 1> (l) }",
          X + """<float big = {1000.0}, int64[1] axis = {1}> { l = Mul(x, big) m = ReduceMax <axes = [1]> (l)
            d = Sub(l, m) e = Exp(d) s = ReduceSum(e, axis) y = Div(e, s) }"""),
    Right("a cancellation that both have", "the operands of a sum are exchanged, and the same number taken away again",
          TWO + "<float big = {1000.0}> { c = Mul(b, big) s = Add(a, c) y = Sub(s, c) }",
          TWO + "<float big = {1000.0}> { c = Mul(b, big) s = Add(c, a) y = Sub(s, c) }"),
    Right("float16 in another order", "addition is associative up to the rounding of float16",
          "g (float16[n] a, float16[n] b, float16[n] c) => (float16[n] y) { s = Add(a, b) y = Add(s, c) }",
          "g (float16[n] a, float16[n] b, float16[n] c) => (float16[n] y) { s = Add(c, b) y = Add(s, a) }"),
    Right("a product of float16 in another order", "the bias is added before or behind a Transpose",
          "g (float16[n,8] x) => (float16[8,n] y) { m = MatMul(x, w) s = Add(m, v) y = Transpose(s) }",
          "g (float16[n,8] x) => (float16[8,n] y) { u = Transpose(x) m = MatMul(t, u) y = Add(m, c) }",
          {"w": DENSE.astype(np.float16), "v": VECTOR.astype(np.float16)},
          {"t": DENSE.T.astype(np.float16), "c": VECTOR.astype(np.float16)[:, None]}),
    Right("three times and a third", "x * 3 / 3 is x up to two roundings",
          X + "<float three = {3.0}> { m = Mul(x, three) y = Div(m, three) }",
          X + "<float three = {3.0}> { y = Identity(x) }"),
    Right("a layer normalization in one", "mean, variance and epsilon are those of the formula",
          X8 + """<float eps = {0.00001}, float two = {2.0}> { m = ReduceMean <axes = [-1]> (x) d = Sub(x, m)
            q = Pow(d, two) v = ReduceMean <axes = [-1]> (q) a = Add(v, eps) r = Sqrt(a) z = Div(d, r)
            p = Mul(z, s) y = Add(p, b) }""",
          X8 + "{ y = LayerNormalization <epsilon = 0.00001> (x, s, b) }", {"s": VECTOR + 2, "b": VECTOR}),
    Right("Gelu in one", "both use erf", HALVES + """{ d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a)
            y = Mul(m, half) }""", X + "{ y = Gelu(x) }", opset=20),
    Right("Gelu with the half in front", "a half is exact", HALVES + """{ d = Div(x, root) e = Erf(d) a = Add(e, one)
            m = Mul(x, a) y = Mul(m, half) }""", HALVES + """{ h = Mul(x, half) d = Div(x, root) e = Erf(d)
            a = Add(e, one) y = Mul(h, a) }"""),
    Right("Gelu of tanh with a cube", "Pow by three is a product of three",
          X + CUBE + """{
            p = Pow(x, three) q = Mul(p, k) s = Add(x, q) t = Mul(s, r) u = Tanh(t) v = Add(u, one) w = Mul(x, v)
            y = Mul(w, half) }""",
          X + CUBE + """{
            a = Mul(x, x) p = Mul(a, x) q = Mul(p, k) s = Add(x, q) t = Mul(s, r) u = Tanh(t) v = Add(u, one)
            w = Mul(x, v) y = Mul(w, half) }"""),
    Right("a division as a product", "the reciprocal of a constant is rounded once",
          X + "<float d = {7.0}> { y = Div(x, d) }", X + "<float d = {0.14285715}> { y = Mul(x, d) }"),
    Right("a chain of products", "x (A B) = (x A) B; infinity times both signs is NaN in one order only",
          X8 + "{ a = MatMul(x, w) y = MatMul(a, v) }", X8 + "{ y = MatMul(x, w) }",
          {"w": DENSE, "v": SECOND}, {"w": (DENSE.astype(np.float64) @ SECOND.astype(np.float64)).astype(np.float32)}),
    Right("a quantization whose ties may flip", "x / 0.05 and 2 x / 0.1 round to another step only beside a tie",
          X + """<float two = {2.0}, float s = {0.1}, uint8 z = {128}> { m = Mul(x, two) q = QuantizeLinear(m, s, z)
            y = DequantizeLinear(q, s, z) }""",
          X + """<float t = {0.05}, float s = {0.1}, uint8 z = {128}> { q = QuantizeLinear(x, t, z)
            y = DequantizeLinear(q, s, z) }""", step=0.05),
    Right("a quantized product", "a scale moves from the input of a product to its result",
          X8 + """<float s = {0.02}, int8 z = {0}, float two = {2.0}> { m = MatMul(x, w) p = Mul(m, two)
            q = QuantizeLinear(p, s, z) y = DequantizeLinear(q, s, z) }""",
          X8 + """<float s = {0.02}, int8 z = {0}> { p = MatMul(x, w) q = QuantizeLinear(p, s, z)
            y = DequantizeLinear(q, s, z) }""", {"w": DENSE}, {"w": DENSE * 2}, step=0.01),
    Right("the exponential of a sum", "exp(x) * e = exp(x + 1); the argument is rounded once more",
          X + "<float e = {2.7182817}> { a = Exp(x) y = Mul(a, e) }",
          X + "<float one = {1.0}> { a = Add(x, one) y = Exp(a) }"),
    Right("the logarithm of a product", "log(4 |x| + 4) = log(|x| + 1) + log 4, all terms positive",
          X + "<float c = {4.0}> { a = Abs(x) b = Mul(a, c) d = Add(b, c) y = Log(d) }",
          X + "<float one = {1.0}, float l = {1.3862944}> { a = Abs(x) b = Add(a, one) d = Log(b) y = Add(d, l) }"),
    Right("a power of a half of a square", "x * x is never -0 nor minus infinity, where Pow and Sqrt differ",
          X + "<float half = {0.5}> { a = Mul(x, x) y = Pow(a, half) }", X + "{ a = Mul(x, x) y = Sqrt(a) }"),
    Right("a sum in two steps", "a sum over two axes, one after the other",
          "g (float[n,h,w] x) => (float[n,1,1] y) <int64[2] a = {1,2}> { y = ReduceSum(x, a) }",
          """g (float[n,h,w] x) => (float[n,1,1] y) <int64[1] a = {1}, int64[1] b = {2}> {
            s = ReduceSum(x, b) y = ReduceSum(s, a) }"""),
    Right("a mean as a sum", "the number of elements is a constant",
          "g (float[n,8] x) => (float[n,1] y) { y = ReduceMean <axes = [1]> (x) }",
          """g (float[n,8] x) => (float[n,1] y) <int64[1] a = {1}, float c = {0.125}> {
            s = ReduceSum(x, a) y = Mul(s, c) }"""),
    Right("attention with the scale on the scores", "the scale of the query moves behind the product",
          QUERY + """<float s = {0.35355338}> { a = Mul(q, s) t = Transpose <perm = [0,2,1]> (k) p = MatMul(a, t)
            w = Softmax <axis = -1> (p) y = MatMul(w, v) }""",
          QUERY + """<float s = {0.35355338}> { t = Transpose <perm = [0,2,1]> (k) a = MatMul(q, t) p = Mul(a, s)
            w = Softmax <axis = -1> (p) y = MatMul(w, v) }"""),
    Right("attention turned around", "the scores are computed as their own transpose",
          QUERY + """{ t = Transpose <perm = [0,2,1]> (k) p = MatMul(q, t) w = Softmax <axis = -1> (p)
            y = MatMul(w, v) }""",
          QUERY + """{ t = Transpose <perm = [0,2,1]> (q) a = MatMul(k, t) p = Transpose <perm = [0,2,1]> (a)
            w = Softmax <axis = -1> (p) y = MatMul(w, v) }"""),
    Right("a root mean square by its reciprocal", "x / r = x * (1 / r), and r > 0",
          X + """<float eps = {0.000001}> { s = Mul(x, x) m = ReduceMean <axes = [1]> (s) a = Add(m, eps) r = Sqrt(a)
            y = Div(x, r) }""",
          X + """<float eps = {0.000001}> { s = Mul(x, x) m = ReduceMean <axes = [1]> (s) a = Add(m, eps) r = Sqrt(a)
            i = Reciprocal(r) y = Mul(x, i) }"""),
    Right("a factor folded into weights", "alpha of Gemm moves into its matrix",
          X8 + "{ y = Gemm <alpha = 0.3> (x, w, b) }", X8 + "{ y = Gemm(x, w, b) }",
          {"w": DENSE, "b": VECTOR}, {"w": DENSE * np.float32(0.3), "b": VECTOR}),
    Right("a convolution of one pixel as a product", "a kernel of 1 x 1 is a matrix over the channels",
          "g (float[n,8,4] x) => (float[n,8,4] y) { y = Conv(x, k) }",
          "g (float[n,8,4] x) => (float[n,8,4] y) { y = MatMul(w, x) }", {"k": DENSE[:, :, None]}, {"w": DENSE}),
    Right("a global average as a mean", "both average over the sides",
          "g (float[n,3,h,w] x) => (float[n,3,1,1] y) { y = GlobalAveragePool(x) }",
          "g (float[n,3,h,w] x) => (float[n,3,1,1] y) { y = ReduceMean <axes = [2,3]> (x) }"),
    Right("two factors folded", "a product of two constants is rounded once",
          X + "<float a = {0.3}, float b = {0.7}> { p = Mul(x, a) y = Mul(p, b) }",
          X + "<float c = {0.21}> { y = Mul(x, c) }"),
    Right("the largest of negated values", "a change of sign is exact and turns the order around",
          "g (float[n,4] x) => (int64[n,1] y) { d = Neg(x) y = ArgMax <axis = 1> (d) }",
          "g (float[n,4] x) => (int64[n,1] y) { y = ArgMin <axis = 1> (x) }"),
    Right("HardSwish in two", "x * hardsigmoid(x) by definition",
          X + "{ s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(x, s) }", X + "{ y = HardSwish(x) }"),
    Right("a product of doubles in parts", "a sum of products is cut in two halves",
          "g (double[n,8] x) => (double[n,8] y) { y = MatMul(x, w) }",
          """g (double[n,8] x) => (double[n,8] y) { a, b = Split <axis = 1> (x) p = MatMul(a, u) q = MatMul(b, v)
            y = Add(p, q) }""",
          {"w": DENSE.astype(np.float64)}, {"u": DENSE[:4].astype(np.float64), "v": DENSE[4:].astype(np.float64)}),
    Right("the logarithm of a softmax", "log(softmax(x)) = x - logsumexp(x) for finite x, as which Clip gives it",
          X + "<float a = {-50.0}, float b = {50.0}> { c = Clip(x, a, b) y = LogSoftmax <axis = 1> (c) }",
          X + """<float a = {-50.0}, float b = {50.0}> { c = Clip(x, a, b) l = ReduceLogSumExp <axes = [1]> (c)
            y = Sub(c, l) }"""),
    Right("Einsum as a product", "the same sum of products",
          X8 + '{ y = Einsum <equation = "nk,km->nm"> (x, w) }', X8 + "{ y = MatMul(x, w) }", {"w": DENSE}),
    Right("a norm in two", "the root of the sum of squares by definition",
          "g (float[n,8] x) => (float[n,1] y) { y = ReduceL2 <axes = [1]> (x) }",
          "g (float[n,8] x) => (float[n,1] y) { s = ReduceSumSquare <axes = [1]> (x) y = Sqrt(s) }"),
    Right("integers doubled", "both wrap in the same way",
          "g (int32[n] x) => (int32[n] y) <int32 two = {2}> { y = Mul(x, two) }",
          "g (int32[n] x) => (int32[n] y) <int32 two = {2}> { y = Add(x, x) }"),
    Right("a product beside tiny results", "rows of weights from 1e-6 to 1e3 are each multiplied by their own scale",
          X8 + "{ m = MatMul(x, w) y = Mul(m, s) }", X8 + "{ y = MatMul(x, w) }",
          {"w": DENSE, "s": np.logspace(-6, 3, 8).astype(np.float32)},
          {"w": DENSE * np.logspace(-6, 3, 8).astype(np.float32)}),
    Right("an opset lifted", "from opset 18 the axes are an input",
          "g (float[n,8] x) => (float[n,1] y) { y = ReduceMean <axes = [1]> (x) }",
          "g (float[n,8] x) => (float[n,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }", opset=17, other_opset=18),
)  # fmt: skip
