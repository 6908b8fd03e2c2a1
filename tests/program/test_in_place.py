"""Results that take the place of an operand: the bits are those of results with bytes of their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.in_place import in_place, products_over
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32) / 4


ARRAYS = {
    "w": _weight(16, 16, 3, 3), "m": _weight(24, 24), "up": _weight(24, 72),
    "scale": _weight(24), "four": _weight(4),
    "n0": np.array([0]), "n5": np.array([5]), "n9": np.array([9]), "n1": np.array([1]),
}  # fmt: skip
# text, and how many buffers fewer there are
CASES = [
    # A residual in a convolution, in a product, in a sum of both; a reader behind it, and one of another kind.
    ("float[1,16,9,9] x", "a = Conv<pads = [1,1,1,1]>(x, w) e = Conv<pads = [1,1,1,1]>(a, w)"
     " b = Conv<pads = [1,1,1,1]>(e, w) c = Add(b, a) y = Conv<pads = [1,1,1,1]>(c, w)", 1),
    ("float[1,16,9,9] x", "a = Conv<pads = [1,1,1,1]>(x, w) b = Conv<pads = [1,1,1,1]>(a, w) c = Add(b, a)"
     " y = Conv<pads = [1,1,1,1]>(c, w)", 0),
    ("float[1,16,9,9] x", "a = Conv<pads = [1,1,1,1]>(x, w) b = Conv<pads = [1,1,1,1]>(a, w) c = Add(b, a)"
     " d = Conv<pads = [1,1,1,1]>(c, w) y = Add(d, a)", 0),
    ("float[1,9,24] x", "a = MatMul(x, m) b = Softmax(a) c = MatMul(b, m) d = Add(c, a) y = Softmax(d)", 1),
    ("float[1,9,24] x", "a = MatMul(x, m) b = Softmax(a) c = Softmax(b) d = Mul(c, a) y = Softmax(d)", 1),
    ("float[9,24] x", "a = Softmax(x) b = Transpose(a) c = Softmax(b) d = Transpose(c)"
     " e = Add(d, a) y = Softmax(e)", 2),
    # Rows that are normalized where they stood, or where their copy does if they lie the other way; not where they are
    # needed later.
    ("float[1,9,24] x", "a = MatMul(x, m) b = LayerNormalization(a, scale) y = MatMul(b, m)", 1),
    ("float[3,4,40] x", "a = Softmax<axis = 1>(x) b = InstanceNormalization(a, four, four) y = Softmax(b)", 1),
    ("float[1,9,24] x", "a = MatMul(x, m) b = LayerNormalization(a, scale) c = MatMul(b, m) y = Sub(c, a)", 0),
    ("float[24,24] x", "a = MatMul(x, m) b = Transpose(a) c = LayerNormalization(b, scale) y = MatMul(c, m)", 1),
    # Two pieces over two parts of what they read, and pieces of which one reads what the other has written over.
    ("float[1,9,24] x", "a = Softmax(x) p = Slice(a, n0, n5, n1) q = Slice(a, n5, n9, n1) f = Softmax(p)"
     " g = Softmax(q) r = MatMul(f, m) s = MatMul(g, m) t = Add(r, p) u = Add(s, q)"
     " v = Concat<axis = 1>(t, u) y = Softmax(v)", 1),
    ("float[1,9,24] x", "a = Softmax(x) p = Slice(a, n0, n5, n1) q = Slice(a, n5, n9, n1) r = MatMul(p, m)"
     " t = Add(r, p) s = Softmax(a) u = Slice(s, n5, n9, n1) v = Concat<axis = 1>(t, u) y = Softmax(v)", 1),
    # Pieces that are normalized before they are written over; one of them after the other piece, one in part after it.
    ("float[1,9,24] x", "a = Softmax(x) p = Slice(a, n0, n5, n1) f = LayerNormalization(p, scale) r = MatMul(f, m)"
     " t = Add(r, p) q = Slice(a, n5, n9, n1) g = LayerNormalization(q, scale) u = MatMul(g, m) o = Add(u, q)"
     " v = Concat<axis = 1>(t, o) y = Softmax(v)", 1),
    ("float[1,9,24] x", "a = Softmax(x) p = Slice(a, n0, n5, n1) f = LayerNormalization(p, scale) r = MatMul(f, m)"
     " t = Add(r, p) h = Slice(a, n1, n5, n1) g = LayerNormalization(h, scale) u = MatMul(g, m)"
     " q = Slice(a, n5, n9, n1) o = Add(u, q) v = Concat<axis = 1>(t, o) y = Softmax(v)", 0),
]  # fmt: skip


def _buffers(lowered: Lowered) -> int:
    return len(lowered.temporaries)


@pytest.mark.parametrize(("given", "body", "fewer"), CASES)
def test_a_term_that_nothing_else_needs_is_written_over(given: str, body: str, fewer: int) -> None:
    proto = support.model(f"g ({given}) => ({given.replace(' x', ' y')}) {{ {body} }}", 18, **ARRAYS)
    lowered = lower(ir.from_proto(proto), host())
    placed = in_place(lowered)
    assert _buffers(lowered) - _buffers(placed) == fewer
    feed = {"x": np.random.default_rng(0).standard_normal(lowered.inputs[0].shape).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(placed, feed)[0], run_lowered(lowered, feed)[0])


@pytest.mark.parametrize(("body", "fewer"), [
    ("a = Softmax(x) b = MatMul(a, few) y = MatMul(b, up)", 1),
    ("a = Softmax(x) b = MatMul(a, few) c = MatMul(b, up) y = Add(c, a)", 0),
    ("a = Softmax(x) b = MatMul(a, up) y = MatMul(b, down)", 0),
    ("a = Softmax(x) b = MatMul(a, few) c = Softmax<axis = 0>(x) e = CumSum(c, n1) f = MatMul(b, up) h = Add(f, e)"
     " i = CumSum(h, n1) y = Add(i, e)", 0),
])  # fmt: skip
def test_a_product_of_one_tile_is_written_over_its_rows(body: str, fewer: int) -> None:
    """It has read them when it writes, but not what others read; nor does a rest of it wait where more is needed."""
    up = _weight(4, 24) if "few" in body else _weight(24, 72)
    arrays = {"few": _weight(24, 4), "up": up, "down": _weight(72, 24), "n1": np.array(1)}
    proto = support.model(f"g (float[1,24] x) => (float[1,24] y) {{ {body} }}", 18, **arrays)
    lowered = lower(ir.from_proto(proto), host())
    placed = in_place(lowered)
    assert _buffers(lowered) - _buffers(placed) == fewer == len(products_over(placed))
    feed = {"x": np.random.default_rng(0).standard_normal(lowered.inputs[0].shape).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(placed, feed)[0], run_lowered(lowered, feed)[0])


def test_attention_is_written_over_its_queries() -> None:
    """They stand alone, or are a part of a product that has keys and values too."""
    apart = "q = MatMul(x, m) k = Softmax(q) v = Softmax<axis = 1>(x)"
    joined = "all = MatMul(x, up) q, k, v = Split<axis = 2, num_outputs = 3>(all)"
    for body, alone in ((joined, True), (apart, False)):
        proto = support.model(
            f"""g (float[1,40,24] x) => (float[1,40,24] y) {{
                {body} a = Attention<q_num_heads = 3, kv_num_heads = 3>(q, k, v) y = MatMul(a, m)
            }}""",
            23, m=ARRAYS["m"], up=ARRAYS["up"],
        )  # fmt: skip
        plain, tight = (lower(ir.from_proto(proto), host(), tight=tight) for tight in (False, True))
        placed = in_place(tight)
        assert _buffers(placed) == _buffers(plain) - 1
        assert (_buffers(tight) < _buffers(plain)) is alone
        feed = {"x": np.random.default_rng(0).standard_normal((1, 40, 24)).astype(np.float32)}
        np.testing.assert_array_equal(run_lowered(placed, feed)[0], run_lowered(plain, feed)[0])


def test_the_last_state_of_a_layer_is_written_over_the_first() -> None:
    """The kernel keeps its states to itself in between."""
    rng = np.random.default_rng(3)
    arrays = {"w": rng.standard_normal((1, 24, 5)), "r": rng.standard_normal((1, 24, 8))}
    proto = support.model(
        """g (float[7,2,5] x, float[1,2,8] given) => (float[1,2,8] y) {
            h = Softmax(given) a, b = GRU<hidden_size = 8>(x, w, r, , , h) y = Softmax(b)
        }""",
        18, **{name: array.astype(np.float32) for name, array in arrays.items()},
    )  # fmt: skip
    lowered = lower(ir.from_proto(proto), host())
    placed = in_place(lowered)
    assert _buffers(placed) == _buffers(lowered) - 1
    feed = {"x": rng.standard_normal((7, 2, 5)).astype(np.float32), "given": np.ones((1, 2, 8), np.float32)}
    np.testing.assert_array_equal(run_lowered(placed, feed)[0], run_lowered(lowered, feed)[0])
