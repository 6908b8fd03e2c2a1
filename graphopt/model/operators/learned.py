"""Operators of ai.onnx.ml whose schemas do not infer what they give: float32, for each element or each row."""

from __future__ import annotations

from math import prod

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
    """The best class of each row, and a score of each class; of each pair of more than two where pairs vote."""
    shape = source_shape(node, facts)
    numbers, texts = (
        attribute_of(node, f"classlabels_{kind}")
        for kind in ("int64s" if node.op_type.startswith("Tree") else "ints", "strings")
    )
    kind = ir.DataType.INT64 if numbers is not None else ir.DataType.STRING
    count = sum(len(one.value) for one in (numbers, texts) if one is not None)
    if node.op_type == "SVMClassifier" and count > 2 and not _has_numbers(node, "prob_a"):
        count = count * (count - 1) // 2 if sum(_integers(node, "vectors_per_class")) else count
    rows = None if shape is None else shape[0] if len(shape) > 1 else 1
    label = Known(ir.TensorType(kind), None if rows is None else (rows,), None)
    return (label, Known(ir.TensorType(ir.DataType.FLOAT), None if rows is None else (rows, count), None))


def _has_numbers(node: ir.Node, name: str) -> bool:
    found = attribute_of(node, name)
    return found is not None and len(found.value) > 0


def _integers(node: ir.Node, name: str) -> list[int]:
    found = attribute_of(node, name)
    return [] if found is None else [int(one) for one in found.value]


def _chosen(node: ir.Node, facts: Knowledge) -> Result:
    """As many of the last dim as there are indices; of a vector one row."""
    shape, places = source_shape(node, facts), None if node.inputs[1] is None else facts.shape(node.inputs[1])
    kind = None if node.inputs[0] is None else facts.known(node.inputs[0]).type
    if shape is None or places is None or not shape:
        return (Known(kind, None, None),)
    return (Known(kind, (*(shape[:-1] or (1,)), prod(places)), None),)


OPERATORS = (
    *(
        Operator(name=name, domain=DOMAIN, shape=_rows_of_targets)
        for name in ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor")
    ),
    *(Operator(name=name, domain=DOMAIN, shape=_elements) for name in ("Normalizer", "Scaler")),
    Operator(name="ArrayFeatureExtractor", domain=DOMAIN, shape=_chosen, reads="selected"),
    Operator(name="Imputer", domain=DOMAIN, shape=same_as_first),
    *(
        Operator(name=name, domain=DOMAIN, shape=_label_and_scores)
        for name in ("LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier")
    ),
)
