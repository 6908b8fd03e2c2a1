"""Which operators can work in another layout, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.model import nodes
from graphopt.passes.algebra.transpose import UNARY
from graphopt.passes.layout import axes, elementwise, regroup, resampling
from graphopt.passes.layout.flip import Flat, Flip, Question

Handler = Callable[[Question], Flip]


def _product(question: Question) -> Flip:
    handler = regroup.product_of_columns if isinstance(question.label, Flat) else axes.matmul
    return handler(question)


STANDARD: Mapping[str, Handler] = {
    **dict.fromkeys(UNARY | {"Dropout", "CastLike", "DynamicQuantizeLinear", "BitCast", "ThresholdedRelu"},
                    elementwise.unary),
    **dict.fromkeys(
        (
            "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Less",
            "Greater", "LessOrEqual", "GreaterOrEqual", "Where", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr",
            "BitwiseXor", "Mod",
        ),
        elementwise.broadcast,
    ),
    "QuantizeLinear": elementwise.quantized,
    "DequantizeLinear": elementwise.quantized,
    "Concat": axes.concat,
    "Split": axes.split,
    "Softmax": axes.softmax,
    "LogSoftmax": axes.softmax,
    "Hardmax": axes.softmax,
    "LpNormalization": axes.last_axis_by_default,
    "TopK": axes.last_axis_by_default,
    "GatherElements": axes.elements,
    "ScatterElements": axes.elements,
    **dict.fromkeys(
        (
            "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceSumSquare",
        ),
        axes.reduce,
    ),
    "ArgMax": axes.argument,
    "ArgMin": axes.argument,
    "Gather": axes.gather,
    "Squeeze": axes.squeeze,
    "Unsqueeze": axes.unsqueeze,
    "CumSum": axes.cumsum,
    "Pad": axes.pad,
    "Slice": axes.slice_,
    "Tile": axes.tile,
    "Transpose": axes.transpose,
    "Expand": axes.expand,
    "Shape": axes.shape,
    "Size": axes.size,
    "MeanVarianceNormalization": axes.mean_variance,
    "LayerNormalization": axes.layer_normalization,
    "MatMul": _product,
    "Gemm": regroup.product_of_columns,
    "Resize": resampling.resize,
    "Upsample": resampling.resize,
    "Reshape": regroup.reshape,
    "Flatten": regroup.flatten,
}  # fmt: skip


def standard(question: Question) -> Flip:
    """The answer of a standard operator; raises Refused."""
    node = question.node
    handler = STANDARD.get(node.op_type)
    if handler is None or not nodes.is_standard(node):
        question.refuse("its axes have fixed meanings")
    if nodes.has_reference_attributes(node):
        question.refuse("an attribute is given by the function's caller")
    return handler(question)
