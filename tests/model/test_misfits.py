"""Operands that do not fit one another are told before anything runs: exactly where NumPy refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.errors import NotLowered, OptionError
from graphopt.flows.source import read
from graphopt.model.facts import Facts
from graphopt.model.misfits import misfit
from tests import support

SHAPES = st.lists(st.sampled_from([1, 2, 3]), max_size=3).map(tuple)
OPERATORS = {
    "Add": np.add, "Where": np.where, "MatMul": np.matmul, "Concat": lambda *arrays: np.concatenate(arrays, 1),
}  # fmt: skip


def made(kind: str, shapes: list[tuple[int, ...]], **attributes: Any) -> onnx.ModelProto:
    first = TensorProto.BOOL if kind == "Where" else TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT if at else first, shape)
        for at, shape in enumerate(shapes)
    ]
    node = helper.make_node(kind, [value.name for value in inputs], ["y"], "meeting", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def told(proto: onnx.ModelProto) -> str | None:
    model, _ = read(proto)
    return misfit(model.graph, Facts(model))


@given(st.sampled_from(["Add", "Where", "MatMul", "Concat"]), st.lists(SHAPES, min_size=3, max_size=3))
def test_a_misfit_is_told_where_numpy_refuses(kind: str, shapes: list[tuple[int, ...]]) -> None:
    shapes = shapes[: 3 if kind == "Where" else 2]
    if kind in ("MatMul", "Concat"):
        shapes = [shape if len(shape) > 1 else (2, *shape, 3)[:2] for shape in shapes]
    if kind == "Concat" and len(shapes[0]) != len(shapes[1]):
        return  # inference refuses it, whatever the sizes are
    proto = made(kind, shapes, **({"axis": 1} if kind == "Concat" else {}))
    try:
        OPERATORS[kind](*(np.zeros(shape, np.float32) for shape in shapes))
    except ValueError:
        assert "do not fit one another" in (told(proto) or "")
    else:
        assert told(proto) is None


@given(SHAPES, SHAPES)
def test_so_is_an_expand(shape: tuple[int, ...], asked: tuple[int, ...]) -> None:
    proto = made("Expand", [shape])
    proto.graph.initializer.append(numpy_helper.from_array(np.array(asked, np.int64), "to"))
    proto.graph.node[0].input.append("to")
    try:
        np.broadcast_shapes(shape, asked)
    except ValueError:
        assert "do not fit it" in (told(proto) or "")
    else:
        assert told(proto) is None


@given(SHAPES, st.lists(st.sampled_from([1, 2, 3, -1]), max_size=3))
def test_so_is_a_reshape(shape: tuple[int, ...], asked: list[int]) -> None:
    if asked.count(-1) > 1:
        return
    proto = made("Reshape", [shape, (len(asked),)])
    proto.graph.input.pop()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(asked, np.int64), "x1"))
    try:
        np.zeros(shape).reshape(asked)
    except ValueError:
        assert "do not fit" in (told(proto) or "")
    else:
        assert told(proto) is None


# A table of positions of one size beside an image whose sides are called free, as exporters write it.
POSITIONS = support.model(
    """g (float[1,3,h,w] x) => (float[1,4,p,q] y) {
        c = Conv<strides = [4, 4]>(x, k)
        y = Add(c, positions)
    }""",
    k=np.ones((4, 3, 4, 4), np.float32),
    positions=np.ones((1, 4, 8, 8), np.float32),
)
SENTENCE = "the model does not run at .*: Add 'y' combines 1x4x6x6 and 1x4x8x8, which do not fit one another"


def test_every_command_says_so_in_the_same_words() -> None:
    wrong = {"h": 24, "w": 24}
    with pytest.raises(OptionError, match=SENTENCE):
        graphopt.compile(POSITIONS, dims=wrong)
    with pytest.raises(OptionError, match=SENTENCE):
        graphopt.memory(POSITIONS, dims=wrong)
    with pytest.raises(OptionError, match=SENTENCE):
        graphopt.train_step(POSITIONS, loss="mse", dims=wrong)
    with pytest.raises(OptionError, match=SENTENCE):
        graphopt.optimize(POSITIONS, shapes={"x": (1, 3, 24, 24)})
    with pytest.raises(NotLowered, match=f"{SENTENCE}; give a range that the model takes, or say which"):
        graphopt.compile(POSITIONS, dims={"h": (24, 32), "w": (24, 32)})


def test_where_it_runs_nothing_is_told() -> None:
    graphopt.memory(POSITIONS, dims={"h": 32, "w": 32})


def test_a_branch_that_does_not_run_may_hold_what_does_not_fit() -> None:
    proto = support.model(
        """g (float[n] x) => (float[m] y) {
            size = Shape(x)
            three = Constant<value_ints = [3]>()
            same = Equal(size, three)
            y = If(same) <then_branch = t () => (float[p] a) { a = Add(x, c) },
                          else_branch = e () => (float[p] b) { b = Neg(x) }>
        }""",
        c=np.ones(3, np.float32),
    )
    assert graphopt.optimize(proto, dims={"n": 4}).verification.passed
