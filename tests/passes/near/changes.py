"""One change of a small model after the other, in the order of its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

# An operator -> another of the same signature.
SIBLINGS = {
    "Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Min": "Max", "And": "Or", "Or": "And",
    "Exp": "Sqrt", "Log": "Exp", "Relu": "Abs", "Abs": "Neg", "Neg": "Abs", "Sigmoid": "Tanh", "Tanh": "Sigmoid",
    "Erf": "Tanh", "Sqrt": "Exp", "Less": "Greater", "Greater": "Less", "Equal": "Greater", "ReduceMean": "ReduceMax",
    "ReduceSum": "ReduceMean", "ReduceMax": "ReduceMin", "Softmax": "LogSoftmax", "MaxPool": "AveragePool",
    "Reciprocal": "Sqrt", "Identity": "Neg", "ArgMax": "ArgMin", "Floor": "Ceil", "Pow": "Mul",
}  # fmt: skip
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
Change = Callable[[onnx.ModelProto], None]


def changes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What was changed, and the changed copy; not all of them are models that run."""
    for text, change in _changes(model):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        change(copy)
        for output in copy.graph.output:  # whose dims may be others now
            output.type.tensor_type.ClearField("shape")
        yield text, copy


def _changes(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    graph = model.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    types = {value.name: value for value in (*inferred, *graph.input) if value.type.HasField("tensor_type")}
    for number, tensor in enumerate(graph.initializer):
        yield f"{tensor.name} is given by the caller", lambda m, n=number: _into_input(m, n)
        array = numpy_helper.to_array(tensor)
        if array.size and array.dtype.kind in "fiub":
            yield f"{tensor.name} begins otherwise", lambda m, n=number: _other_number(m, n, every=False)
        if array.size > 1 and array.dtype.kind in "fiu":
            yield f"{tensor.name} is otherwise", lambda m, n=number: _other_number(m, n, every=True)
    outputs = {value.name for value in graph.output}
    seen: set[str] = set()
    for place, node in enumerate(graph.node):
        what = f"{node.op_type} of {node.output[0]}"
        for name in node.output:
            if name in types and name not in outputs:
                yield f"{name} is an output too", lambda m, v=types[name]: m.graph.output.append(v)
        if len(node.input) > 1 and node.input[0] != node.input[1]:
            yield f"{what}: operands change places", lambda m, n=place: _swap(m, n)
        for index, name in enumerate(node.input):
            if name in seen and name in types:
                yield f"{what}: another {name}", lambda m, n=place, i=index, v=types[name]: _other_input(m, n, i, v)
            seen.add(name)
        if node.op_type in SIBLINGS:
            yield f"{what}: {SIBLINGS[node.op_type]}", lambda m, n=place: _sibling(m, n)
        for index, attribute in enumerate(node.attribute):
            if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS):
                yield f"{what}: another {attribute.name}", lambda m, n=place, i=index: _other_attribute(m, n, i)
            yield f"{what}: no {attribute.name}", lambda m, n=place, i=index: _no_attribute(m, n, i)
    for number, value in enumerate(graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value != 1:
                yield f"{value.name} has 1 along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, 1)
            else:
                yield f"{value.name} has 2 along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, 2)
            if dim.dim_value:
                yield f"{value.name} is open along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, "open")
    yield "in float64", lambda m: _retype(m, TensorProto.DOUBLE)
    yield "in float16", lambda m: _retype(m, TensorProto.FLOAT16)
    for opset in (11, 13, 18, 21):
        yield f"in opset {opset}", lambda m, v=opset: setattr(m.opset_import[0], "version", v)


def _into_input(model: onnx.ModelProto, number: int) -> None:
    tensor = model.graph.initializer[number]
    if tensor.name not in {value.name for value in model.graph.input}:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del model.graph.initializer[number]


def _other_number(model: onnx.ModelProto, number: int, *, every: bool) -> None:
    tensor = model.graph.initializer[number]
    array = numpy_helper.to_array(tensor).copy()
    place = slice(None) if every else slice(1)
    flat = array.reshape(-1)
    flat[place] = ~flat[place] if array.dtype.kind == "b" else flat[place] + np.array(1, array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(flat.reshape(array.shape), tensor.name))


def _swap(model: onnx.ModelProto, place: int) -> None:
    node = model.graph.node[place]
    node.input[0], node.input[1] = node.input[1], node.input[0]


def _other_input(model: onnx.ModelProto, place: int, index: int, value: onnx.ValueInfoProto) -> None:
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    made.name = f"{value.name}_other"
    model.graph.input.append(made)
    model.graph.node[place].input[index] = made.name


def _sibling(model: onnx.ModelProto, place: int) -> None:
    node = model.graph.node[place]
    node.op_type = SIBLINGS[node.op_type]


def _other_attribute(model: onnx.ModelProto, place: int, index: int) -> None:
    attribute = model.graph.node[place].attribute[index]
    if attribute.type == AttributeProto.INT:
        attribute.i = 1 - attribute.i if attribute.i in (0, 1) else attribute.i + 1
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f *= 1.5
    elif len(set(attribute.ints)) > 1:
        attribute.ints[:] = list(reversed(attribute.ints))
    else:
        attribute.ints[:1] = [attribute.ints[0] + 1] if attribute.ints else []


def _no_attribute(model: onnx.ModelProto, place: int, index: int) -> None:
    del model.graph.node[place].attribute[index]


def _dim(model: onnx.ModelProto, number: int, axis: int, size: int | str) -> None:
    dim = model.graph.input[number].type.tensor_type.shape.dim[axis]
    if isinstance(size, int):
        dim.dim_value = size
    else:
        dim.dim_param = size


def _retype(model: onnx.ModelProto, kind: int) -> None:
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type in FLOATS:
            value.type.tensor_type.elem_type = kind
    for tensor in model.graph.initializer:
        if tensor.data_type in FLOATS:
            with np.errstate(over="ignore"):  # a number below all of float16 becomes its minus infinity
                array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
