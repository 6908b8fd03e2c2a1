"""The body of GroupQueryAttention against ONNX Runtime's kernel, and programs made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.model.contrib.bodies import DOMAIN
from tests import support
from tests.model.contrib.test_bodies import with_body

GENERATOR = np.random.default_rng(11)
SIZE, POSITIONS = 16, 32


@dataclass(frozen=True)
class Case:
    """Rows of the past, or None for no operand; how many keys each sequence has, and the node's attributes."""

    new: int
    past: int | None
    keys: tuple[int, ...]
    total: int
    attributes: Mapping[str, object] = field(default_factory=dict)
    packed: bool = False
    turned: int = 0  # numbers of a head that are turned
    kind: type = np.float32
    more: Mapping[int, np.ndarray] = field(default_factory=dict)  # operands behind the tables


TURNS = {"do_rotary": 1}
CASES = {
    "a prompt": Case(5, 0, (5, 5), 5),
    "a prompt without a past": Case(5, None, (5,), 5),
    "a prompt in a buffer": Case(5, 9, (5, 5), 5),
    "a token": Case(1, 6, (7, 4), 7, TURNS, turned=SIZE),
    "a token in a buffer": Case(1, 12, (7, 4), 7, {**TURNS, "rotary_interleaved": 1}, turned=SIZE),
    "a token, packed": Case(1, 6, (7, 4), 7, TURNS, packed=True, turned=SIZE),
    "some tokens": Case(3, 6, (9,), 9, TURNS, turned=SIZE),
    "a window": Case(6, 0, (6,), 6, {"local_window_size": 3}),
    "a token that sees a window": Case(1, 6, (7,), 7, {"local_window_size": 3, "scale": 0.3}),
    "a cap": Case(6, 0, (6,), 6, {"softcap": 2.0}),
    "a softmax with a one": Case(6, 0, (6,), 6, {"smooth_softmax": 1}),
    "a sink": Case(6, 0, (6,), 6, more={11: np.array([0.5, -1, 2, 0], np.float32)}),
    "positions and a bias": Case(3, 6, (9,), 9, TURNS, turned=SIZE, more={
        9: np.array([[3, 4, 9]]), 10: GENERATOR.standard_normal((1, 4, 3, 9)).astype(np.float32)}),
    "short floats": Case(1, 6, (7, 4), 7, TURNS, turned=SIZE, kind=np.float16),
}  # fmt: skip


def _model(case: Case, opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    heads, groups, batch = 4, 2, len(case.keys)

    def numbers(*shape: int) -> np.ndarray:
        return GENERATOR.standard_normal(shape).astype(case.kind)

    rows = [numbers(batch, case.new, (heads + 2 * groups if case.packed else heads) * SIZE)]
    rows += [None if case.packed else numbers(batch, case.new, groups * SIZE) for _ in "kv"]
    rows += [None if case.past is None else numbers(batch, groups, case.past, SIZE) for _ in "kv"]
    rows += [np.array(case.keys, np.int32) - 1, np.asarray(case.total, np.int32)]
    rows += [numbers(POSITIONS, case.turned // 2) if case.turned else None for _ in "cs"]
    rows += [case.more.get(at) for at in range(9, 12)]
    while rows[-1] is None:
        rows.pop()
    names = ["" if one is None else f"i{at}" for at, one in enumerate(rows)]
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], domain=DOMAIN, num_heads=heads,
                            kv_num_heads=groups, **case.attributes)  # fmt: skip
    given = {name: one for name, one in zip(names, rows, strict=True) if one is not None}
    feed = {name: one for name, one in given.items() if name not in ("i5", "i6")}
    ends = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
            for name, one in feed.items()]  # fmt: skip
    element = helper.np_dtype_to_tensor_dtype(np.dtype(case.kind))
    cache = (batch, groups, max(case.past or 0, case.total), SIZE)
    shapes = {"y": (batch, case.new, heads * SIZE), "k": cache, "v": cache}
    results = [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()]
    kept = [numpy_helper.from_array(one, name) for name, one in given.items() if name not in feed]
    graph = helper.make_graph([node], "case", ends, results, kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feed


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("name", CASES)
def test_the_body_gives_what_the_operator_gives(name: str, opset: int) -> None:
    case = CASES[name]
    model, feed = _model(case, opset)
    wanted = support.session(model, optimized=True).run(None, feed)
    got = support.session(with_body(model), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        limit = 2e-3 if case.kind is np.float16 else 1e-5  # a step of float16 between 1 and 2
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=limit, atol=limit)


@pytest.mark.parametrize("name", ["a prompt in a buffer", "a token", "a token, packed", "some tokens", "a sink"])
def test_it_compiles_whole(name: str) -> None:
    model, feed = _model(CASES[name], 17)
    program = graphopt.compile(model, feeds=[feed], threads=1)
    assert program.fallback == () and program.verification.passed


def test_lengths_that_are_inputs_are_drawn_among_those_that_the_runtime_takes() -> None:
    """A total that is an input is held to what the declared caches say."""
    model, _ = _model(CASES["a token"], 21)
    del model.graph.initializer[:]
    for name, shape in (("i5", [2]), ("i6", [])):
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT32, shape))
    program = graphopt.compile(model, threads=1)
    assert program.fallback == () and program.verification.passed


def test_caches_of_bytes_have_no_body() -> None:
    model, feed = _model(CASES["a token"], 21)
    model.graph.node[0].attribute.append(helper.make_attribute("k_quant_type", "PER_TENSOR"))
    with pytest.raises(graphopt.GraphoptError, match="GroupQueryAttention"):
        graphopt.compile(model, feeds=[feed], threads=1)
