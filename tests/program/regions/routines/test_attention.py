"""Attention and its kin as loops, beside onnx's ReferenceEvaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import same

QUERIES, KEYS, SIZE, WIDE = 3, 5, 4, 6


def drawn(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(kind)


@given(
    st.data(), st.sampled_from(["f4", "f8"]), st.sampled_from([(2, 2), (4, 2), (3, 1)]), st.booleans(), st.booleans(),
    st.sampled_from([None, "bool", "float"]), st.sampled_from([None, "past", "lengths"]), st.integers(0, 1),
    st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_attention(
    data: st.DataObject, kind: str, counts: tuple[int, int], flat: bool, capped: bool, mask: str | None,
    cache: str | None, causal: int, mode: int,
) -> None:  # fmt: skip
    heads, groups = counts
    past = 2 if cache == "past" else 0
    total = KEYS + past
    q, k = drawn((2, heads, QUERIES, SIZE), kind), drawn((2, groups, KEYS, SIZE), kind, 1)
    v = drawn((2, groups, KEYS, WIDE), kind, 2)
    more: dict[str, Any] = {"is_causal": causal}
    if capped:
        more |= {"softcap": 2.0, "qk_matmul_output_mode": max(mode, 1)}  # the reference shows no scores without the cap
    else:
        more |= {"qk_matmul_output_mode": mode}
    if data.draw(st.booleans()):
        more |= {"left_window_size": data.draw(st.integers(-1, 3)), "right_window_size": data.draw(st.integers(-1, 3))}
    if flat:
        q, k, v = (one.transpose(0, 2, 1, 3).reshape(2, one.shape[2], -1) for one in (q, k, v))
        more |= {"q_num_heads": heads, "kv_num_heads": groups}
    inputs: list[np.ndarray | None] = [q, k, v, None, None, None, None]
    if mask is not None:
        lead = data.draw(st.sampled_from([(), (heads,), (2, 1), (1, heads)]))
        width = total if data.draw(st.booleans()) else total - 1
        numbers = drawn((*lead, QUERIES, width), kind, 3)
        inputs[3] = numbers > 0 if mask == "bool" else numbers
    if cache == "past":
        inputs[4], inputs[5] = drawn((2, groups, 2, SIZE), kind, 4), drawn((2, groups, 2, WIDE), kind, 5)
    if cache == "lengths":
        inputs[6] = np.array([4, 2])
    same("Attention", inputs, outputs=4, opset=25, engine="reference", tolerance=2e-5, **more)


@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("kind", ["f2", "f8"])
@pytest.mark.parametrize(("shape", "turned"), [((2, 3, 4, 8), 0), ((2, 4, 24), 4)])
def test_rotations(shape: tuple[int, ...], turned: int, kind: str, apart: int) -> None:
    half = (turned or 8) // 2
    tables = [drawn((9, half), kind, seed) for seed in (1, 2)]
    places = np.array([[0, 8, 2, 3], [4, 4, 5, 1]])
    more = {"num_heads": 3} if len(shape) == 3 else {}
    same("RotaryEmbedding", [drawn(shape, kind), *tables, places], opset=23, interleaved=apart, engine="reference",
         rotary_embedding_dim=turned, tolerance=1e-2 if kind == "f2" else 1e-12, **more)  # fmt: skip


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "groups", "each", "past"), [(2, 2, True, False), (4, 2, False, True)])
def test_linear_attention(heads: int, groups: int, each: bool, past: bool, rule: str) -> None:
    q, k = drawn((2, 3, heads * SIZE), "f4"), drawn((2, 3, groups * SIZE), "f4", 1) / 2
    v = drawn((2, 3, groups * WIDE), "f4", 2)
    state = drawn((2, groups, SIZE, WIDE), "f4", 3) if past else None
    decay = drawn((2, 3, groups * (SIZE if each else 1)), "f4", 4) / 4 if "gated" in rule else None
    beta = drawn((2, 3, groups if each else 1), "f4", 5) if "delta" in rule else None
    same("LinearAttention", [q, k, v, state, decay, beta], outputs=2, opset=27, engine="reference", update_rule=rule,
         q_num_heads=heads, kv_num_heads=groups, tolerance=1e-5)  # fmt: skip


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize(("length", "size", "given_state"), [(5, 3, True), (1, 4, True), (2, 4, False), (3, 1, False)])
def test_causal_convolutions(length: int, size: int, given_state: bool, activation: str) -> None:
    inputs = [drawn((2, 3, length), "f4"), drawn((3, 1, size), "f4", 1), drawn((3,), "f4", 2)]
    state = drawn((2, 3, size - 1), "f4", 3) if given_state else None
    same("CausalConvWithState", [*inputs, state], outputs=2, opset=27, engine="reference", activation=activation,
         tolerance=1e-5)  # fmt: skip
