"""Each operator that can work in another layout: between two Transposes it takes both away and stays equal."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.layout.pushing import build, leaves, weight

X = "g (float[N, 3, 4, 5] X)"
SCALE, ZERO = np.array([0.1, 0.2, 0.3], np.float32), np.zeros(3, np.int8)

# What stands between `a` (channels last, [N, 4, 5, 3]) and `b`; the opset; the weights.
SAME_RANK: dict[str, tuple[str, int, dict[str, object]]] = {
    "relu": ("b = Relu(a)", 17, {}),
    "clip": ("b = Clip(a, low, high)", 17, {"low": np.float32(-0.5), "high": np.float32(0.5)}),
    "cast": ("c = Cast<to = 10>(a) b = Cast<to = 1>(c)", 17, {}),
    "dropout": ("b = Dropout(a)", 13, {}),
    "add a bias": ("b = Add(a, w)", 17, {"w": weight(3)}),
    "add a row": ("b = Add(w, a)", 17, {"w": weight(5, 1)}),
    "add a map": ("b = Add(a, w)", 17, {"w": weight(1, 4, 5, 3)}),
    "add one number of rank 1": ("b = Mul(a, w)", 17, {"w": weight(1)}),
    "add at opset 7": ("b = Add(a, w)", 7, {"w": weight(3)}),
    "add a computed vector": ("c = ReduceMean<axes = [0, 1, 2], keepdims = 0>(a) b = Add(a, c)", 17, {}),
    "mul by a gate": ("c = ReduceMean<axes = [1, 2]>(a) b = Mul(a, c)", 17, {}),
    "max of three": ("c = Abs(a) b = Max(a, c, w)", 17, {"w": weight(3)}),
    "where": ("c = Greater(a, w) b = Where(c, a, w)", 17, {"w": weight(3)}),
    "prelu": ("b = PRelu(a, w)", 17, {"w": weight(3)}),
    "prelu by place": ("b = PRelu(a, w)", 17, {"w": weight(4, 5, 1)}),
    "concat": ("c = Neg(a) b = Concat<axis = 3>(a, c)", 17, {}),
    "concat from behind": ("c = Neg(a) b = Concat<axis = -2>(a, c)", 17, {}),
    "concat a constant": ("c = Concat<axis = 1>(a, w) b = Slice(c, s, e, x)", 17,
                          {"w": np.ones((2, 1, 5, 3), np.float32), "s": [1], "e": [9], "x": [1]}),
    "split": ("c, d = Split<axis = -1>(a, s) b = Concat<axis = 3>(d, c)", 17, {"s": [1, 2]}),
    "split by attribute": ("c, d = Split<axis = 3, split = [1, 2]>(a) b = Concat<axis = 3>(d, c)", 11, {}),
    "pad": ("b = Pad(a, p)", 17, {"p": [0, 1, 0, 2, 0, 0, 3, 1]}),
    "pad by attribute": ("b = Pad<pads = [0, 1, 0, 2, 0, 0, 3, 1]>(a)", 10, {}),
    "pad some axes": ("b = Pad(a, p, , x)", 18, {"p": [1, 2, 0, 1], "x": [1, -1]}),
    "pad reflected": ("b = Pad<mode = \"reflect\">(a, p)", 17, {"p": [0, 1, 1, 0, 0, 1, 1, 0]}),
    "pad by what is computed": ("s = Shape(a) z = Sub(s, s) p = Concat<axis = 0>(z, o) b = Pad(a, p)", 18,
                                {"o": [0, 1, 0, 2]}),
    "reduce": ("b = ReduceSum<keepdims = 1>(a, x)", 17, {"x": [-1]}),
    "reduce by attribute": ("c = ReduceMax<axes = [2]>(a) b = Sub(a, c)", 12, {}),
    "reduce at 18": ("c = ReduceMean(a, x) b = Sub(a, c)", 18, {"x": [1, 2]}),
    "reduce nothing": ("b = ReduceSum<noop_with_empty_axes = 1>(a)", 17, {}),
    "argmax": ("c = ArgMax<axis = 3>(a) b = Cast<to = 1>(c)", 17, {}),
    "softmax": ("b = Softmax<axis = -1>(a)", 13, {}),
    "log-softmax": ("b = LogSoftmax<axis = 1>(a)", 17, {}),
    "cumsum": ("b = CumSum<reverse = 1>(a, x)", 17, {"x": np.array(3, np.int64)}),
    "slice": ("b = Slice(a, s, e, x, t)", 17, {"s": [1, 0], "e": [4, 9], "x": [1, -1], "t": [1, 2]}),
    "slice without axes": ("b = Slice(a, s, e)", 17, {"s": [0, 1], "e": [9, 3]}),
    "slice by attributes": ("b = Slice<starts = [1], ends = [3], axes = [2]>(a)", 9, {}),
    "tile": ("b = Tile(a, r)", 17, {"r": [1, 2, 1, 3]}),
    "expand": ("c = ReduceMax<axes = [1]>(a) b = Expand(c, s)", 17, {"s": [4, 1, 3]}),
    "gather": ("b = Gather<axis = 3>(a, i)", 17, {"i": [2, 0, 1, 1]}),
    "top": ("b, i = TopK<axis = 3>(a, k)", 17, {"k": [2]}),
    "squeeze and unsqueeze": ("c = ReduceMean<axes = [1]>(a) d = Squeeze(c, o) e = Relu(d) f = Unsqueeze(e, o)"
                              " b = Add(a, f)", 17, {"o": [1]}),
    "resize": ("b = Resize<mode = \"nearest\">(a, , s)", 17, {"s": np.array([1, 2, 3, 1], np.float32)}),
    "resize to sizes": ("c = Slice(a, z, o, z) b = Resize<mode = \"nearest\">(c, , , s)", 17,
                        {"s": [1, 8, 10, 3], "z": [0], "o": [1]}),
    "resize some axes": ("b = Resize<mode = \"linear\", axes = [1, 2]>(a, , s)", 18,
                         {"s": np.array([2, 2], np.float32)}),
    "upsample": ("b = Upsample<mode = \"nearest\">(a, s)", 9, {"s": np.array([1, 2, 2, 1], np.float32)}),
    "quantize": ("c = QuantizeLinear(a, s, z) b = DequantizeLinear(c, s, z)", 17,
                 {"s": np.float32(0.1), "z": np.int8(3)}),
    "quantize by channel": ("c = QuantizeLinear<axis = 3>(a, s, z) b = DequantizeLinear<axis = -1>(c, s, z)", 17,
                            {"s": SCALE, "z": ZERO}),
    "reshape around": ("c = Reshape(a, s) d = Relu(c) b = Reshape(d, t)", 17, {"s": [0, 20, 3], "t": [-1, 4, 5, 3]}),
    "divide by the number": ("n = Size(a) f = Cast<to = 1>(n) b = Div(a, f)", 17, {}),
    "normalize": ("b = MeanVarianceNormalization<axes = [1, 2]>(a)", 17, {}),
    "divide by the size": ("s = Shape(a) n = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(n) b = Div(a, f)", 17, {}),
}  # fmt: skip

RANK_CHANGES: dict[str, tuple[str, int, dict[str, object]]] = {
    "mean over the image": ("Y = ReduceMean<axes = [1, 2], keepdims = 0>(a)", 17, {}),
    "everything": ("Y = ReduceSum<keepdims = 0>(a)", 17, {}),
    "argmax of channels": ("c = ArgMax<axis = -1, keepdims = 0>(a) Y = Cast<to = 1>(c)", 17, {}),
    "one channel": ("Y = Gather<axis = 3>(a, i)", 17, {"i": np.array(1, np.int64)}),
    "mean and squeeze": ("c = ReduceMean<axes = [1, 2]>(a) Y = Squeeze(c, x)", 17, {"x": [1, 2]}),
    "mean and reshape": ("c = ReduceMean<axes = [1, 2]>(a) Y = Reshape(c, s)", 17, {"s": [-1, 3]}),
    "mean and flatten": ("c = ReduceMean<axes = [1, 2]>(a) Y = Flatten(c)", 17, {}),
    "columns of a Gemm": ("c = Flatten(a) Y = Gemm<transB = 1>(c, w, v)", 17, {"w": weight(7, 60), "v": weight(7)}),
    "columns of a product": ("c = Reshape(a, s) d = Relu(c) Y = MatMul(d, w)", 17, {"s": [0, 60], "w": weight(60, 7)}),
}


@pytest.mark.parametrize("name", SAME_RANK)
def test_between_two_transposes(name: str) -> None:
    body, opset, weights = SAME_RANK[name]
    result = "float[N, P, Q, R] Y"
    leaves(build(f"{X} => ({result}) {{ a = LAST(X) {body} Y = FIRST(b) }}", opset, **weights), 0, N=2)


@pytest.mark.parametrize("name", RANK_CHANGES)
def test_behind_a_transpose(name: str) -> None:
    body, opset, weights = RANK_CHANGES[name]
    shapes = {"everything": "float Y", "argmax of channels": "float[N, 4, 5] Y", "one channel": "float[N, 4, 5] Y"}
    result = shapes.get(name, "float[N, P] Y")
    leaves(build(f"{X} => ({result}) {{ a = LAST(X) {body} }}", opset, **weights), 0, N=2)


HEADS, IMAGE = "Transpose<perm = [0, 2, 1, 3]>", "Transpose<perm = [0, 1, 3, 2]>"
VECTOR = {"w": np.abs(weight(3)), "v": np.abs(weight(5))}
# A Transpose, what stands between it and its inverse, the opset, and how many Transposes are left.
FIXED_AXES: dict[str, tuple[str, str, int, int]] = {
    "batch normalization of images on their sides": (IMAGE, "b = BatchNormalization(a, w, w, w, w)", 17, 0),
    "instance normalization of images on their sides": (IMAGE, "b = InstanceNormalization(a, w, w)", 17, 2),
    "batch normalization of other channels": (HEADS, "b = BatchNormalization(a, u, u, u, u)", 17, 2),
    "layer normalization": (HEADS, "b = LayerNormalization(a, v)", 17, 0),
    "layer normalization of two axes": (HEADS, "b = LayerNormalization<axis = 2>(a, t)", 17, 2),
    "normalization by root mean squares": (HEADS, "b = RMSNormalization(a, v)", 23, 0),
    "softmax over the last axis before opset 13": (HEADS, "b = Softmax<axis = 3>(a)", 11, 0),
    "softmax that flattens": (HEADS, "b = Softmax<axis = 2>(a)", 11, 2),
}


@pytest.mark.parametrize("name", FIXED_AXES)
def test_bound_axes_that_nothing_names_keep_their_places(name: str) -> None:
    transpose, body, opset, left = FIXED_AXES[name]
    text = f"{X} => (float[N, 3, 4, 5] Y) {{ a = {transpose}(X) {body} Y = {transpose}(b) }}"
    leaves(build(text, opset, **VECTOR, u=np.abs(weight(4)), t=weight(3, 5)), left, N=2)
