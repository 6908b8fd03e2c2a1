"""Programs for ranges whose tensors are equal at some sizes by chance: they are the program of all other sizes."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

TWO_DIMS = """g (float[s] m, float[t,4] q) => (float[s,s] y, float[t,s] z) {
    sm = Shape(m) sq = Shape<start = 0, end = 1>(q) ss = Concat<axis = 0>(sm, sm) ts = Concat<axis = 0>(sq, sm)
    a = Expand(m, ss) b = Expand(m, ts) c = CumSum(a, zero) d = CumSum(b, zero) e = Softmax(c)
    y = MatMul(c, e) z = MatMul(d, e)
}"""
TWO_WINDOWS = """g (float[n,n] x) => (float[n,n] y, float[n,n] z) {
    shape = Shape(x) one = ConstantOfShape<value = float[1] {1.0}>(shape)
    low = Trilu<upper = 0>(one) far = Trilu<upper = 0>(one, k) near = Sub(low, far)
    a = Mul(x, low) b = Mul(x, near) y = Softmax(a) z = Softmax(b)
}"""


def test_two_dims_of_one_size_are_two() -> None:
    compiled = graphopt.compile(support.model(TWO_DIMS, zero=np.array(0)), dims={"s": (2, 12), "t": (2, 12)}, tune=0)
    program = compiled.program
    assert program is not None and program.ranges == {"s": (2, 12), "t": (2, 12)}
    rng = np.random.default_rng(0)
    for s, t in ((12, 12), (7, 7), (12, 2), (3, 12)):
        m = rng.random(s, np.float32)
        y, z = program.run(None, {"m": m, "q": np.zeros((t, 4), np.float32)})
        rows = [np.cumsum(np.broadcast_to(m, (count, s)), 0) for count in (s, t)]
        weights = np.exp(rows[0]) / np.exp(rows[0]).sum(1, keepdims=True)
        np.testing.assert_allclose(y, rows[0] @ weights, rtol=1e-5)
        np.testing.assert_allclose(z, rows[1] @ weights, rtol=1e-5)
    with pytest.raises(graphopt.GraphoptError, match="'t' cannot be 13; the program is made for 2 to 12"):
        program.run(None, {"m": m, "q": np.zeros((13, 4), np.float32)})


def test_two_windows_that_are_one_at_small_sizes_are_two() -> None:
    compiled = graphopt.compile(support.model(TWO_WINDOWS, k=np.array(-20)), dims={"n": (2, 30)}, tune=0)
    program = compiled.program
    assert program is not None
    for n in (30, 20, 15, 2):
        x = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
        low = np.tril(np.ones((n, n), np.float32))
        for mask, found in zip((low, low - np.tril(low, -20)), program.run(None, {"x": x}), strict=True):
            scores = np.exp(x * mask)
            np.testing.assert_allclose(found, scores / scores.sum(1, keepdims=True), rtol=2e-5)
