"""Cumulative sums on a GPU, which has no vectors: a lane of one position, along the last axis and another one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.program.gpu.running import compared

TEXT = """
<ir_version: 9, opset_import: ["": 17]>
sums (float[3,5] x) => (float[3,5] y) <int64 axis = {AXIS}> { s = CumSum(x, axis) y = Neg(s) }
"""


@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_sums_are_equal(axis: int) -> None:
    feeds = {"x": np.arange(15, dtype=np.float32).reshape(3, 5)}
    compared(parser.parse_model(TEXT.replace("AXIS", str(axis))), feeds, 0.0)
