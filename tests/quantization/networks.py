"""Small networks to quantize, and latencies that no clock gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from graphopt.quantization.latency import Timed
from tests import support

CONVOLUTIONS = """g (float[1,3,8,8] x) => (float[1,4] y) {
  a = Conv <pads=[1,1,1,1]> (x, w, b)
  r = Relu(a)
  c = Conv <pads=[1,1,1,1]> (r, v)
  s = Add(c, r)
  p = GlobalAveragePool(s)
  f = Flatten(p)
  y = Gemm(f, u, d)
}"""
PRODUCTS = """g (float[4,64] x) => (float[4,64] y) {
  h = MatMul(x, w)
  r = Relu(h)
  y = Gemm <transB=1> (r, v, b)
}"""


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    """Seeded numbers of a unit's size."""
    return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(np.float32)


def convolutions() -> onnx.ModelProto:
    """Two convolutions with an addition behind, pooled, and a product: all may be static."""
    weights = {
        "w": normal(8, 3, 3, 3), "b": normal(8), "v": normal(8, 8, 3, 3), "u": normal(8, 4), "d": normal(4)
    }  # fmt: skip
    return support.model(CONVOLUTIONS, **weights)


def products() -> onnx.ModelProto:
    """A MatMul and a Gemm of turned weights."""
    return support.model(PRODUCTS, w=normal(64, 64), v=normal(64, 64, seed=1), b=normal(64))


def images(count: int) -> dict[str, np.ndarray]:
    """So many samples for `convolutions`, in one array."""
    return {"x": normal(count, 3, 8, 8)}


def rows(count: int) -> dict[str, np.ndarray]:
    """So many samples for `products`, with an axis in front."""
    return {"x": normal(count, 4, 64)}


def by_bytes(models: Sequence[Timed]) -> list[list[float]]:
    """Latency as many seconds as a model has bytes of weights: fewer where they are of bytes."""
    return [[float(sum(len(one.raw_data) or 4 for one in each.proto.graph.initializer))] * 3 for each in models]


def by_nodes(models: Sequence[Timed]) -> list[list[float]]:
    """Latency as many seconds as a model has nodes: more where anything is quantized."""
    return [[float(len(each.proto.graph.node))] * 3 for each in models]
