"""What an optimizer should be able to do, one tiny model each, with what counts as having done it.

The rows are those on which other optimizers were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tests.support import model

Reached = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class Row:
    """One capability: a model before the optimizer and the question to the model after it."""

    name: str
    model: Callable[[], onnx.ModelProto]
    reached: Reached


# -- what counts --------------------------------------------------------------------------------------------------


def _operators(graph: onnx.GraphProto) -> list[str]:
    """The operators of one graph, Constants not counted."""
    return [node.op_type for node in graph.node if node.op_type != "Constant"]


def _operators_everywhere(graph: onnx.GraphProto) -> list[str]:
    """The operators of a graph and its subgraphs."""
    found = _operators(graph)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found.extend(_operators_everywhere(attribute.g))
    return found


def nodes(most: int) -> Reached:
    """At most so many nodes in the main graph."""
    return lambda proto: len(_operators(proto.graph)) <= most


def nodes_everywhere(most: int) -> Reached:
    """At most so many nodes, subgraphs included."""
    return lambda proto: len(_operators_everywhere(proto.graph)) <= most


def only(*expected: str) -> Reached:
    """Exactly these operators in the main graph, in any order."""
    return lambda proto: sorted(_operators(proto.graph)) == sorted(expected)


def at_most(op_type: str, most: int) -> Reached:
    """At most so many nodes of one operator."""
    return lambda proto: _operators_everywhere(proto.graph).count(op_type) <= most


def at_least(op_type: str, least: int) -> Reached:
    """At least so many nodes of one operator."""
    return lambda proto: _operators_everywhere(proto.graph).count(op_type) >= least


def size(most: int) -> Reached:
    """At most so many bytes."""
    return lambda proto: proto.ByteSize() <= most


def _one_weight(proto: onnx.ModelProto) -> bool:
    """All matrices are one initializer."""
    return sum(1 for tensor in proto.graph.initializer if len(tensor.dims) == 2) == 1


def _weight_still_quantized(proto: onnx.ModelProto) -> bool:
    kinds = {tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) == 2}
    return kinds == {onnx.TensorProto.INT8} and "DequantizeLinear" in _operators(proto.graph)


def _hoisted(proto: onnx.ModelProto) -> bool:
    """The MatMul stands in the main graph and no longer in the body."""
    return "MatMul" in _operators(proto.graph) and _operators_everywhere(proto.graph).count("MatMul") == 1


# -- models -------------------------------------------------------------------------------------------------------

X = "float[2, 4] X"
Y = "float[2, 4] Y"
BLOCK = "g (float[2, 3, 4] X) => (float[2, 3, 4] Y)"


Weight = np.ndarray | np.generic | float


def _text(body: str, opset: int = 17, /, **initializers: Weight) -> Callable[[], onnx.ModelProto]:
    """A model from ONNX text; numbers become float scalars."""

    def make() -> onnx.ModelProto:
        proto = model(body, opset)
        for name, given in initializers.items():
            array = np.asarray(given, np.float32) if isinstance(given, float) else np.asarray(given)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return proto

    return make


def _weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _between(expression: str, **initializers: Weight) -> Callable[[], onnx.ModelProto]:
    """Relu, an expression of a, Sigmoid."""
    return _text(f"g ({X}) => ({Y}) {{ a = Relu(X) b = {expression} Y = Sigmoid(b) }}", **initializers)


def _norm(channels: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    scale, bias, mean, variance = (generator.uniform(0.5, 2, channels).astype(np.float32) for _ in range(4))
    return {"sc": scale, "bi": bias, "mu": mean, "va": variance}


CONV = "g (float[1, 3, 8, 8] X) => (float[1, 4, 6, 6] Y)"
FILTER = _weight(4, 3, 3, 3)


def _after_conv(op_type: str) -> Callable[[], onnx.ModelProto]:
    channelwise = np.abs(_weight(1, 4, 1, 1, seed=2)) + 0.5
    return _text(f"{CONV} {{ a = Conv(X, W) Y = {op_type}(a, k) }}", W=FILTER, k=channelwise)


TO_NCHW = "Transpose<perm = [0, 3, 1, 2]>"
TO_NHWC = "Transpose<perm = [0, 2, 3, 1]>"


def _dead_node() -> onnx.ModelProto:
    return model(f"g ({X}) => ({Y}) {{ a = Sigmoid(X) d = Tanh(X) Y = Neg(a) }}")


def _branches(then_body: str, condition: str) -> Callable[[], onnx.ModelProto]:
    """An If whose else branch is Tanh(X)."""
    return _text(
        f"g ({X}) => ({Y}) {{ {condition} Y = If (c) <"
        f"then_branch = t () => (float[2, 4] p) {{ {then_body} }},"
        " else_branch = e () => (float[2, 4] q) { q = Tanh(X) }> }",
        k=_weight(4, seed=3),
        z=0.0,
    )


COMPUTED_CONDITION = "s = ReduceSum<keepdims = 0>(X) c = Greater(s, z)"


def _loop() -> onnx.ModelProto:
    """y = y + X @ W three times; the product is the same each time."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["X", "W"], ["product"]),
            helper.make_node("Add", ["y_in", "product"], ["y_out"]),
            helper.make_node("Identity", ["going"], ["go_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_in", onnx.TensorProto.FLOAT, [2, 4]),
        ],
        [
            helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_out", onnx.TensorProto.FLOAT, [2, 4]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "X"], ["Y"], body=body)],
        "g",
        [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [2, 4])],
        [
            onnx.numpy_helper.from_array(np.array(3, np.int64), "trips"),
            onnx.numpy_helper.from_array(_weight(4, 4), "W"),
        ],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


# -- rows ---------------------------------------------------------------------------------------------------------

ALGEBRA: tuple[Row, ...] = (
    Row("x+0", _between("Add(a, z)", z=0.0), nodes(2)),
    Row("x*1", _between("Mul(a, o)", o=1.0), nodes(2)),
    Row("x-0", _between("Sub(a, z)", z=0.0), nodes(2)),
    Row("x/1", _between("Div(a, o)", o=1.0), nodes(2)),
    Row("x^1", _between("Pow(a, o)", o=1.0), nodes(2)),
    Row("neg(neg)", _text(f"g ({X}) => ({Y}) {{ a = Neg(X) b = Neg(a) Y = Sigmoid(b) }}"), nodes(1)),
    Row(
        "(x+c1)+c2",
        _text(f"g ({X}) => ({Y}) {{ a = Add(X, c) b = Add(a, d) Y = Sigmoid(b) }}", c=_weight(4), d=_weight(4, seed=1)),
        nodes(2),
    ),
    Row(
        "(x*c1)*c2",
        _text(f"g ({X}) => ({Y}) {{ a = Mul(X, c) b = Mul(a, d) Y = Sigmoid(b) }}", c=_weight(4), d=_weight(4, seed=1)),
        nodes(2),
    ),
    Row("relu(relu)", _text(f"g ({X}) => ({Y}) {{ a = Relu(X) Y = Relu(a) }}"), nodes(1)),
    Row("clip(relu)", _text(f"g ({X}) => ({Y}) {{ a = Relu(X) Y = Clip(a, lo, hi) }}", lo=0.0, hi=6.0), nodes(1)),
    Row(
        "min(max) const->Clip",
        _text(f"g ({X}) => ({Y}) {{ a = Max(X, lo) Y = Min(a, hi) }}", lo=-1.0, hi=6.0),
        only("Clip"),
    ),
    Row("pow2->mul", _text(f"g ({X}) => ({Y}) {{ a = Pow(X, t) Y = Sigmoid(a) }}", t=2.0), only("Mul", "Sigmoid")),
    Row(
        "where(true)",
        _text(f"g ({X}) => ({Y}) {{ n = Neg(X) a = Where(c, X, n) Y = Sigmoid(a) }}", c=np.array([True])),
        nodes(1),
    ),
    Row(
        "not(not)",
        _text("g (bool[2, 4] X, bool[2, 4] Z) => (bool[2, 4] Y) { a = Not(X) b = Not(a) Y = And(b, Z) }"),
        nodes(1),
    ),
    Row("cast no-op", _text(f"g ({X}) => ({Y}) {{ a = Cast<to = 1>(X) Y = Sigmoid(a) }}"), nodes(1)),
    Row(
        "cast f32->f64->f32",
        _text(f"g ({X}) => ({Y}) {{ a = Cast<to = 11>(X) b = Cast<to = 1>(a) Y = Sigmoid(b) }}"),
        nodes(1),
    ),
)

MOVEMENT: tuple[Row, ...] = (
    Row(
        "transpose pair",
        _text(f"{BLOCK} {{ a = Transpose<perm = [0, 2, 1]>(X) b = Transpose<perm = [0, 2, 1]>(a) Y = Sigmoid(b) }}"),
        nodes(1),
    ),
    Row(
        "reshape(reshape)",
        _text(
            "g (float[2, 3, 4] X) => (float[4, 6] Y) { a = Reshape(X, s) Y = Reshape(a, t) }",
            s=_ints(6, 4),
            t=_ints(4, 6),
        ),
        nodes(1),
    ),
    Row(
        "unsqueeze+squeeze",
        _text(f"g ({X}) => ({Y}) {{ a = Unsqueeze(X, s) b = Squeeze(a, s) Y = Sigmoid(b) }}", s=_ints(1)),
        nodes(1),
    ),
    Row(
        "slice full-range",
        _text(
            f"{BLOCK} {{ a = Slice(X, s, e, x) Y = Sigmoid(a) }}", s=_ints(0, 0), e=_ints(3, 2**63 - 1), x=_ints(1, 2)
        ),
        nodes(1),
    ),
    Row(
        "slice(slice)",
        _text(
            "g (float[2, 3, 4] X) => (float[2, 2, 2] Y) { a = Slice(X, s, e, p) Y = Slice(a, s, e, q) }",
            s=_ints(0),
            e=_ints(2),
            p=_ints(1),
            q=_ints(2),
        ),
        nodes(1),
    ),
    Row(
        "concat(concat)",
        _text(
            "g (float[2, 4] X, float[2, 4] Z) => (float[2, 12] Y)"
            " { a = Concat<axis = 1>(X, Z) Y = Concat<axis = 1>(a, X) }"
        ),
        nodes(1),
    ),
    Row(
        "split+concat identity",
        _text(f"{BLOCK} {{ p, q = Split<axis = 2>(X) a = Concat<axis = 2>(p, q) Y = Sigmoid(a) }}", 13),
        nodes(1),
    ),
    Row("pad zero", _text(f"g ({X}) => ({Y}) {{ a = Pad(X, p) Y = Sigmoid(a) }}", p=_ints(0, 0, 0, 0)), nodes(1)),
    Row("expand no-op", _text(f"{BLOCK} {{ a = Expand(X, s) Y = Sigmoid(a) }}", s=_ints(2, 3, 4)), nodes(1)),
    Row(
        "expand before binary",
        _text("g (float[1, 4] X, float[2, 4] Z) => (float[2, 4] Y) { a = Expand(X, s) Y = Add(a, Z) }", s=_ints(2, 4)),
        nodes(1),
    ),
    Row("flatten no-op rank2", _text(f"g ({X}) => ({Y}) {{ a = Flatten<axis = 1>(X) Y = Sigmoid(a) }}"), nodes(1)),
)

GRAPH: tuple[Row, ...] = (
    Row(
        "shape static fold",
        _text(
            "g (float[2, 3, 4] X) => (float[2, 12] Y)"
            " { s = Shape(X) i = Gather(s, n) u = Unsqueeze(i, x) c = Concat<axis = 0>(u, m) Y = Reshape(X, c) }",
            n=np.int64(0),
            x=_ints(0),
            m=_ints(12),
        ),
        nodes(1),
    ),
    Row(
        "shape-gather dyn batch reshape",
        _text(
            "g (float[B, 3, 4] X) => (float[B, 12] Y)"
            " { s = Shape(X) i = Gather(s, n) u = Unsqueeze(i, x) c = Concat<axis = 0>(u, m) Y = Reshape(X, c) }",
            n=np.int64(0),
            x=_ints(0),
            m=_ints(12),
        ),
        nodes(1),
    ),
    Row(
        "reducemean keepdims+squeeze",
        _text("g (float[2, 3, 4] X) => (float[2, 3] Y) { a = ReduceMean<axes=[2]>(X) Y = Squeeze(a, x) }", x=_ints(2)),
        nodes(1),
    ),
    Row("identity chain", _text(f"g ({X}) => ({Y}) {{ a = Identity(X) b = Identity(a) Y = Sigmoid(b) }}"), nodes(1)),
    Row("dropout inference", _text(f"g ({X}) => ({Y}) {{ a = Dropout(X) Y = Sigmoid(a) }}"), nodes(1)),
    Row("dead node", _dead_node, only("Sigmoid", "Neg")),
    Row("CSE", _text(f"g ({X}) => ({Y}) {{ a = Exp(X) b = Exp(X) Y = Mul(a, b) }}"), nodes(2)),
    Row(
        "CSE commutative",
        _text(f"g ({X}) => ({Y}) {{ a = Add(X, W) b = Add(W, X) Y = Mul(a, b) }}", W=_weight(2, 4)),
        nodes(2),
    ),
    Row(
        "dedupe equal weights",
        _text(
            f"g ({X}) => ({Y}) {{ a = MatMul(X, W) b = Sigmoid(a) Y = MatMul(b, V) }}", W=_weight(4, 4), V=_weight(4, 4)
        ),
        _one_weight,
    ),
    Row(
        "const fold",
        _text(f"g ({X}) => ({Y}) {{ w = Mul(W, V) Y = MatMul(X, w) }}", W=_weight(4, 4), V=_weight(4, 4, seed=1)),
        nodes(1),
    ),
)

WEIGHTS: tuple[Row, ...] = (
    Row(
        "Conv+BN",
        _text(f"{CONV} {{ a = Conv(X, W) Y = BatchNormalization(a, sc, bi, mu, va) }}", W=FILTER, **_norm(4)),
        only("Conv"),
    ),
    Row(
        "BN+Conv (no pad)",
        _text(f"{CONV} {{ a = BatchNormalization(X, sc, bi, mu, va) Y = Conv(a, W) }}", W=FILTER, **_norm(3)),
        only("Conv"),
    ),
    Row("Conv+Mul", _after_conv("Mul"), only("Conv")),
    Row("Conv+Add", _after_conv("Add"), only("Conv")),
    Row("Conv+Sub", _after_conv("Sub"), only("Conv")),
    Row("Conv+Div", _after_conv("Div"), only("Conv")),
    Row(
        "Pad+Conv",
        _text(
            "g (float[1, 3, 8, 8] X) => (float[1, 4, 8, 8] Y) { a = Pad(X, p) Y = Conv(a, W) }",
            W=FILTER, p=_ints(0, 0, 1, 1, 0, 0, 1, 1),
        ),
        only("Conv"),
    ),
    Row(
        "ConvTranspose+BN",
        _text(
            "g (float[1, 3, 8, 8] X) => (float[1, 4, 10, 10] Y)"
            " { a = ConvTranspose(X, W) Y = BatchNormalization(a, sc, bi, mu, va) }",
            W=_weight(3, 4, 3, 3), **_norm(4),
        ),
        only("ConvTranspose"),
    ),
    Row(
        "Gemm+BN",
        _text(
            f"g ({X}) => ({Y}) {{ a = Gemm(X, W, c) Y = BatchNormalization(a, sc, bi, mu, va) }}",
            W=_weight(4, 4), c=_weight(4), **_norm(4),
        ),
        only("Gemm"),
    ),
    Row(
        "MatMul+Add->Gemm",
        _text(f"g ({X}) => ({Y}) {{ a = MatMul(X, W) Y = Add(a, c) }}", W=_weight(4, 4), c=_weight(4)),
        only("Gemm"),
    ),
    Row(
        "MatMul+MatMul const",
        _text(
            f"g ({X}) => ({Y}) {{ a = MatMul(X, W) Y = MatMul(a, V) }}", W=_weight(4, 4), V=_weight(4, 4, seed=1)
        ),
        nodes(1),
    ),
    Row(
        "Gemm+Mul const",
        _text(
            f"g ({X}) => ({Y}) {{ a = Gemm(X, W, c) Y = Mul(a, k) }}",
            W=_weight(4, 4), c=_weight(4), k=_weight(4, seed=2),
        ),
        only("Gemm"),
    ),
    Row(
        "QKV horizontal MatMul merge",
        _text(
            "g (float[2, 4] X) => (float[2, 4] P, float[2, 4] Q, float[2, 4] R)"
            " { P = MatMul(X, U) Q = MatMul(X, V) R = MatMul(X, W) }",
            U=_weight(4, 4), V=_weight(4, 4, seed=1), W=_weight(4, 4, seed=2),
        ),
        at_most("MatMul", 1),
    ),
    Row(
        "Transpose into Gemm",
        _text(
            "g (float[2, 4] X) => (float[4, 5] Y) { t = Transpose<perm = [1, 0]>(X) Y = Gemm(t, W) }", W=_weight(2, 5)
        ),
        only("Gemm"),
    ),
)  # fmt: skip

FUSION: tuple[Row, ...] = (
    Row(
        "erf-Gelu -> Gelu (opset20)",
        _text(
            f"g ({X}) => ({Y}) {{ a = Div(X, r) b = Erf(a) c = Add(b, o) d = Mul(X, c) Y = Mul(d, h) }}",
            20, r=float(np.sqrt(np.float32(2))), o=1.0, h=0.5,
        ),
        only("Gelu"),
    ),
    Row(
        "LayerNorm (opset17)",
        _text(
            f"g ({X}) => ({Y}) {{ m = ReduceMean<axes = [-1]>(X) d = Sub(X, m) q = Pow(d, t)"
            " v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) w = Mul(n, g) Y = Add(w, c) }",
            t=2.0, eps=1e-5, g=_weight(4), c=_weight(4, seed=1),
        ),
        only("LayerNormalization"),
    ),
    Row(
        "RMSNorm (opset23)",
        _text(
            f"g ({X}) => ({Y}) {{ q = Pow(X, t) v = ReduceMean(q, x) e = Add(v, eps) s = Sqrt(e) n = Div(X, s)"
            " Y = Mul(n, g) }",
            23, t=2.0, eps=1e-5, g=_weight(4), x=_ints(-1),
        ),
        only("RMSNormalization"),
    ),
    Row(
        "HardSwish (opset14)",
        _text(
            f"g ({X}) => ({Y}) {{ a = Add(X, t) c = Clip(a, z, s) m = Mul(X, c) Y = Div(m, s) }}", t=3.0, z=0.0, s=6.0
        ),
        only("HardSwish"),
    ),
    Row(
        "Silu x*sigmoid -> Swish (opset24)",
        _text(f"g ({X}) => ({Y}) {{ a = Sigmoid(X) Y = Mul(X, a) }}", 24),
        only("Swish"),
    ),
    Row(
        "SDPA -> Attention (opset23)",
        _text(
            "g (float[1, 2, 5, 4] Q, float[1, 2, 5, 4] K, float[1, 2, 5, 4] V) => (float[1, 2, 5, 4] Y)"
            " { k = Transpose<perm = [0, 1, 3, 2]>(K) s = MatMul(Q, k) d = Mul(s, c) p = Softmax<axis = -1>(d)"
            " Y = MatMul(p, V) }",
            23, c=0.5,
        ),
        only("Attention"),
    ),
    Row(
        "Einsum->MatMul",
        _text('g (float[2, 4] X, float[4, 3] Z) => (float[2, 3] Y) { Y = Einsum<equation = "ij,jk->ik">(X, Z) }'),
        only("MatMul"),
    ),
    Row(
        "space2depth from Reshape-Transpose",
        _text(
            "g (float[1, 3, 4, 4] X) => (float[1, 12, 2, 2] Y)"
            " { a = Reshape(X, s) t = Transpose<perm = [0, 3, 5, 1, 2, 4]>(a) Y = Reshape(t, u) }",
            s=_ints(1, 3, 2, 2, 2, 2), u=_ints(1, 12, 2, 2),
        ),
        only("SpaceToDepth"),
    ),
)  # fmt: skip

LAYOUT: tuple[Row, ...] = (
    Row(
        "NHWC: T-Conv-Relu-T",
        _text(
            f"g (float[1, 8, 8, 3] X) => (float[1, 4, 4, 4] Y) {{ a = {TO_NCHW}(X) b = Conv(a, W) c = {TO_NHWC}(b)"
            f" d = Relu(c) e = {TO_NCHW}(d) f = Conv(e, V) Y = {TO_NHWC}(f) }}",
            W=FILTER, V=_weight(4, 4, 3, 3),
        ),
        at_most("Transpose", 2),
    ),
    Row(
        "NHWC: push T through Add(bias)+Relu",
        _text(
            f"g (float[1, 8, 8, 3] X) => (float[1, 4, 4, 4] Y) {{ a = {TO_NCHW}(X) b = Conv(a, W) c = {TO_NHWC}(b)"
            f" h = Add(c, k) d = Relu(h) e = {TO_NCHW}(d) f = Conv(e, V) Y = {TO_NHWC}(f) }}",
            W=FILTER, V=_weight(4, 4, 3, 3), k=_weight(4),
        ),
        at_most("Transpose", 2),
    ),
    Row(
        "NHWC: push T through Concat/ReduceMean",
        _text(
            f"g (float[1, 8, 8, 3] X) => (float[1, 8] Y) {{ a = {TO_NCHW}(X) b = Conv(a, W) c = {TO_NHWC}(b)"
            f" d = Conv(a, V) e = {TO_NHWC}(d) f = Concat<axis = 3>(c, e)"
            " Y = ReduceMean<axes = [1, 2], keepdims = 0>(f) }",
            W=FILTER, V=_weight(4, 3, 3, 3, seed=1),
        ),
        at_most("Transpose", 1),
    ),
    Row(
        "NHWC: residual add",
        _text(
            f"g (float[1, 8, 8, 3] X) => (float[1, 6, 6, 4] Y) {{ a = {TO_NCHW}(X) b = Conv(a, U) c = {TO_NHWC}(b)"
            f" d = Add(c, X) e = {TO_NCHW}(d) f = Conv(e, W) Y = {TO_NHWC}(f) }}",
            U=_weight(3, 3, 1, 1), W=FILTER,
        ),
        at_most("Transpose", 2),
    ),
)  # fmt: skip

NESTED: tuple[Row, ...] = (
    Row(
        "If const cond",
        _branches("p = Sigmoid(X)", "c = Constant<value = bool {1}>()"),
        only("Sigmoid"),
    ),
    Row("fold inside If branch", _branches("w = Add(k, k) p = Mul(X, w)", COMPUTED_CONDITION), nodes_everywhere(5)),
    Row(
        "CSE inside If branch",
        _branches("v = Exp(X) w = Exp(X) p = Mul(v, w)", COMPUTED_CONDITION),
        nodes_everywhere(6),
    ),
    Row("Loop-invariant MatMul hoisted out of Loop", _loop, _hoisted),
)

RESTRAINT: tuple[Row, ...] = (
    Row(
        "QDQ weight kept",
        _text(
            f"g ({X}) => ({Y}) {{ w = DequantizeLinear(W, s) Y = MatMul(X, w) }}",
            W=(_weight(4, 4) * 40).astype(np.int8), s=0.02,
        ),
        _weight_still_quantized,
    ),
    Row(
        "ConstantOfShape 4MB not materialised",
        _text(
            f"g ({X}) => ({Y}) {{ k = ConstantOfShape<value = float[1] {{2.0}}>(s) r = ReduceSum<keepdims = 0>(k)"
            " e = Expand(r, t) Y = Add(X, e) }",
            s=_ints(1024, 1024), t=_ints(1),
        ),
        size(100_000),
    ),
    Row(
        "Expand const 4MB not materialised",
        _text("g (float[1024, 1024] X) => (float[1024, 1024] Y) { e = Expand(k, s) a = Tanh(e) Y = Add(X, a) }",
              k=2.0, s=_ints(1024, 1024)),
        size(100_000),
    ),
    Row(
        "random op not folded/CSEd",
        _text(
            f"g ({X}) => ({Y}) {{ a = RandomNormal<shape = [2, 4]>() c = RandomNormal<shape = [2, 4]>()"
            " d = Sub(a, c) Y = Add(X, d) }"
        ),
        at_least("RandomNormal", 2),
    ),
)  # fmt: skip

ROWS: tuple[Row, ...] = (*ALGEBRA, *MOVEMENT, *GRAPH, *WEIGHTS, *FUSION, *LAYOUT, *NESTED, *RESTRAINT)
