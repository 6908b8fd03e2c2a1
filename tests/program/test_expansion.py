"""Bodies in the place of operators without kernels, and float32 in the place of shorter floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

import graphopt
from graphopt.program.expansion import expanded
from graphopt.program.widening import widened
from tests import support


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_body_takes_the_place_of_an_operator_without_kernels() -> None:
    text = "g (float[2,8] x) => (float[2,8] y) { c = CastLike(x, x) y = Swish<alpha = 2.0>(c) }"
    model = ir.from_proto(support.model(text, 24, ir_version=10))
    found = expanded(model)
    assert operators(found) == ["Cast", "Swish"]  # which has a formula
    assert operators(model) == ["CastLike", "Swish"]
    assert found.graph.outputs[0].name == "y" and not found.functions


def test_where_every_operator_has_kernels_the_model_is_the_same() -> None:
    model = ir.from_proto(support.model("g (float[2,8] x) => (float[2,8] y) { y = Relu(x) }"))
    assert expanded(model) is model and widened(model) is model


def test_bodies_inside_of_bodies_and_twice_the_same_operator() -> None:
    text = """g (float[2,3] s, int64[2] l) => (float z, float[2,3] p, float q) {
        z, p = SoftmaxCrossEntropyLoss(s, l)
        q = SoftmaxCrossEntropyLoss<reduction = "sum">(s, l)
    }"""
    found = expanded(ir.from_proto(support.model(text)))
    assert "SoftmaxCrossEntropyLoss" not in operators(found) and not found.functions
    names = [value.name for node in found.graph for value in node.outputs if value.name]
    assert len(names) == len(set(names)) and [one.name for one in found.graph.outputs] == ["z", "p", "q"]


def test_a_body_whose_types_are_not_known_stays_away() -> None:
    proto = support.model("g (float[2] x) => (float[2] y) { c = Mystery(x) y = CastLike(x, c) }")
    assert operators(expanded(ir.from_proto(proto))) == ["Mystery", "CastLike"]


def test_losses_are_compiled_as_their_bodies() -> None:
    text = """g (float[4,5] s, int64[4] l) => (float y) { y = SoftmaxCrossEntropyLoss<ignore_index = 1>(s, l) }"""
    program = graphopt.compile(support.model(text), feeds=[{
        "s": np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32), "l": np.array([0, 1, 4, 2]),
    }])  # fmt: skip
    assert not program.fallback


def test_products_of_short_floats_are_computed_in_float32() -> None:
    text = "g (float16[3,4] a, float16[4,5] b) => (float16[3,5] y) { p = MatMul(a, b) y = Relu(p) }"
    found = widened(ir.from_proto(support.model(text)))
    assert operators(found) == ["Cast", "Cast", "MatMul", "Cast", "Relu"]
    product = found.graph[2].outputs[0]
    assert product.dtype == ir.DataType.FLOAT and found.graph.outputs[0].dtype == ir.DataType.FLOAT16
    again = widened(found)
    assert again is found


def test_a_result_of_the_graph_keeps_its_name_and_type() -> None:
    text = "g (bfloat16[3,4] a, bfloat16[4,5] b) => (bfloat16[3,5] y) { y = MatMul(a, b) }"
    found = widened(ir.from_proto(support.model(text)))
    (output,) = found.graph.outputs
    assert output.name == "y" and output.dtype == ir.DataType.BFLOAT16 and output.producer().op_type == "Cast"


def test_a_program_takes_and_gives_short_types_as_ml_dtypes_has_them() -> None:
    text = """g (bfloat16[3] x, int4[3] q) => (bfloat16[3] y, float8e4m3fn[3] f, int4[3] r) {
        y = Abs(x) f = Cast<to = 17>(x) r = Identity(q)
    }"""
    x = np.array([-1.5, 3, 1000], ml_dtypes.bfloat16)
    q = np.array([-8, 0, 7], ml_dtypes.int4)
    program = graphopt.compile(support.model(text, 25, ir_version=11), feeds=[{"x": x, "q": q}])
    y, f, r = program.run(None, {"x": x, "q": q})
    assert y.dtype == ml_dtypes.bfloat16 and np.array_equal(y, np.abs(x))
    assert f.dtype == ml_dtypes.float8_e4m3fn and f.astype("f4").tolist() == [-1.5, 3, 448]
    assert r.dtype == ml_dtypes.int4 and np.array_equal(r, q)
    assert [one.type for one in program.get_outputs()] == ["tensor(bfloat16)", "tensor(float8e4m3fn)", "tensor(int4)"]


@pytest.mark.parametrize(
    ("equation", "shapes", "pairs"),
    [
        ("ij,jk,kl->il", [(5, 6), (6, 7), (7, 8)], 2),
        ("ij,kl,jk->il", [(8, 9), (10, 11), (9, 10)], 2),  # the first two alone would have all labels
        ("bn,anm,bm->ba", [(4, 5), (7, 5, 6), (4, 6)], 2),  # as PyTorch has its Bilinear
        ("i,j,k->ijk", [(5,), (6,), (7,)], 2),
        ("ab, bc, cd, de", [(3, 4), (4, 5), (5, 6), (6, 7)], 3),
        ("bhqk,bhkd,hdm->bqm", [(2, 4, 9, 9), (2, 4, 9, 8), (4, 8, 16)], 2),
        ("ii,i,ij->j", [(5, 5), (5,), (5, 3)], 2),
    ],
)
def test_einsums_of_several_operands_are_pairs(equation: str, shapes: list[tuple[int, ...]], pairs: int) -> None:
    drawn = np.random.default_rng(len(equation))
    arrays = [drawn.standard_normal(shape).astype(np.float32) for shape in shapes]
    wanted = np.einsum(equation, *arrays)
    inputs = [helper.make_tensor_value_info(f"x{at}", 1, shape) for at, shape in enumerate(shapes)]
    node = helper.make_node("Einsum", [one.name for one in inputs], ["y"], equation=equation)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, wanted.shape)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = expanded(ir.from_proto(proto))
    assert [one.op_type for one in found.graph] == ["Einsum"] * pairs
    assert all(len(one.inputs) == 2 for one in found.graph)
    program = graphopt.compile(proto, threads=1)
    feed = dict(zip((one.name for one in inputs), arrays, strict=True))
    some_steps = 16 * np.finfo(np.float32).eps * np.einsum(equation, *map(np.abs, arrays))  # of what is added up
    assert (np.abs(program.run(None, feed)[0] - wanted) <= some_steps).all()
