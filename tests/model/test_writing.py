"""A model's file in pieces: the bytes that protobuf writes, without copies of large initializers."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import graphopt
from graphopt.model.save import save, to_proto
from graphopt.model.writing import LARGE, pieces_of
from tests import support


def model_with(**arrays: np.ndarray) -> onnx.ModelProto:
    proto = support.model("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
        proto.graph.initializer[-1].doc_string = f"what {name} is"
    return proto


def test_pieces_are_what_protobuf_writes() -> None:
    rng = np.random.default_rng(0)
    model = graphopt.load(model_with(
        a=rng.standard_normal((LARGE // 4, 1)).astype(np.float32), b=np.arange(3), c=np.zeros((0, 2), np.float32),
        d=np.asfortranarray(rng.standard_normal((300, 200))), e=np.ones(LARGE, ml_dtypes.bfloat16),
        f=np.array(["one", "two"], object),
    ).SerializeToString())  # fmt: skip
    model.graph.initializers["a"].const_value.metadata_props["k"] = "v"  # type: ignore[union-attr]
    expected = to_proto(model).SerializeToString(deterministic=True)
    pieces = pieces_of(model, to_proto)
    assert b"".join(pieces) == expected
    assert sum(isinstance(one, memoryview) for one in pieces) >= 2
    assert to_proto(model).SerializeToString(deterministic=True) == expected, "the model is as it was"


def test_a_model_without_large_initializers_is_one_piece() -> None:
    model = graphopt.load(model_with(a=np.ones(3, np.float32)))
    assert pieces_of(model, to_proto) == [to_proto(model).SerializeToString(deterministic=True)]


def test_saving_copies_no_large_initializer(tmp_path: Path) -> None:
    size = 16 << 20
    (tmp_path / "m.onnx").write_bytes(model_with(w=np.ones(size // 4, np.float32)).SerializeToString())
    model = graphopt.load(tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        save(model, tmp_path / "out.onnx")
        assert tracemalloc.get_traced_memory()[1] < size / 8
    finally:
        tracemalloc.stop()
    assert onnx.load(tmp_path / "out.onnx").graph.initializer[0].raw_data == np.ones(size // 4, np.float32).tobytes()
