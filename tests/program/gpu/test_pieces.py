"""Pieces of a buffer on a GPU: blocks wait for the bytes that they read, and equal pieces have one kernel."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import parser

from graphopt.program.gpu import link_tasks
from graphopt.program.regions.lower import lower
from kernels.target import cuda
from models import treelstm
from tests.program.gpu.running import compared

JOINED = """
<ir_version: 9, opset_import: ["": 17]>
joined (float[1,64] a, float[1,64] b, float[1,64] c) => (float[3,64] y) {
  together = Concat<axis=0>(a, b, c)
  y = Relu(together)
}
"""
LAYERS = """
<ir_version: 9, opset_import: ["": 17]>
layers (float[20,1,4] x) => (float[20,1,1,8] y)
  <float[1,24,4] w, float[1,24,8] r, float[1,24,8] w2, float[1,24,8] r2, int64[1] axis = {1}>
{
  first = GRU<hidden_size=8, linear_before_reset=1>(x, w, r)
  states = Squeeze(first, axis)
  y = GRU<hidden_size=8, linear_before_reset=1>(states, w2, r2)
}
"""


def waits(proto: onnx.ModelProto) -> list[tuple[str, tuple[int, ...]]]:
    """The kernel of each run, and which runs it waits for."""
    import onnx_ir as ir

    listing = link_tasks(lower(ir.from_proto(proto), cuda("sm_90")), "model").listing
    assert listing.ticketed is not None
    needs = dict(listing.ticketed.waits)
    return [(run.kernel, tuple(needs[number])) for number, run in enumerate(listing.ticketed.runs)]


def test_pieces_of_a_concatenation_wait_for_nobody_and_share_a_kernel() -> None:
    *pieces, last = waits(parser.parse_model(JOINED))
    assert len(pieces) == 3 and {kernel for kernel, _ in pieces} == {pieces[0][0]}
    assert all(not needs for _, needs in pieces) and set(last[1]) == {0, 1, 2}


def weighted(text: str) -> onnx.ModelProto:
    """The model with numbers for its weights."""
    proto, draw = parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("w", (1, 24, 4)), ("r", (1, 24, 8)), ("w2", (1, 24, 8)), ("r2", (1, 24, 8))):
        array = (0.4 * draw.standard_normal(shape)).astype(np.float32)
        kept = next((one for one in proto.graph.initializer if one.name == name), None)
        if kept is not None:
            proto.graph.initializer.remove(kept)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def test_a_layer_begins_while_the_one_before_it_goes_on() -> None:
    """The second layer's products take eight steps each: the first of them waits for the eighth step alone."""
    runs = waits(weighted(LAYERS))
    products = [number for number, (kernel, _) in enumerate(runs) if kernel.startswith("product")]
    steps = [number for number, (kernel, _) in enumerate(runs) if kernel.startswith("recurrent")]
    first_layer, second_layer = steps[:20], steps[20:]
    assert len(products) == 1 + 3 and len(second_layer) == 20
    assert [runs[number][1] for number in products[1:]] == [(first_layer[7],), (first_layer[15],), (first_layer[19],)]
    assert runs[second_layer[0]][1] == (products[1],)


def test_two_layers_are_equal() -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((20, 1, 4)).astype(np.float32)}
    compared(weighted(LAYERS), feeds, 2e-6)


def test_a_tree_has_few_kernels() -> None:
    """63 nodes of eight leaves' tree, each of which reads and writes its own pieces, by a handful of kernels."""
    proto = treelstm.build(leaves=8, width=32)
    runs = waits(proto)
    assert len(runs) > 30 and len({kernel for kernel, _ in runs}) < len(runs) / 2
    compared(proto, {"x": np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)}, 2e-6)
