"""The body of GroupQueryAttention against ONNX Runtime's kernel, and programs made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.check.unspecified import with_zeros
from graphopt.model.contrib.bodies import DOMAIN
from tests import support
from tests.model.contrib.test_bodies import with_body

GENERATOR = np.random.default_rng(11)
SIZE, POSITIONS = 16, 32
LIMIT = 1e-5  # relative and absolute: sums of 16 products, weighed by softmaxes of at most 14 of them


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
WINDOWED = {"local_window_size": 3, "sliding_window_cache": 1}  # of caches with room for as many rows or more
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
    "a prompt in a windowed cache": Case(2, 3, (2, 2), 2, WINDOWED),
    "a prompt longer than its windowed cache": Case(7, 3, (7,), 7, {**WINDOWED, **TURNS}, turned=SIZE),
    "a token in a windowed cache": Case(1, 5, (4, 3), 4, {**WINDOWED, **TURNS}, turned=SIZE),
    "a token in the last row": Case(1, 5, (5, 2), 5, WINDOWED),
    "a token for which rows leave": Case(1, 5, (6, 14), 14, {**WINDOWED, **TURNS}, packed=True, turned=SIZE),
    "a token in a cache of the window": Case(1, 3, (4, 2), 4, {**WINDOWED, "softcap": 2.0}),
    "some tokens for which rows leave": Case(4, 5, (8,), 8, {**WINDOWED, **TURNS}, turned=SIZE),
    "some tokens more": Case(2, 5, (11,), 11, WINDOWED, more={11: np.array([0.5, -1, 2, 0], np.float32)}),
    "short floats in a windowed cache": Case(1, 5, (6, 4), 6, {**WINDOWED, **TURNS}, turned=SIZE, kind=np.float16),
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
    rows_kept = (case.past or 0) if "sliding_window_cache" in case.attributes else max(case.past or 0, case.total)
    cache = (batch, groups, rows_kept, SIZE)
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
    with_zeros(model)
    wanted = support.session(model, optimized=True).run(None, feed)
    got = support.session(with_body(model), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        limit = 2e-3 if case.kind is np.float16 else LIMIT  # a step of float16 between 1 and 2
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=limit, atol=limit)


COMPILED = [
    "a prompt in a buffer", "a token", "a token, packed", "some tokens", "a sink", "a prompt in a windowed cache",
    "a prompt longer than its windowed cache", "a token for which rows leave", "some tokens more",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
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


def test_windowed_caches_are_decoded_in_any_steps() -> None:
    """One program for all steps: what it keeps and gives depends on how many keys there are, not on the steps."""
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 21, "{DOMAIN}" : 1]>
    g (float[1, n, 64] q, float[1, n, 32] k, float[1, n, 32] v, float[1, 2, 5, 16] old_k, float[1, 2, 5, 16] old_v,
       float[before] seen, int64[1, total] mask)
        => (float[1, n, 64] y, float[before] seen_too, float[1, 2, 5, 16] all_k, float[1, 2, 5, 16] all_v) {{
        seen_too = Neg(seen)
        axis = Constant<value = int64[1] {{1}}>()
        count = ReduceSum<keepdims = 0>(mask, axis)
        last = Sub(count, axis)
        behind = Cast<to = 6>(last)
        dims = Shape<start = 1>(mask)
        width = Squeeze(dims)
        keys = Cast<to = 6>(width)
        y, all_k, all_v = {DOMAIN}.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, local_window_size = 3,
            sliding_window_cache = 1>(q, k, v, old_k, old_v, behind, keys)
    }}
    """)
    rows = [GENERATOR.standard_normal((1, 14, width)).astype(np.float32) for width in (64, 32, 32)]

    def step(old: list[np.ndarray], begin: int, end: int) -> dict[str, np.ndarray]:
        parts = [one[:, begin:end] for one in rows]
        lengths = np.zeros(begin, np.float32), np.ones((1, end), np.int64)
        return dict(zip(("q", "k", "v", "old_k", "old_v", "seen", "mask"), (*parts, *old, *lengths), strict=True))

    empty = [np.zeros((1, 2, 5, 16), np.float32)] * 2
    given = [step(empty, 0, 4), step([one + 1 for one in empty], 4, 5), step(empty, 2, 9)]
    sizes = {"n": (1, 9), "before": (0, 12), "total": "n + before"}
    program = graphopt.compile(model, dims=sizes, threads=1, feeds=given)
    assert program.fallback == () and program.verification.passed
    with_zeros(model)
    checked, kept = support.session(model), {}
    for steps in ((4, 5, 6, 7, 8, 12, 14), (1, 8, 14), (5, 6, 14)):
        caches, begin = empty, 0
        for end in steps:
            feed = step(caches, begin, end)
            found = program.run(None, feed)
            for one, other in zip(found, checked.run(None, feed), strict=True):
                np.testing.assert_allclose(one, other, rtol=LIMIT, atol=LIMIT)
            caches, begin = [np.array(one) for one in found[2:]], end
        kept[steps] = caches
    first, *others = kept.values()
    assert all(np.array_equal(one, other) for caches in others for one, other in zip(first, caches, strict=True))


def test_rows_that_a_windowed_cache_leaves_open_are_no_difference() -> None:
    """What lies behind the rows of a cache differs from run to run of ONNX Runtime."""
    model, feed = _model(CASES["a token in a windowed cache"], 21)
    model.graph.node.append(helper.make_node("Add", ["y", "y"], ["twice"]))
    model.graph.output.append(helper.make_tensor_value_info("twice", onnx.TensorProto.FLOAT, (2, 1, 4 * SIZE)))
    result = graphopt.optimize(model, feeds=[feed])
    assert result.verification.passed and not result.rolled_back
    ours = graphopt.compile(model, feeds=[feed]).run(None, feed)
    with_zeros(model)
    for one, other in zip(ours, support.session(model).run(None, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=LIMIT, atol=LIMIT)
    assert not ours[1][0, :, 4:].any() and not ours[1][1, :, 3:].any()  # four keys and three


def test_a_windowed_cache_has_room_for_its_window_in_what_is_told() -> None:
    model, _ = _model(CASES["a token in a windowed cache"], 21)
    for value in (one for one in (*model.graph.input, *model.graph.output) if one.name in ("i3", "i4", "k", "v")):
        value.type.tensor_type.shape.dim[2].dim_param = "room"
    with pytest.raises(graphopt.OptionError, match=r"give 'room' a value, dims=\{'room': 3\} for example"):
        graphopt.memory(model)


def test_caches_of_bytes_have_no_body() -> None:
    model, feed = _model(CASES["a token"], 21)
    model.graph.node[0].attribute.append(helper.make_attribute("k_quant_type", "PER_TENSOR"))
    with pytest.raises(graphopt.GraphoptError, match="GroupQueryAttention"):
        graphopt.compile(model, feeds=[feed], threads=1)
