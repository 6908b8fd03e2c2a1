"""A result that holds a model: as a ModelProto, as bytes, as a session of ONNX Runtime."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnxruntime

from graphopt.errors import SaveError
from graphopt.model.self_contained import self_contained
from graphopt.model.session import session_of


class Written:
    """What a result with a model offers of it."""

    __slots__ = ()

    model: ir.Model

    def to_proto(self) -> onnx.ModelProto:
        """The model as a ModelProto that holds all of its data, external data included, checked or not."""
        return self_contained(self.model).proto

    def to_bytes(self) -> bytes:
        """The model as the bytes of a file without external data. Raises SaveError for more than 2 GiB."""
        try:
            data: bytes = self.to_proto().SerializeToString()
        except ValueError as error:  # protobuf's own limit
            raise SaveError("the model has more than 2 GiB, which one file cannot hold; save it to a path.") from error
        return data

    def session(self, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
        """A session of ONNX Runtime's CPU provider for the model, checked or not."""
        return session_of(self.model, options)
