"""Rows that lie across the memory of what they read: copied row-major first, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from kernels.templates.elementwise import Elementwise
from kernels.templates.normalization import Normalization
from kernels.templates.reduction import Reduction
from kernels.templates.softmax import Softmax
from tests import support
from tests.program.regions.running import run_lowered

ROWS = (Normalization, Reduction, Softmax)
SCALE = np.random.default_rng(0).standard_normal(24).astype(np.float32)
ROUNDING = 24 * 2.0**-23  # as many sums as a row has terms
FORWARD, BACK = "<perm = [0, 2, 3, 1]>", "<perm = [0, 3, 1, 2]>"


def _model(body: str, shape: str, out: str) -> onnx.ModelProto:
    text = f"g (float[{shape}] x) => (float[{out}] y) {{ a = Relu(x) {body} }}"
    return support.model(text, 18, scale=SCALE, two=np.array([1]), last=np.array([3]))


@pytest.mark.parametrize(("body", "shape", "out", "copied"), [
    (f"b = Transpose{FORWARD}(a) y = LayerNormalization(b, scale)", "2,24,5,9", "2,5,9,24", 1),
    (f"b = Transpose{FORWARD}(a) y = Softmax(b)", "2,24,5,9", "2,5,9,24", 1),
    # Sums of what lies side by side, and of pixels for each channel.
    (f"b = Transpose{BACK}(a) y = ReduceSum<keepdims = 0>(b, two)", "9,16,8,2", "9,16,8", 0),
    ("b = Transpose<perm = [0, 3, 1, 2]>(a) y = ReduceSum<keepdims = 0>(b, last)", "2,9,16,24", "2,24,9", 1),
    # Too few along either axis; rows that lie side by side.
    (f"b = Transpose{FORWARD}(a) y = Softmax(b)", "2,24,1,3", "2,1,3,24", 0),
    (f"b = Transpose{FORWARD}(a) y = Softmax(b)", "2,4,5,9", "2,5,9,4", 0),
    ("y = LayerNormalization(a, scale)", "2,5,9,24", "2,5,9,24", 0),
])  # fmt: skip
def test_rows_across_the_memory_are_copied_first(body: str, shape: str, out: str, copied: int) -> None:
    proto = _model(body, shape, out)
    lowered = lower(ir.from_proto(proto), host())
    kinds = [type(lowered.problems[region.kernel.name][1]) for region in lowered.regions]
    rows = next(at for at, kind in enumerate(kinds) if kind in ROWS)
    assert kinds[:rows].count(Elementwise) == 1 + copied  # Relu's
    feed = {"x": np.random.default_rng(1).standard_normal(lowered.inputs[0].shape).astype(np.float32)}
    (found,), (expected,) = run_lowered(lowered, feed), support.session(proto).run(None, feed)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)
