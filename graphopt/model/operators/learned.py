"""Operators of ai.onnx.ml whose schemas do not infer what they give: float32, for each element or each row."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.known import Knowledge, Known
from graphopt.model.nodes import attribute_of, int_attribute
from graphopt.model.operators.record import Operator
from graphopt.model.operators.shapes import Result, same_as_first, source_shape

DOMAIN = "ai.onnx.ml"


def _rows_of_targets(node: ir.Node, facts: Knowledge) -> Result:
    shape, kind = source_shape(node, facts), ir.TensorType(ir.DataType.FLOAT)
    count = int_attribute(node, "n_targets" if node.op_type.startswith("Tree") else "targets", 1)
    if shape is None:
        return (Known(kind, None, None),)
    return (Known(kind, (shape[0] if len(shape) > 1 else 1, count), None),)


def _elements(node: ir.Node, facts: Knowledge) -> Result:
    """A number for each of the operand's, whatever its type."""
    return (Known(ir.TensorType(ir.DataType.FLOAT), source_shape(node, facts), None),)


def _label_and_scores(node: ir.Node, facts: Knowledge) -> Result:
    """The best class of each row, and a score of each class."""
    shape = source_shape(node, facts)
    numbers, texts = (
        attribute_of(node, f"classlabels_{kind}")
        for kind in ("ints" if node.op_type.startswith("Linear") else "int64s", "strings")
    )
    kind = ir.DataType.INT64 if numbers is not None else ir.DataType.STRING
    count = sum(len(one.value) for one in (numbers, texts) if one is not None)
    rows = None if shape is None else shape[0] if len(shape) > 1 else 1
    label = Known(ir.TensorType(kind), None if rows is None else (rows,), None)
    return (label, Known(ir.TensorType(ir.DataType.FLOAT), None if rows is None else (rows, count), None))


OPERATORS = (
    *(
        Operator(name=name, domain=DOMAIN, shape=_rows_of_targets)
        for name in ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor")
    ),
    *(Operator(name=name, domain=DOMAIN, shape=_elements) for name in ("Normalizer", "Scaler")),
    Operator(name="Imputer", domain=DOMAIN, shape=same_as_first),
    *(
        Operator(name=name, domain=DOMAIN, shape=_label_and_scores)
        for name in ("LinearClassifier", "TreeEnsembleClassifier")
    ),
)
