"""Each rule on its graph with an operand of another rank, and in every opset: what it leaves gives the same.

Unlike near misses, what the rule does is not recorded: many of these it must leave alone, some it may change.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from tests import support
from tests.passes.near.test_near_misses import TOLERANCE, outputs
from tests.passes.near.test_taken_back import NAMES, changed, graph_of

OPSETS = (14, 15, 16, 19, 22, 24)  # near misses are recorded for others


def reshaped(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Constants with one more axis of 1 or 2, inputs with one more of 2, the whole in another opset."""
    for place, tensor in enumerate(model.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind != "f":
            continue  # the integers of graphs are axes and positions
        for what, other in (
            ("an axis in front", array[np.newaxis]),
            ("two of it in front", np.stack([array, array])),
            ("an axis behind", array[..., np.newaxis]),
        ):
            copy = onnx.ModelProto.FromString(model.SerializeToString())
            copy.graph.initializer[place].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(other), tensor.name))
            yield f"{tensor.name} with {what}", copy
    for place, value in enumerate(model.graph.input):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        shape = copy.graph.input[place].type.tensor_type.shape
        dims = [2, *(dim.dim_value or dim.dim_param for dim in shape.dim)]
        shape.ClearField("dim")
        for size in dims:
            dim = shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = size
        yield f"{value.name} with two in front", copy
    for opset in OPSETS:
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        copy.opset_import[0].version = opset
        yield f"in opset {opset}", copy


@pytest.mark.parametrize("name", NAMES)
def test_what_a_rule_leaves_gives_the_same(name: str) -> None:
    for what, model in reshaped(graph_of(name)):
        for output in model.graph.output:  # whose dims may be others now
            output.type.tensor_type.ClearField("shape")
        feed = support.feeds(model, {})
        expected = outputs(model, feed)
        if expected is None:
            continue
        editor = changed(name, model, frozenset())
        if not editor.log:
            continue
        found = outputs(ir.to_proto(editor.model), feed)
        assert found is not None, f"{what}: the result does not run"
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape, what
            close = TOLERANCE.get(one.dtype, 0.0)
            np.testing.assert_allclose(other, one, rtol=close, atol=close, err_msg=what)
