"""Numbers that follow from free dims and are computed with, held to ONNX Runtime at every size of a range."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.flows.ranges import dims_of_ranges
from graphopt.program.sized_inputs import with_sized_inputs
from tests import support

GRAPHS = {
    "a factor": """
        shape = Shape<start = 0, end = 1>(x)
        count = Cast<to = 1>(shape)
        y = Div(x, count)""",
    "half of it, and the square root of a third": """
        two = Constant<value = float {2.0}>()
        three = Constant<value = float {3.0}>()
        shape = Shape<start = 0, end = 1>(x)
        count = Cast<to = 1>(shape)
        half = Div(count, two)
        third = Div(count, three)
        root = Sqrt(third)
        scaled = Mul(x, half)
        y = Div(scaled, root)""",
    "a position": """
        shape = Shape<start = 0, end = 1>(x)
        scalar = Squeeze(shape)
        one = Constant<value = int64 {1}>()
        next = Add(scalar, one)
        places = Range(scalar, next, one)
        row = Gather(table, places)
        y = Add(x, row)""",
    "a comparison": """
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        two = Constant<value = int64 {2}>()
        shape = Shape<start = 0, end = 1>(x)
        scalar = Squeeze(shape)
        places = Range(zero, scalar, one)
        half = Div(scalar, two)
        late = Less(places, half)
        axis = Constant<value = int64[1] {1}>()
        column = Unsqueeze(late, axis)
        other = Neg(x)
        y = Where(column, x, other)""",
    "windows of rows": """
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        axis = Constant<value = int64[1] {0}>()
        shape = Shape<start = 0, end = 1>(x)
        scalar = Squeeze(shape)
        places = Range(zero, scalar, one)
        row = Unsqueeze(places, axis)
        taps = Constant<value = int64[3, 1] {0, 1, 2}>()
        windows = Add(row, taps)
        around = Constant<value = int64[4] {1, 0, 1, 0}>()
        padded = Pad(x, around)
        seen = Gather(padded, windows)
        y = ReduceMax<keepdims = 0>(seen, axis)""",
    "a product with differences of places": """
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        three = Constant<value = int64 {3}>()
        front = Constant<value = int64[1] {0}>()
        back = Constant<value = int64[1] {1}>()
        shape = Shape<start = 0, end = 1>(x)
        scalar = Squeeze(shape)
        places = Range(zero, scalar, one)
        row = Unsqueeze(places, front)
        column = Unsqueeze(places, back)
        apart = Sub(column, row)
        far = Abs(apart)
        near = Min(far, three)
        weights = Gather(table, near)
        queries = Unsqueeze(x, back)
        turned = Transpose<perm = [0, 2, 1]>(weights)
        scores = MatMul(queries, turned)
        shares = Softmax<axis = -1>(scores)
        mixed = MatMul(shares, weights)
        y = Squeeze(mixed, back)""",
    "places that are counted": """
        none = Constant<value = int64 {0}>()
        last = Constant<value = int64[1] {-1}>()
        end = Constant<value = int64[1] {9223372036854775807}>()
        front = Constant<value = int64[1] {0}>()
        shape = Shape(x)
        zeros = ConstantOfShape(shape)
        open = Cast<to = 9>(zeros)
        shut = Not(open)
        ones = Cast<to = 1>(shut)
        places = CumSum(ones, none)
        most = Slice(places, last, end, front)
        parts = Div(places, most)
        waves = Sin(parts)
        y = Mul(x, waves)""",
    "strides of two levels": """
        shape = Shape<start = 0, end = 1>(x)
        two = Constant<value = int64[1] {2}>()
        front = Constant<value = int64[1] {0}>()
        twice = Mul(shape, two)
        fine = ConstantOfShape<value = float[1] {8.0}>(twice)
        coarse = ConstantOfShape<value = float[1] {16.0}>(shape)
        strides = Concat<axis = 0>(fine, coarse)
        back = Constant<value = int64[1] {1}>()
        column = Unsqueeze(strides, back)
        around = Concat<axis = 0>(x, x, x)
        scaled = Mul(around, column)
        y = Slice(scaled, shape, twice, front)""",
    "an int32": """
        shape = Shape<start = 0, end = 1>(x)
        short = Cast<to = 6>(shape)
        more = Add(short, short)
        wide = Cast<to = 1>(more)
        y = Mul(x, wide)""",
}


def parsed(body: str) -> onnx.ModelProto:
    table = "table = Constant<value = float[12, 3] {" + ", ".join(str(one / 8) for one in range(36)) + "}>()"
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        f"g (float[n, 3] x) => (float[n, 3] y) {{\n{table if 'table' in body else ''}{body}\n}}"
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_every_size_is_that_of_onnx_runtime(name: str) -> None:
    model = parsed(GRAPHS[name])
    made = graphopt.compile(model, dims={"n": (1, 9)}, threads=1)
    session = support.session(model, optimized=True)
    for size in range(1, 10):
        x = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_allclose(made(x=x)["y"], session.run(None, {"x": x})[0], rtol=1e-6)


def test_an_input_holds_what_is_computed_with_and_shapes_stay() -> None:
    model = ir.from_proto(
        parsed("""
        shape = Shape<start = 0, end = 1>(x)
        three = Constant<value = int64[1] {3}>()
        both = Concat<axis = 0>(shape, three)
        count = Cast<to = 1>(shape)
        again = Reshape(x, both)
        y = Div(again, count)""")
    )
    free = dims_of_ranges(model, {"n": (1, 9)}, {})
    (held,) = with_sized_inputs(model, free.formula)
    assert [str(one) for one in held] == ["sn"] and held[0].at({"n": 7}) == 7
    assert [value.name for value in model.graph.inputs] == ["x", "size:0"]
    readers = [use.node.op_type for use in model.graph.inputs[1].uses()]
    assert readers == ["Cast"], "a shape stays what it is"


def test_an_output_that_tells_a_size_may_be_the_second_of_its_node() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[n, 3] x) => (int64[1] columns, float[n, 3] y, int64[1] rows) {
        turned = Transpose<perm = [1, 0]>(x)
        shape = Shape(turned)
        columns, rows = Split<num_outputs = 2>(shape)
        y = Relu(x)
    }""")
    made = graphopt.compile(model, dims={"n": (1, 9)}, threads=1)
    for size in range(1, 10):
        columns, _, rows = made.run(None, {"x": np.zeros((size, 3), np.float32)})
        assert (columns.tolist(), rows.tolist()) == ([3], [size])


def test_outputs_that_tell_sizes_do_so_at_every_size() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[n, 3] x) => (float[n, 3] y, int64[2] shape, int32 count, float[1] half) {
        y = Relu(x)
        shape = Shape(x)
        all = Size(y)
        count = Cast<to = 6>(all)
        rows = Shape<start = 0, end = 1>(x)
        wide = Cast<to = 1>(rows)
        two = Constant<value = float {2.0}>()
        half = Div(wide, two)
    }""")
    made = graphopt.compile(model, dims={"n": (1, 9)}, threads=1)
    session = support.session(model, optimized=True)
    for size in range(1, 10):
        x = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        for found, expected in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(found, expected)
