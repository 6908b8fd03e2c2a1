"""Wrong pairs about what runs and how exactly: branches, trips, precision, mixed magnitudes, inputs with a default."""

from __future__ import annotations

import numpy as np

from tests.check.pairs.pair import Wrong, ramp, weights

UNARY = "g (float[n] x) => (float[n] y) "
DENSE = weights(5, 4, 4)

BRANCHES = (
    Wrong("a branch for large values", "branches and trips",
          """g (float[4] x) => (float[4] y) <float bound = {50.0}> {
            m = ReduceMax <keepdims = 0> (x) c = Greater(m, bound)
            y = If (c) < then_branch = t () => (float[4] u) { u = Abs(x) },
                         else_branch = e () => (float[4] v) { v = Exp(x) }> }""",
          (("u = Abs(x)", "u = Relu(x)"),), {"x": [60.0, -1.0, 0.0, 1.0]}),
    Wrong("a side of Where for large values", "branches and trips",
          UNARY + "<float bound = {100.0}> { c = Greater(x, bound) l = Neg(x) y = Where(c, l, x) }",
          (("Neg(x)", "Abs(x)"),), {"x": [200.0]}),
    Wrong("a loop that goes wrong with its third trip", "branches and trips",
          """g (int64 n, float[2] x) => (float[2] y) <int64 one = {1}> {
            y = Loop (n, , x) < body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity(c) j = Identity(i) f = Cast <to = 1> (j) w = Add(v, f) }> }""",
          (("Identity(i)", "Min(i, one)"),), {"n": 3, "x": [1.0, 2.0]}),
    Wrong("a branch for which all must be true", "branches and trips",
          """g (bool[10] flags, float[2] x) => (float[2] y) {
            f = Cast <to = 6> (flags) m = ReduceMin <keepdims = 0> (f) c = Cast <to = 9> (m)
            y = If (c) < then_branch = t () => (float[2] u) { u = Abs(x) },
                         else_branch = e () => (float[2] v) { v = Exp(x) }> }""",
          (("u = Abs(x)", "u = Neg(x)"),), {"flags": [True] * 10, "x": [1.0, 2.0]}),
    Wrong("a loop that ends after eight trips", "branches and trips",
          """g (float[1] x) => (float[1] y) <int64 most = {100}, float bound = {100.0}, bool yes = {1}> {
            s = Mul(x, x)
            y = Loop (most, yes, s) < body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w) {
                w = Add(v, v) l = Less(w, bound) d = Squeeze(l) }> }""",
          (("most = {100}", "most = {15}"),), {"x": [0.001]}),
    Wrong("a share of boxes that overlap", "branches and trips",
          """g (float[1,6,4] b, float[1,1,6] s) => (int64[n,3] y) <int64 most = {9}, float share = {0.5}> {
            y = NonMaxSuppression (b, s, most, share) }""",
          (("share = {0.5}", "share = {0.9}"),),
          {"b": [[[0, 0, 1, 1], [0, 0, 1, 0.8], [3, 3, 4, 4], [5, 5, 6, 6], [7, 7, 8, 8], [9, 9, 10, 10]]],
           "s": [[[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]]]}),
    Wrong("coordinates of sizes that are given", "branches and trips",
          "g (float[1,1,6,6] x, int64[4] s) => (float[p,q,u,v] y) { y = Resize <mode = \"linear\"> (x, , , s) }",
          (("mode = \"linear\"", "mode = \"linear\", coordinate_transformation_mode = \"asymmetric\""),),
          {"x": [[np.arange(36.0).reshape(6, 6)]], "s": [1, 1, 9, 9]}),
    Wrong("coordinates of factors that are given", "branches and trips",
          """g (float[1,1,1,4] x, float[4] f) => (float[p,q,u,v] y) {
            y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"> (x, , f) }""",
          (("half_pixel_symmetric", "half_pixel"),), {"x": [[[[1.0, 2.0, 3.0, 4.0]]]], "f": [1, 1, 1, 0.6]}, opset=19),
    Wrong("a loop over the first five of a sequence", "branches and trips",
          """g (float[l] x) => (float[m] y) <int64 five = {5}, bool yes = {1}> {
            n = Size(x) k = Identity(n)
            y = Loop (k, yes) < body = b (int64 i, bool c) => (bool d, float s) {
                d = Identity(c) s = Gather(x, i) }> }""",
          (("Identity(n)", "Min(n, five)"),), {"x": ramp(8)}),
    Wrong("a branch for long sequences", "branches and trips",
          """g (float[l] x) => (float[l] y) <int64 bound = {20}> {
            n = Size(x) c = Greater(n, bound)
            y = If (c) < then_branch = t () => (float[l] u) { u = Sin(x) },
                         else_branch = e () => (float[l] v) { v = Exp(x) }> }""",
          (("u = Sin(x)", "u = Cos(x)"),), {"x": ramp(24)}),
    Wrong("a branch for no trips at all", "branches and trips",
          """g (int64 n, float[2] x) => (float[2] y) <int64 one = {1}> {
            k = Identity(n)
            y = Loop (k, , x) < body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity(c) w = Exp(v) }> }""",
          (("Identity(n)", "Max(n, one)"),), {"n": 0, "x": [1.0, 2.0]}),
)  # fmt: skip

PRECISION = (
    Wrong("float32 through float16", "precision", UNARY + "{ c = Identity(x) y = Neg(c) }",
          (("c = Identity(x)", "h = Cast <to = 10> (x) c = Cast <to = 1> (h)"),), {"x": [1.0004]}),
    Wrong("float64 computed in float32", "precision",
          "g (double[n] x) => (double[n] y) { c = Identity(x) y = Mul(c, c) }",
          (("c = Identity(x) y = Mul(c, c)", "h = Cast <to = 1> (x) p = Mul(h, h) y = Cast <to = 11> (p)"),),
          {"x": [1.0000001]}),
    Wrong("weights rounded to float16", "precision",
          "g (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }", (), {"x": [[1.0, 0.0, 0.0, 0.0]]},
          {"w": DENSE}, {"w": DENSE.astype(np.float16).astype(np.float32)}),
    Wrong("a sum of doubles in float32", "precision",
          "g (double[n] x) => (double[1] y) <int64[1] axis = {0}> { y = ReduceSum(x, axis) }",
          (("y = ReduceSum(x, axis)", "h = Cast <to = 1> (x) s = ReduceSum(h, axis) y = Cast <to = 11> (s)"),),
          {"x": [1e8, 1.0, -1e8]}),
    Wrong("float32 through bfloat16", "precision", UNARY + "{ c = Identity(x) y = Neg(c) }",
          (("c = Identity(x)", "h = Cast <to = 16> (x) c = Cast <to = 1> (h)"),), {"x": [1.003]}),
    Wrong("a Gelu of tanh for that of erf", "precision", "g (float[n] x) => (float[n] y) { y = Gelu(x) }",
          (("Gelu(x)", 'Gelu <approximate = "tanh"> (x)'),), {"x": [-2.2]}, opset=20),
    Wrong("five digits of a double constant", "precision",
          "g (double[n] x) => (double[n] y) <double pi = {3.141592653589793}> { y = Mul(x, pi) }",
          (("3.141592653589793", "3.14159"),), {"x": [1.0]}),
    Wrong("int64 through float32", "precision",
          "g (int64[n] x) => (int64[n] y) { c = Identity(x) y = Neg(c) }",
          (("c = Identity(x)", "h = Cast <to = 1> (x) c = Cast <to = 7> (h)"),), {"x": [16777217]}),
    Wrong("a softmax of float16", "precision",
          "g (float[n,4] x) => (float[n,4] y) { y = Softmax <axis = 1> (x) }",
          (("y = Softmax <axis = 1> (x)", "h = Cast <to = 10> (x) c = Cast <to = 1> (h) y = Softmax <axis = 1> (c)"),),
          {"x": [[0.3, 0.1, 0.7, 0.2]]}),
    Wrong("a double constant through float32", "precision",
          "g (double[n] x) => (double[n] y) <double third = {0.3333333333333333}> { y = Add(x, third) }",
          (("0.3333333333333333", "0.3333333432674408"),), {"x": [0.0]}),
)  # fmt: skip

MIXED = (
    Wrong("scores beside boxes in pixels", "mixed magnitudes",
          """g (float[n,4] boxes, float[n,1] scores) => (float[n,5] y) <float pixels = {5000.0}, float one = {1.0}> {
            b = Mul(boxes, pixels) s = Mul(scores, one) y = Concat <axis = 1> (b, s) }""",
          (("one = {1.0}", "one = {0.95}"),), {"boxes": [[1.0, 1.0, 1.0, 1.0]], "scores": [[0.5]]}),
    Wrong("the small channel of three", "mixed magnitudes",
          "g (float[n,3] x) => (float[n,3] y) <float[3] scale = {10000.0, 10000.0, 0.1}> { y = Mul(x, scale) }",
          ((" 0.1}", " 0.11}"),), {"x": [[1.0, 1.0, 1.0]]}),
    Wrong("probabilities beside large logits", "mixed magnitudes",
          """g (float[n,4] x) => (float[n,8] y) <float big = {100000.0}> {
            l = Mul(x, big) p = Sigmoid(x) y = Concat <axis = 1> (l, p) }""",
          (("Sigmoid(x)", "HardSigmoid(x)"),), {"x": [[1.0, 2.0, 3.0, 4.0]]}),
    Wrong("the small row of four", "mixed magnitudes",
          """g (float[4,n] x) => (float[4,n] y) <float[4,1] scale = {100000.0, 10000.0, 1.0, 0.01}> {
            y = Mul(x, scale) }""",
          ((" 0.01}", " 0.02}"),), {"x": np.ones((4, 2), np.float32)}),
    Wrong("features beside a time in milliseconds", "mixed magnitudes",
          """g (float[n,4] x, float[n,1] time) => (float[n,5] y) <float origin = {1000000.0}, float scale = {1.0}> {
            t = Add(time, origin) f = Mul(x, scale) y = Concat <axis = 1> (f, t) }""",
          (("scale = {1.0}", "scale = {1.02}"),), {"x": [[1.0, 2.0, 3.0, 4.0]], "time": [[1.0]]}),
    Wrong("the small exponentials", "mixed magnitudes",
          UNARY + """<float six = {6.0}, float zero = {0.0}, float one = {1.0}, float off = {1.02}> {
            s = Mul(x, six) e = Exp(s) b = Less(x, zero) f = Where(b, one, one) y = Mul(e, f) }""",
          (("Where(b, one, one)", "Where(b, off, one)"),), {"x": [3.0, -1.0]}),
    Wrong("the second, small output", "mixed magnitudes",
          """g (float[n] x) => (float[n] y, float[n] z) <float big = {10000.0}, float small = {0.0001}> {
            y = Mul(x, big) z = Mul(x, small) }""",
          (("0.0001", "0.000102"),), {"x": [1.0]}),
)  # fmt: skip

DEFAULTS = (
    Wrong("a factor with a default, folded", "defaults",
          "g (float[n] x, float k) => (float[n] y) <float k = {2.0}, float two = {2.0}> { y = Mul(x, k) }",
          (("Mul(x, k)", "Mul(x, two)"),), {"x": [1.0], "k": 3.0}),
    Wrong("k of TopK with a default, folded", "defaults",
          """g (float[8] x, int64[1] k) => (float[m] y) <int64[1] k = {2}, int64[1] two = {2}> {
            y, i = TopK <axis = 0> (x, k) }""",
          (("(x, k) }", "(x, two) }"),), {"x": ramp(8), "k": [3]}),
    Wrong("a flag with a default, decided", "defaults",
          """g (float[2] x, bool flag) => (float[2] y) <bool flag = {1}, bool yes = {1}> {
            y = If (flag) < then_branch = t () => (float[2] u) { u = Abs(x) },
                            else_branch = e () => (float[2] v) { v = Exp(x) }> }""",
          (("If (flag)", "If (yes)"),), {"x": [1.0, 2.0], "flag": False}),
    Wrong("a bias with a default of zero, dropped", "defaults",
          "g (float[n,4] x, float[4] c) => (float[n,4] y) <float[4] c = {0.0, 0.0, 0.0, 0.0}> { y = Gemm(x, w, c) }",
          (("Gemm(x, w, c)", "Gemm(x, w)"),), {"x": [[1.0] * 4], "c": [1.0] * 4}, {"w": DENSE}),
    Wrong("a scale with a default of one, dropped", "defaults",
          "g (float[n] x, float s) => (float[n] y) <float s = {1.0}> { y = Mul(x, s) }",
          (("Mul(x, s)", "Identity(x)"),), {"x": [1.0], "s": 2.0}),
    Wrong("a target of Reshape with a default, folded", "defaults",
          """g (float[2,6] x, int64[2] t) => (float[p,q] y) <int64[2] t = {3,4}, int64[2] own = {3,4}> {
            y = Reshape(x, t) }""",
          (("Reshape(x, t)", "Reshape(x, own)"),), {"x": ramp(2, 6), "t": [4, 3]}),
)  # fmt: skip

RUNS = (*BRANCHES, *PRECISION, *MIXED, *DEFAULTS)
