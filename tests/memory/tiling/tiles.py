"""Models in tiles for tests: all nodes as one region, run beside the whole.

Data are small integers, so that sums are exact in any order and every bit must agree.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.region import region_of, steps_of
from graphopt.memory.tiling.write import write_tiles
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support


def tiled(model: ir.Model, axis: int, count: int) -> ir.Model | None:
    """All nodes as one region, along `axis` of the last one's result."""
    work = model.clone()
    facts = Facts(work)
    members = list(work.graph)
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    steps = None if region is None else steps_of(facts, region, count)
    if region is None or steps is None:
        return None
    write_tiles(work, [(region, steps)])
    return work


def assert_tiles_equal(proto: onnx.ModelProto, axis: int, count: int) -> None:
    done = tiled(load(proto), axis, count)
    assert done is not None, "it can be tiled"
    changed = to_proto(done)
    onnx.checker.check_model(changed, full_check=True)
    assert [value.name for value in changed.graph.output] == [value.name for value in proto.graph.output]
    draw = np.random.default_rng(0)
    feed = {
        value.name: draw.integers(
            -8, 9, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in proto.graph.input
    }  # fmt: skip
    for one, other in zip(
        support.session(proto).run(None, feed), support.session(changed).run(None, feed), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)
