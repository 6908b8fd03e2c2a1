"""LinearAttention of com.microsoft as loops, beside ONNX Runtime's kernel."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import graphopt
from tests import support

BATCH, TOKENS, SIZE, SIZE_V = 2, 5, 8, 16


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "groups", "of_keys"), [(4, 2, False), (2, 2, True), (2, 4, False)])
def test_every_rule_gives_what_the_operator_gives(rule: str, heads: int, groups: int, of_keys: bool) -> None:
    generator = np.random.default_rng(3)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    key = numbers(BATCH, TOKENS, groups, SIZE)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    feed = {"q": numbers(BATCH, TOKENS, heads * SIZE), "k": key.reshape(BATCH, TOKENS, -1),
            "v": numbers(BATCH, TOKENS, groups * SIZE_V), "past": numbers(BATCH, groups, SIZE, SIZE_V)}  # fmt: skip
    names = ["q", "k", "v", "past", "", ""]
    if "gated" in rule:
        names[4], feed["decay"] = "decay", -np.abs(numbers(BATCH, TOKENS, groups * (SIZE if of_keys else 1)))
    if "delta" in rule:
        names[5], feed["rate"] = "rate", generator.random((BATCH, TOKENS, groups)).astype(np.float32)
    node = helper.make_node("LinearAttention", names, ["y", "state"], domain="com.microsoft", q_num_heads=heads,
                            kv_num_heads=groups, update_rule=rule)  # fmt: skip
    ends = {"y": (BATCH, TOKENS, max(heads, groups) * SIZE_V), "state": (BATCH, groups, SIZE, SIZE_V)}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, 1, one.shape) for name, one in feed.items()],
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in ends.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    wanted = support.session(model, optimized=True).run(None, feed)
    program = graphopt.compile(model, feeds=[feed], threads=1)
    assert program.fallback == ()
    made = program(**feed)
    for name, other in zip(ends, wanted, strict=True):
        np.testing.assert_allclose(made[name], other, rtol=1e-5, atol=1e-6)


def test_states_of_several_tokens_have_no_kernel() -> None:
    shapes = {"q": (1, 2, 8), "k": (1, 2, 8), "v": (1, 2, 8), "past": (2, 1, 1, 8, 8)}
    node = helper.make_node("LinearAttention", list(shapes), ["y", "state"], domain="com.microsoft", q_num_heads=1,
                            kv_num_heads=1, update_rule="linear", state_window=2)  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, 1, one) for name, one in shapes.items()],
        [helper.make_tensor_value_info("y", 1, (1, 2, 8)), helper.make_tensor_value_info("state", 1, shapes["past"])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(graphopt.GraphoptError, match="LinearAttention"):
        graphopt.compile(model, threads=1)
