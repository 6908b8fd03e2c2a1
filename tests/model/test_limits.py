"""What a model may ask of whoever runs it: each limit is met, and each is told in a sentence."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.errors import GraphoptError, ModelError, OptionError
from graphopt.model.evaluate import evaluate
from graphopt.model.facts import Facts
from graphopt.model.limits import MOST_FED, MOST_RUNS, endless_loop
from graphopt.model.oversized import ALWAYS, GROWN, STAND_IN, oversized
from tests import support

LOOP = """g (float[2] x, bool go) => (float[2] y) {
  y = Loop (trips, start, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = KEEP w = Neg(v) }>
}"""


def _loop(trips: int, start: str = "", keep: str = "Identity(c)") -> ir.Model:
    text = LOOP.replace("KEEP", keep).replace("start", start)
    return ir.from_proto(support.model(text, trips=np.array(trips, np.int64)))


def test_a_loop_without_end_is_named() -> None:
    model = _loop(1 << 62)
    model.graph[0].name = "spin"
    assert endless_loop(model) == (f"Loop 'spin' runs its nodes {2 << 62:,} times, more than {MOST_RUNS:,}")


@pytest.mark.parametrize(
    "model",
    [_loop(1000), _loop(1 << 62, start="go"), _loop(1 << 62, keep="Not(c)")],
    ids=["short", "given", "changing"],
)
def test_a_loop_that_may_end_is_run(model: ir.Model) -> None:
    assert endless_loop(model) is None


def test_a_loop_in_a_loop_counts_for_each_trip_of_the_outer() -> None:
    text = """g (float[2] x) => (float[2] y) {
      y = Loop (trips, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
        d = Identity(c)
        w = Loop (trips, , v) <
          body = e (int64 j, bool f, float[2] p) => (bool h, float[2] q) { h = Identity(f) q = Neg(p) }>
      }>
    }"""
    model = ir.from_proto(support.model(text, trips=np.array(100_000, np.int64)))
    assert (endless_loop(model) or "").endswith(f"runs its nodes {100_000 * 200_001:,} times, more than {MOST_RUNS:,}")


def test_a_model_that_never_ends_is_not_verified() -> None:
    verdict = graphopt.verify(_loop(1 << 62), _loop(1 << 62))
    assert verdict.status == "not run"
    assert "runs its nodes" in (verdict.reason or "")


def test_inputs_of_too_many_elements_are_not_fed() -> None:
    proto = support.model(f"g (float[2,{MOST_FED}] x) => (float[2,{MOST_FED}] y) {{ y = Neg(x) }}")
    with pytest.raises(ValueError, match=f"its inputs have {2 * MOST_FED:,} elements, and {MOST_FED:,} are the most"):
        make_feed(inputs_of(ir.from_proto(proto)), {}, "normal")


def _expanded(inputs: str, *dims: int) -> onnx.ModelProto:
    text = f"g ({inputs}) => (float[a] y) {{ big = Expand(x, dims) y = ReduceSum(big) }}"
    return support.model(text, dims=np.array(dims, np.int64))


def test_a_value_made_out_of_nothing_is_named() -> None:
    assert oversized(ir.from_proto(_expanded("float[1] x", 100_000, 100_000))) == (
        f"Expand 'big' gives 10,000,000,000 elements, and {ALWAYS:,} are the most that is computed out of 3 "
        f"elements of "
        "inputs and weights"
    )


def test_a_large_model_may_have_large_values() -> None:
    held = 2 * ALWAYS // GROWN
    assert oversized(ir.from_proto(_expanded(f"float[1,{held}] x", 256, held))) is None
    assert oversized(ir.from_proto(_expanded(f"float[1,{held}] x", 512, held))) is not None
    assert oversized(ir.from_proto(_expanded("float[1] x", 5000, 5000))) is None


def test_a_weight_made_of_one_number_counts_as_a_weight() -> None:
    text = "g (float[1,n] x) => (float[1,m] y) { w = ConstantOfShape(dims) y = MatMul(x, w) }"
    stand_in, beyond = (np.array([STAND_IN // 1024, columns], np.int64) for columns in (1024, 1025))
    assert oversized(ir.from_proto(support.model(text, dims=stand_in))) is None
    assert "ConstantOfShape 'w' gives" in (oversized(ir.from_proto(support.model(text, dims=beyond))) or "")


def test_an_oversized_model_is_not_verified_and_not_run() -> None:
    result = graphopt.optimize(
        support.model(
            "g (float[1] x) => (float[1] y) { z = Identity(x) big = Resize(z, , , dims) y = ReduceMax "
            "<keepdims=0> (big) }",
            dims=np.array([10_000_000_000], np.int64),
        )
    )
    assert result.verification.status == "not run"
    assert "gives 10,000,000,000 elements" in (result.verification.reason or "")


def test_constants_that_make_too_much_are_not_computed() -> None:
    column, row = np.ones((1 << 14, 1), np.float32), np.arange(1 << 14, dtype=np.float32)[None]
    for op_type, inputs in (
        ("Add", [column, row]),
        ("MatMul", [column, row]),
        ("Tile", [row, np.array([1 << 13, 2], np.int64)]),
        ("Concat", [np.broadcast_to(row, (1 << 13, 1 << 14)), row]),
    ):
        values = [ir.Value(name=f"v{place}", type=ir.TensorType(ir.DataType.from_numpy(one.dtype)))
                  for place, one in enumerate(inputs)]  # fmt: skip
        attributes = [ir.AttrInt64("axis", 0)] if op_type == "Concat" else []
        assert evaluate(ir.Node("", op_type, values, attributes), inputs, 17) is None, op_type


def test_a_node_that_its_schema_refuses_is_not_evaluated() -> None:
    values = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in "ab"]
    node = ir.Node("", "MatMul", values)
    assert evaluate(node, [np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)], 17) is None
    assert evaluate(node, [np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)], 17) is not None


@pytest.mark.parametrize("flow", ["schedule", "compile"])
def test_a_constant_that_only_repeats_is_not_written_out_without_end(flow: str) -> None:
    text = "g (float[1] x) => (float[30000,30000] y) { a = ConstantOfShape(s) y = Add(a, x) }"
    model = support.model(text, s=np.array([30_000, 30_000], np.int64))
    options = {"device": "cpu:2"} if flow == "schedule" else {}
    with pytest.raises(ModelError) as caught:
        getattr(graphopt, flow)(model, **options)
    assert str(caught.value) == (
        "'a' repeats a few numbers; written out for a program they would take 3,600,000,000 bytes, more than "
        "2,147,483,648; fix smaller dims."
    )


def test_a_value_that_no_machine_holds_is_not_planned() -> None:
    model = support.model("g (float[5,4611686018427387904] x) => (float[5,4611686018427387904] z) { z = Erf(x) }")
    with pytest.raises(OptionError, match=r"^'x' takes 92,233,720,368,547,758,080 bytes, more than any machine has"):
        graphopt.memory(model)


def test_a_constant_of_more_elements_than_arrays_have_is_not_known() -> None:
    model = graphopt.load(
        support.model("""g (float[4] x) => (float y) {
            d = Constant<value = int64[2] {4611686018427387904, 8}>() v = ConstantOfShape(d)
            s = ReduceSum<keepdims = 0>(v) r = ReduceSum<keepdims = 0>(x) y = Add(s, r)
        }""")
    )
    made = next(node for node in model.graph if node.op_type == "ConstantOfShape").outputs[0]
    assert Facts(model).array(made) is None
    with pytest.raises(GraphoptError):
        graphopt.schedule(model, device="cpu:2")


def test_a_value_that_no_machine_holds_is_not_compiled() -> None:
    """The weights of a convolution, which is asked for tiles before anything is written out."""
    model = support.model("""g (float[1,4,9,9] x) => (float[1,n,9,9] y) {
        d = Constant<value = int64[4] {4611686018427387904, 4, 1, 1}>() w = ConstantOfShape(d) y = Conv(x, w)
    }""")
    with pytest.raises(ModelError, match=r"has [0-9,]+ elements, more than any machine has; fix smaller dims"):
        graphopt.compile(model)
