"""Weights and state that a step changes where they lie: when, in what order, and whose memory it is."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import graphopt
from graphopt.gradient.step import METADATA
from graphopt.program.carried import changed_in_place

STEP = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
net (float[2, 3] x) => (float[2, 2] y)
<float[3, 3] v = {1.0, 0.5, -1.0, 0.25, 1.5, -0.75, 0.1, 0.2, 0.3}, float[3, 2] w = {0.5, -1.0, 0.25, 1.5, -0.75, 0.1}>
{
    a = MatMul(x, v)
    r = Relu(a)
    y = MatMul(r, w)
}
""")


def _step(body: str, carried: list[list[str]]) -> ir.Model:
    """A model that says of itself that it carries values."""
    ports = "(float[3, 3] w, float[3, 3] d) => (float[3, 3] n, float[3, 3] z)"
    text = f'<ir_version: 10, opset_import: ["": 21]> g {ports} {{ {body} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.metadata_props[METADATA] = json.dumps(
        {"version": 1, "loss": "z", "carried": carried, "seed": None, "rate": "learning_rate"}
    )
    return model


@pytest.mark.parametrize(
    ("body", "in_place"),
    [
        ("z = MatMul(w, d) n = Sub(w, d)", True),
        ("n = Sub(w, d) z = MatMul(w, d)", True),  # the reader is put first
        ("t = MatMul(d, d) s = Mul(w, t) u = Add(s, w) n = Tanh(u) z = Relu(d)", True),
        ("n = Gemm(d, d, w) z = Relu(w)", True),  # w is what the product is added to
        ("n = Gemm(w, d, w) z = Relu(d)", False),
        ("t = MatMul(w, d) n = Sub(w, t) z = Relu(d)", False),  # a product needs all of w
        ("t = Transpose(w) n = Sub(w, t) z = Relu(d)", False),
        ("a = Abs(w) t = ReduceSum(a) n = Sub(w, t) z = Relu(d)", False),
        ("n = Sub(w, d) t = MatMul(w, n) z = Relu(t)", False),  # both the old and the new one are read
        ("n = MatMul(w, d) z = Relu(d)", False),
        ("n = Identity(d) z = Relu(w)", False),
    ],
)
def test_a_result_takes_the_place_of_what_it_follows_element_by_element(body: str, in_place: bool) -> None:
    model, caches = changed_in_place(_step(body, [["w", "n", "parameter"]]))
    assert {name: cache.past for name, cache in caches.items()} == ({"n": "w"} if in_place else {})
    places = [value.name for node in model.graph for value in node.outputs]
    if in_place:
        assert places.index("z") < places.index("n") or "MatMul(w" not in body


def test_a_model_that_is_no_step_stays_as_it_is() -> None:
    model = ir.from_proto(STEP)
    assert changed_in_place(model) == (model, {})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_runs_change_what_earlier_runs_gave_and_nothing_else(name: str, threads: int) -> None:
    optimizer = graphopt.Optimizer(name=name, learning_rate=0.1)  # type: ignore[arg-type]
    result = graphopt.train_step(STEP, loss="mse", optimizer=optimizer)
    program = graphopt.compile(result.to_proto(), threads=threads)
    placed = [one.name for one in program.linked.listing.outputs if one.cache >= 0]
    assert {"v_new", "w_new"} <= set(placed)
    rng = np.random.default_rng(0)
    first = {one.name: np.zeros(one.shape, np.float32) for one in program.get_inputs()}
    first = {key: value.astype(np.int64) if key == "step" else value for key, value in first.items()}
    first |= {"v": rng.normal(size=(3, 3)).astype(np.float32), "w": rng.normal(size=(3, 2)).astype(np.float32)}
    first |= {"x": rng.normal(size=(2, 3)).astype(np.float32), "learning_rate": np.array(0.1, np.float32)}
    kept = {key: value.copy() for key, value in first.items()}
    expected = result.session()
    ours, theirs = dict(first), dict(first)
    names = [value.name for value in expected.get_outputs()]
    for run in range(3):
        arrays = {one.output: ours[one.input] for one in result.step.carried}
        found = program(**ours)
        told = dict(zip(names, expected.run(names, theirs), strict=True))
        for output in names:
            np.testing.assert_allclose(found[output], told[output], rtol=0, atol=1e-5)
        for output in placed:
            assert np.shares_memory(found[output], arrays[output]) == (run > 0)
        ours |= {one.input: found[one.output] for one in result.step.carried}
        theirs |= {one.input: told[one.output] for one in result.step.carried}
    for key, value in kept.items():
        np.testing.assert_array_equal(first[key], value)
