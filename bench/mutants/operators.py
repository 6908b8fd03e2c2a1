"""Other operators in an operator's place: what it is mistaken for, what may be dropped, what may be slipped in."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper, numpy_helper

# Operators of equal arity that a faulty rewrite could confuse.
OTHERS: dict[str, tuple[str, ...]] = {
    "Add": ("Sub", "Mul"), "Sub": ("Add",), "Mul": ("Div", "Add"), "Div": ("Mul",), "Max": ("Min", "Sum"),
    "Min": ("Max",), "Relu": ("LeakyRelu", "Abs", "Elu", "HardSwish", "Softplus"),
    "LeakyRelu": ("Relu", "Elu"), "Elu": ("Relu", "Selu", "Celu"), "Selu": ("Elu",), "Celu": ("Elu", "Relu"),
    "Sigmoid": ("HardSigmoid", "Tanh"), "HardSigmoid": ("Sigmoid",), "Tanh": ("Sigmoid", "Softsign", "Erf"),
    "Softplus": ("Relu",), "Softsign": ("Tanh",), "Erf": ("Tanh",), "HardSwish": ("Relu", "Mish"),
    "Mish": ("HardSwish",), "Floor": ("Ceil", "Round"), "Ceil": ("Floor", "Round"), "Round": ("Floor", "Ceil"),
    "Greater": ("GreaterOrEqual", "Less"), "GreaterOrEqual": ("Greater",), "Less": ("LessOrEqual", "Greater"),
    "LessOrEqual": ("Less",), "Equal": ("GreaterOrEqual", "LessOrEqual"), "And": ("Or", "Xor"),
    "Or": ("And", "Xor"), "Xor": ("Or",), "Sin": ("Cos",), "Cos": ("Sin",), "Sinh": ("Tan", "Asinh"),
    "Exp": ("Softplus",), "Log": ("Sqrt",), "Sqrt": ("Reciprocal",), "Reciprocal": ("Sqrt",),
    "Softmax": ("LogSoftmax", "Hardmax", "Sigmoid"), "LogSoftmax": ("Softmax",), "Hardmax": ("Softmax",),
    "ArgMax": ("ArgMin",), "ArgMin": ("ArgMax",), "ReduceSum": ("ReduceMean", "ReduceMax", "ReduceL1"),
    "ReduceMean": ("ReduceSum", "ReduceMax", "ReduceL2"), "ReduceMax": ("ReduceMin", "ReduceSum"),
    "ReduceMin": ("ReduceMax",), "ReduceL1": ("ReduceSum", "ReduceL2"), "ReduceL2": ("ReduceSumSquare", "ReduceL1"),
    "ReduceSumSquare": ("ReduceL2", "ReduceSum"), "ReduceLogSum": ("ReduceLogSumExp",),
    "ReduceLogSumExp": ("ReduceLogSum", "ReduceMax"), "ReduceProd": ("ReduceSum",),
    "MaxPool": ("AveragePool",), "AveragePool": ("MaxPool",), "GlobalAveragePool": ("GlobalMaxPool",),
    "GlobalMaxPool": ("GlobalAveragePool",), "BitwiseAnd": ("BitwiseOr", "BitwiseXor"), "BitwiseOr": ("BitwiseXor",),
    "Gelu": ("Relu", "Mish", "HardSwish"), "IsNaN": ("IsInf",), "IsInf": ("IsNaN",), "Sum": ("Mean", "Max"),
    "Mean": ("Sum",), "Pow": ("Mul",), "InstanceNormalization": ("BatchNormalization",), "Neg": ("Reciprocal",),
}  # fmt: skip
DROPPED = frozenset({
    "Abs", "Clip", "Neg", "Round", "Floor", "Ceil", "Sign", "Relu", "Sigmoid", "Tanh", "Not", "Softmax", "Trilu",
    "BatchNormalization", "LeakyRelu", "Sqrt", "Reciprocal", "Mod", "Add", "Mul", "Sub", "Max", "Min", "Where",
    "LayerNormalization", "Transpose", "CumSum", "LRN", "LpNormalization", "InstanceNormalization", "PRelu",
    "ScatterND", "ScatterElements", "Pow", "Div", "Cast", "Gelu", "Erf", "Resize", "Hardmax", "ReverseSequence",
    "BitwiseNot", "Softplus", "Dropout", "Expand", "Tile", "And", "Or",
})  # fmt: skip
SLIPPED_IN = ("Abs", "Relu", "Clip6", "half", "integer", "Floor", "maximum 0")


def replaced(graph: onnx.GraphProto, node: onnx.NodeProto, opset: int, rng: random.Random) -> str:
    """Give a node another operator; attributes that it does not know are left out. Says what was done."""
    old, new = node.op_type, rng.choice(OTHERS[node.op_type])
    schema = onnx.defs.get_schema(new, opset, node.domain)  # SchemaError where the opset does not have it
    node.op_type = new
    _carry_axes(graph, node, schema)
    kept = [attribute for attribute in node.attribute if attribute.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    del node.input[schema.max_input :]
    del node.output[schema.max_output :]
    return f"{old} -> {new}"


def dropped(node: onnx.NodeProto) -> str:
    """Let a node hand its first input on, or the middle one of a Where."""
    old = node.op_type
    kept = node.input[1 if old == "Where" else 0]
    node.CopyFrom(onnx.NodeProto(op_type="Identity", input=[kept], output=list(node.output)[:1], name=node.name))
    return f"{old} dropped"


def slipped_in(graph: onnx.GraphProto, node: onnx.NodeProto, rng: random.Random) -> str:
    """Put an operator that changes only some values behind the first output of a node."""
    kind = rng.choice(SLIPPED_IN)
    before, after = f"{node.output[0]}__before", node.output[0]
    place = _place(graph, node)
    node.output[0] = before
    name = f"{after}__slipped"
    match kind:
        case "Clip6":
            new = [_constant(f"{name}_low", -6.0), _constant(f"{name}_high", 6.0),
                   helper.make_node("Clip", [before, f"{name}_low", f"{name}_high"], [after])]  # fmt: skip
        case "half":
            new = _casts(before, after, name, TensorProto.FLOAT16)
        case "integer":
            new = _casts(before, after, name, TensorProto.INT32)
        case "maximum 0":
            new = [_constant(f"{name}_zero", 0.0), helper.make_node("Max", [before, f"{name}_zero"], [after])]
        case _:
            new = [helper.make_node(kind, [before], [after])]
    for step, item in enumerate(new):
        graph.node.insert(place + 1 + step, item)
    return f"{kind} slipped in behind {node.op_type}"


def _casts(before: str, after: str, name: str, through: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [before], [name], to=through),
        helper.make_node("Cast", [name], [after], to=TensorProto.FLOAT),
    ]


def _constant(name: str, number: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=helper.make_tensor(name, TensorProto.FLOAT, [], [number]))


def _place(graph: onnx.GraphProto, node: onnx.NodeProto) -> int:
    return next(place for place, other in enumerate(graph.node) if other.output[:] == node.output[:])


def _carry_axes(graph: onnx.GraphProto, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Axes are an attribute in some operators of an opset and an input in others."""
    if "axes" in schema.attributes and len(node.input) > 1 and node.op_type.startswith("Reduce"):
        for tensor in _tensors(graph):
            if tensor.name == node.input[1]:
                node.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(tensor).tolist()))
    elif schema.max_input > 1 and node.op_type.startswith("Reduce"):
        for attribute in node.attribute:
            if attribute.name == "axes":
                name = f"{node.output[0]}__axes"
                graph.initializer.append(
                    helper.make_tensor(name, TensorProto.INT64, [len(attribute.ints)], attribute.ints)
                )
                node.input.append(name)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensor = onnx.TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            yield tensor
