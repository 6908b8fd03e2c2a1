"""Gradients of operators that have a body in place of a rule, against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.gradient.differences import STEPS, analytic, numeric, weighted

RNG = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


Case = tuple[str, str, int, list[np.ndarray | None], dict[str, object]]  # domain, operator, opset, operands, attributes
HEADS = [_floats(1, 2, 3, 4), _floats(1, 2, 5, 4), _floats(1, 2, 5, 3)]
CASES: list[Case] = [
    ("", "Attention", 23, [*HEADS], {}),
    ("", "Attention", 23, [*HEADS, _floats(3, 5)], {"softcap": 2.0}),
    ("", "Attention", 23, [_floats(1, 4, 4, 3), _floats(1, 2, 4, 3), _floats(1, 2, 4, 3)], {"is_causal": 1}),
    ("", "Attention", 23, [_floats(2, 3, 8), _floats(2, 5, 8), _floats(2, 5, 6)],
     {"q_num_heads": 2, "kv_num_heads": 2}),
    ("", "RotaryEmbedding", 23, [_floats(2, 2, 3, 4), _floats(2, 3, 2), _floats(2, 3, 2)], {}),
    ("", "RotaryEmbedding", 23, [_floats(1, 3, 8), _floats(1, 3, 2), _floats(1, 3, 2)],
     {"num_heads": 2, "interleaved": 1}),
    ("", "MeanVarianceNormalization", 18, [_floats(2, 2, 3, 2)], {}),
    ("com.microsoft", "BiasGelu", 18, [_floats(3, 4), _floats(4)], {}),
    ("com.microsoft", "BiasGelu", 20, [_floats(3, 4), _floats(4)], {}),
    ("com.microsoft", "Gelu", 18, [_floats(3, 4)], {}),
    *(("com.microsoft", "FastGelu", opset, [_floats(3, 4), _floats(4)], {}) for opset in (18, 20)),
    ("com.microsoft", "QuickGelu", 18, [_floats(3, 4)], {"alpha": 1.5}),
    ("com.microsoft", "FusedMatMul", 18, [_floats(2, 3, 4), _floats(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    ("com.microsoft", "FusedGemm", 18, [_floats(3, 4), _floats(4, 2), _floats(2)], {"activation": "Tanh"}),
    ("com.microsoft", "SkipLayerNormalization", 18, [_floats(1, 3, 4), _floats(1, 3, 4), _floats(4), _floats(4)],
     {"epsilon": 1e-3}),
    ("com.microsoft", "SkipSimplifiedLayerNormalization", 18, [_floats(1, 3, 4), _floats(1, 3, 4), _floats(4)], {}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[2]}-{len(case[3])}-{'-'.join(case[4])}")
def test_gradients_go_through_the_body(case: Case) -> None:
    domain, op_type, opset, operands, attributes = case
    inputs = {f"x{at}": array for at, array in enumerate(operands) if array is not None}
    names = [f"x{at}" if array is not None else "" for at, array in enumerate(operands)]
    node = helper.make_node(op_type, names, ["y"], name="n", domain=domain, **attributes)  # type: ignore[arg-type]
    wanted = [name for name, array in inputs.items() if array.dtype == np.float32]
    model = weighted([node], inputs, ["y"], wanted, opset)
    found = analytic(model, inputs, wanted)
    for name in wanted:
        expected = numeric(model, inputs, name)
        tolerance = STEPS[expected.dtype][1] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance, err_msg=name)
