"""A convolution of bytes on a GPU: sums are rounded to the nearest step, ties to the even one."""

from __future__ import annotations

import numpy as np

import graphopt
from tests import support

TEXT = """g (int8[1,8,6,6] x) => (int8[1,8,6,6] y) {
    a = DequantizeLinear(x, scale, zero) b = DequantizeLinear<axis = 0>(w, fine, middle)
    p = Conv<pads = [1,1,1,1]>(a, b) q = QuantizeLinear(p, coarse, zero) d = DequantizeLinear(q, coarse, zero)
    h = HardSigmoid(d) m = Mul(d, h) y = QuantizeLinear(m, coarse, zero) }"""


def test_bytes_are_equal() -> None:
    weights = np.random.default_rng(3).integers(-9, 9, (8, 8, 3, 3)).astype(np.int8)
    given = {"scale": np.float32(0.03), "zero": np.int8(3), "fine": np.linspace(0.01, 0.02, 8, dtype=np.float32),
             "middle": np.zeros(8, np.int8), "coarse": np.float32(0.07), "w": weights}  # fmt: skip
    program = graphopt.compile(support.model(TEXT, 17, **given), target="cuda:sm_80")
    assert program.not_compared is None and program.verification.passed
