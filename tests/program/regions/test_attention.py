"""Where queries and masks of attention lie: those of a tile of heads where its result goes, and masks as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model import nodes
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

DRAW = np.random.default_rng(5)
# Two heads of 4, one after the other, and what a tile of attention writes next to the other's.
HEADS = """g (float[1,6,8] x) => (float[1,6,8] y) {
    q0 = MatMul(x, wq0) k0 = MatMul(x, wk0) v0 = MatMul(x, wv0)
    a0 = Attention<q_num_heads = 1, kv_num_heads = 1>(q0, k0, v0)
    q1 = MatMul(x, wq1) k1 = MatMul(x, wk1) v1 = MatMul(x, wv1)
    a1 = Attention<q_num_heads = 1, kv_num_heads = 1>(q1, k1, v1)
    a = Concat<axis = 2>(a0, a1) y = Neg(a)
}"""
# The same with rank 4, whose queries are a Reshape and a Transpose of the product.
MOVED = (
    HEADS.replace("y = Neg(a)", "t = Transpose<perm = [0, 2, 1, 3]>(a) y = Reshape(t, flat)")
    .replace("axis = 2", "axis = 1")
    .replace("<q_num_heads = 1, kv_num_heads = 1>", "")
)
for number in (0, 1):
    for letter in "qkv":
        one = f"{letter}{number}"
        MOVED = MOVED.replace(
            f"{one} = MatMul(x, w{one})",
            f"{one}p = MatMul(x, w{one}) {one}r = Reshape({one}p, heads) "
            f"{one} = Transpose<perm = [0, 2, 1, 3]>({one}r)",
        )


def _weight(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def _lowered(text: str, *, tiled: bool = True) -> tuple[Lowered, list[np.ndarray], list[np.ndarray]]:
    """The regions where memory is tight, what they give and what the model gives."""
    arrays = {f"w{letter}{number}": _weight(8, 4) for letter in "qkv" for number in (0, 1)}
    proto = support.model(text, 23, heads=np.array([1, 6, 1, 4]), flat=np.array([1, 6, 8]), **arrays)
    model = ir.from_proto(proto)
    for node in model.graph:
        if node.op_type == "Concat" and tiled:
            node.metadata_props[nodes.TILED] = "a"
    lowered = lower(model, host(), tight=True)
    feeds = {"x": _weight(1, 6, 8)}
    return lowered, run_lowered(lowered, feeds), support.session(proto).run(None, feeds)


@pytest.mark.parametrize("text", [HEADS, MOVED], ids=["rows", "moved"])
def test_a_tile_of_heads_has_its_queries_where_its_result_is_joined(text: str) -> None:
    lowered, found, expected = _lowered(text)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    tiles = [one for one in lowered.regions if "attention" in one.kernel.name]
    assert len(tiles) == 2
    for one in tiles:
        at = {operand.name: place.buffer for operand, place in zip(one.kernel.operands, one.places, strict=True)}
        assert at["q"] == at["output"] and at["q"] not in (at["k"], at["v"])
    assert sorted(one.size for one in lowered.temporaries if one.purpose == "value") == [4 * 6 * 4] * 4


@pytest.mark.parametrize(
    "text",
    [
        HEADS.replace("y = Neg(a)", "b = Neg(a) y = Concat<axis = 2>(b, q1)").replace("8] y", "12] y"),
        HEADS.replace("(q1, k1, v1)", "(q1, q1, v1)"),
    ],
    ids=["read later", "keys too"],
)  # fmt: skip
def test_queries_that_something_else_needs_lie_apart(text: str) -> None:
    lowered, found, expected = _lowered(text)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    last = [one for one in lowered.regions if "attention" in one.kernel.name][-1]
    at = {operand.name: place.buffer for operand, place in zip(last.kernel.operands, last.places, strict=True)}
    assert at["q"] != at["output"]


def test_a_part_of_a_mask_is_read_where_it_lies() -> None:
    text = """g (float[1,2,6,4] q, float[2,6,6] s) => (float[1,1,3,4] y) {
        m = Neg(s) part = Slice(m, head, tail) few = Slice(q, head, tail, axes)
        k = Slice(q, begin, two, axis) y = Attention(few, k, k, part)
    }"""
    proto = support.model(
        text, 23, begin=np.array([1]), two=np.array([2]), axis=np.array([1]), head=np.array([1, 3]),
        tail=np.array([2, 6]), axes=np.array([1, 2]),
    )  # fmt: skip
    feeds = {"q": _weight(1, 2, 6, 4), "s": _weight(2, 6, 6)}
    lowered = lower(ir.from_proto(proto), host())
    np.testing.assert_allclose(
        run_lowered(lowered, feeds)[0], support.session(proto).run(None, feeds)[0], rtol=1e-5, atol=1e-5
    )
    assert len(lowered.regions) == 2, "the mask, and attention"
