"""Pools of bytes between convolutions of bytes, whose channels lie side by side, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

SHAPES = {
    "a row": ("3,8,29", "kernel_shape = [3], strides = [2], pads = [1, 0]"),
    "pixels": ("2,8,13,14", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    "dilated": ("1,8,13,14", "kernel_shape = [2, 3], dilations = [3, 2], pads = [0, 1, 1, 2]"),
    "rounded up": ("1,8,12,15", "kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1"),
    "planes": ("1,8,4,6,7", "kernel_shape = [2, 3, 2], strides = [1, 2, 1], pads = [1, 1, 0, 0, 1, 1]"),
}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_pool_of_bytes_takes_channels_side_by_side(name: str, ends: bool, kind: str) -> None:
    """No copy turns them before the pool, nor behind it where a convolution follows; the sums have no ties."""
    dims, attributes = SHAPES[name]
    shape = tuple(map(int, dims.split(",")))
    ones, generator, dtype = (1,) * (len(shape) - 2), np.random.default_rng(0), np.dtype(kind)
    pooled, after = ("z", "") if ends else ("p", "z = QLinearConv(p, t, zero, v, u, w_zero, t, zero)")
    proto = support.model(
        f"""g ({kind}[{dims}] x) => ({kind}[{",".join("abcde"[: len(shape)])}] z) {{
            c = QLinearConv(x, s, zero, w, s, w_zero, t, zero) {pooled} = MaxPool<{attributes}>(c) {after}
        }}""",
        s=np.array(0.02, np.float32), t=np.array(0.05, np.float32), zero=np.array(7, dtype),
        u=np.array(0.0123456, np.float32),
        w=generator.integers(-90, 90, (24, 8, *ones)).astype(np.int8), w_zero=np.array(0, np.int8),
        v=generator.integers(-90, 90, (9, 24, *ones)).astype(np.int8),
    )  # fmt: skip
    program = graphopt.compile(proto)
    copies = [region for region in program.lowered.regions if not region.nodes]
    assert len(copies) == ends, "of what the caller gets"
    limits = np.iinfo(dtype)
    x = generator.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    assert np.array_equal(program.run(None, {"x": x})[0], support.session(proto).run(None, {"x": x})[0])
