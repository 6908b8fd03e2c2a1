"""Classifiers whose labels are texts, as classifiers with numbers for labels, and what gives each number its text.

    TreeEnsembleClassifier <classlabels_strings>  -->  TreeEnsembleClassifier <classlabels_int64s> -> LabelEncoder

The scores and the choice among them then have kernels, and only the texts are left to ONNX Runtime.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.learned import DOMAIN

NUMBERS = {"TreeEnsembleClassifier": "int64s", "LinearClassifier": "ints", "SVMClassifier": "ints"}


def with_numbered_labels(model: ir.Model) -> ir.Model:
    """A model with such classifiers in the place of those of texts; the same one where there are none."""
    if not any(map(_has_texts, model.graph)):
        return model
    work = model.clone()
    version = work.graph.opset_imports.get(DOMAIN, 1)
    for node in [one for one in work.graph if _has_texts(one)]:
        texts = list(node.attributes.pop("classlabels_strings").as_strings())
        name = f"classlabels_{NUMBERS[node.op_type]}"
        node.attributes[name] = ir.AttrInt64s(name, range(len(texts)))
        label = node.outputs[0]
        if version > 1:
            table = [ir.AttrInt64s("keys_int64s", range(len(texts))), ir.AttrStrings("values_strings", texts)]
        else:
            table = [ir.AttrStrings("classes_strings", texts)]
        encoder = ir.Node(DOMAIN, "LabelEncoder", [None], table, num_outputs=1, name=label.name)
        text = encoder.outputs[0]
        text.type, text.shape = ir.TensorType(ir.DataType.STRING), label.shape
        label.replace_all_uses_with(text, replace_graph_outputs=True)
        encoder.replace_input_with(0, label)
        text.name, label.name = label.name, f"{label.name}:number"
        label.type = ir.TensorType(ir.DataType.INT64)
        work.graph.insert_after(node, encoder)
    return work


def _has_texts(node: ir.Node) -> bool:
    if node.domain != DOMAIN or node.op_type not in NUMBERS or not nodes.is_used(node.outputs[0]):
        return False
    texts = nodes.attribute_of(node, "classlabels_strings")
    return texts is not None and len(texts.value) > 0
