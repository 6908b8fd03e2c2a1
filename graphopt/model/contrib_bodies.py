"""What operators of com.microsoft compute, in operators of the standard: those that ONNX Runtime's optimizer writes.

Each is a text of ONNX's own syntax, made for one node, as its attributes and left-out operands decide it. Sources are
ONNX Runtime's documentation of contributed operators. Operators of other domains stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

import onnx
import onnx.parser
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge

DOMAIN = "com.microsoft"
OPSET = 21
GELU_SINCE = 20
_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
Body = Callable[["Node"], str]


class Node:
    """A node for a text: its operands' names, and attributes as the text has them."""

    def __init__(self, node: ir.Node, facts: Knowledge) -> None:
        self.node = node
        self.opset = facts.opset(node)
        self.rank = [None if one is None else _rank(one, facts) for one in node.inputs]

    def has(self, at: int) -> bool:
        """Whether an operand is given."""
        return at < len(self.node.inputs) and self.node.inputs[at] is not None

    def number(self, name: str, otherwise: float) -> float:
        """An attribute that is a number."""
        return nodes.float_attribute(self.node, name, otherwise)

    def flag(self, name: str) -> bool:
        """An attribute that is 0 or 1."""
        return bool(nodes.int_attribute(self.node, name, 0))

    def activated(self) -> str:
        """Lines that give y, the value of x behind the node's activation."""
        kind = nodes.string_attribute(self.node, "activation", "")
        given = nodes.attribute_of(self.node, "activation_params")
        numbers = [float(one) for one in given.value] if given is not None else []
        alpha = numbers[0] if numbers else self.number("activation_alpha", 0.01)
        match kind:
            case "":
                return "y = Identity(x)"
            case "LeakyRelu":
                return f"y = LeakyRelu <alpha: float = {alpha}> (x)"
            case "HardSigmoid":
                beta = numbers[1] if len(numbers) > 1 else self.number("activation_beta", 0.5)
                return f"y = HardSigmoid <alpha: float = {alpha}, beta: float = {beta}> (x)"
            case "Clip":
                low, high = numbers
                return f"l = {_scalar(low)}\n h = {_scalar(high)}\n y = Clip(x, l, h)"
        return f"y = {kind}(x)"

    def kept(self, names: tuple[str, ...]) -> str:
        """Attributes that another operator takes over."""
        found = []
        for name in names:
            one = nodes.attribute_of(self.node, name)
            if one is not None:
                found.append(
                    f'{name} = "{one.value}"' if isinstance(one.value, str) else f"{name} = {_list(one.value)}"
                )
        return f"<{', '.join(found)}>" if found else ""


def contrib_body(node: ir.Node, facts: Knowledge) -> ir.Function | None:
    """The body of a node of com.microsoft; None where it has none here."""
    made = BODIES.get(node.op_type)
    if node.domain != DOMAIN or made is None:
        return None
    inputs = ", ".join(f"i{at}" for at in range(len(node.inputs)))
    outputs = ", ".join("y" if at == 0 else f"o{at}" for at in range(len(node.outputs)))
    head = f'<opset_import: ["" : {OPSET}], domain: "{DOMAIN}">\n{node.op_type} ({inputs}) => ({outputs})'
    proto = onnx.parser.parse_function(f"{head} {{\n {made(Node(node, facts))}\n}}")
    return ir.serde.deserialize_function(proto)


def _rank(value: ir.Value, facts: Knowledge) -> int | None:
    shape = facts.known(value).shape
    return None if shape is None else len(shape)


def _scalar(value: float) -> str:
    return f"Constant <value_float: float = {value}> ()"


def _list(value: object) -> str:
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


def _gelu(node: Node, *, tangent: bool = False) -> str:
    """y, the Gelu of x: the operator where the model's opset has it, else its formula, of Erf or of Tanh."""
    if node.opset >= GELU_SINCE:
        return 'y = Gelu <approximate = "tanh"> (x)' if tangent else "y = Gelu(x)"
    numbers = {"half": 0.5, "one": 1.0, "inner": sqrt(2 / pi) if tangent else sqrt(0.5), "cube": 0.044715}
    lines = [f"{name}_ = {_scalar(number)}\n {name} = CastLike({name}_, x)" for name, number in numbers.items()]
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
    return f"a = {_scalar(alpha)}\n c = CastLike(a, i0)\n x = Mul(i0, c)\n s = Sigmoid(x)\n y = Mul(i0, s)"


def _fused_matmul(node: Node) -> str:
    lines = []
    for name, at in (("A", 0), ("B", 1)):
        rank, order = node.rank[at], None
        if rank is not None and rank > 1:
            order = list(range(rank))
            if node.flag(f"transBatch{name}"):  # [rows, batch..., columns]
                order = [*order[1:-1], 0, rank - 1]
            if node.flag(f"trans{name}"):
                order[-2:] = reversed(order[-2:])
        lines.append(f"m{at} = Transpose <perm = {order}> (i{at})" if order else f"m{at} = Identity(i{at})")
    alpha = f"a = {_scalar(node.number('alpha', 1.0))}\n c = CastLike(a, p)"
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


def _skip_simplified(node: Node) -> str:
    """y, two that are left out, and the sum of input, skip and bias."""
    summed = "x = Add(i0, i1)\n s = " + ("Add(x, i3)" if node.has(3) else "Identity(x)")
    lines = [summed, "q = Mul(s, s)", "n = Constant <value_ints: ints = [-1]> ()", "m = ReduceMean(q, n)",
             f"e = {_scalar(node.number('epsilon', 1e-12))}", "f = CastLike(e, s)", "v = Add(m, f)", "r = Sqrt(v)",
             "t = Div(s, r)", "y = Mul(t, i2)"]  # fmt: skip
    if len(node.node.outputs) > 1:
        lines += ["o1 = Identity(m)"]
    if len(node.node.outputs) > 2:
        lines += ["o2 = Reciprocal(r)"]
    if len(node.node.outputs) > 3:
        lines += ["o3 = Identity(s)"]
    return "\n ".join(lines)


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


def _quantized_leaky(node: Node) -> str:
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
    "BiasGelu": _bias_gelu,
    "DequantizeLinear": _one_to_one("DequantizeLinear"),
    "DynamicQuantizeMatMul": _dynamic_products,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": lambda node: f"x = Identity(i0)\n {_gelu(node)}",
    "MatMulIntegerToFloat": _integers_to_floats,
    "NhwcConv": _nhwc_conv,
    "QLinearAdd": _quantized("Add", operands=2),
    "QLinearLeakyRelu": _quantized_leaky,
    "QLinearMul": _quantized("Mul", operands=2),
    "QLinearSigmoid": _quantized("Sigmoid", operands=1),
    "QuantizeLinear": _one_to_one("QuantizeLinear"),
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
}
