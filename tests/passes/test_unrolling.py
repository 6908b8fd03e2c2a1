"""Loops of few known iterations are written out; all others stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.passes import unrolling
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support

THREE = np.array(3)


def _run(proto: onnx.ModelProto, **dims: int) -> tuple[onnx.ModelProto, int]:
    """The model after the pass, checked and equal to the last bit, and how many loops it has unrolled."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    editor = Editor(copy)
    run_passes(editor, (Pass("unroll", 3, run=unrolling.unroll_loops),))
    result = ir.to_proto(copy)
    onnx.checker.check_model(result, full_check=True)
    support.assert_equal(proto, result, rtol=0, atol=0, **dims)
    return result, len(editor.log)


def unrolled(proto: onnx.ModelProto, **dims: int) -> list[str]:
    result, count = _run(proto, **dims)
    assert count > 0
    return support.op_types(result)


def stays(proto: onnx.ModelProto) -> None:
    result, count = _run(proto)
    assert count == 0
    assert support.op_types(result) == support.op_types(proto)


def looping(
    body: str, trips: str = "three", inputs: str = "", opset: int = 17, **weights: np.ndarray
) -> onnx.ModelProto:
    """y = x, then the body for y_in -> y_out, as often as `trips` says; z collects what z_i is in each."""
    collects = "z_i =" in body
    return support.model(
        f"""g (float[2] x{inputs}) => (float[2] y{", float[?,2] z" if collects else ""}) {{
            y{", z" if collects else ""} = Loop ({trips}, , x) <body = body (int64 i, bool going, float[2] y_in)
                => (bool go, float[2] y_out{", float[2] z_i" if collects else ""}) {{ {body} }}>
        }}""",
        opset,
        three=THREE,
        **weights,
    )


def test_three_trips_are_three_bodies() -> None:
    proto = looping("go = Identity (going) a = Mul (y_in, y_in) y_out = Add (a, x)")
    assert unrolled(proto) == ["Mul", "Add"] * 3


@pytest.mark.parametrize("opset", [11, 17])
def test_what_iterations_collect_is_stacked(opset: int) -> None:
    proto = looping("go = Identity (going) z_i = Neg (y_in) y_out = Add (y_in, x)", opset=opset)
    assert unrolled(proto) == ["Neg", "Add"] * 3 + ["Unsqueeze"] * 3 + ["Concat"]


def test_the_number_of_the_iteration_is_a_constant() -> None:
    proto = looping("go = Identity (going) n = Cast <to = 1> (i) y_out = Add (y_in, n)")
    result, _ = _run(proto)
    assert support.op_types(result) == ["Cast", "Add"] * 3
    numbers = sorted(onnx.numpy_helper.to_array(t).item() for t in result.graph.initializer if t.name != "three")
    assert numbers == [0, 1, 2]


def test_a_count_in_a_vector() -> None:
    proto = looping("go = Identity (going) n = Cast <to = 1> (i) y_out = Add (y_in, n)", trips="two", two=np.array([2]))
    assert unrolled(proto) == ["Cast", "Add"] * 2


def test_constants_of_the_body_are_not_copied() -> None:
    proto = looping("go = Identity (going) two = Constant <value_floats = [2.0, 3.0]> () y_out = Mul (y_in, two)")
    assert unrolled(proto) == ["Constant", "Mul", "Mul", "Mul"]


def test_initializers_of_the_body_are_not_copied() -> None:
    proto = looping("go = Identity (going) y_out = Mul (y_in, w)")
    proto.graph.node[0].attribute[0].g.initializer.append(
        onnx.numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    )
    result, _ = _run(proto)
    assert support.op_types(result) == ["Mul"] * 3
    assert len({node.input[1] for node in result.graph.node}) == 1


def test_a_body_that_hands_on_what_it_got() -> None:
    assert unrolled(looping("go = Identity (going) y_out = Identity (y_in) z_i = Neg (x)"))[-1] == "Concat"
    swap = """g (float[2] x, float[2] u) => (float[2] y, float[2] v) {
        y, v = Loop (three, , x, u) <body = b (int64 i, bool go, float[2] p, float[2] q)
            => (bool go, float[2] q, float[2] p) { }>
    }"""
    assert unrolled(support.model(swap, three=THREE)) == ["Identity", "Identity"]


@pytest.mark.fires("unroll-loops")
def test_a_body_that_always_says_true() -> None:
    proto = looping("go = Constant <value = bool {1}> () y_out = Add (y_in, x)")
    assert unrolled(proto)[-3:] == ["Add"] * 3


def test_one_value_for_two_outputs() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] v) {
        y, v = Loop (three, , x, x) <body = b (int64 i, bool go, float[2] p, float[2] q)
            => (bool go, float[2] r, float[2] r) { r = Add (p, q) }>
    }"""
    assert unrolled(support.model(text, three=THREE)) == ["Add", "Add", "Add", "Identity"]


def test_nested_loops_unroll_from_inside() -> None:
    inner = """go = Identity (going)
        z = Loop (three, , y_in) <body = inner (int64 j, bool g, float[2] z_in) => (bool h, float[2] z_out)
            { h = Identity (g) p = Mul (x, x) z_out = Add (z_in, p) }>
        y_out = Relu (z)"""
    assert unrolled(looping(inner)) == (["Mul", "Add"] * 3 + ["Relu"]) * 3


def test_a_loop_that_stays_in_a_body_keeps_the_dims_of_its_count() -> None:
    """ONNX Runtime refuses a Loop whose count may have any axes."""
    inner = """go = Identity (going)
        y_out = Loop (times, , y_in) <body = inner (int64 j, bool g, float[2] z_in) => (bool h, float[2] z_out)
            { h = Identity (g) z_out = Add (z_in, x) }>"""
    assert unrolled(looping(inner, inputs=", int64 times")) == ["Loop"] * 3


def test_branches_in_the_body_are_copied_with_it() -> None:
    body = """go = Identity (going)
        y_out = If (flag) <then_branch = t () => (float[2] a) { a = Add (y_in, y_in) },
                           else_branch = e () => (float[2] b) { b = Identity (y_in) }>"""
    result, _ = _run(looping(body, inputs=", bool flag"))
    assert support.op_types(result) == ["If"] * 3
    names = [node.output[0] for outer in result.graph.node for a in outer.attribute for node in a.g.node]
    assert len(names) == len(set(names))


def test_two_loops_with_the_same_names_inside() -> None:
    body = "<body = b (int64 i, bool go, float[2] p) => (bool go, float[2] r) { c = Neg (p) r = Exp (c) }>"
    text = f"g (float[2] x) => (float[2] y) {{ m = Loop (three, , x) {body} y = Loop (three, , m) {body} }}"
    assert unrolled(support.model(text, three=THREE)) == ["Neg", "Exp"] * 6


def test_a_state_that_grows() -> None:
    text = """g (float[n] x) => (float[m] y) {
        y = Loop (three, , x) <body = b (int64 i, bool go, float[k] p) => (bool go, float[l] r) {
            c = Neg (p) r = Concat <axis = 0> (c, p) }>
    }"""
    assert unrolled(support.model(text, three=THREE), n=2) == ["Neg", "Concat"] * 3


def test_no_trip_and_a_condition_that_is_false_give_what_was_there() -> None:
    body = "go = Identity (going) y_out = Exp (y_in)"
    assert unrolled(looping(body, trips="none", none=np.array(0))) == ["Identity"]
    proto = looping(body, never=np.array(False))
    proto.graph.node[0].input[1] = "never"
    assert unrolled(proto) == ["Identity"]


def test_loops_inside_a_function() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.f (x) }
        <domain: "local", opset_import: ["" : 17]>
        f (x) => (y) {
            three = Constant <value_int = 3> ()
            y = Loop (three, , x) <body = b (int64 i, bool go, float[2] p) => (bool go, float[2] r) {
                n = Cast <to = 1> (i) r = Add (p, n) }>
        }"""
    )
    result, count = _run(proto)
    assert count == 1
    operators = [node.op_type for node in result.functions[0].node]
    assert "Loop" not in operators
    assert operators.count("Add") == 3


COUNTER = """g (float[2] x) => (float[2] y, int64 n) {
    n, y = Loop (LIMIT, true, zero, x) <body = body (int64 i, bool going, int64 k, float[2] p)
        => (bool go, int64 next, float[2] q) { next = Add (k, one) go = Less (next, most) q = Add (p, x) }>
}"""


def counting(most: int, limit: str = "") -> onnx.ModelProto:
    """A loop that ends when its own counter reaches `most`, as TensorFlow's map over so many rows does."""
    numbers = {"zero": 0, "one": 1, "most": most, **({limit: 2} if limit else {})}
    constants = {name: np.array(number) for name, number in numbers.items()}
    return support.model(COUNTER.replace("LIMIT", limit), true=np.array(True), **constants)


@pytest.mark.parametrize(("most", "limit", "runs"), [(1, "", 1), (3, "", 3), (3, "limit", 2), (1, "limit", 1)])
def test_a_counter_of_its_own_ends_the_loop(most: int, limit: str, runs: int) -> None:
    assert unrolled(counting(most, limit)).count("Add") == 2 * runs


def test_a_map_over_one_row_is_no_loop() -> None:
    result = graphopt.optimize(counting(1))
    assert result.verification.passed and not result.rolled_back
    assert support.op_types(result.to_proto()) == ["Add"]


def test_the_number_of_the_iteration_may_end_it_too() -> None:
    body = "go = Less (i, two) y_out = Add (y_in, x)"
    assert unrolled(looping(body, trips="", two=np.array(2))) == ["Add"] * 3


# -- what stays ---------------------------------------------------------------------------------------------------


def test_a_count_that_the_caller_gives() -> None:
    stays(looping("go = Identity (going) y_out = Add (y_in, x)", trips="count", inputs=", int64 count"))


def test_a_condition_that_changes() -> None:
    body = "s = ReduceSum <keepdims = 0> (y_in) go = Less (s, ten) y_out = Add (y_in, x)"
    stays(looping(body, ten=np.array(10, np.float32)))


def test_a_counter_that_counts_too_far() -> None:
    stays(counting(9))


def test_a_condition_that_the_caller_gives() -> None:
    proto = looping("go = Identity (going) y_out = Add (y_in, x)", inputs=", bool start")
    proto.graph.node[0].input[1] = "start"
    stays(proto)


def test_many_trips_and_large_bodies() -> None:
    body = "go = Identity (going) y_out = Add (y_in, x)"
    stays(looping(body, trips="nine", nine=np.array(9)))
    chain = " ".join(f"a{k + 1} = Neg (a{k})" for k in range(22))
    stays(looping(f"go = Identity (going) a0 = Neg (y_in) {chain} y_out = Add (a22, x)"))


def test_the_number_of_the_iteration_itself() -> None:
    """ONNX Runtime collects the last number in every place."""
    text = """g (float[2] x) => (float[2] y, int64[?] z) {
        y, z = Loop (three, , x) <body = b (int64 i, bool go, float[2] p) => (bool go, float[2] q, int64 i)
            { q = Neg (p) }>
    }"""
    stays(support.model(text, three=THREE))


def test_random_numbers() -> None:
    copy = looping("go = Identity (going) r = RandomNormal <shape = [2], seed = 1.0> () y_out = Add (y_in, r)")
    model = ir.from_proto(copy)
    editor = Editor(model)
    run_passes(editor, (Pass("unroll", 3, run=unrolling.unroll_loops),))
    assert editor.log == []


# -- whole runs ---------------------------------------------------------------------------------------------------


@pytest.mark.fires("loop-of-one-trip")
def test_by_default_only_what_runs_once_is_unrolled() -> None:
    body = "go = Identity (going) a = Mul (y_in, x) y_out = Add (a, x)"
    once = graphopt.optimize(looping(body, trips="one", one=np.array(1)))
    assert once.verification.passed
    assert support.op_types(once.to_proto()) == ["Mul", "Add"]
    often = looping(body)
    assert support.op_types(graphopt.optimize(often).to_proto()) == ["Loop"]
    all_of_it = graphopt.optimize(often, level=3)
    assert all_of_it.verification.passed
    assert not all_of_it.rolled_back
    assert support.op_types(all_of_it.to_proto()) == ["Mul", "Add"] * 3


def in_a_function(loop: str, attributes: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2] x) => (float[2] y) {{ y = mine.inner(x) }}
        <opset_import: ["" : 17], domain: "mine"> inner {attributes}(x) => (y) {{
            three = Constant <value = int64 {{3}}> () {loop} }}"""
    )


def without_a_start() -> onnx.ModelProto:
    proto = looping("go = Identity (going) y_out = Neg (y_in)")
    proto.graph.node[0].input[2] = ""
    return proto


CHOICE = """y = Loop (three, , x) <body = body (int64 i, bool going, float[2] s) => (bool go, float[2] t) {
    go = Identity (going) t = If (going) <then_branch = yes () => (float[2] a) { a = Neg (s) },
        else_branch = no () => (float[2] b) { b = Abs (s) }> }>"""


@pytest.mark.parametrize(
    ("reason", "proto"),
    [
        ("nothing ends it", looping("go = Identity (going) y_out = Neg (y_in)", "")),
        ("a starting value is absent", without_a_start()),
        ("it belongs to a function and holds graphs", in_a_function(CHOICE)),
        ("it has no body of its own", in_a_function("y = Loop <body: graph = @what> (three, , x)", "<what>")),
    ],
)
def test_a_loop_that_stays_is_told_why(reason: str, proto: onnx.ModelProto) -> None:
    editor = Editor(ir.from_proto(proto))
    listed = [node for graph in editor.graphs() for node in graph]
    run_passes(editor, (Pass("unroll", 3, run=unrolling.unroll_loops),))
    assert not editor.log
    (left,) = unrolling.why_not_unrolled(editor, listed).values()
    assert left.reason == reason
