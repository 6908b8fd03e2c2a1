"""Files whose dims contradict each other: loops would leave their operands, and nothing is made."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.errors import NotLowered
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support

REFUSED = {
    "Gather 'n' has indices beyond its data":
        "g (float[0,3] x, int64[2] i) => (float[2,3] y) { [n] y = Gather(x, i) }",
    "GatherElements 'n' has indices beyond its data":
        "g (float[2,3] x, int64[2,4] i) => (float[2,4] y) { [n] y = GatherElements(x, i) }",
    "GatherND 'n' has indices beyond its data":
        "g (float[2,3] x, int64[3,1] i) => (float[3] y) { [n] y = GatherND<batch_dims = 1>(x, i) }",
    "ScatterElements 'n' has indices beyond its data":
        "g (float[2,3] x, int64[2,3] i, float[2,2] u) => (float[2,3] y) { [n] y = ScatterElements(x, i, u) }",
    "ScatterND 'n' has indices beyond its data":
        "g (float[2,3] x, int64[2,1] i, float[2,2] u) => (float[2,3] y) { [n] y = ScatterND(x, i, u) }",
    "TensorScatter 'n' has other entries than its cache":
        "g (float[2,4,3] x, float[1,2,3] u) => (float[2,4,3] y) { [n] y = TensorScatter(x, u) }",
    "TopK 'n' takes 5 of 3 elements":
        "g (float[2,3] x, int64[1] k) => (float[2,5] y, int64[2,5] i) { [n] y, i = TopK(x, k) }",
    "Slice 'n' takes elements of an empty operand":
        "g (float[0] x, int64[1] a, int64[1] b) => (float[2] y) { [n] y = Slice(x, a, b) }",
    "ReverseSequence 'n' has a length for another number":
        "g (float[2,3] x, int64[2] l) => (float[2,3] y) { [n] y = ReverseSequence(x, l) }",
    "NonMaxSuppression 'n' has other scores than boxes":
        "g (float[1,4,4] x, float[1,1,3] s) => (int64[2,3] y) { [n] y = NonMaxSuppression(x, s) }",
    "RoiAlign 'n' has images for other regions":
        "g (float[1,2,4,4] x, float[3,4] r, int64[2] b) => (float[3,2,1,1] y) { [n] y = RoiAlign(x, r, b) }",
    "GridSample 'n' has a grid for other images":
        "g (float[2,2,4,4] x, float[1,3,3,2] r) => (float[2,2,3,3] y) { [n] y = GridSample(x, r) }",
    "Conv 'n' has weights for others":
        "g (float[1,3,4,4] x, float[2,4,1,1] w) => (float[1,2,4,4] y) { [n] y = Conv(x, w) }",
    "ConvTranspose 'n' has weights for others":
        "g (float[1,3,4,4] x, float[2,4,1,1] w) => (float[1,4,4,4] y) { [n] y = ConvTranspose(x, w) }",
    "DeformConv 'n' has offsets for other windows":
        "g (float[1,3,4,4] x, float[2,3,1,1] w, float[1,2,4,3] o) => (float[1,2,4,4] y) {"
        " [n] y = DeformConv(x, w, o) }",
    r"MatMul 'n' (multiplies|has operands of) \[2, 3, 4\] and \[3, 4, 5\], which do not fit one another":
        "g (float[2,3,4] x, float[3,4,5] w) => (float[2,3,5] y) { [n] y = MatMul(x, w) }",
    r"MatMul 'n' has operands of \[2, 3, 4\] and \[3, 4, 5\], which do not fit one another":
        "g (int32[2,3,4] x, int32[3,4,5] w) => (int32[2,3,5] y) { [n] y = MatMul(x, w) }",
    r"Concat 'n' joins \[1, 16, 8, 8\], \[1, 16, 9, 8\] along axis 1, which do not fit one another":
        "g (float[1,16,8,8] x, float[1,16,9,8] z, float[16,16,1,1] w) => (float[1,32,8,8] y) {"
        " a = Conv(x, w) b = Conv(z, w) [n] c = Concat<axis = 1>(a, b) y = Relu(c) }",
    "MaxUnpool 'n' has other indices than elements":
        "g (float[1,3,4] x, int64[1,3,5] i) => (float[1,3,8] y) {"
        " [n] y = MaxUnpool<kernel_shape = [2], strides = [2]>(x, i) }",
    "Col2Im 'n' has a block of another rank":
        "g (float[1,4,2] x, int64[1] s, int64[2] b) => (float[1,2,3] y) { [n] y = Col2Im(x, s, b) }",
    "ScatterElements 'n' combines by 'xor', which has no kernel": "g (float[4] x, int64[2] i, float[2] u) =>"
        " (float[4] y) { [n] y = ScatterElements<reduction = \"xor\">(x, i, u) }",
    "Resize 'n' has coordinates 'crooked'": "g (float[1,1,4,4] x, float[0] r, float[0] c, int64[4] s) =>"
        " (float[1,1,3,3] y) { [n] y = Resize<coordinate_transformation_mode = \"crooked\">(x, r, c, s) }",
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_would_leave_its_operands_is_refused(message: str) -> None:
    with pytest.raises(NotLowered, match=message):
        lower(ir.from_proto(support.model(REFUSED[message], 24, 10)), host())
