"""What operators of com.microsoft compute, in operators of the standard: those that ONNX Runtime's optimizer writes.

Each is a text of ONNX's own syntax, made for one node, as its attributes and left-out operands decide it. Sources are
ONNX Runtime's documentation of contributed operators. Operators of other domains stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import pi, sqrt

import onnx
import onnx.parser
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.contrib import attention, blocked, caches, experts, grouped, packed, plain, recurrent
from graphopt.model.contrib.node import Node, scalar
from graphopt.model.known import Knowledge
from graphopt.model.operators.table import operator_of

DOMAIN = "com.microsoft"
IN_STANDARD = frozenset({"SimplifiedLayerNormalization"})
OPSET = 21
GELU_SINCE = 20
_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
Body = Callable[[Node], str | None]  # None: there is none for this node


def has_body(node: ir.Node) -> bool:
    """Whether an operator that ONNX Runtime writes has a body here: of its domains, or one that it puts into ONNX's."""
    return _body(node) is not None


def _body(node: ir.Node) -> Body | None:
    if node.domain == blocked.DOMAIN:
        return blocked.BLOCKED.get(node.op_type)
    if node.domain == caches.DOMAIN:
        return caches.extended if node.op_type == "Extend" else None
    is_ours = node.domain == DOMAIN or (node.domain == "" and node.op_type in IN_STANDARD)
    return BODIES.get(node.op_type) if is_ours else None


def contrib_body(node: ir.Node, facts: Knowledge) -> ir.Function | None:
    """The body of a node of com.microsoft; None where it has none here."""
    made = _body(node)
    if made is None:
        return None
    inputs = ", ".join(f"i{at}" for at in range(len(node.inputs)))
    outputs = ", ".join("y" if at == 0 else f"o{at}" for at in range(len(node.outputs)))
    opsets = f'"" : {OPSET}, "{caches.DOMAIN}" : 1'
    head = f'<opset_import: [{opsets}], domain: "{DOMAIN}">\n{node.op_type} ({inputs}) => ({outputs})'
    described = Node(node, facts)
    text = made(described)
    if text is None:
        return None
    if described.kind is not None:  # all that a body casts has the first operand's type; CastLike is of opset 15
        text = re.sub(r"CastLike\((\w+), \w+\)", rf"Cast <to = {int(described.kind)}> (\1)", text)
    proto = onnx.parser.parse_function(f"{head} {{\n {text}\n}}")
    function = ir.serde.deserialize_function(proto)
    _give_attributes(function, described.opset)
    return function


def _give_attributes(function: ir.Function, opset: int) -> None:
    """Give parameters as attributes where an older opset does not have them as inputs."""
    for node in function:
        operator = operator_of(node)
        for name, place in ({} if operator is None else operator.parameters).items():
            value = nodes.input_at(node, place.position)
            maker = None if value is None or place.is_input(opset) else value.producer()
            if maker is not None:
                numbers = maker.attributes["value"].as_tensor().numpy().reshape(-1).tolist()
                node.attributes[name] = ir.AttrInt64s(name, numbers)
                node.resize_inputs(place.position)


def _gelu(node: Node, *, tangent: bool = False) -> str:
    """y, the Gelu of x: the operator where the model's opset has it, else its formula, of Erf or of Tanh."""
    if node.opset >= GELU_SINCE:
        return 'y = Gelu <approximate = "tanh"> (x)' if tangent else "y = Gelu(x)"
    numbers = {"half": 0.5, "one": 1.0, "inner": sqrt(2 / pi) if tangent else sqrt(0.5), "cube": 0.044715}
    lines = [f"{name}_ = {scalar(number)}\n {name} = CastLike({name}_, x)" for name, number in numbers.items()]
    if tangent:
        lines.append("xx = Mul(x, x)\n c = Mul(xx, cube)\n c1 = Add(c, one)\n z = Mul(x, c1)")
    lines.append(f"s = Mul({'z' if tangent else 'x'}, inner)\n e = {'Tanh' if tangent else 'Erf'}(s)")
    return "\n ".join([*lines, "t = Add(e, one)\n u = Mul(x, t)\n y = Mul(u, half)"])


def _bias_gelu(node: Node) -> str:
    return f"x = Add(i0, i1)\n {_gelu(node)}"


def _fast_gelu(node: Node) -> str:
    return f"x = {'Add(i0, i1)' if node.has(1) else 'Identity(i0)'}\n {_gelu(node, tangent=True)}"


def _quick_gelu(node: Node) -> str:
    alpha = node.number("alpha", 1.702)
    return f"a = {scalar(alpha)}\n c = CastLike(a, i0)\n x = Mul(i0, c)\n s = Sigmoid(x)\n y = Mul(i0, s)"


def _fused_matmul(node: Node) -> str | None:
    """None where an operand is transposed and its rank is not known yet."""
    lines = []
    for name, at in (("A", 0), ("B", 1)):
        rank, order = node.rank[at], None
        if rank is None and (node.flag(f"trans{name}") or node.flag(f"transBatch{name}")):
            return None
        if rank is not None and rank > 1:
            order = list(range(rank))
            if node.flag(f"transBatch{name}"):  # [rows, batch..., columns]
                order = [*order[1:-1], 0, rank - 1]
            if node.flag(f"trans{name}"):
                order[-2:] = reversed(order[-2:])
        lines.append(f"m{at} = Transpose <perm = {order}> (i{at})" if order else f"m{at} = Identity(i{at})")
    alpha = f"a = {scalar(node.number('alpha', 1.0))}\n c = CastLike(a, p)"
    return "\n ".join((*lines, "p = MatMul(m0, m1)", alpha, "y = Mul(p, c)"))


def _fused_gemm(node: Node) -> str:
    numbers = {"alpha": node.number("alpha", 1.0), "beta": node.number("beta", 1.0)}
    given = [f"{name}: float = {value}" for name, value in numbers.items()]
    given += [f"{name} = {int(node.flag(name))}" for name in ("transA", "transB")]
    operands = "i0, i1, i2" if node.has(2) else "i0, i1"
    return f"x = Gemm <{', '.join(given)}> ({operands})\n {node.activated()}"


def _fused_conv(node: Node) -> str:
    operands = "i0, i1, i2" if node.has(2) else "i0, i1"
    convolved = f"p = Conv {node.kept(_CONVOLUTION)} ({operands})"
    return f"{convolved}\n x = {'Add(p, i3)' if node.has(3) else 'Identity(p)'}\n {node.activated()}"


def _nhwc_conv(node: Node) -> str:
    operands = "t, v, i2" if node.has(2) else "t, v"
    return (f"t = Transpose <perm = [0, 3, 1, 2]> (i0)\n v = Transpose <perm = [0, 3, 1, 2]> (i1)\n "
            f"x = Conv {node.kept(_CONVOLUTION)} ({operands})\n y = Transpose <perm = [0, 2, 3, 1]> (x)")  # fmt: skip


def _skip_normalization(node: Node) -> str:
    """y, mean, inverse deviation, and the sum of input, skip and bias."""
    epsilon = f"epsilon: float = {node.number('epsilon', 1e-12)}"
    summed = "x = Add(i0, i1)\n s = " + ("Add(x, i4)" if node.has(4) else "Identity(x)")
    scale = "s, i2, i3" if node.has(3) else "s, i2"
    wanted = [(1, "m"), (2, "d"), (3, "s")][: max(len(node.node.outputs) - 1, 0)]
    lines = [summed, f"y, m, d = LayerNormalization <axis = -1, {epsilon}> ({scale})"]
    return "\n ".join((*lines, *(f"o{at} = Identity({name})" for at, name in wanted)))


def _simplified(node: Node, source: str, scale: str, epsilon: float) -> list[str]:
    """Lines that make y of rows by the root of their mean square, in float32; m is that mean, r the root."""
    return [f"x32 = Cast <to = 1> ({source})", "q = Mul(x32, x32)", "n = Constant <value: tensor = int64[1] {-1}> ()",
            "m = ReduceMean(q, n)", f"e = {scalar(node.number('epsilon', epsilon))}", "v = Add(m, e)", "r = Sqrt(v)",
            "t32 = Div(x32, r)", f"s32 = Cast <to = 1> ({scale})", "y32 = Mul(t32, s32)",
            f"y = CastLike(y32, {source})"]  # fmt: skip


def _simplified_alone(node: Node) -> str | None:
    """Along the last axis."""
    axis, count = nodes.int_attribute(node.node, "axis", -1), len(node.node.outputs)
    if axis != -1 and (node.rank[0] is None or axis != node.rank[0] - 1):
        return None
    return "\n ".join([*_simplified(node, "i0", "i1", 1e-5), *(["o1 = Reciprocal(r)"] if count > 1 else [])])


def _skip_simplified(node: Node) -> str:
    """y, two that are left out, and the sum of input, skip and bias."""
    lines = ["x = Add(i0, i1)\n s = " + ("Add(x, i3)" if node.has(3) else "Identity(x)")]
    lines += _simplified(node, "s", "i2", 1e-12)
    wanted = ["o1 = Identity(m)", "o2 = Reciprocal(r)", "o3 = Identity(s)"]
    return "\n ".join([*lines, *wanted[: max(len(node.node.outputs) - 1, 0)]])


def _quantized(operator: str, *, operands: int) -> Body:
    """The operator on numbers, between dequantizing its operands and quantizing its result."""

    def body(node: Node) -> str:
        count = operands
        lines = [
            f"f{at} = DequantizeLinear(i{3 * at}, i{3 * at + 1}"
            + (f", i{3 * at + 2})" if node.has(3 * at + 2) else ")")
            for at in range(count)
        ]
        lines.append(f"r = {operator} ({', '.join(f'f{at}' for at in range(count))})")
        zero = f", i{3 * count + 1})" if node.has(3 * count + 1) else ")"
        return "\n ".join((*lines, f"y = QuantizeLinear(r, i{3 * count}{zero}"))

    return body


def _quantized_softmax(node: Node) -> str:
    """Along an axis; before opset 13 along all from the axis on."""
    axis = nodes.int_attribute(node.node, "axis", -1)
    if nodes.int_attribute(node.node, "opset", 13) >= 13:
        return _quantized_one(f"r = Softmax <axis = {axis}> (f)")
    flat = f"g = Flatten <axis = {axis}> (f)\n t = Softmax <axis = 1> (g)\n d = Shape(f)\n r = Reshape(t, d)"
    return _quantized_one(flat)


def _quantized_pool(operator: str) -> Body:
    """A pooling of images, whose channels may be last."""

    def body(node: Node) -> str | None:
        rank, options = node.rank[0], node.kept(_POOLING)
        if rank is None:
            return None
        if not node.flag("channels_last"):
            return _quantized_one(f"r = {operator} {options} (f)")
        there, back = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        return _quantized_one(f"t = Transpose <perm = {list(there)}> (f)\n p = {operator} {options} (t)\n "
                              f"r = Transpose <perm = {list(back)}> (p)")  # fmt: skip

    return body


def _quantized_one(lines: str) -> str:
    """Lines that make r of f between an operand with its scale and zero point and those of the result."""
    return f"f = DequantizeLinear(i0, i1, i2)\n {lines}\n y = QuantizeLinear(r, i3, i4)"


def _quantized_join(node: Node) -> str:
    """Scale and zero point of the result, then each operand with its own."""
    count = (len(node.node.inputs) - 2) // 3
    lines = [f"f{at} = DequantizeLinear(i{3 * at + 2}, i{3 * at + 3}, i{3 * at + 4})" for at in range(count)]
    joined = f"r = Concat {node.kept(('axis',))} ({', '.join(f'f{at}' for at in range(count))})"
    return "\n ".join((*lines, joined, "y = QuantizeLinear(r, i0, i1)"))


def _quantized_choice(node: Node) -> str:
    """A condition, then both operands with scale and zero point, then those of the result."""
    return ("a = DequantizeLinear(i1, i2, i3)\n b = DequantizeLinear(i4, i5, i6)\n r = Where(i0, a, b)\n "
            "y = QuantizeLinear(r, i7, i8)")  # fmt: skip


def _quantized_leaky(node: Node) -> str | None:
    return _quantized(f"LeakyRelu <alpha: float = {node.number('alpha', 0.01)}>", operands=1)(node)


def _one_to_one(operator: str) -> Body:
    """The standard's operator of the same operands."""

    def body(node: Node) -> str:
        return f"y = {operator} {node.kept(('axis',))} ({', '.join(f'i{at}' for at in range(len(node.node.inputs)))})"

    return body


def _integers_to_floats(node: Node) -> str:
    """A, B, scales of both, zero points of both, bias."""
    zeros = (", i4" if node.has(4) else "") + (", i5" if node.has(5) else "")
    if node.has(5) and not node.has(4):
        zeros = ", , i5".replace(", ,", ', "",')
    bias = "y = Add(r, i6)" if node.has(6) else "y = Identity(r)"
    return f"p = MatMulInteger(i0, i1{zeros})\n f = Cast <to = 1> (p)\n s = Mul(i2, i3)\n r = Mul(f, s)\n {bias}"


def _dynamic_products(node: Node) -> str:
    """A in floats, B with its scale and zero point, bias."""
    zero = ", z, i3" if node.has(3) else ", z"
    bias = "y = Add(r, i4)" if node.has(4) else "y = Identity(r)"
    return (f"q, t, z = DynamicQuantizeLinear(i0)\n p = MatMulInteger(q, i1{zero})\n f = Cast <to = 1> (p)\n "
            f"s = Mul(t, i2)\n r = Mul(f, s)\n {bias}")  # fmt: skip


BODIES: Mapping[str, Body] = {
    "Attention": attention.attention,
    "BiasGelu": _bias_gelu,
    "BranchwiseRMSNorm": plain.branchwise_normalization,
    "CausalConvWithState": plain.causal_convolution,
    "CDist": plain.cdist,
    "DecoderMaskedMultiHeadAttention": attention.decoder_attention,
    "DequantizeLinear": _one_to_one("DequantizeLinear"),
    "DynamicQuantizeLSTM": recurrent.dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": _dynamic_products,
    "EmbedLayerNormalization": attention.embed_layer_normalization,
    "ExpandDims": plain.expand_dims,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "GatedAdd": plain.gated_sum,
    "GatedRMSNorm": plain.gated_normalization,
    "GatherBlockQuantized": packed.gather_block_quantized,
    "GatherND": plain.gather_nd,
    "Gelu": lambda node: f"x = Identity(i0)\n {_gelu(node)}",
    "GridSample": plain.grid_sample,
    "GroupQueryAttention": grouped.group_query_attention,
    "LinearAttentionGate": plain.linear_attention_gates,
    "MatMulBnb4": packed.matmul_bnb4,
    "MatMulIntegerToFloat": _integers_to_floats,
    "MatMulNBits": packed.product_of_codes,
    "MRotaryEmbedding": attention.rotary_embedding_of_three,
    "MoE": experts.experts,
    "MultiHeadAttention": attention.multi_head_attention,
    "NhwcConv": _nhwc_conv,
    "NhwcMaxPool": plain.nhwc_max_pool,
    "Pad": plain.pad,
    "QAttention": attention.quantized_attention,
    "QEmbedLayerNormalization": attention.quantized_embeddings,
    "QLinearAdd": _quantized("Add", operands=2),
    "QLinearAveragePool": _quantized_pool("AveragePool"),
    "QLinearConcat": _quantized_join,
    "QLinearConv": plain.quantized_convolution,
    "QLinearGlobalAveragePool": _quantized_pool("GlobalAveragePool"),
    "QLinearLeakyRelu": _quantized_leaky,
    "QLinearMul": _quantized("Mul", operands=2),
    "QLinearSigmoid": _quantized("Sigmoid", operands=1),
    "QLinearSoftmax": _quantized_softmax,
    "QLinearWhere": _quantized_choice,
    "QMoE": experts.quantized_experts,
    "QuantizeLinear": _one_to_one("QuantizeLinear"),
    "QuickGelu": _quick_gelu,
    "Range": lambda node: "y = Range(i0, i1, i2)" if node.has(2) else None,
    "RotaryEmbedding": attention.rotary_embedding,
    "ScaledSiLU": plain.scaled_silu,
    "SimplifiedLayerNormalization": _simplified_alone,
    "SkipLayerNormalization": _skip_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
    "TransposeMatMul": _fused_matmul,
    "Trilu": plain.trilu,
    "UnfoldTensor": plain.unfold_tensor,
}
