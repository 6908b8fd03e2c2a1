"""Operators of ai.onnx.ml whose schemas do not infer what they give: float32, a row of targets for each row."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.known import Knowledge, Known
from graphopt.model.nodes import int_attribute
from graphopt.model.operators.record import Operator
from graphopt.model.operators.shapes import Result, source_shape

DOMAIN = "ai.onnx.ml"


def _rows_of_targets(node: ir.Node, facts: Knowledge) -> Result:
    shape, kind = source_shape(node, facts), ir.TensorType(ir.DataType.FLOAT)
    count = int_attribute(node, "n_targets" if node.op_type.startswith("Tree") else "targets", 1)
    if shape is None:
        return (Known(kind, None, None),)
    return (Known(kind, (shape[0] if len(shape) > 1 else 1, count), None),)


OPERATORS = tuple(
    Operator(name=name, domain=DOMAIN, shape=_rows_of_targets)
    for name in ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor")
)
