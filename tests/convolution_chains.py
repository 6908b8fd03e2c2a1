"""Hypothesis strategies: chains of convolutions of any rank, with strides, dilations, groups, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

LONGEST = {1: 90, 2: 26, 3: 9}  # sides of images, by rank
MOST_PLACES = 4_000  # of an image
TAPS = (1, 1, 2, 3, 3, 4, 5, 7, 11)


@dataclass(frozen=True, slots=True)
class _Image:
    name: str
    channels: int
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def of(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """The size of a convolution's result."""
        reach = [(k - 1) * d + 1 for k, d in zip(self.taps, self.dilations, strict=True)]
        sides = zip(size, self.before, self.after, reach, self.strides, strict=True)
        return tuple((one + b + a - far) // step + 1 for one, b, a, far, step in sides)

    def back(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """The size of a transposed convolution's result."""
        sides = zip(size, self.taps, self.before, self.after, self.strides, strict=True)
        return tuple((one - 1) * step + k - b - a for one, k, b, a, step in sides)


@st.composite
def _windows(draw: st.DrawFn, rank: int, *, back: bool) -> _Window:
    def some(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(values)) for _ in range(rank))

    taps = draw(st.sampled_from([some(TAPS), (draw(st.sampled_from((3, 5, 7))),) * rank]))
    strides = some((1, 1, 1, 2, 3)) if draw(st.booleans()) else (1,) * rank
    dilations = (1,) * rank if back else some((1, 1, 1, 2, 3))
    most = [(k - 1) // 2 if back else min(4, (k - 1) * d + 1) for k, d in zip(taps, dilations, strict=True)]
    before, after = (tuple(draw(st.integers(0, one)) for one in most) for _ in range(2))
    return _Window(taps, strides, dilations, before, after)


@st.composite
def chains(draw: st.DrawFn) -> onnx.ModelProto:
    """Up to four convolutions of one image `x` after a first one that gives it channels; the output is `y`."""
    rank, batch = draw(st.sampled_from((1, 2, 2, 3))), draw(st.sampled_from((1, 1, 2, 3)))
    size = tuple(draw(st.integers(4, LONGEST[rank])) for _ in range(rank))
    channels = draw(st.sampled_from((8, 16, 24, 32, 48, 64)))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        drawn = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        constants.append(numpy_helper.from_array(drawn.astype(np.float32), f"w{len(constants)}"))
        return constants[-1].name

    def made(operator: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    seen = [_Image(made("Conv", "x", weight(channels, 4, *[1] * rank)), channels, size)]
    for _ in range(draw(st.integers(1, 4))):
        now, width, back = seen[-1], draw(st.sampled_from((channels, 16, 32, 40))), draw(st.integers(0, 4)) == 0
        window = draw(_windows(rank, back=back))
        out = window.back(now.size) if back else window.of(now.size)
        if min(out) < 1 or np.prod(out) > MOST_PLACES:
            continue
        groups = draw(st.sampled_from((1, 1, 1, 2, 4)))
        groups = 1 if back or now.channels % groups or width % groups else groups
        shape = (now.channels, width) if back else (width, now.channels // groups)
        name = made(
            "ConvTranspose" if back else "Conv", now.name, weight(*shape, *window.taps), weight(width), group=groups,
            strides=window.strides, dilations=window.dilations, pads=(*window.before, *window.after),
        )  # fmt: skip
        function = draw(st.sampled_from((None, "Relu", "Sigmoid", "Tanh")))
        name = name if function is None else made(function, name)
        alike = [one.name for one in seen if (one.channels, one.size) == (width, out)]
        name = made("Add", name, alike[-1]) if alike and draw(st.booleans()) else name
        seen.append(_Image(name, width, out))
    last, kind = seen[-1], draw(st.integers(0, 2))
    if kind == 0 and min(last.size) > 1:
        made("MaxPool", last.name, kernel_shape=[2] * rank)
    else:
        made("GlobalAveragePool" if kind == 1 else "Identity", last.name)
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
