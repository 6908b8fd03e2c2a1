"""The operators and types behind an output: the coarsest type sets what a difference may be at least.

Behind sums of products, regrouping decides whether infinities of both signs meet.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.check.tolerance import LIMITS
from graphopt.model import nodes
from graphopt.model.facts import Facts

DEEPEST = 16  # moves between a function and an output
SUMS = frozenset(
    {
        "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN", "BatchNormalization",
        "LayerNormalization", "InstanceNormalization", "GroupNormalization", "ReduceMean", "ReduceSum",
    }
)  # fmt: skip

# Rounding to steps, of which a sum that is a unit off in the last place may take another.
STEPS = frozenset(
    {
        "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QGemm",
        "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearReduceMean",
        "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QAttention", "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
    }
)  # fmt: skip
# Functions whose results lie anywhere, whatever digits their operands have: none is meant to stand on a tie.
ROUNDED = frozenset(
    {
        "LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization", "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
        "MeanVarianceNormalization", "Sqrt", "Softmax", "LogSoftmax", "Exp", "Log", "Erf", "Tanh", "Gelu", "FastGelu",
        "BiasGelu", "QuickGelu", "Attention", "MultiHeadAttention", "GroupQueryAttention",
    }
)  # fmt: skip
# Where recurrent layers that round their state before each step have the scale of the matrix that it is multiplied by.
STATE_SCALES = {"DynamicQuantizeLSTM": 10}

# Functions that engines compute to a unit of one, which is the range of most, and what only moves their results.
BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "Tanh", "Erf"})
SIGNED = frozenset({"Tanh", "Erf"})  # of these: from -1 to 1
MOVES = frozenset(
    {
        "Identity", "Reshape", "Transpose", "Concat", "Slice", "Split", "Squeeze", "Unsqueeze", "Flatten", "Gather",
        "Resize", "Expand", "Dropout", "ReduceMean", "ReduceMax", "ReduceMin",
    }
)  # fmt: skip


def bounded_outputs(model: ir.Model) -> frozenset[str]:
    """The names of the outputs that hold nothing but results of functions whose range is 0 or -1 to 1, moved about."""

    def is_bounded(value: ir.Value | None, depth: int) -> bool:
        node = None if value is None else value.producer()
        if node is None or depth > DEEPEST:
            return False
        if node.op_type in BOUNDED:
            return True
        operands = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        return node.op_type in MOVES and all(is_bounded(operand, depth + 1) for operand in operands)

    return frozenset(value.name or "" for value in model.graph.outputs if is_bounded(value, 0))


def summed_outputs(model: ir.Model) -> frozenset[str]:
    """The names of the outputs that depend on a sum of products, or on a mean."""
    return _outputs_behind(model, SUMS)


def stepped_outputs(model: ir.Model) -> frozenset[str]:
    """The names of the outputs that depend on quantized numbers which are computed."""
    return _outputs_behind(model, STEPS)


def _outputs_behind(model: ir.Model, kinds: frozenset[str]) -> frozenset[str]:
    """The names of the outputs that depend on a result of one of these operators."""
    behind: set[ir.Value] = set()
    for node in model.graph:
        inner = [item for graph in nodes.subgraphs(node) for item in nodes.nodes_of(graph)]
        function = model.functions.get(node.op_identifier())
        inner += [] if function is None else list(nodes.nodes_of(function))
        everything = (node, *inner)
        if any(item.op_type in kinds or any(value in behind for value in item.inputs) for item in everything):
            behind.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in behind)


def limits_of(model: ir.Model, facts: Facts, tolerance: float | None = None) -> dict[str, float]:
    """By name of an output, how much it may differ relatively; `tolerance` is taken for all where it is given."""
    coarsest: dict[ir.Value, float] = {}

    def own(value: ir.Value) -> float:
        kind = facts.dtype(value)
        return LIMITS.get(kind.numpy().name, 0.0) if kind is not None and kind.is_floating_point() else 0.0

    for value in model.graph.inputs:
        coarsest[value] = own(value)
    for node in model.graph:
        read = [value for value in node.inputs if value is not None]
        inner = [item for graph in nodes.subgraphs(node) for item in nodes.nodes_of(graph)]
        function = model.functions.get(node.op_identifier())
        inner += [] if function is None else list(nodes.nodes_of(function))
        read += [value for item in inner for value in item.inputs if value is not None]
        limit = max((coarsest.get(value, 0.0) for value in read), default=0.0)
        limit = max([limit, *(own(value) for item in inner for value in item.outputs)])
        for value in node.outputs:
            coarsest[value] = max(limit, own(value))
    found = {value.name or "": coarsest.get(value, 0.0) for value in model.graph.outputs}
    return {name: tolerance if tolerance is not None else limit for name, limit in found.items() if limit or tolerance}
