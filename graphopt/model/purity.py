"""Which operators may be folded, merged or moved: those whose result depends on nothing but their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.operators.table import operator_of

# Domains whose operators are functions of their inputs alone, where no record says otherwise.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml"})

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
    operator = operator_of(node)
    if operator is None and node.domain not in PURE_DOMAINS:
        return False
    purity = "pure" if operator is None else operator.purity
    if purity == "random" or (purity == "training" and _may_train(node, opset)):
        return False
    return all(is_pure(inner, functions, opset) for graph in nodes.subgraphs(node) for inner in graph)


def follows_from_inputs(node: ir.Node, functions: Functions, opset: int) -> bool:
    """Whether equal inputs give equal outputs: a pure node, and a BatchNormalization that trains.

    Networks standardize their weights with the latter. From opset 14 on the running statistics are its outputs; before,
    they were its inputs, which it changed.
    """
    trains = node.op_type == "BatchNormalization" and nodes.is_standard(node) and opset >= 14
    return trains or is_pure(node, functions, opset)


def _may_train(node: ir.Node, opset: int) -> bool:
    """Whether a BatchNormalization or a Dropout could be in training mode.

    Of the first an attribute says so, which a function's caller may give. Of the second a flag that is not false, an
    attribute at first and an input later.
    """
    if node.op_type == "BatchNormalization":
        mode = node.attributes.get("training_mode")
        return mode is not None and (mode.is_ref() or bool(mode.as_int()))
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
