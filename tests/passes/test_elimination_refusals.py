"""What each condition of the rules that remove operators refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.refusing import refusal, refuses

IMAGE = "float[1,2,3,3] x"


def node(text: str, given: str = "float[2,3] x", opset: int = 17, /, **constants: np.ndarray) -> onnx.ModelProto:
    """One operator that gives y."""
    return support.model(f"g ({given}) => (float[A,B] y) {{ y = {text} }}", opset, **constants)


TWICE = "Resize<{}>(x, , , sizes)"
REFUSALS = [
    refusal("reshape-to-own-shape", "before opset 5 Reshape has no shape input",
            node("Reshape<shape = [2, 3]>(x)", "float[2,3] x", 4)),
    refusal("expand-before-broadcast", "the operator did not broadcast yet",
            node("Add<broadcast = 1>(x, z)", "float[2,3] x, float[3] z", 6)),
    refusal("expand-before-broadcast", "the shape of the result is not known",
            support.model("""g (float[2,3] x, int64[K] to) => (float[A,B] y) {
                a = Reshape(x, to)  b = Add(a, a)  c = Shape(b)  y = Reshape(b, c) }""")),
    refusal("concat-with-nothing", "Concat lacks its axis", node("Concat(x, x)", "float[2,3] x", 3)),
    refusal("tile-once", "before opset 6 Tile is another operator",
            node("Tile(x, n, a)", "float[2,3] x", 5, n=np.float32(1).reshape(()), a=np.float32(0).reshape(()))),
    refusal("scatter-of-nothing", "the updates may hold elements",
            node("ScatterND(x, i, u)", "float[2,3] x, int64[1,1] i, float[1,3] u")),
    refusal("pool-of-one", "the input is padded",
            node("MaxPool<kernel_shape = [1, 1], pads = [0, 0, 1, 1]>(x)", IMAGE)),
    refusal("pad-by-nothing", "Pad lacks its pads", node("Pad(x)", "float[2,3] x", 10)),
    refusal("resize-to-same-size", "tf_half_pixel_for_nn may read other places",
            node(TWICE.format('coordinate_transformation_mode = "tf_half_pixel_for_nn"'), IMAGE, 11,
                 sizes=np.array([1, 2, 3, 3]))),
    refusal("resize-to-same-size", "antialiasing may round",
            node(TWICE.format('antialias = 1, mode = "linear"'), IMAGE, 18, sizes=np.array([1, 2, 3, 3]))),
    refusal("resize-to-same-size", "the sizes are not those of the input",
            node(TWICE.format('mode = "linear"'), IMAGE, sizes=np.array([1, 2, 6, 6]))),
    refusal("resize-to-same-size", "the sizes are not known",
            node(TWICE.format('mode = "linear"'), IMAGE + ", int64[4] sizes")),
    refusal("resize-to-same-size", "Upsample lacks its scales", node("Upsample(x)", IMAGE, 8)),
    refusal("resize-to-same-size", "a scale is not 1", node("Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x)", IMAGE, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), REFUSALS)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
