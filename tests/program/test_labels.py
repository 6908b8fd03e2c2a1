"""Classifiers whose labels are texts: kernels choose a number, and ONNX Runtime only gives the text."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests import support

CLASSIFIERS = {
    "trees of three": """TreeEnsembleClassifier<classlabels_strings = ["ant", "bee", "cat"], post_transform = "NONE",
        nodes_treeids = [0, 0, 0, 0, 0], nodes_nodeids = [0, 1, 2, 3, 4], nodes_featureids = [0, 0, 1, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.1, 0.0, -0.2, 0.0, 0.0],
        nodes_truenodeids = [1, 0, 3, 0, 0], nodes_falsenodeids = [2, 0, 4, 0, 0], class_treeids = [0, 0, 0],
        class_nodeids = [1, 3, 4], class_ids = [0, 1, 2], class_weights = [1.0, 1.0, 1.0]>""",
    "trees of two": """TreeEnsembleClassifier<classlabels_strings = ["no", "yes"], post_transform = "LOGISTIC",
        nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [1, 0, 0],
        nodes_modes = ["BRANCH_LT", "LEAF", "LEAF"], nodes_values = [0.3, 0.0, 0.0], nodes_truenodeids = [1, 0, 0],
        nodes_falsenodeids = [2, 0, 0], class_treeids = [0, 0], class_nodeids = [1, 2], class_ids = [0, 0],
        class_weights = [0.7, -0.4]>""",
    "lines": """LinearClassifier<classlabels_strings = ["no", "yes"], coefficients = [0.5, 1.0, -0.5, -1.0],
        intercepts = [0.1, -0.1]>""",
    "vectors": """SVMClassifier<classlabels_strings = ["no", "yes"], kernel_type = "LINEAR", coefficients = [1.0, -1.0],
        support_vectors = [0.5, 1.0, -1.0, 0.25], vectors_per_class = [1, 1], rho = [0.1],
        kernel_params = [0.0, 0.0, 3.0]>""",
}


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("kind", sorted(CLASSIFIERS))
def test_only_the_texts_are_left_to_onnx_runtime(kind: str, version: int) -> None:
    classes = 3 if kind == "trees of three" else 2
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : {version}]>
        g (float[9,2] x) => (string[9] label, float[9,{classes}] scores) {{
            label, scores = ai.onnx.ml.{CLASSIFIERS[kind]}(x)
        }}""")
    program = graphopt.compile(proto)
    assert program.fallback == ("ai.onnx.ml.LabelEncoder 'label'",)
    feed = {"x": np.random.default_rng(0).standard_normal((9, 2)).astype("f4")}
    (label, scores), (wanted, others) = program.run(None, feed), support.session(proto).run(None, feed)
    assert label.tolist() == wanted.tolist() and len(set(label.tolist())) > 1
    np.testing.assert_allclose(scores, others, rtol=1e-6)


def test_numbers_stay_numbers() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[9,2] x) => (int64[9] label, float[9,2] scores) {
            label, scores = ai.onnx.ml.LinearClassifier<classlabels_ints = [3, 7],
                coefficients = [0.5, 1.0, -0.5, -1.0], intercepts = [0.1, -0.1]>(x)
        }""")
    assert not graphopt.compile(proto).fallback
