"""Wrong pairs about values of floats: magnitude, special values, epsilons, ties."""

from __future__ import annotations

import numpy as np

from tests.check.pairs.pair import Wrong

INF, NAN = np.inf, np.nan
UNARY = "g (float[n] x) => (float[n] y) "
NEARLY_FLAT = np.array([[1.0, 1.0, 1.0, 1.001]], np.float32)

MAGNITUDE = (
    Wrong("a clip at six dropped", "magnitude",
          UNARY + "<float low = {-6.0}, float high = {6.0}> { y = Clip(x, low, high) }",
          (("Clip(x, low, high)", "Identity(x)"),), {"x": [8.0]}),
    Wrong("Relu6 taken for Relu", "magnitude",
          UNARY + "<float low = {0.0}, float high = {6.0}> { y = Clip(x, low, high) }",
          (("Clip(x, low, high)", "Relu(x)"),), {"x": [8.0]}),
    Wrong("softmax without the maximum", "magnitude",
          "g (float[n,4] x) => (float[n,4] y) <int64[1] axis = {1}> { y = Softmax <axis = 1> (x) }",
          (("y = Softmax <axis = 1> (x)", "e = Exp(x) s = ReduceSum(e, axis) y = Div(e, s)"),),
          {"x": [[100.0, 0.0, 0.0, 0.0]]}),
    Wrong("softplus that overflows", "magnitude", UNARY + "<float one = {1.0}> { y = Softplus(x) }",
          (("y = Softplus(x)", "e = Exp(x) a = Add(e, one) y = Log(a)"),), {"x": [100.0]}),
    Wrong("a hard sigmoid without bounds", "magnitude",
          UNARY + "<float slope = {0.01}, float half = {0.5}> { y = HardSigmoid <alpha = 0.01, beta = 0.5> (x) }",
          (("y = HardSigmoid <alpha = 0.01, beta = 0.5> (x)", "m = Mul(x, slope) y = Add(m, half)"),), {"x": [100.0]}),
    Wrong("a minimum of a hundred dropped", "magnitude", UNARY + "<float most = {100.0}> { y = Min(x, most) }",
          (("Min(x, most)", "Identity(x)"),), {"x": [200.0]}),
    Wrong("the logarithm of a sum of exponentials, plain", "magnitude",
          "g (float[n,4] x) => (float[n,1] y) <int64[1] axis = {1}> { y = ReduceLogSumExp <axes = [1]> (x) }",
          (("y = ReduceLogSumExp <axes = [1]> (x)", "e = Exp(x) s = ReduceSum(e, axis) y = Log(s)"),),
          {"x": [[100.0, 0.0, 0.0, 0.0]]}),
    Wrong("sigmoid as a quotient of exponentials", "magnitude", UNARY + "<float one = {1.0}> { y = Sigmoid(x) }",
          (("y = Sigmoid(x)", "e = Exp(x) a = Add(e, one) y = Div(e, a)"),), {"x": [100.0]}),
    Wrong("a clip at the range of float16 dropped", "magnitude",
          UNARY + "<float low = {-65504.0}, float high = {65504.0}> { y = Clip(x, low, high) }",
          (("Clip(x, low, high)", "Identity(x)"),), {"x": [70000.0]}),
    Wrong("a threshold of twenty forgotten", "magnitude",
          UNARY + "<float bound = {20.0}> { b = Greater(x, bound) e = Elu(x) y = Where(b, x, e) }",
          (("Where(b, x, e)", "Where(b, bound, e)"),), {"x": [30.0]}),
)  # fmt: skip

SPECIALS = (
    Wrong("a guard against NaN dropped", "special values",
          UNARY + "<float zero = {0.0}> { b = IsNaN(x) y = Where(b, zero, x) }",
          (("Where(b, zero, x)", "Identity(x)"),), {"x": [NAN]}),
    Wrong("x * 0 is 0", "special values",
          "g (float[3] x) => (float[3] y) <float[3] zero = {0.0, 0.0, 0.0}> { y = Mul(x, zero) }",
          (("Mul(x, zero)", "Identity(zero)"),), {"x": [INF, 0.0, NAN]}),
    Wrong("x / x is 1", "special values",
          "g (float[3] x) => (float[3] y) <float[3] one = {1.0, 1.0, 1.0}> { y = Div(x, x) }",
          (("Div(x, x)", "Identity(one)"),), {"x": [1.0, 0.0, 2.0]}),
    Wrong("the sign of zero", "special values",
          UNARY + "<float zero = {0.0}, float one = {1.0}, float minus = {-1.0}> { y = Sign(x) }",
          (("y = Sign(x)", "b = Less(x, zero) y = Where(b, minus, one)"),), {"x": [0.0]}),
    Wrong("a row that the mask shuts out", "special values",
          """g (float[n,4] x, bool[n,4] m) => (float[n,4] y) <float low = {-inf}, float zero = {0.0}> {
            w = Where(m, x, low) s = Softmax <axis = 1> (w) b = IsNaN(s) y = Where(b, zero, s) }""",
          (("Where(b, zero, s)", "Identity(s)"),), {"x": [[1.0, 2.0, 3.0, 4.0]], "m": [[False] * 4]}),
    Wrong("not less for greater or equal", "special values",
          "g (float[n] x) => (bool[n] y) <float zero = {0.0}> { b = Less(x, zero) y = Not(b) }",
          (("y = Not(b)", "y = GreaterOrEqual(x, zero)"),), {"x": [NAN]}),
    Wrong("a square root of minus infinity", "special values",
          UNARY + "<float half = {0.5}> { y = Pow(x, half) }",
          (("Pow(x, half)", "Sqrt(x)"),), {"x": [-INF]}),
    Wrong("x - x is 0", "special values",
          "g (float[2] x) => (float[2] y) <float[2] zero = {0.0, 0.0}> { y = Sub(x, x) }",
          (("Sub(x, x)", "Identity(zero)"),), {"x": [INF, 0.0]}),
    Wrong("x equals x", "special values",
          "g (float[2] x) => (bool[2] y) { y = Equal(x, x) }",
          (("y = Equal(x, x)", "b = IsNaN(x) n = Not(b) y = Or(b, n)"),), {"x": [NAN, 0.0]}),
    Wrong("an infinite value that is not replaced", "special values",
          UNARY + "<float top = {1000000.0}> { b = IsInf(x) y = Where(b, top, x) }",
          (("IsInf(x)", "IsInf <detect_negative = 0> (x)"),), {"x": [-INF]}),
)  # fmt: skip

EPSILONS = (
    Wrong("epsilon of a layer normalization", "epsilons",
          "g (float[n,4] x) => (float[n,4] y) { y = LayerNormalization <epsilon = 0.00001> (x, scale) }",
          (("0.00001", "0.000000000001"),), {"x": NEARLY_FLAT}, {"scale": np.ones(4, np.float32)}),
    Wrong("epsilon of a logarithm", "epsilons",
          UNARY + "<float eps = {0.000001}> { s = Mul(x, x) a = Add(s, eps) y = Log(a) }",
          (("0.000001", "0.000000001"),), {"x": [0.0]}),
    Wrong("epsilon of a batch normalization", "epsilons",
          """g (float[n,4,l] x) => (float[n,4,l] y) {
            y = BatchNormalization <epsilon = 0.001> (x, one, zero, zero, one) }""",
          (("0.001", "0.00001"),), {"x": np.ones((1, 4, 2), np.float32)},
          {"one": np.ones(4, np.float32), "zero": np.zeros(4, np.float32)}),
    Wrong("a norm that is kept from zero", "epsilons",
          """g (float[n,4] x) => (float[n,4] y) <float least = {0.000000000001}> {
            l = ReduceL2 <axes = [1]> (x) m = Max(l, least) y = Div(x, m) }""",
          (("Max(l, least)", "Identity(l)"),), {"x": [[0.0] * 4]}),
    Wrong("epsilon of an instance normalization", "epsilons",
          "g (float[n,2,l] x) => (float[n,2,l] y) { y = InstanceNormalization <epsilon = 0.00001> (x, one, zero) }",
          (("0.00001", "0.001"),), {"x": np.stack([NEARLY_FLAT, NEARLY_FLAT], 1)},
          {"one": np.ones(2, np.float32), "zero": np.zeros(2, np.float32)}),
    Wrong("an addend that keeps a divisor from zero", "epsilons",
          UNARY + "<float eps = {0.000001}, float one = {1.0}> { a = Abs(x) p = Add(a, eps) y = Div(one, p) }",
          (("Add(a, eps)", "Identity(a)"),), {"x": [0.0]}),
    Wrong("epsilon of a root mean square", "epsilons",
          """g (float[n,4] x) => (float[n,4] y) <float eps = {0.000001}> { s = Mul(x, x)
            m = ReduceMean <axes = [1]> (s) a = Add(m, eps) r = Sqrt(a) y = Div(x, r) }""",
          (("0.000001", "0.00001"),), {"x": [[0.001, 0.002, 0.001, 0.003]]}),
)  # fmt: skip

TIES = (
    Wrong("the last of equal maxima", "ties",
          "g (float[n,3] x) => (int64[n,1] y) { y = ArgMax <axis = 1, select_last_index = 1> (x) }",
          (("index = 1", "index = 0"),), {"x": [[1.0, 1.0, 0.0]]}),
    Wrong("half rounded up", "ties", UNARY + "<float half = {0.5}> { y = Round(x) }",
          (("y = Round(x)", "a = Add(x, half) y = Floor(a)"),), {"x": [2.5]}),
    Wrong("greater or equal", "ties",
          "g (float[n] a, float[n] b) => (bool[n] y) { y = Greater(a, b) }",
          (("Greater", "GreaterOrEqual"),), {"a": [1.0], "b": [1.0]}),
    Wrong("every maximum for the first", "ties",
          "g (float[n,3] x) => (float[n,3] y) { m = ReduceMax <axes = [1]> (x) y = Hardmax <axis = 1> (x) }",
          (("y = Hardmax <axis = 1> (x)", "b = Equal(x, m) y = Cast <to = 1> (b)"),), {"x": [[2.0, 2.0, 1.0]]}),
    Wrong("half of a quantization step rounded up", "ties",
          """g (float[n] x) => (uint8[n] y) <float one = {1.0}, uint8 zero = {0}, float half = {0.5},
            float low = {0.0}, float high = {255.0}> { y = QuantizeLinear(x, one, zero) }""",
          (("y = QuantizeLinear(x, one, zero)",
            "a = Add(x, half) f = Floor(a) c = Clip(f, low, high) y = Cast <to = 2> (c)"),), {"x": [2.5]}),
    Wrong("one below the ceiling for the floor", "ties", UNARY + "<float one = {1.0}> { y = Floor(x) }",
          (("y = Floor(x)", "c = Ceil(x) y = Sub(c, one)"),), {"x": [2.0]}),
    Wrong("a step at zero", "ties",
          UNARY + "<float zero = {0.0}, float one = {1.0}> { b = Less(x, zero) y = Where(b, zero, one) }",
          (("Less", "LessOrEqual"),), {"x": [0.0]}),
    Wrong("the order of equal values", "ties",
          """g (float[4] x) => (int64[4] y) <int64[1] k = {4}, int64[1] first = {0}, int64[1] last = {-1},
            int64[1] far = {-1000000}, int64[1] back = {-1}> { v, y = TopK <axis = 0> (x, k) }""",
          (("v, y = TopK <axis = 0> (x, k)",
            "v, i = TopK <axis = 0, largest = 0> (x, k) y = Slice(i, last, far, first, back)"),),
          {"x": [1.0, 1.0, 0.0, 2.0]}),
)  # fmt: skip

VALUES = (*MAGNITUDE, *SPECIALS, *EPSILONS, *TIES)
