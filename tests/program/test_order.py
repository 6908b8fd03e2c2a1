"""The order of regions: a result of the caller that another region reads is written first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.program.order import in_best_order
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered


def test_a_result_that_is_read_again_is_written_first() -> None:
    """Reading `y` needs no memory of the arena: nothing else would hold its reader back."""
    text = """g (float[4] x) => (float[4] y, float[3,4] z) {
        a = Exp(x) b = Neg(a) y = Abs(b)
        p = Unsqueeze(a, zero) q = Unsqueeze(b, zero) r = Unsqueeze(y, zero) z = Concat<axis = 0>(p, q, r)
    }"""
    lowered = in_best_order(lower(ir.from_proto(support.model(text, zero=np.array([0]))), host()))
    written: set[object] = set()
    for region in lowered.regions:
        assert all(buffer in written for buffer in region.reads if buffer.role == "output")
        written |= set(region.writes)
    x = np.array([0, 1, -1, 2], np.float32)
    y, z = run_lowered(lowered, {"x": x})
    np.testing.assert_allclose(z, [np.exp(x), -np.exp(x), y], rtol=1e-6)
