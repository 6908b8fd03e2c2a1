"""Tensors that a model refers to in files beside it, brought into memory."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.tensors import replace_external, with_external_replaced


def bring_inside(model: ir.Model) -> None:
    """Read all external tensors, of initializers and of attributes."""
    replace_external(model, _inside, _inside)


def attribute_inside(attribute: ir.Attr) -> ir.Attr:
    """The attribute with the data of its tensors in memory."""
    return with_external_replaced(attribute, _inside)


def _inside(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """The tensor with a copy of its data: the file may be replaced while its map is open."""
    return ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)
