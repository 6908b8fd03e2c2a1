"""Reading files: large initializers become arrays of their own; nothing is read otherwise than protobuf reads it."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.errors import ModelError
from graphopt.model.load import load
from graphopt.model.reading import LARGE, parsed
from graphopt.model.save import to_proto

ELEMENTS = LARGE // 4
HALVES = np.arange(2 * ELEMENTS).astype(ml_dtypes.bfloat16)


def model() -> onnx.ModelProto:
    """A sum of three initializers: of float32, with a remark; of as many bytes in bfloat16; and a small one."""
    large = onnx.numpy_helper.from_array(np.arange(ELEMENTS, dtype=np.float32).reshape(2, -1), "large")
    large.doc_string = "numbers"
    large.metadata_props.add(key="made", value="by hand")
    large.data_location = onnx.TensorProto.DEFAULT  # written although it says nothing
    halves = onnx.TensorProto(data_type=onnx.TensorProto.BFLOAT16, dims=HALVES.shape, name="halves")
    halves.raw_data = HALVES.tobytes()
    nodes = [
        onnx.helper.make_node("Cast", ["halves"], ["wide"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Reshape", ["wide", "shape"], ["rows"]),
        onnx.helper.make_node("Concat", ["large", "rows"], ["all"], axis=0),
        onnx.helper.make_node("Add", ["x", "all"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes, "sum", [onnx.helper.make_tensor_value_info("x", kind, [1])],
        [onnx.helper.make_tensor_value_info("y", kind, [6, ELEMENTS // 2])],
        [large, halves, onnx.numpy_helper.from_array(np.array([4, -1]), "shape")],
    )  # fmt: skip
    made: onnx.ModelProto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    made.producer_name = "behind the graph, and before it"
    return made


def test_large_initializers_are_arrays_and_the_rest_is_parsed() -> None:
    proto = model()
    found = parsed(BytesIO(proto.SerializeToString()))
    assert set(found.arrays) == {"large", "halves"} and found.proto.ByteSize() < 1000
    assert found.proto.producer_name == proto.producer_name and found.proto.graph.node == proto.graph.node
    assert [one.name for one in found.proto.graph.initializer] == ["large", "halves", "shape"]
    loaded = load(proto.SerializeToString())
    tensors = [loaded.graph.initializers[name].const_value for name in ("large", "halves")]
    for tensor, expected in zip(tensors, (np.arange(ELEMENTS, dtype=np.float32).reshape(2, -1), HALVES), strict=True):
        assert isinstance(tensor, ir.Tensor) and (tensor.numpy() == expected).all()
        assert tensor.numpy().dtype == expected.dtype and tensor.numpy().flags.aligned
        assert np.shares_memory(tensor.numpy(), tensor.numpy()) and not tensor.numpy().flags.writeable
    assert tensors[0].doc_string == "numbers" and tensors[0].metadata_props == {"made": "by hand"}


def test_a_model_is_the_same_as_of_protobuf() -> None:
    """A ModelProto is not read from a file; what is loaded of either is written alike, but for what says nothing.

    Metadata are left out: onnx_ir writes those of a tensor that it has parsed twice.
    """
    proto = model()
    proto.graph.initializer[0].ClearField("metadata_props")
    read = to_proto(load(proto.SerializeToString()))
    proto.graph.initializer[0].ClearField("data_location")
    assert read == to_proto(load(proto))


def _typed(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].float_data.extend(range(ELEMENTS))


def _truth(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = onnx.TensorProto.BOOL
    proto.graph.initializer[0].dims[:] = [LARGE]


def _twice(proto: onnx.ModelProto) -> None:
    """Two fields with data, of which the last one holds."""
    proto.graph.initializer[0].float_data.append(1.0)


def _of_other_dims(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[:] = [2, ELEMENTS]


def _nameless(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].name = ""


@pytest.mark.parametrize("change", [_typed, _truth, _twice, _of_other_dims, _nameless])
def test_what_is_no_plain_array_is_left_to_protobuf(change: Callable[[onnx.ModelProto], None]) -> None:
    proto = model()
    change(proto)
    found = parsed(BytesIO(proto.SerializeToString()))
    assert set(found.arrays) == {"halves"} and found.proto.graph.initializer[0] == proto.graph.initializer[0]


def test_a_file_that_is_written_otherwise_is_left_to_protobuf() -> None:
    """Protobuf merges what stands in two fields; a name that stands twice is refused as it is in any model."""
    proto = model()
    half, other = onnx.ModelProto(), onnx.ModelProto()
    half.CopyFrom(proto)
    half.graph.ClearField("initializer")
    other.graph.initializer.extend(proto.graph.initializer)
    merged = parsed(BytesIO(half.SerializeToString() + other.SerializeToString()))
    assert not merged.arrays and len(merged.proto.graph.initializer) == 3
    proto.graph.initializer.append(proto.graph.initializer[0])
    assert not parsed(BytesIO(proto.SerializeToString())).arrays
    whole = model().SerializeToString()
    for cut in (len(whole) - 1, len(whole) // 2, 70):
        with pytest.raises(ModelError, match=rf"the given bytes is not an ONNX protobuf, or is cut short \({cut:,} "):
            load(whole[:cut])
