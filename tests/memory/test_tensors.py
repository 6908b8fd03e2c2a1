"""A model as memory sees it: sizes, views, results in place, slices, constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import models
from graphopt.errors import OptionError
from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.model.load import load
from memplan.bounds import live_peak
from memplan.graph import Share
from memplan.lifetimes import memory_problem
from tests import support


def read(text: str, **weights: np.ndarray) -> ModelMemory:
    return model_memory(load(support.model(text, **weights)))


def sizes(memory: ModelMemory) -> dict[str, tuple[int, str]]:
    return {value.name: (value.size, value.kind) for value in memory.graph.values}


def test_inputs_and_weights_are_the_callers_and_the_rest_is_ours() -> None:
    memory = read(
        "g (float[2,4] x) => (float[2,3] y) { a = MatMul(x, w) b = Relu(a) y = Add(b, b) }",
        w=np.ones((4, 3), np.float32),
    )
    assert sizes(memory) == {
        "x": (32, "constant"), "w": (48, "constant"), "a": (24, "temporary"), "b": (24, "temporary"),
        "y": (24, "output"),
    }  # fmt: skip
    assert (memory.weights_bytes, memory.input_bytes) == (48, 32)
    assert [operator.inputs for operator in memory.graph.operators] == [("x", "w"), ("a",), ("b",)]
    assert memory.tensors["b"].shape == (2, 3) and memory.tensors["b"].dtype == "float32"


def test_what_is_computed_from_weights_alone_is_a_weight() -> None:
    memory = read("g (float[4] x) => (float[4] y) { t = Exp(w) u = Neg(t) y = Add(x, u) }", w=np.ones(4, np.float32))
    assert [operator.outputs for operator in memory.graph.operators] == [("y",)]
    assert sizes(memory)["u"] == (16, "constant") and memory.weights_bytes == 3 * 16


def test_views_results_in_place_and_slices_are_offered() -> None:
    memory = read(
        """g (float[1,2,6] x) => (float[1,4,6] y, float[1,24] z) {
            a = Exp(x) b = Exp(a) c = Relu(b)
            y = Concat<axis = 1>(a, c)
            s = Constant<value = int64[2] {1, 24}>()
            z = Reshape(y, s)
        }"""
    )
    assert set(memory.graph.shares) == {
        Share("a", "x", overwrites=True), Share("b", "a", overwrites=True), Share("c", "b", overwrites=True),
        Share("a", "y", 0), Share("c", "y", 48), Share("z", "y"),
    }  # fmt: skip


def test_parts_that_do_not_lie_in_one_piece_are_not_offered() -> None:
    joined = "g (float[2,3] x) => (float[2,6] y) { a = Exp(x) b = Exp(a) y = Concat<axis = 1>(a, b) }"
    assert not [share for share in read(joined).graph.shares if share.of == "y"]


def test_a_subgraphs_tensors_are_its_nodes_workspace() -> None:
    memory = read(
        """g (bool c, float[8] x) => (float[8] y) {
            y = If (c) <
                then_branch = then () => (float[8] t) { p = Exp(x) q = Exp(p) t = Add(p, q) },
                else_branch = other () => (float[8] e) { e = Neg(x) }
            >
        }"""
    )
    (operator,) = memory.graph.operators
    assert operator.workspace == 3 * 32 + 32 and operator.inputs == ("c", "x")


def test_a_dim_without_a_value_is_named() -> None:
    with pytest.raises(OptionError, match=r"the size of 'x' depends on the dim 'N': give it a value, dims=\{'N': 1\}"):
        read("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")


def test_sizes_that_only_a_run_tells_are_seen_in_one_and_said_to_be() -> None:
    memory = read("g (float[6] x) => (int64[1,K] y) { y = NonZero(x) }")
    assert sizes(memory)["y"][0] % 8 == 0
    assert memory.notes == ("the sizes of 1 tensors were seen in a run, inference cannot tell them",)


@pytest.mark.parametrize(
    ("name", "apart", "in_place"),
    [("resnet50", 9.19, 6.89), ("mobilenet_v2", 9.19, 5.74), ("vit_s16_legacy", 3.75, 2.6), ("bert_base", 4.94, 3.44)],
)
def test_live_peaks_are_those_that_others_counted(name: str, apart: float, in_place: float) -> None:
    # Counted by hand-written liveness over ONNX Runtime's shapes: views free, then results in place as well (MiB).
    memory = model_memory(load(models.load(name)))
    held = ("temporary", "output")
    counted = live_peak(memory_problem(memory.graph, kinds=held, in_place=False, slices=False)) / 2**20
    assert counted == pytest.approx(apart, abs=0.01)
    assert live_peak(memory_problem(memory.graph, kinds=held, slices=False)) / 2**20 == pytest.approx(
        in_place, abs=0.01
    )


def test_the_model_is_left_as_it_is() -> None:
    proto = support.model("g (float[4] x) => (float[4] y) { a = Exp(x) y = Relu(a) }")
    model = load(proto)
    model_memory(model)
    assert ir.to_proto(model).graph.SerializeToString() == ir.to_proto(load(proto)).graph.SerializeToString()
