"""A normalization in passes: the same result, less memory, and which ones are left as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.statistics import with_statistics_apart
from graphopt.model.load import load
from graphopt.model.save import to_proto
from graphopt.program.fitting import fitted
from graphopt.program.lifetimes import planned
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

# Sums of 128 products of up to 60, and of 799 elements before: float32 keeps 6e-8 of each, errors grow as the root.
TOLERANCE = 1e-4
DRAW = np.random.default_rng(13)
ARRAYS = {
    "taps": DRAW.standard_normal((16, 1, 10)).astype(np.float32),
    "next": DRAW.standard_normal((128, 16, 8)).astype(np.float32),
    "factor": DRAW.standard_normal(16).astype(np.float32), "bias": DRAW.standard_normal(16).astype(np.float32),
}  # fmt: skip
SPEECH = """g (float[1,1,4000] x) => (float[1,128,198] y) {
    c = Conv<strides = [5]>(x, taps) n = InstanceNormalization<epsilon = 0.01>(c, factor, bias) r = Relu(n)
    y = Conv<strides = [4]>(r, next)
}"""


def _apart(text: str, budget: int) -> tuple[ir.Model, ir.Model]:
    model = load(support.model(text, 20, **ARRAYS))
    return model, with_statistics_apart(model, model_memory(model), budget)


def test_every_pass_makes_its_operand_again() -> None:
    model, apart = _apart(SPEECH, 60_000)
    operators = [node.op_type for node in apart.graph]
    assert operators.count("Conv") == 4 and "InstanceNormalization" not in operators
    x = DRAW.standard_normal((1, 1, 4000)).astype(np.float32)
    before, after = (support.session(to_proto(one)).run(None, {"x": x})[0] for one in (model, apart))
    np.testing.assert_allclose(after, before, rtol=0, atol=TOLERANCE)


def test_a_program_holds_no_two_of_the_operand() -> None:
    """Without a budget it holds the operand and the same row by row."""
    model = ir.from_proto(support.model(SPEECH, 20, **ARRAYS))
    whole = lower(model, host())
    operand = 16 * 799 * 4
    assert planned(whole).plan.arena_size >= 2 * operand
    kept = fitted(model, whole, int(1.1 * operand), lambda one: lower(one, host(), tight=True))
    assert planned(kept).plan.arena_size <= 1.1 * operand
    x = DRAW.standard_normal((1, 1, 4000)).astype(np.float32)
    (expected,) = support.session(support.model(SPEECH, 20, **ARRAYS)).run(None, {"x": x})
    np.testing.assert_allclose(run_lowered(kept, {"x": x})[0], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("instead", "by", "budget"),
    [
        ("x, taps", "x, taps", 200_000),  # it is not large
        ("float[1,1,4000] x", "float[1,1,4000] x, float[16] factor", 60_000),  # the factor is the caller's
        ("c = Conv<strides = [5]>(x, taps)", "d = Conv<strides = [5]>(x, taps) a = Tanh(d) b = Sin(d) c = Add(a, b)",
         60_000),  # its operand is made from two values
        ("y = Conv<strides = [4]>(r, next)", "y = Relu(r)", 60_000),  # its operand takes most of the time
    ],
)  # fmt: skip
def test_other_normalizations_are_left_as_they_are(instead: str, by: str, budget: int) -> None:
    text = SPEECH.replace(instead, by)
    model = load(support.model(text, 20, **{name: array for name, array in ARRAYS.items() if f"] {name})" not in text}))
    assert with_statistics_apart(model, model_memory(model), budget) is model
