"""The last layers of detectors, whose boxes are as many as are found: whole programs, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

# Boxes with classes by one suppression, and a row of seven numbers for each, as exporters of one-stage detectors write.
ONE_STAGE = """g (float[1,50,9] p) => (float[n,7] rows) {
    box = Slice(p, zero, four, two) object = Slice(p, four, five, two) classes = Slice(p, five, nine, two)
    product = Mul(object, classes) scores = Sigmoid(product)
    middle = Slice(box, zero, two, two) size = Slice(box, two, four, two) away = Mul(size, half)
    low = Sub(middle, away) high = Add(middle, away) corners = Concat<axis=-1>(low, high)
    turned = Transpose<perm=[0,2,1]>(scores) chosen = NonMaxSuppression(corners, turned, most, overlap, least)
    b = Gather<axis=1>(chosen, first) c = Gather<axis=1>(chosen, second) k = Gather<axis=1>(chosen, third)
    batch = Unsqueeze(b, one) kind = Unsqueeze(c, one) place = Unsqueeze(k, one)
    places = Concat<axis=1>(batch, place) found = GatherND(corners, places) score = GatherND(turned, chosen)
    batches = Cast<to=1>(batch) kinds = Cast<to=1>(kind) column = Unsqueeze(score, one)
    rows = Concat<axis=1>(batches, found, kinds, column) }"""
# Boxes above a score, the best twenty of them, a suppression, the first ten of what is left: two-stage detectors.
TWO_STAGES = """g (float[60,4] raw, float[60] logits) => (float[n,4] boxes, float[n] best, int64[n] labels) {
    scores = Sigmoid(logits) enough = Greater(scores, least) i = NonZero(enough) kept = Squeeze(i, zero)
    b = Gather<axis=0>(raw, kept) s = Gather<axis=0>(scores, kept)
    size = Slice(b, two, four, one) low = Slice(b, zero, two, one) away = Abs(size) high = Add(low, away)
    corners = Concat<axis=1>(low, high) dims = Shape(s) both = Concat<axis=0>(dims, twenty)
    k = ReduceMin<keepdims=1>(both) t, order = TopK(s, k) ordered = Gather<axis=0>(corners, order)
    u = Unsqueeze(ordered, zero) v = Unsqueeze(t, ends) chosen = NonMaxSuppression(u, v, most, overlap)
    places = Gather<axis=1>(chosen, third) few = Slice(places, zero, ten, zero)
    c = Gather<axis=0>(ordered, few) boxes = Clip(c, lowest, highest) best = Gather<axis=0>(t, few)
    count = Shape(few) labels = Expand(label, count) }"""
NUMBERS = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "four": np.array([4]), "five": np.array([5]),
    "nine": np.array([9]), "ten": np.array([10]), "twenty": np.array([20]), "ends": np.array([0, 1]),
    "first": np.array(0), "second": np.array(1), "third": np.array(2), "label": np.array([7]), "most": np.array([30]),
    "half": np.array(0.5, np.float32), "overlap": np.array([0.4], np.float32), "least": np.array([0.6], np.float32),
    "lowest": np.array(-1, np.float32), "highest": np.array(5, np.float32),
}  # fmt: skip


@pytest.mark.parametrize("text", [ONE_STAGE, TWO_STAGES], ids=["one stage", "two stages"])
def test_detectors_are_whole(text: str) -> None:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    proto = support.model(text, 18, **{name: array for name, array in NUMBERS.items() if name in words})
    program, session = graphopt.compile(proto), support.session(proto)
    assert not program.fallback
    counts = set()
    for seed in range(8):
        draw = np.random.default_rng(seed)
        feed = {
            one.name: (seed / 6 * draw.standard_normal(one.shape)).astype(np.float32) for one in program.get_inputs()
        }
        for found, expected in zip(program.run(None, feed), session.run(None, feed), strict=True):
            assert found.shape == expected.shape and found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # products and sigmoids of f32
            counts.add(len(found))
    assert len(counts) > 2 and 0 in counts  # nothing is above the least score where all numbers are 0
