"""Constant tensors: reading them, and *splats*, tensors of one value that take no memory.

A splat is a NumPy array whose strides are all zero (`numpy.broadcast_to` of one number). ConstantOfShape of a known
shape reads as a splat; arithmetic through `elementwise` keeps splats, so that weights given as one repeated value
can be folded without ever being written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.model.tensors import tensor_of

Array = np.ndarray


def splat(value: object, shape: Sequence[int], dtype: np.dtype | None = None) -> Array:
    """An array of `shape` filled with one value, occupying the bytes of one element."""
    return np.broadcast_to(np.asarray(value, dtype=dtype).reshape(()), tuple(shape))


def is_splat(array: Array) -> bool:
    """Whether the array is stored as one repeated value (more than one element, all strides zero)."""
    return bool(array.size > 1 and all(s == 0 for s, d in zip(array.strides, array.shape, strict=True) if d > 1))


def elementwise(function: Callable[..., Array], *arrays: Array) -> Array:
    """`function` of broadcasting arrays; a splat when every operand is a splat or holds one element."""
    if any(is_splat(array) for array in arrays) and all(is_splat(a) or a.size == 1 for a in arrays):
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        scalars = [array.reshape(-1)[:1].reshape(()) if array.size == 1 else _first(array) for array in arrays]
        return splat(function(*scalars), shape)
    return np.asarray(function(*arrays))


def _first(array: Array) -> Array:
    """The first element as a zero-dimensional array, without reshaping (which would copy a splat)."""
    return np.asarray(array[(0,) * array.ndim])


def reshape(array: Array, shape: Sequence[int]) -> Array:
    """`array.reshape(shape)`, keeping splats."""
    return splat(_first(array), shape) if is_splat(array) else array.reshape(tuple(shape))


def of_initializer(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer that no caller can override, else None.

    From IR version 4 on, an initializer that is also a graph input is only a default. Before that, every initializer
    had to be listed as an input and could not be overridden in practice; `freeze_old_initializers` marks those.
    """
    if not value.is_initializer() or value.const_value is None:
        return None
    if value.is_graph_input() and "graphopt.fixed" not in value.meta:
        return None
    return value.const_value


def freeze_old_initializers(model: ir.Model) -> None:
    """Mark the initializers of an IR version 3 model as constants although they are graph inputs."""
    if model.ir_version is None or model.ir_version < 4:
        for value in model.graph.initializers.values():
            if value.is_graph_input():
                value.meta["graphopt.fixed"] = True


def of_constant_node(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node, whichever of its attributes carries it."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return tensor_of(attribute)
        if name == "value_float":
            return ir.Tensor(np.array(attribute.as_float(), dtype=np.float32))
        if name == "value_floats":
            return ir.Tensor(np.array(attribute.as_floats(), dtype=np.float32))
        if name == "value_int":
            return ir.Tensor(np.array(attribute.as_int(), dtype=np.int64))
        if name == "value_ints":
            return ir.Tensor(np.array(attribute.as_ints(), dtype=np.int64))
        if name == "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        if name == "value_strings":
            strings = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def to_tensor(array: Array, dtype: ir.DataType, name: str | None = None) -> ir.TensorProtocol:
    """The array as a tensor of `dtype` (strings included)."""
    if dtype == ir.DataType.STRING:
        flat = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
        return ir.StringTensor(flat, shape=ir.Shape(array.shape), name=name)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if contiguous.dtype != dtype.numpy():
        contiguous = contiguous.astype(dtype.numpy())
    return ir.Tensor(contiguous, dtype=dtype, shape=ir.Shape(array.shape), name=name)


def renamed(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """The tensor under another name. One that is read from a ModelProto is copied: that is the caller's."""
    if isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.name != name:
        tensor = ir.serde.TensorProtoTensor(onnx.TensorProto.FromString(tensor.raw.SerializeToString()))
    tensor.name = name
    return tensor


def rename(value: ir.Value, name: str) -> None:
    """Give a value, and the tensor that it holds, another name; the caller's ModelProto keeps its own."""
    if value.const_value is not None:  # before the value itself, which names what it holds
        value.const_value = renamed(value.const_value, name)
    value.name = name


def to_proto(array: Array, dtype: ir.DataType, name: str) -> onnx.TensorProto:
    """The array as a TensorProto called `name`."""
    return ir.to_proto(to_tensor(array, dtype, name))
