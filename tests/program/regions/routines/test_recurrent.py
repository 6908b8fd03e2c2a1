"""Recurrent layers as loops, beside ONNX Runtime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import same

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
PLAIN = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"]
WITH_ALPHA = ["LeakyRelu", "Elu", "ThresholdedRelu"]
WITH_BOTH = ["HardSigmoid", "Affine", "ScaledTanh"]


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) / 2).astype("f4")


@given(st.data(), st.sampled_from(sorted(GATES)), st.sampled_from(["forward", "reverse", "bidirectional"]))
@settings(max_examples=20, deadline=None)
def test_layers(data: st.DataObject, op: str, direction: str) -> None:
    gates, count = GATES[op], 2 if direction == "bidirectional" else 1
    flag = st.booleans()
    inputs: list[np.ndarray | None] = [
        drawn(STEPS, BATCH, INPUTS), drawn(count, gates * HIDDEN, INPUTS, seed=1),
        drawn(count, gates * HIDDEN, HIDDEN, seed=2),
        drawn(count, 2 * gates * HIDDEN, seed=3) if data.draw(flag) else None,
        np.array([4, 2, 3], np.int32) if data.draw(flag) else None,
        drawn(count, BATCH, HIDDEN, seed=4) if data.draw(flag) else None,
    ]  # fmt: skip
    more: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    if op == "LSTM":
        inputs.append(drawn(count, BATCH, HIDDEN, seed=5) if data.draw(flag) else None)
        inputs.append(drawn(count, 3 * HIDDEN, seed=6) if data.draw(flag) else None)
        more["input_forget"] = data.draw(st.integers(0, 1))
    if op == "GRU":
        more["linear_before_reset"] = data.draw(st.integers(0, 1))
    if data.draw(flag):
        more["clip"] = 0.5
    if data.draw(flag):
        names = [data.draw(st.sampled_from(PLAIN)) for _ in range(FUNCTIONS[op])]
        more["activations"] = names * count
    same(op, inputs, outputs=3 if op == "LSTM" else 2, opset=14, tolerance=2e-5, **more)


@pytest.mark.parametrize("name", [*WITH_ALPHA, *WITH_BOTH])
def test_activations_with_numbers(name: str) -> None:
    inputs = [drawn(STEPS, BATCH, INPUTS), drawn(1, HIDDEN, INPUTS, seed=1), drawn(1, HIDDEN, HIDDEN, seed=2)]
    more: dict[str, Any] = {"activation_alpha": [0.4]}
    if name in WITH_BOTH:
        more["activation_beta"] = [0.3]
    for known in ((), (1, 2)):  # by loops, and by the template
        same("RNN", inputs, outputs=2, opset=14, hidden_size=HIDDEN, activations=[name], tolerance=1e-5, known=known,
             **more)  # fmt: skip


@pytest.mark.parametrize("op", sorted(GATES))
def test_activations_of_each_direction(op: str) -> None:
    """The template has those of both alike; loops take any."""
    inputs = [
        drawn(STEPS, BATCH, INPUTS), drawn(2, GATES[op] * HIDDEN, INPUTS, seed=1),
        drawn(2, GATES[op] * HIDDEN, HIDDEN, seed=2),
    ]  # fmt: skip
    for second in ("Softsign", "Relu"):
        names = ["Softsign"] * FUNCTIONS[op] + [second] * FUNCTIONS[op]
        same(op, inputs, outputs=2, opset=14, hidden_size=HIDDEN, direction="bidirectional", activations=names,
             known=(1, 2), tolerance=2e-5)  # fmt: skip


@pytest.mark.parametrize("op", sorted(GATES))
def test_a_layout_with_batches_first(op: str) -> None:
    """Beside onnx's reference, as ONNX Runtime has no such layout."""
    gates = GATES[op]
    inputs = [
        drawn(BATCH, STEPS, INPUTS), drawn(1, gates * HIDDEN, INPUTS, seed=1), drawn(1, gates * HIDDEN, HIDDEN, seed=2)
    ]  # fmt: skip
    same(op, inputs, outputs=2, opset=14, hidden_size=HIDDEN, layout=1, engine="reference", tolerance=1e-5)


@pytest.mark.parametrize("op", sorted(GATES))
def test_a_clip_beside_constant_weights(op: str) -> None:
    """The template has none, and leaves the layer to the loops."""
    inputs = [
        drawn(STEPS, BATCH, INPUTS), drawn(1, GATES[op] * HIDDEN, INPUTS, seed=1),
        drawn(1, GATES[op] * HIDDEN, HIDDEN, seed=2),
    ]  # fmt: skip
    same(op, inputs, outputs=2, opset=14, hidden_size=HIDDEN, clip=0.1, known=(1, 2), tolerance=2e-5)
