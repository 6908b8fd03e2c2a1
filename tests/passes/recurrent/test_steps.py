"""Pieces of tensors drawn at random: a piece that is told to be a step of one holds just that step."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from graphopt.model.facts import Facts
from graphopt.passes.recurrent.steps import run_of, step_of
from tests import support
from tests.passes.near.test_near_misses import outputs

SHAPE = (2, 4, 3)
CONSTANTS = {
    **{f"i{number}".replace("-", "_"): np.array(number) for number in range(-2, 4)},
    **{f"l{number}".replace("-", "_"): np.array([number]) for number in range(-4, 5)},
    "end": np.array([99]), "both": np.array([0, 1]), "b24": np.array([2, 4]), "b43": np.array([4, 3]),
    "b23": np.array([2, 3]), "b8": np.array([8]), "b64": np.array([6, 4]), "parts": np.array([1, 2, 1]),
}  # fmt: skip
NEGATIVE = re.compile(r"\b([il])-(\d)")  # a constant's name: i-1 is written i_1


def drawn(random: np.random.Generator) -> str:
    """Statements that compute v, a piece of x or w by one or two operators; not all of them fit together."""

    def one(*texts: str) -> str:
        return str(random.choice(texts))

    source, axis, index = one("x", "x", "w"), int(random.integers(-3, 3)), int(random.integers(-2, 3))
    kept = "b" + "".join(str(size) for place, size in enumerate(SHAPE) if place != axis % 3)
    drop = one(
        f"Squeeze(p, l{axis})", f"Squeeze(p, l{axis})", f"Reshape(p, {kept})", "Reshape(p, b8)", "Reshape(p, b64)"
    )
    parts = ["p", *(f"o{place}" for place in range(1, SHAPE[axis]))]
    random.shuffle(parts)
    text = one(
        f"v = Gather<axis = {axis}>({source}, i{index})", f"v = Gather<axis = {axis}>({source}, at)",
        f"p = Gather<axis = {axis}>({source}, l{index}) v = {drop}",
        f"v = Gather<axis = {axis}>({source}, both)", f"v = Slice({source}, l0, l2, l{axis})",
        f"p = Slice({source}, l{index}, {'end' if index == -1 else f'l{index + 1}'}, l{axis}) v = {drop}",
        f"p = Slice({source}, l{index}, {'end' if index == -1 else f'l{index + 1}'}, l{axis}) v = {drop}",
        f"p = Slice({source}, l1, end, l{axis}, l4) v = {drop}", f"p = Slice({source}, at1, end, l{axis}) v = {drop}",
        f"{', '.join(parts)} = Split<axis = {axis}>({source}) v = {drop}",
        f"{', '.join(parts)} = Split<axis = {axis}>({source}) v = {drop}",
        f"a, b, p = Split<axis = 1>({source}, parts) v = {drop}",
    )  # fmt: skip
    return NEGATIVE.sub(r"\1_\2", text)


def test_a_step_of_a_tensor_holds_what_lies_there() -> None:
    random = np.random.default_rng(0)
    feed = {name: random.standard_normal(SHAPE).astype(np.float32) for name in "xw"}
    feed |= {"at": np.array(1), "at1": np.array([1])}
    told: Counter[str] = Counter()
    for _ in range(400):
        text = drawn(random)
        proto = support.model(
            f"g (float[2,4,3] x, float[2,4,3] w, int64 at, int64[1] at1) => (float[2] y) {{ {text} y = Neg(v) }}",
            17, **CONSTANTS,
        )  # fmt: skip
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))
        del proto.graph.node[-1]
        found = outputs(proto, feed)
        if found is None:
            continue
        model = ir.from_proto(proto)
        step = step_of(Facts(model), model.graph.outputs[0])
        told[" ".join(node.op_type for node in proto.graph.node)] += step is not None
        if step is not None:
            right = feed[str(step.source.name)].take(step.index, step.axis)
            np.testing.assert_array_equal(found[0], right, err_msg=text)
    steps = {kind for kind, count in told.items() if count}
    assert steps == {"Gather", "Slice Squeeze", "Slice Reshape", "Split Squeeze", "Split Reshape"}, told
    assert told.keys() - steps, "of some nothing is said"


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ((0, 1, 2), (0, 3, False)), ((2, 1, 0), (0, 3, True)), ((1, 2), (1, 3, False)), ((3, 2, 1), (1, 4, True)),
        ((0, 2), None), ((0, 1, 1), None), ((1, 0, 2), None), ((-1, -2), (2, 4, True)), ((2,), (2, 3, False)),
    ],
)  # fmt: skip
def test_neighboring_steps_are_one_run(places: tuple[int, ...], found: tuple[int, int, bool] | None) -> None:
    lines = " ".join(
        f"v{number} = Gather<axis = 1>(x, i{place})".replace("-", "_") for number, place in enumerate(places)
    )
    proto = support.model(f"g (float[2,4,3] x) => (float[2,3] v0) {{ {lines} }}", **CONSTANTS)
    model = ir.from_proto(proto)
    run = run_of(Facts(model), [node.outputs[0] for node in model.graph])
    assert (None if run is None else (run.start, run.stop, run.reverse)) == found
    assert run is None or (run.source is model.graph.inputs[0] and run.axis == 1)
