"""Small networks in which regions, places and orders have to be chosen: joined images, copies, branches, layers."""

from __future__ import annotations

import numpy as np
import onnx

from tests import support


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32) / 4


GRAPHS = {
    "dense block": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(a, b) d = Conv(c, w32) e = Concat<axis = 1>(a, b, d)
        f = Conv(e, w48) g = Concat<axis = -3>(e, f) y = Conv(g, w64)
    }""",
    "joined in another order": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(b, a) d = Conv(c, w32) e = Concat<axis = 1>(a, b)
        f = Conv(e, w32) y = Add(d, f)
    }""",
    "joined uneven": """g (float[2,16,6,5] x) => (float[2,36,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w4) c = Concat<axis = 1>(b, a, a) y = Relu(c)
    }""",
    "joined along rows": """g (float[1,16,6,5] x) => (float[1,16,12,5] y) {
        a = Conv(x, w16) b = Relu(a) y = Concat<axis = 2>(a, b)
    }""",
    "joined pixels": """g (float[1,16,1,1] x) => (float[1,16,1,1] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(a, b) y = Conv(c, w32)
    }""",
    "joined, given out": """g (float[1,16,6,5] x) => (float[1,32,6,5] c, float[1,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(a, b) y = Conv(c, w32)
    }""",
    "joined with what has no place": """g (float[1,16,6,5] x) => (float[1,48,6,5] z, float[1,16,6,5] y) {
        a = Conv(x, w16) b = Relu(a) d = Conv(b, w16) e = Concat<axis = 1>(b, d) f = Concat<axis = 1>(b, x, d)
        z = Relu(f) y = Conv(e, w32)
    }""",
    "joined in twos": """g (float[2,16,6,5] x) => (float[2,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(a, b) y = Conv(c, w32)
    }""",
    "joined of uneven parts": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w4) b = Conv(x, w12) c = Concat<axis = 1>(a, b) y = Conv(c, w16)
    }""",
    "joined and part of a larger one": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) d = Conv(b, w16) c = Concat<axis = 1>(b, d) k = Conv(c, w32)
        e = Concat<axis = 1>(a, b, d) f = Conv(e, w48) y = Add(f, k)
    }""",
    "joined from the middle": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w16) b = Conv(a, w16) c = Concat<axis = 1>(a, b) k = Conv(c, w32) d = Conv(k, w16)
        e = Concat<axis = 1>(a, d) y = Conv(e, w32)
    }""",
    "an input is joined": """g (float[1,16,6,5] x) => (float[1,16,6,5] y) {
        a = Conv(x, w16) b = Concat<axis = 1>(x, a) y = Conv(b, w32)
    }""",
    "two operands in blocks": """g (float[1,20,6,5] x) => (float[1,20,6,5] y) {
        a = Conv(x, w20) b = Conv(a, w20) c = Conv(b, w20) d = Mul(a, b) e = Add(c, d) y = Sub(e, a)
    }""",
    "read as images and as rows": """g (float[2,16,6,5] x) => (float[2,480] y, float[2,16,6,5] z) {
        a = Conv(x, w16) b = Relu(a) y = Flatten(b) z = Conv(b, w16)
    }""",
    "pixels last": """g (float[2,16,6,5] x) => (float[2,30,16] y) {
        a = Conv(x, w16) b = Reshape(a, rows) y = Transpose<perm = [0, 2, 1]>(b)
    }""",
    "elements of pixels last": """g (float[2,20,6,5] x) => (float[2,6,5,20] y, float[2,20,6,5] z) {
        a = Conv(x, w20) b = Conv(x, u20) t = Transpose<perm = [0, 2, 3, 1]>(a) y = Relu(t)
        r = Transpose<perm = [0, 2, 3, 1]>(b) q = Transpose<perm = [0, 3, 1, 2]>(r) s = Mul(a, b) k = Add(s, q)
        z = Conv(k, w20)
    }""",
    "one channel": "g (float[1,16,6,5] x) => (float[1,1,6,5] y) { a = Conv(x, w1) y = Sigmoid(a) }",
    "squeeze and excite": """g (float[1,20,6,5] x) => (float[1,20,6,5] y) {
        a = Conv(x, w20) p = GlobalAveragePool(a) q = Conv(p, w20) r = Sigmoid(q) o = Mul(a, r) y = Conv(o, w20)
    }""",
    "branches of products": """g (float[8,16] x) => (float[8,16] y) {
        a = MatMul(x, m) b = Softmax(a) c = MatMul(b, m) d = MatMul(x, n) e = Softmax(d) f = MatMul(e, n) y = Add(c, f)
    }""",
    "rows of three dims": """g (float[3,5,16] x, float[3,5,16] r) => (float[3,5,16] y) {
        a = MatMul(x, m) b = Add(a, r) c = LayerNormalization(b, scale, scale) d = MatMul(c, n) e = Gelu(d)
        y = Add(e, b)
    }""",
    "rows that lie apart": """g (float[5,3,16] x) => (float[3,5,16] y) {
        t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, m)
    }""",
    "heads": """g (float[2,6,16] x) => (float[2,6,16] y) {
        q = MatMul(x, m) k = MatMul(x, n) v = MatMul(x, m) a = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v)
        y = MatMul(a, n)
    }""",
    "heads by products": """g (float[2,6,16] x) => (float[2,6,16] y) {
        q = MatMul(x, m) r = Reshape(q, heads) s = Transpose<perm = [0, 2, 1, 3]>(r)
        t = Transpose<perm = [0, 1, 3, 2]>(s) u = MatMul(s, t) v = Softmax(u) w = MatMul(v, s)
        z = Transpose<perm = [0, 2, 1, 3]>(w) y = Reshape(z, whole)
    }""",
    "parts of a split": """g (float[4,12] x) => (float[4,4] y, float[4,4] z) {
        a, b, c = Split<axis = -1, num_outputs = 3>(x) d = Add(a, b) y = Relu(d) z = Identity(c)
    }""",
    "a running sum of a slice": """g (float[4,12] x) => (float[4,5] y) {
        a = Slice(x, starts, ends, last) y = CumSum(a, one)
    }""",
    "two regions apart": """g (float[4,12] x, float[4,12] z) => (float[4,12] y, float[4,12] w) {
        y = Relu(x) w = Softmax(z)
    }""",
    "the same output twice": """g (float[4,12] x) => (float[4,12] y, float[4,12] z) { y = Relu(x) z = Identity(y) }""",
    "one region behind another": """g (float[4,12] x) => (float[12,4] y) {
        a = Softmax(x) b = Exp(a) c = Transpose(b) d = Softmax<axis = 0>(c) y = Add(d, c)
    }""",
}  # fmt: skip


def graph(name: str) -> onnx.ModelProto:
    """A network of these by its name."""
    return support.model(
        GRAPHS[name], 23, 10, w16=_weight(16, 16, 1, 1), w32=_weight(16, 32, 1, 1), w48=_weight(16, 48, 1, 1),
        w64=_weight(16, 64, 1, 1), w4=_weight(4, 16, 1, 1), w12=_weight(12, 16, 1, 1),
        w1=_weight(1, 16, 3, 3)[:, :, 1:2, 1:2].copy(),
        w20=_weight(20, 20, 1, 1), u20=-_weight(20, 20, 1, 1),
        m=_weight(16, 16), n=_weight(16, 16)[::-1].copy(), scale=_weight(16),
        rows=np.array([2, 16, 30]), heads=np.array([2, 6, 4, 4]), whole=np.array([2, 6, 16]), starts=np.array([-7]),
        ends=np.array([10]), last=np.array([-1]), one=np.array(1),
    )  # fmt: skip
