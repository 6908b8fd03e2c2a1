"""What is known of values: dims with symbols, integer content computed from shapes, constants and splats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model import constants, dims
from graphopt.model.facts import Facts
from tests import support

N = dims.symbol("n")
M = dims.symbol("m")
SAME = (N, 4, 6)


def _facts(body: str, opset: int = 17, **initializers: np.ndarray) -> tuple[Facts, dict[str, ir.Value]]:
    model = ir.from_proto(support.model(body, opset, **initializers))
    values = {value.name or "": value for value in model.graph.inputs}
    values.update({output.name or "": output for node in model.graph for output in node.outputs})
    return Facts(model), values


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("y = Transpose<perm=[1,0,2]>(x)", (4, N, 6)),
        ("y = Flatten(x)", (N, 24)),
        ("y = Flatten<axis=2>(x)", (4 * N, 6)),
        ("y = Concat<axis=0>(x, x)", (2 * N, 4, 6)),
        ("k = Constant<value_ints=[0, -1]>() y = Reshape(x, k)", (N, 24)),
        ("k = Constant<value_ints=[-1, 3]>() y = Reshape(x, k)", (8 * N, 3)),
        ("k = Constant<value_ints=[2, 1, 1]>() y = Tile(x, k)", (2 * N, 4, 6)),
        ("s = Constant<value_ints=[1]>() e = Constant<value_ints=[9]>() y = Slice(x, s, e, s)", (N, 3, 6)),
        ("s = Constant<value_ints=[0]>() e = Constant<value_ints=[9223372036854775807]>() y = Slice(x, s, e, s)", SAME),
        ("y = ReduceMean<axes=[1], keepdims=0>(x)", (N, 6)),
        ("y = Add(x, z)", (N, 4, 6)),
        ("y = MatMul(x, w)", (N, 4, 2)),
        ("k = Constant<value_floats=[1.0, 2.0, 0.5]>() y = Resize(x, , k)", (N, 8, 3)),
        ("k = Constant<value_floats=[2.0, 1.0, 1.2]>() y = Resize(x, , k)", (2 * N, 4, 7)),
        ("k = Constant<value_floats=[0.25, 0.5, 0.5]>() y = Resize(x, , k)", (N // 4, 2, 3)),
        ("s = Shape<end=1>(x) k = Constant<value_ints=[8, 3]>() t = Concat<axis=0>(s, k) y = Resize(x, , , t)",
         (N, 8, 3)),
    ],
)  # fmt: skip
def test_shapes_with_a_symbol(line: str, shape: dims.Dims) -> None:
    facts, values = _facts(f"g (float[n,4,6] x, float[6] z) => (float y) {{ {line} }}", w=np.zeros((6, 2), np.float32))
    assert facts.shape(values["y"]) == tuple(dims.normal(dim) for dim in shape)


def test_padding_whose_amounts_an_exporter_turned_around() -> None:
    """torch's exporter takes amounts from the last axis back, [1, 2, 3, 4], and turns pairs and axes with operators."""
    facts, values = _facts("""g (float[n,3,4,6] x) => (float y) {
        given = Constant<value_ints=[1, 2, 3, 4]>() many = Constant<value_ints=[4]>()
        rest = ConstantOfShape<value = int64[1] {0}>(many)
        all = Concat<axis=0>(given, rest) pairs = Constant<value_ints=[-1, 2]>() table = Reshape(all, pairs)
        zero = Constant<value_ints=[0]>() last = Constant<value_ints=[-1]>()
        least = Constant<value_ints=[-9223372036854775807]>()
        turned = Slice(table, last, least, zero, last) columns = Transpose<perm=[1, 0]>(turned)
        amounts = Reshape(columns, last) y = Pad(x, amounts)
    }""")
    assert facts.shape(values["y"]) == (N, 3, 4 + 3 + 4, 6 + 1 + 2)


def test_a_slice_without_a_list_of_axes_cuts_the_first_ones() -> None:
    """As many as there are starts, whose values a run gives."""
    facts, values = _facts("g (float[n,4,6] x, int64[1] s, int64[1] e) => (float y) { y = Slice(x, s, e) }")
    found = facts.shape(values["y"])
    assert found is not None and found[1:] == (4, 6) and not isinstance(found[0], int)


@pytest.mark.parametrize(
    ("lines", "content"),
    [
        ("y = Shape(x)", [N, 4, M]),
        ("y = Shape<start=1>(x)", [4, M]),
        ("y = Size(x)", 4 * N * M),
        ("s = Shape(x) y = Gather(s, one)", 4),
        ("s = Shape(x) y = Add(s, s)", [2 * N, 8, 2 * M]),
        ("s = Shape(x) y = Div(s, two)", None),
        ("s = Shape(x) t = Mul(s, two) y = Div(t, two)", [N, 4, M]),
        ("s = Shape(x) p = Slice(s, ones, twos) y = Concat<axis=0>(p, ones, p)", [4, 1, 4]),
        ("s = Shape(x) y = Equal(s, minus)", [False, False, False]),
        ("s = Shape(x) e = Equal(s, minus) y = Where(e, two, s)", [N, 4, M]),
        ("s = Shape(x) g = Gather(s, zero) y = Unsqueeze(g, zeros)", [N]),
    ],
)  # fmt: skip
def test_integers_computed_from_shapes(lines: str, content: object) -> None:
    numbers = {
        "zero": np.array(0), "one": np.array(1), "two": np.array(2), "minus": np.array(-1),
        "zeros": np.array([0]), "ones": np.array([1]), "twos": np.array([2]),
    }  # fmt: skip
    facts, values = _facts(f"g (float[n,4,m] x) => (int64 y) {{ {lines} }}", **numbers)
    held = facts.content(values["y"])
    if content is None:
        assert held is None or held.tolist()[1] == 2  # n / 2 is not decided, 4 / 2 is
    else:
        assert held is not None
        assert held.tolist() == content


def test_two_unknown_dims_are_different() -> None:
    facts, values = _facts("g (float[?,4] x, float[?,4] z) => (float y) { y = Add(x, z) }")
    assert facts.shape(values["x"]) != facts.shape(values["z"])
    assert facts.shape(values["y"]) is None or facts.shape(values["y"]) not in (
        facts.shape(values["x"]),
        facts.shape(values["z"]),
    )


def test_declared_shapes_of_known_operators_are_not_trusted() -> None:
    facts, values = _facts("g (float[2,3] x) => (float[7,7] y) { y = Relu(x) }")
    assert facts.shape(values["y"]) == (2, 3)


def test_constant_of_shape_is_a_splat_without_memory() -> None:
    facts, values = _facts(
        "g (float[1] x) => (float y) { w = ConstantOfShape(k) y = Add(x, w) }", k=np.array([1 << 15, 1 << 15])
    )
    array = facts.array(values["w"])
    assert array is not None
    assert constants.is_splat(array)
    assert array.nbytes == 4 << 30
    doubled = constants.elementwise(np.add, array, array)
    assert constants.is_splat(doubled)


def test_overridable_initializers_are_not_constants() -> None:
    model = support.model("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=np.ones(2, np.float32))
    facts = Facts(ir.from_proto(model))
    old = support.model(
        "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", ir_version=3, opset=7, w=np.ones(2, np.float32)
    )
    value = ir.from_proto(model).graph.inputs[1]
    assert facts.array(value) is None
    loaded = ir.from_proto(old)
    assert Facts(loaded).array(loaded.graph.inputs[1]) is not None  # before IR version 4 nobody could override them
