"""Models in which more can be tiled: what is made again for a later reader, what is not, and products for parts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.apart import with_values_again
from graphopt.memory.tiling.products import with_products_apart
from graphopt.memory.tiling.search import by_nodes
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

DRAW = np.random.default_rng(3)
ARRAYS = {
    "w": DRAW.standard_normal((8, 24)).astype(np.float32), "m": DRAW.standard_normal((96, 96)).astype(np.float32),
    "v": DRAW.standard_normal((24, 24)).astype(np.float32), "sizes": np.array([4, 8, 12]),
}  # fmt: skip
# A mask that two layers read; the second one is far.
MASKED = """g (float[64,96] x) => (float[64,96] y) {
    mask = Neg(x) a = MatMul(x, m) b = Add(a, mask) c = MatMul(b, m) d = MatMul(c, m) e = Mul(d, mask) y = MatMul(e, m)
}"""


def _again(text: str, share: float, *, nearby: bool = False) -> tuple[ir.Model, ir.Model]:
    model = load(support.model(text, **ARRAYS))
    memory = model_memory(model)
    live = by_nodes(model, memory).live
    return model, with_values_again(model, memory, live, int(share * max(live)), nearby=nearby)


def _same(model: ir.Model, other: ir.Model, shape: tuple[int, ...]) -> None:
    x = DRAW.standard_normal(shape).astype(np.float32)
    before, after = (support.session(to_proto(one)).run(None, {"x": x}) for one in (model, other))
    for mine, theirs in zip(before, after, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-4)


def test_a_later_reader_makes_a_value_again_right_before_it() -> None:
    model, again = _again(MASKED, 0.6)
    operators = [node.op_type for node in again.graph]
    assert operators == ["Neg", "MatMul", "Add", "MatMul", "MatMul", "Neg", "Mul", "MatMul"]
    _same(model, again, (64, 96))


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (MASKED, 1.0),  # nothing is above the budget
        (MASKED.replace("y)", "y, float[64,96] mask)", 1), 0.6),  # it is there at the end
        (MASKED.replace("Neg(x)", "MatMul(x, m)"), 0.6),  # it takes a good part of the time
        (MASKED.replace("Neg(x)", "RandomNormalLike(x)"), 0.6),  # it would be another one
        (MASKED.replace("c = MatMul(b, m) d = MatMul(c, m) e = Mul(d, ", "e = Mul(b, "), 0.6),  # no step lies between
        (MASKED.replace("Neg(x)", "Neg(o)").replace("{", "{ o = MatMul(x, m) "), 0.6),  # what it is of is gone by then
    ],
)
def test_other_values_are_kept(text: str, share: float) -> None:
    model, again = _again(text, share)
    assert again is model


# What keys and queries are made of, from what is there until the end; and what is there no more.
NEARBY = """g (float[64,96] x) => (float[64,96] y) {
    g = MatMul(x, m) h = MatMul(g, m) b = MatMul(h, m) k = MatMul(b, m) l = MatMul(k, m) q = MatMul(b, m)
    s = Add(q, l) t = MatMul(s, m) u = MatMul(t, m) n = MatMul(u, m) z = MatMul(n, m) o = MatMul(z, m)
    r = MatMul(o, m) f = MatMul(r, m) i = MatMul(f, m) j = MatMul(i, m) y = Add(j, h)
}"""


def test_a_product_of_what_is_there_anyway_is_made_again_nearby() -> None:
    model, again = _again(NEARBY, 0.6, nearby=True)
    operators = [node.op_type for node in again.graph]
    assert [operators.index("Add"), len(operators)] == [7, len(model.graph) + 1]
    _same(model, again, (64, 96))
    model, same = _again(NEARBY, 0.6)
    assert same is model, "it takes a good part of the time"
    gone, same = _again(NEARBY.replace("Add(j, h)", "Neg(j)"), 0.6, nearby=True)
    assert same is gone, "what it is made of would be there for it alone"


def test_parts_of_a_product_are_products() -> None:
    text = """g (float[5,8] x) => (float[5,4] a, float[5,8] b, float[5,12] c) {
        p = MatMul(x, w) a, b, c = Split<axis = 1>(p, sizes)
    }"""
    model = load(support.model(text, **ARRAYS))
    divided = with_products_apart(model)
    assert [node.op_type for node in divided.graph] == ["MatMul"] * 3
    assert [output.name for output in divided.graph.outputs] == ["a", "b", "c"]
    _same(model, divided, (5, 8))


@pytest.mark.parametrize("axis", [1, 2])
def test_parts_of_columns_that_are_moved_before_are_products(axis: int) -> None:
    """Columns are three parts of two heads of four: a part is one of all heads, or a head of all parts."""
    count = (3, 2)[axis - 1]
    text = f"""g (float[5,8] x) => (float[] a, float[] b) {{
        p = MatMul(x, w) r = Reshape(p, dims) t = Transpose<perm = [{axis}, 0, {3 - axis}, 3]>(r)
        a = Slice(t, zero, one, zero) b = Slice(t, last, end, zero)
    }}"""
    arrays = {
        "dims": np.array([5, 3, 2, 4]), "zero": np.array([0]), "one": np.array([1]), "last": np.array([-1]),
        "end": np.array([count]),
    }  # fmt: skip
    model = load(support.model(text, **ARRAYS, **arrays))
    assert with_products_apart(model) is model
    divided = with_products_apart(model, moved=True)
    assert [node.op_type for node in divided.graph] == ["MatMul", "Reshape", "Transpose"] * 2
    weights = [node.inputs[1] for node in divided.graph if node.op_type == "MatMul"]
    assert [tuple(one.shape or ()) for one in weights if one is not None] == [(8, 24 // count)] * 2
    _same(model, divided, (5, 8))


@pytest.mark.parametrize(
    "slices",
    [
        "a = Slice(r, no, to, at) b = Slice(r, no, to, at)",  # twice as much as there is
        "a = Slice(r, no, at, no) b = Slice(r, at, to, no)",  # of rows
        "a = Slice(r, no, at, at) b = Neg(r)",  # the whole is read too
    ],
)
def test_other_slices_stay(slices: str) -> None:
    text = f"g (float[24,8] x) => (float[] a, float[] b) {{ p = MatMul(x, w) r = Reshape(p, wide) {slices} }}"
    arrays = {"wide": np.array([24, 2, 12]), "at": np.array([1]), "to": np.array([2]), "no": np.array([0])}
    model = load(support.model(text, **ARRAYS, **arrays))
    assert with_products_apart(model, moved=True) is model


@pytest.mark.parametrize(
    "body",
    [
        "p = MatMul(x, w) a, b, c = Split<axis = 1>(p, sizes) d = Relu(p)",  # the whole is read too
        "p = MatMul(x, v) q = Transpose(p) a, b, c = Split<axis = 1>(q, sizes) d = Neg(a)",  # no product alone
        "p = MatMul(x, w) a, b = Split<axis = 0, num_outputs = 2>(p) c = Neg(b) d = Neg(a)",  # along rows
    ],
)
def test_other_splits_stay(body: str) -> None:
    x = "24,24" if "Transpose" in body else "24,8"
    outputs = "float[] a, float[] b, float[] c, float[] d"
    model = load(support.model(f"g (float[{x}] x) => ({outputs}) {{ {body} }}", **ARRAYS))
    assert with_products_apart(model) is model
