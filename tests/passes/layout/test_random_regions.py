"""Random graphs of operators in either layout with Transposes between: fewer Transposes, never more, and equal."""

from __future__ import annotations

import random

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.passes.layout.pushing import pushed, transposes, weight
from tests.support import assert_equal

PERMS = ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2))
SIDE = 4  # every dim has this length, so that every sum and concat fits


def _graph(seed: int, size: int) -> onnx.ModelProto:
    """A graph of `size` nodes on tensors [4, 4, 4, 4]; Convs hold some of them to their layout."""
    draw = random.Random(seed)
    values, nodes, weights = ["x"], [], []

    def constant(*dims: int) -> str:
        weights.append(numpy_helper.from_array(weight(*dims, seed=len(weights)), f"w{len(weights)}"))
        return weights[-1].name

    for number in range(size):
        x, y = draw.choice(values[-4:]), draw.choice(values)
        name = f"v{number}"
        kind = draw.choice(
            ("Transpose", "Transpose", "Transpose", "Relu", "Add", "Bias", "Pool", "Softmax", "Mean", "Concat", "Split",
             "Gather")
        )  # fmt: skip
        if kind == "Transpose":
            perm = draw.choice(PERMS[:2] if draw.random() < 0.8 else PERMS)
            nodes.append(helper.make_node(kind, [x], [name], name, perm=perm))
        elif kind == "Add":
            nodes.append(helper.make_node(kind, [x, y], [name], name))
        elif kind == "Bias":
            dims = draw.choice(((SIDE,), (SIDE, 1), (SIDE, 1, 1), (1, SIDE, 1, SIDE), (1,)))
            nodes.append(helper.make_node("Mul", [x, constant(*dims)], [name], name))
        elif kind == "Pool":
            nodes.append(
                helper.make_node("LpPool", [x], [name], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
            )
        elif kind == "Mean":
            low = f"{name}_low"
            keep = draw.random() < 0.5
            axes = draw.sample(range(4), draw.choice((1, 2)) if keep else 1)
            nodes.append(helper.make_node("ReduceMean", [x], [low], low, axes=axes, keepdims=int(keep)))
            nodes.append(helper.make_node("Sub", [y, low], [name], name))
        elif kind in ("Concat", "Split"):
            axis = draw.randrange(-4, 4)
            nodes.append(helper.make_node("Concat", [x, y], [f"{name}_c"], f"{name}_c", axis=axis))
            nodes.append(helper.make_node("Split", [f"{name}_c"], [f"{name}_a", name], name, axis=axis))
        elif kind == "Gather":
            index = numpy_helper.from_array(weight(2)[:0].astype("int64").sum(), f"w{len(weights)}")
            weights.append(index)
            axis = draw.randrange(4)
            nodes.append(helper.make_node("Gather", [x, index.name], [f"{name}_g"], f"{name}_g", axis=axis))
            nodes.append(helper.make_node("Add", [y, f"{name}_g"], [name], name))
        else:
            attributes = {"axis": draw.randrange(-4, 4)} if kind == "Softmax" else {}
            nodes.append(helper.make_node(kind, [x], [name], name, **attributes))
        values.append(name)
    results = [values[-1], *draw.sample(values[1:-1], min(2, size - 1))]
    image = [SIDE] * 4
    graph = helper.make_graph(
        nodes, "random", [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, image) for name in dict.fromkeys(results)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30), st.integers(2, 24))
def test_random_regions(seed: int, size: int) -> None:
    before = _graph(seed, size)
    after, _ = pushed(before)
    assert transposes(after) <= transposes(before)
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    assert_equal(before, after, rtol=1e-4, atol=1e-5)  # chains of up to 24 layers, summed in another order
