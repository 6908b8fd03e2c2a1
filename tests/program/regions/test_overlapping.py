"""Concat of parts that follow one another in memory: a view, also where they overlap, and copies elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

GRAPHS = {
    "windows over rows": ("a = Slice(x, z, m2, o) b = Slice(x, o, m1, o) d = Slice(x, t, e, o)", 2, 0),
    "windows, one row left out": ("a = Slice(x, z, m2, o) b = Slice(x, o, m1, o) d = Slice(x, o, m1, o)", 2, 3),
    "windows in another order": ("a = Slice(x, t, e, o) b = Slice(x, o, m1, o) d = Slice(x, z, m2, o)", 2, 3),
    "neighbours": ("a = Slice(x, z, o, o) b = Slice(x, o, t, o) d = Slice(x, t, m1, o)", 1, 0),
    "neighbours with a gap": ("a = Slice(x, z, o, o) b = Slice(x, t, m2, o) d = Slice(x, m2, m1, o)", 1, 3),
}


@pytest.mark.parametrize("kind", sorted(GRAPHS))
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_rows(kind: str, threads: int) -> None:
    slices, axis, copies = GRAPHS[kind]
    numbers = {"z": 0, "o": 1, "t": 2, "m1": -1, "m2": -2, "e": np.iinfo(np.int64).max}
    w = np.random.default_rng(0).standard_normal((24 if axis == 2 else 8, 5)).astype("f4")
    model = support.model(
        f"g (float[2,9,8] v) => (float y) {{ x = Tanh(v) {slices} c = Concat<axis = {axis}>(a, b, d) "
        "p = MatMul(c, w) q = Softmax(p) n = ReduceSum(x) y = Add(q, n) }",
        18, w=w, **{name: np.array([number]) for name, number in numbers.items()},
    )  # fmt: skip
    made = graphopt.compile(model, threads=threads)
    joined = [region for region in made.lowered.regions if any("Concat" in str(one) for one in region.nodes)]
    assert len(joined) == copies, [str(region.nodes) for region in made.lowered.regions]
    v = np.random.default_rng(1).standard_normal((2, 9, 8)).astype("f4")
    for mine, its in zip(made.run(None, {"v": v}), support.session(model).run(None, {"v": v}), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)
