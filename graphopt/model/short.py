"""Constants of float16 and bfloat16 that are read as float32: the file's numbers stay, and are widened when read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SHORT = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class WidenedTensor(ir.LazyTensor):
    """A tensor of such floats in float32, made anew whenever it is read."""

    def __init__(self, source: ir.TensorProtocol, name: str | None) -> None:
        def wide() -> ir.TensorProtocol:
            return ir.Tensor(source.numpy().astype(np.float32), name=name)

        super().__init__(wide, ir.DataType.FLOAT, ir.Shape(source.shape.numpy()), name=name)
        self.source = source


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """Bytes of a tensor's numbers as the file has them."""
    return tensor.source.nbytes if isinstance(tensor, WidenedTensor) else tensor.nbytes
