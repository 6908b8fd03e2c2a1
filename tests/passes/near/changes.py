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
            yield f"{tensor.name} ends otherwise", lambda m, n=number: _last_number(m, n)
            yield f"{tensor.name} repeats its first number", lambda m, n=number: _repeated(m, n)
        yield f"{tensor.name} has one axis more", lambda m, n=number, a=array: _array(m, n, a[None])
        if array.shape[:1] == (1,):
            yield f"{tensor.name} has one axis less", lambda m, n=number, a=array: _array(m, n, a[0])
        yield f"{tensor.name} is read elsewhere too", lambda m, v=tensor.name: _another_reader(m, v)
    outputs = {value.name for value in graph.output}
    seen: set[str] = set()
    for place, node in enumerate(graph.node):
        what = f"{node.op_type} of {node.output[0]}"
        for name in node.output:
            if name in types and name not in outputs:
                yield f"{name} is an output too", lambda m, v=types[name]: m.graph.output.append(v)
                yield f"{name} is read elsewhere too", lambda m, v=name: _another_reader(m, v)
        if len(node.input) > 1:
            yield f"{what}: no {node.input[-1]}", lambda m, n=place: m.graph.node[n].input.pop()
        if node.input and not any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
            yield f"{what}: of another domain", lambda m, n=place: _into_function(m, n)
            if place and all(name in types or name in outputs for name in node.output if name):
                yield f"{what}: in a branch", lambda m, n=place, t=types: _into_branch(m, n, t)
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
            if attribute.name != "seed":  # without which no two runs are equal
                yield f"{what}: no {attribute.name}", lambda m, n=place, i=index: _no_attribute(m, n, i)
    for number, value in enumerate(graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value != 1:
                yield f"{value.name} has 1 along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, 1)
            else:
                yield f"{value.name} has 2 along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, 2)
            yield f"{value.name} has 0 along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, 0)
            if dim.dim_value:
                more = dim.dim_value + 1
                yield f"{value.name} has {more} along axis {axis}", lambda m, n=number, a=axis, s=more: _dim(m, n, a, s)
                yield f"{value.name} is open along axis {axis}", lambda m, n=number, a=axis: _dim(m, n, a, "open")
        yield f"{value.name} has one axis more", lambda m, n=number: _one_axis_more(m, n)
        yield f"the rank of {value.name} is open", lambda m, n=number: _no_shape(m, n)
    yield "in float64", lambda m: _retype(m, TensorProto.DOUBLE)
    yield "in float16", lambda m: _retype(m, TensorProto.FLOAT16)
    yield "in int32", lambda m: _retype(m, TensorProto.INT32)
    for opset in (5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 18, 20, 21, 23):
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


def _last_number(model: onnx.ModelProto, number: int) -> None:
    array = numpy_helper.to_array(model.graph.initializer[number]).copy()
    array.flat[-1] += np.array(1, array.dtype)
    _array(model, number, array)


def _repeated(model: onnx.ModelProto, number: int) -> None:
    array = numpy_helper.to_array(model.graph.initializer[number])
    _array(model, number, np.full_like(array, array.flat[0]))


def _array(model: onnx.ModelProto, number: int, array: np.ndarray) -> None:
    tensor = model.graph.initializer[number]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _another_reader(model: onnx.ModelProto, name: str) -> None:
    model.graph.node.append(helper.make_node("Size", [name], ["size"]))
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, []))


def _into_function(model: onnx.ModelProto, place: int) -> None:
    """The node calls a function of the same name that another domain has; its body is the operator."""
    node = model.graph.node[place]
    inputs = [f"i{index}" for index, _ in enumerate(node.input)]
    outputs = [f"o{index}" for index, _ in enumerate(node.output)]
    body = onnx.NodeProto.FromString(node.SerializeToString())
    body.input[:] = [inner if outer else "" for inner, outer in zip(inputs, node.input, strict=True)]
    body.output[:] = outputs
    model.functions.append(helper.make_function("mine", node.op_type, inputs, outputs, [body], model.opset_import))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.ir_version = max(model.ir_version, 8)
    node.domain = "mine"


def _into_branch(model: onnx.ModelProto, place: int, types: dict[str, onnx.ValueInfoProto]) -> None:
    """The node lies in both branches of an If, what it reads outside."""
    node = model.graph.node[place]
    named = {value.name: value for value in model.graph.output} | types
    branches = []
    for branch in ("yes", "no"):
        inner = onnx.NodeProto.FromString(node.SerializeToString())
        inner.output[:] = [f"{branch}_{name}" if name else "" for name in node.output]
        given = []
        for name in node.output:
            if name:
                value = onnx.ValueInfoProto.FromString(named[name].SerializeToString())
                value.name = f"{branch}_{name}"
                value.type.tensor_type.ClearField("shape")
                given.append(value)
        branches.append(helper.make_graph([inner], branch, [], given))
    model.graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, []))
    made = helper.make_node(
        "If", ["chosen"], [name for name in node.output if name], then_branch=branches[0], else_branch=branches[1]
    )
    node.CopyFrom(made)


def _one_axis_more(model: onnx.ModelProto, number: int) -> None:
    shape = model.graph.input[number].type.tensor_type.shape
    dims = [onnx.TensorShapeProto.Dimension.FromString(dim.SerializeToString()) for dim in shape.dim]
    del shape.dim[:]
    shape.dim.add().dim_value = 2
    shape.dim.extend(dims)


def _no_shape(model: onnx.ModelProto, number: int) -> None:
    model.graph.input[number].type.tensor_type.ClearField("shape")


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
            array = numpy_helper.to_array(tensor)
            if kind == TensorProto.INT32:
                array = array.clip(-9, 9)  # the infinities too
            with np.errstate(over="ignore"):  # a number below all of float16 becomes its minus infinity
                array = array.astype(helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
