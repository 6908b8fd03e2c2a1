"""Models for ONNX Runtime and its peers: as bytes, or where those cannot hold them as a file with its data beside."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.model.rooms import folder
from graphopt.model.save import SINGLE_FILE_LIMIT, save, weight_bytes
from graphopt.model.self_contained import self_contained


@contextmanager
def readable(model: ir.Model) -> Iterator[bytes | str]:
    """What an engine reads the model from: bytes, or the path of a file that is there inside of the block."""
    if weight_bytes(model) <= SINGLE_FILE_LIMIT:
        yield self_contained(model).proto.SerializeToString()
        return
    with tempfile.TemporaryDirectory(dir=folder(), ignore_cleanup_errors=True) as place:
        path = Path(place) / "model.onnx"
        save(model, path)
        yield str(path)


def session_of(model: ir.Model | onnx.ModelProto, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """A session of ONNX Runtime's CPU provider; raises what ONNX Runtime raises."""
    with readable(ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model) as source:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
