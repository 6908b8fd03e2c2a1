"""Which operators can work in another layout, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.model import nodes
from graphopt.model.operators.table import operator_of
from graphopt.passes.layout import axes, elementwise, regroup, resampling
from graphopt.passes.layout.flip import Flat, Flip, Question

Handler = Callable[[Question], Flip]


def _product(question: Question) -> Flip:
    handler = regroup.product_of_columns if isinstance(question.label, Flat) else axes.matmul
    return handler(question)


# Operators whose axes are told by more than names, or that the other form changes otherwise.
SPECIAL: Mapping[str, Handler] = {
    "QuantizeLinear": elementwise.quantized,
    "DequantizeLinear": elementwise.quantized,
    "Unsqueeze": axes.unsqueeze,
    "Pad": axes.pad,
    "Slice": axes.slice_,
    "Tile": axes.tile,
    "Transpose": axes.transpose,
    "Expand": axes.expand,
    "Shape": axes.shape,
    "Size": axes.size,
    "MatMul": _product,
    "Gemm": regroup.product_of_columns,
    "Resize": resampling.resize,
    "Upsample": resampling.resize,
    "Reshape": regroup.reshape,
    "Flatten": regroup.flatten,
}


def standard(question: Question) -> Flip:
    """The answer of a standard operator; raises Refused."""
    node, operator = question.node, operator_of(question.node)
    handler = SPECIAL.get(node.op_type)
    rule = None if operator is None else operator.axes
    if not nodes.is_standard(node) or (handler is None and rule is None):
        question.refuse("its axes have fixed meanings")
    if nodes.has_reference_attributes(node):
        question.refuse("an attribute is given by the function's caller")
    if handler is not None:
        return handler(question)
    if rule == "broadcast":
        return elementwise.broadcast(question)
    return elementwise.unary(question) if rule is None or isinstance(rule, str) else axes.described(question, rule)
