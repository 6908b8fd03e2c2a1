"""Flops and bytes of single operators, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model.costs import Cost, Sizes, cost_of
from graphopt.model.facts import Facts
from tests import support


def _cost(text: str, **weights: np.ndarray) -> Cost | None:
    model = ir.from_proto(support.model(text, 17, 8, **weights))
    return cost_of(next(iter(model.graph)), Sizes(Facts(model), {"n": 2}))


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("text", "weights", "flops"),
    [
        ("(float[n,3,8,8] x) => (float[n,5,6,6] y) { y = Conv(x, w) }", {"w": (5, 3, 3, 3)}, 2 * 2 * 5 * 36 * 27),
        ("(float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Conv<group = 4>(x, w) }", {"w": (4, 1, 1, 1)}, 2 * 2 * 4 * 64),
        (
            "(float[n,3,8,8] x) => (float[n,5,6,6] y) { y = Conv(x, w, b) }", {"w": (5, 3, 3, 3), "b": (5,)},
            2 * 2 * 5 * 36 * 27 + 2 * 5 * 36,
        ),
        ("(float[n,3,4,4] x) => (float[n,5,6,6] y) { y = ConvTranspose(x, w) }", {"w": (3, 5, 3, 3)}, 2 * 2 * 48 * 45),
        ("(float[6,n,4] x) => (float[6,n,5] y) { y = MatMul(x, w) }", {"w": (4, 5)}, 2 * 6 * 2 * 5 * 4),
        ("(float[4,n] x) => (float[n,5] y) { y = Gemm<transA = 1>(x, w) }", {"w": (4, 5)}, 2 * 2 * 5 * 4),
        ("""(float[n,3,4] x, float[n,4,5] z) => (float[n,3,5] y) { y = Einsum<equation = "bij,bjk->bik">(x, z) }""", {},
         2 * 2 * 3 * 4 * 5),
        ("""(float[n,3,4] x, float[4,5] z) => (float[n,3,5] y) { y = Einsum<equation = "...j,jk->...k">(x, z) }""", {},
         2 * 2 * 3 * 4 * 5),
        ("(float[n,8] x) => (float[n,1] y) { y = ReduceMean<axes = [1]>(x) }", {}, 16),
        ("(float[n,8] x) => (float[n,8] y) { y = Softmax(x) }", {}, 5 * 16),
        ("(float[n,8] x, float[8] z) => (float[n,8] y) { y = Max(x, z, x) }", {}, 2 * 16),
        ("(float[n,1,4,4] x) => (float[n,1,2,2] y) { y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) }", {}, 32),
        ("(float[n,8] x) => (float[8,n] y) { y = Transpose(x) }", {}, 0),
    ],
)  # fmt: skip
def test_flops(text: str, weights: dict[str, tuple[int, ...]], flops: int) -> None:
    cost = _cost(f"g {text}", **{name: _zeros(*shape) for name, shape in weights.items()})
    assert cost is not None and cost.flops == flops


def test_a_recurrent_layer() -> None:
    """5 steps, batch 2, input 4, hidden 3, 4 gates: products with 4 + 3 numbers, and 5 operations per gate element."""
    cost = _cost(
        "g (float[5,n,4] x) => (float[5,1,n,3] y) { y = LSTM<hidden_size = 3>(x, w, r) }",
        w=_zeros(1, 12, 4), r=_zeros(1, 12, 3),
    )  # fmt: skip
    assert cost is not None and cost.flops == 5 * 2 * 12 * (2 * 7 + 5)


@pytest.mark.parametrize(
    ("text", "weights", "moved"),
    [
        ("(float[n,8] x, float[8] z) => (float[n,8] y) { y = Add(x, z) }", {}, 4 * (16 + 8 + 16)),
        ("(float[n,8] x) => (float[n,8] y) { y = Add(x, x) }", {}, 4 * (16 + 16)),
        ("(float16[n,8] x) => (float16[8,n] y) { y = Transpose(x) }", {}, 2 * (16 + 16)),
        ("(int64[n] i) => (float[n,8] y) { y = Gather(w, i) }", {"w": (1000, 8)}, 8 * 2 + 4 * (16 + 16)),
        ("(float[n,8] x) => (float[m] y) { y = Flatten(x) }", {}, 0),
    ],
)
def test_bytes(text: str, weights: dict[str, tuple[int, ...]], moved: int) -> None:
    """Each tensor once; of a table only the rows that are read; a new view of the same memory is free."""
    cost = _cost(f"g {text}", **{name: _zeros(*shape) for name, shape in weights.items()})
    assert cost is not None and cost.bytes == moved


def test_what_is_not_known_is_not_counted() -> None:
    assert _cost("g (float[n] x) => (float[n] y) { y = com.acme.Foo(x) }") is None


def test_assumed_sizes_are_remembered() -> None:
    model = ir.from_proto(support.model("g (float[n,m] x) => (float[n,m] y) { y = Relu(x) }"))
    sizes = Sizes(Facts(model), {"n": 5})
    assert cost_of(next(iter(model.graph)), sizes) == Cost(5, 40)
    assert (sizes.assumed, sizes.unnamed) == ({"n": 5, "m": 1}, False)
