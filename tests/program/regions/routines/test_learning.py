"""Operators of ai.onnx.ml and n-grams as loops, beside ONNX Runtime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.errors import NotLowered
from graphopt.program.regions.routines import trees as ensembles
from tests.program.regions.routines.one_node import held, same

ML = "ai.onnx.ml"
X = np.random.default_rng(0).standard_normal((5, 4)).astype("f4")


def learned(op: str, inputs: list[np.ndarray], *, outputs: int = 1, tolerance: float = 1e-6, **attributes: Any) -> None:
    same(op, inputs, outputs=outputs, opset=15, tolerance=tolerance, domain=ML, **attributes)  # type: ignore[arg-type]


def test_features_are_chosen_scaled_and_joined() -> None:
    learned("ArrayFeatureExtractor", [X, np.array([[3, 0, 1]])])
    learned("Binarizer", [X], threshold=0.25)
    learned("Scaler", [X], offset=[0.5, 1.0, -1.0, 0.0], scale=[2.0, 1.0, 0.5, 3.0])
    learned("Scaler", [X], offset=[0.5], scale=[2.0])
    learned("FeatureVectorizer", [X, X[:, :2].copy()], inputdimensions=[4, 2])
    held("FeatureVectorizer", [X], [np.pad(X, ((0, 0), (0, 2)))], inputdimensions=[6], domain=ML)
    holes = X.copy()
    holes[1, 2] = holes[3, 0] = np.nan
    learned("Imputer", [holes], imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan"))
    learned("Imputer", [np.array([[1, -1], [-1, 2]])], imputed_value_int64s=[7], replaced_value_int64=-1)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalized(norm: str) -> None:
    learned("Normalizer", [np.abs(X)], norm=norm)


def test_labels_and_categories() -> None:
    learned("LabelEncoder", [np.array([3, 1, 9, 1])], keys_int64s=[1, 3], values_floats=[0.5, 1.5], default_float=-2.0)
    numbers = np.array([0.5, np.nan, 4.0], np.float32)
    held("LabelEncoder", [numbers], [np.array([-3, 7, 8])], keys_floats=[float("nan"), 4.0], values_int64s=[7, 8],
         default_int64=-3, domain=ML)  # fmt: skip
    learned("OneHotEncoder", [np.array([[2, 5], [1, 2]])], cats_int64s=[1, 2, 3], zeros=1)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_models(post: str) -> None:
    numbers = [0.1 * one for one in range(-6, 6)]
    learned("LinearRegressor", [X], coefficients=numbers[:8], intercepts=[0.5, -0.5], targets=2)
    learned("LinearClassifier", [X], outputs=2, coefficients=numbers, intercepts=[0.1, 0.2, 0.3], multi_class=1,
            classlabels_ints=[4, 2, 9], post_transform=post)  # fmt: skip


KERNELS = {"RBF": [0.3, 0.0, 3.0], "POLY": [0.2, 0.5, 3.0], "SIGMOID": [0.2, 0.1, 3.0], "LINEAR": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vectors_that_give_numbers(kernel: str) -> None:
    numbers = np.random.default_rng(3).standard_normal((7, 4)).astype("f4")
    machine = {"coefficients": [0.5, -1.0, 0.25, 2.0, -0.75, 1.5, -0.125], "n_supports": 7, "rho": [0.25],
               "support_vectors": numbers.ravel().tolist(), "kernel_type": kernel,
               "kernel_params": KERNELS[kernel]}  # fmt: skip
    learned("SVMRegressor", [X], tolerance=1e-5, **machine)
    learned("SVMRegressor", [X], one_class=1, **machine)


def test_a_regressor_without_vectors_is_linear() -> None:
    learned("SVMRegressor", [X], coefficients=[0.5, -1.0, 0.25, 2.0], n_supports=0, rho=[0.25],
            kernel_type="LINEAR", kernel_params=KERNELS["LINEAR"])  # fmt: skip


def machine(classes: int, kernel: str, *, least: float | None = None) -> dict[str, Any]:
    """A classifier of three vectors for each class and one more for the last."""
    draw = np.random.default_rng(classes)
    sizes = [3] * (classes - 1) + [4]
    factors = draw.standard_normal((classes - 1) * sum(sizes))
    factors = factors if least is None else np.maximum(np.abs(factors), least)
    return {
        "coefficients": factors.tolist(), "vectors_per_class": sizes, "classlabels_ints": [4, 2, 9, 7][:classes],
        "support_vectors": draw.standard_normal(sum(sizes) * 4).tolist(), "kernel_type": kernel,
        "kernel_params": KERNELS[kernel], "rho": draw.standard_normal(classes * (classes - 1) // 2).tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_support_vectors_that_vote(kernel: str, classes: int) -> None:
    learned("SVMClassifier", [X], outputs=2, tolerance=1e-5, **machine(classes, kernel))


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_votes_become_probabilities(classes: int) -> None:
    pairs = classes * (classes - 1) // 2
    odds = {"prob_a": [-1.5, -0.5, -2.0, -1.0, -0.75, -3.0][:pairs], "prob_b": [0.1, -0.2, 0.0, 0.3, 0.2, -0.1][:pairs]}
    learned("SVMClassifier", [X], outputs=2, tolerance=1e-5, **machine(classes, "RBF"), **odds)


def test_two_classes_without_a_negative_coefficient() -> None:
    learned("SVMClassifier", [X], outputs=2, tolerance=1e-5, **machine(2, "LINEAR", least=0.1))


@pytest.mark.parametrize("post", ["SOFTMAX", "LOGISTIC"])
def test_scores_of_pairs_are_transformed(post: str) -> None:
    learned("SVMClassifier", [X], outputs=2, tolerance=1e-5, post_transform=post, **machine(3, "RBF"))


def test_one_score_of_a_pair_is_not_transformed() -> None:
    with pytest.raises(NotLowered, match="'n' has one score that is transformed by LOGISTIC"):
        learned("SVMClassifier", [X], outputs=2, name="n", post_transform="LOGISTIC", **machine(2, "RBF"))


def trees(prefix: str, classes: int) -> dict[str, Any]:
    """Two trees: one of three leaves, one that is split once."""
    ids = list(range(classes))
    return {
        "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0], "nodes_values": [0.1, -0.2, 0, 0, 0, 0.3, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0, 0],
        f"{prefix}_treeids": [0, 0, 0, 1, 1], f"{prefix}_nodeids": [2, 3, 4, 1, 2],
        f"{prefix}_ids": [ids[one % classes] for one in (0, 1, 2, 1, 0)],
        f"{prefix}_weights": [0.5, 0.25, 0.75, 0.125, 0.375],
    }  # fmt: skip


@pytest.mark.parametrize("way", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_trees_that_give_numbers(way: str) -> None:
    x = X.copy()
    x[2, 0] = np.nan
    given = trees("target", 2)
    for name, more in (("treeids", [1, 1]), ("nodeids", [1, 2]), ("ids", [0, 1]), ("weights", [0.5, 1.5])):
        given[f"target_{name}"] += more  # each row has both targets: without one ONNX Runtime leaves out its base value
    learned("TreeEnsembleRegressor", [x], n_targets=2, aggregate_function=way, base_values=[0.5, 1.0],
            **given)  # fmt: skip


@pytest.mark.parametrize("count", [1, 8, 11])
def test_more_trees_than_walk_at_a_time(count: int) -> None:
    """Of two splits each, whose second is missing from every third tree; NaN goes where a node says."""
    rows: dict[str, list[object]] = {name: [] for name in (
        "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
        "missing_value_tracks_true")}  # fmt: skip
    leaves: dict[str, list[object]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        nodes = [("BRANCH_LEQ", 1, 2), ("LEAF", 0, 0), *([("LEAF", 0, 0)] if tree % 3 == 2 else
                 [("BRANCH_LEQ", 3, 4), ("LEAF", 0, 0), ("LEAF", 0, 0)])]  # fmt: skip
        for number, (mode, yes, no) in enumerate(nodes):
            told = tree, number, (tree + number) % 3, mode, (tree - number) / 4, yes, no, tree % 2
            for name, one in zip(rows, told, strict=True):
                rows[name].append(one)
            if mode == "LEAF":
                for name, one in zip(leaves, (tree, number, 0, tree + number / 8), strict=True):
                    leaves[name].append(one)
    x = np.linspace(-2, 3, 21, dtype=np.float32).reshape(7, 3)
    x[3, 1] = np.nan
    learned("TreeEnsembleRegressor", [x], n_targets=1, **{f"nodes_{name}": one for name, one in rows.items()},
            **{f"target_{name}": one for name, one in leaves.items()})  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("classes", [2, 3])
def test_trees_that_choose_classes(classes: int, post: str) -> None:
    given = trees("class", classes)
    if classes == 2:
        given["class_ids"] = [0] * 5  # one score for both classes
    learned("TreeEnsembleClassifier", [X], outputs=2, classlabels_int64s=[3, 1, 7][:classes], post_transform=post,
            **given)  # fmt: skip


PAIRED = {"class_treeids": [0] * 6 + [1] * 4, "class_nodeids": [2, 2, 3, 3, 4, 4, 1, 1, 2, 2], "class_ids": [0, 1] * 5,
          "class_weights": [-0.5, 0.5, 0.25, -0.75, -1.0, 0.5, 0.125, -0.125, 0.375, -0.25]}  # fmt: skip


@pytest.mark.parametrize("base", [[], [0.25]])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_trees_with_weights_of_both_classes(post: str, base: list[float]) -> None:
    """As CatBoost writes them: the second class's score decides."""
    given = {**trees("class", 2), **PAIRED, **({"base_values": base} if base else {})}
    learned("TreeEnsembleClassifier", [X], outputs=2, classlabels_int64s=[0, 1], post_transform=post, **given)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classlabels_int64s": [3, 1]}, "other labels than 0 and 1"),
        ({name: values[1:] for name, values in PAIRED.items()}, "that some leaf lacks"),
        ({"base_values": [0.5, 0.25]}, "a base value for each"),
        ({"classlabels_int64s": [0], "class_ids": [0] * 10}, "has one class"),
    ],
)
def test_two_classes_that_are_refused(change: dict[str, list[float]], reason: str) -> None:
    given = {**trees("class", 2), **PAIRED, "classlabels_int64s": [0, 1], **change}
    with pytest.raises(NotLowered, match=reason):
        learned("TreeEnsembleClassifier", [X], outputs=2, **given)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
@pytest.mark.parametrize("shape", [(12,), (2, 6)])
def test_grams(shape: tuple[int, ...], skips: int, mode: str) -> None:
    x = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int64).reshape(shape)
    same("TfIdfVectorizer", [x], opset=15, mode=mode, min_gram_length=1, max_gram_length=2, max_skip_count=skips,
         ngram_counts=[0, 4], ngram_indexes=[0, 1, 2, 3, 4, 5, 6], pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
         weights=[0.5, 1, 2, 3, 4, 5, 6], tolerance=1e-6)  # fmt: skip


def test_pipelines_are_whole() -> None:
    """Between steps as scikit-learn's converters write them stand values whose types no schema tells."""
    first = [
        helper.make_node("Imputer", ["x"], ["a"], domain=ML, imputed_value_floats=[0.5], replaced_value_float=-1.0),
        helper.make_node("Scaler", ["a"], ["b"], domain=ML, offset=[0.1], scale=[2.0]),
    ]
    linear = helper.make_node(
        "LinearClassifier", ["b"], ["label", "scores"], domain=ML, coefficients=[0.1 * one for one in range(12)],
        intercepts=[0.1, 0.2, 0.3], classlabels_ints=[4, 2, 9], post_transform="LOGISTIC",
    )  # fmt: skip
    forest = helper.make_node(
        "TreeEnsembleClassifier", ["b"], ["label", "scores"], domain=ML, classlabels_int64s=[4, 2, 9],
        **trees("class", 3),
    )  # fmt: skip
    last = helper.make_node("Normalizer", ["scores"], ["chances"], domain=ML, norm="L1")
    for classifier in (linear, forest):
        graph = helper.make_graph(
            [*first, classifier, last], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
            [helper.make_tensor_value_info("label", TensorProto.INT64, [4]),
             helper.make_tensor_value_info("chances", TensorProto.FLOAT, [4, 3])],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 15), helper.make_opsetid(ML, 3)]
        assert not graphopt.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8)).fallback


def forest(draw: np.random.Generator, prefix: str, targets: int, count: int = 11) -> dict[str, Any]:
    """Trees of random forms, some of them one leaf; a leaf has a weight for each target."""
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        sizes = [0]  # depths of nodes, in order

        def grow(at: int, depth: int, tree: int = tree, sizes: list[int] = sizes) -> None:
            is_leaf = depth == 6 or draw.random() < 0.25 * (tree % 3)
            children = (0, 0) if is_leaf else (len(sizes), len(sizes) + 1)
            sizes.extend([depth + 1] * (0 if is_leaf else 2))
            row = (tree, at, int(draw.integers(4)), float(draw.standard_normal()), "LEAF" if is_leaf else "BRANCH_LT")
            for name, one in zip(nodes, (*row, *children), strict=True):
                nodes[name].append(one)
            for target in range(targets if is_leaf else 0):
                for name, one in zip(leaves, (tree, at, target, float(draw.standard_normal())), strict=True):
                    leaves[name].append(one)
            for child in dict.fromkeys(children if not is_leaf else ()):
                grow(child, depth + 1)

        grow(0, 0)
    return {f"nodes_{name}": one for name, one in nodes.items()} | {
        f"{prefix}_{name}": one for name, one in leaves.items()
    }


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("rows", [15, 16, 37, 300])
def test_many_rows_go_down_a_tree_side_by_side(rows: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(ensembles, "LARGE", 0)
    draw = np.random.default_rng(rows)
    x = draw.standard_normal((rows, 4)).astype("f4")
    for targets, way in ((1, "SUM"), (3, "SUM"), (1, "AVERAGE"), (1, "MAX"), (3, "MIN")):
        learned("TreeEnsembleRegressor", [x], tolerance=1e-5, n_targets=targets, aggregate_function=way,
                base_values=[0.5] * targets, **forest(draw, "target", targets))  # fmt: skip
    given = forest(draw, "class", 3)
    learned("TreeEnsembleClassifier", [x], outputs=2, tolerance=1e-5, classlabels_int64s=[3, 1, 7], **given)
    learned("TreeEnsembleRegressor", [x.astype("f8")], n_targets=1, **forest(draw, "target", 1))
