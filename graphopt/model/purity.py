"""Which operators may be folded, merged or moved: those whose result depends on nothing but their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model import constants, nodes

# Operators of the standard that draw random numbers.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)

# Domains whose operators are functions of their inputs alone.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml"})

# The contrib operators that draw random numbers or keep a state; the rest of com.microsoft is not known well
# enough to be called pure, so only those that appear here by name are.
PURE_CONTRIB = frozenset(
    {
        "BiasGelu", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "QuickGelu",
        "MultiHeadAttention",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization",
        "DequantizeLinear", "QuantizeLinear", "QLinearAdd", "QLinearMul", "QLinearConv", "QLinearMatMul",
        "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "NhwcConv", "Inverse",
    }
)  # fmt: skip

Functions = Mapping[ir.OperatorIdentifier, ir.Function]


def is_pure(node: ir.Node, functions: Functions, opset: int) -> bool:
    """Whether two runs of the node on equal inputs give equal outputs and nothing else happens.

    Unknown custom operators are not pure: they may be random, stateful or have effects. A call of a model-local
    function, and a node with subgraphs, is as pure as everything inside.
    """
    function = functions.get(node.op_identifier())
    if function is not None:
        version = function.opset_imports.get("", opset)
        return all(is_pure(inner, functions, version) for inner in function)
    if node.domain == "com.microsoft":
        return node.op_type in PURE_CONTRIB
    if node.domain not in PURE_DOMAINS:
        return False
    if node.op_type in RANDOM:
        return False
    if node.op_type == "Dropout" and _may_train(node, opset):
        return False
    if node.op_type == "BatchNormalization" and _trains(node):
        return False
    return all(is_pure(inner, functions, opset) for graph in nodes.subgraphs(node) for inner in graph)


def _trains(node: ir.Node) -> bool:
    """Whether a BatchNormalization is, or may be made by its function's caller, one that trains."""
    mode = node.attributes.get("training_mode")
    return mode is not None and (mode.is_ref() or bool(mode.as_int()))


def _may_train(node: ir.Node, opset: int) -> bool:
    """Whether a Dropout could be in training mode: its flag, an attribute at first and an input later, is not false."""
    if opset < 7:
        return not nodes.int_attribute(node, "is_test", 0)
    flag = nodes.input_at(node, 2)
    if flag is None:
        return False
    if flag.is_initializer() and not flag.is_graph_input() and flag.const_value is not None:
        return bool(flag.const_value.numpy().item())
    producer = flag.producer()
    if producer is not None and producer.op_type == "Constant":
        tensor = constants.of_constant_node(producer)
        return tensor is None or bool(tensor.numpy().item())
    return True
