"""A graph of ONNX evaluated by torch, with autograd: the oracle of gradients, which knows nothing of graphopt.

Every float tensor and initializer is of one type, float32 or float64; integers stay as they are. Functions of the model
are evaluated in place, and so is the body that ONNX's schema has for an operator that is not listed here.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from bench.gradients.node import Function, Node, UnsupportedError
from bench.gradients.operators import (
    control,
    elementwise,
    movement,
    normalizations,
    recurrences,
    reductions,
    resizing,
    spatial,
    spectra,
)

Array = npt.NDArray[Any]
Values = MutableMapping[str, Tensor]

OPERATORS: Mapping[str, Function] = {
    **elementwise.OPERATORS, **movement.OPERATORS, **reductions.OPERATORS, **normalizations.OPERATORS,
    **spatial.OPERATORS, **resizing.OPERATORS, **recurrences.OPERATORS, **control.OPERATORS,
    **spectra.OPERATORS,
}  # fmt: skip


def tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """An array as a tensor of torch; every float becomes `dtype`, short ones of ml_dtypes too."""
    array = np.array(array)
    if array.dtype.kind == "f" or "float" in array.dtype.name:
        return torch.from_numpy(array.astype(np.float64)).to(dtype)
    return torch.from_numpy(array)


class Graph:
    """A model whose values torch computes in `dtype`."""

    def __init__(self, model: onnx.ModelProto, dtype: torch.dtype = torch.float64) -> None:
        self.model, self.dtype = model, dtype
        self._functions = {(one.domain, one.name): one for one in model.functions}
        self._opsets = {one.domain: one.version for one in model.opset_import}
        self.initializers = {
            one.name: tensor(numpy_helper.to_array(one), dtype) for one in model.graph.initializer
        }  # fmt: skip

    def evaluate(self, feed: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
        """Every value of the main graph; `feed` gives inputs, and takes the place of initializers that it names.

        Raises UnsupportedError for an operator, or a form of one, that the oracle does not have.
        """
        given = {name: one if isinstance(one, torch.Tensor) else tensor(one, self.dtype) for name, one in feed.items()}
        values: Values = {**self.initializers, **given}
        self._run(self.model.graph.node, values, self._opsets)
        return dict(values)

    def _run(self, nodes: Sequence[onnx.NodeProto], values: Values, opsets: Mapping[str, int]) -> None:
        for node in nodes:
            inputs = tuple(values[name] if name else None for name in node.input)
            for name, result in zip(node.output, self._results(node, inputs, values, opsets), strict=False):
                if name and result is not None:
                    values[name] = result

    def _results(
        self, proto: onnx.NodeProto, inputs: tuple[Tensor, ...], values: Values, opsets: Mapping[str, int]
    ) -> Sequence[Tensor | None]:
        function = self._functions.get((proto.domain, proto.op_type))
        if function is not None:
            imports = {one.domain: one.version for one in function.opset_import} or opsets
            return self._call(function, proto, inputs, imports)
        attributes = {one.name: _decoded(helper.get_attribute_value(one)) for one in proto.attribute}
        opset = opsets.get(proto.domain, 1)
        if proto.domain in ("", "ai.onnx") and proto.op_type in OPERATORS:
            seen = Node(
                proto.op_type, inputs, attributes, len(proto.output), opset, self.dtype,
                lambda body, given: self._body(body, given, values, opsets),
            )  # fmt: skip
            return OPERATORS[proto.op_type](seen)
        return self._call(*_schema_body(proto, inputs, opset))

    def _body(
        self, body: onnx.GraphProto, given: Sequence[Tensor | None], outer: Values, opsets: Mapping[str, int]
    ) -> list[Tensor]:
        """A subgraph, which sees the values around it."""
        own: dict[str, Tensor] = {one.name: tensor(numpy_helper.to_array(one), self.dtype) for one in body.initializer}
        own |= {port.name: one for port, one in zip(body.input, given, strict=True) if one is not None}
        values = ChainMap(own, outer)
        self._run(body.node, values, opsets)
        return [values[port.name] for port in body.output]

    def _call(
        self, function: onnx.FunctionProto, call: onnx.NodeProto, inputs: Sequence[Tensor | None],
        opsets: Mapping[str, int],
    ) -> list[Tensor | None]:  # fmt: skip
        given = {one.name: one for one in call.attribute}
        given = {one.name: one for one in function.attribute_proto} | given
        nodes = [_with_attributes(node, given) for node in function.node]
        values: Values = {name: one for name, one in zip(function.input, inputs, strict=False) if one is not None}
        missing = {name for name in function.input if name not in values}
        for node in nodes:
            for place, name in enumerate(node.input):
                if name in missing:
                    node.input[place] = ""
        self._run(nodes, values, opsets)
        return [values.get(name) for name in function.output]


def gradients(
    model: onnx.ModelProto, feed: Mapping[str, Array], names: Sequence[str], *, output: str | None = None,
    seed: Array | None = None, loss: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, dict[str, Array]]:  # fmt: skip
    """The loss and its gradients with respect to inputs and initializers by `names`.

    The loss is the sum of `output` times `seed` (ones where there is none), or what `loss` makes of all values. A name
    that the loss does not depend on has no gradient. Gradients are of `dtype`, with the dims of what they belong to.
    """
    graph = Graph(model, dtype)
    leaves = {
        name: (tensor(feed[name], dtype) if name in feed else graph.initializers[name]).clone().requires_grad_()
        for name in names
    }
    values = graph.evaluate({**feed, **leaves})
    if loss is not None:
        total = loss(values)
    else:
        assert output is not None, "either an output or a loss is named"
        total = values[output].sum() if seed is None else (values[output] * tensor(seed, dtype)).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return total.item(), {name: one.numpy() for name, one in zip(leaves, found, strict=True) if one is not None}


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [one.decode() for one in value]
    return value


def _with_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a function's body with the attributes of the call in the place of those it refers to."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for one in node.attribute:
        if not one.ref_attr_name:
            copy.attribute.add().CopyFrom(one)
        elif one.ref_attr_name in given:
            own = copy.attribute.add()
            own.CopyFrom(given[one.ref_attr_name])
            own.name = one.name
    return copy


def _schema_body(
    proto: onnx.NodeProto, inputs: Sequence[Tensor | None], opset: int
) -> tuple[onnx.FunctionProto, onnx.NodeProto, Sequence[Tensor | None], Mapping[str, int]]:
    """The body that the schema of an operator has, as arguments of a call."""
    try:
        schema: Any = onnx.defs.get_schema(proto.op_type, opset, proto.domain)
    except onnx.defs.SchemaError as error:
        raise UnsupportedError(f"{proto.op_type} of {proto.domain or 'ai.onnx'}") from error
    versions = [one for one in schema.function_opset_versions if one <= opset]
    made_for = [one for one in schema.context_dependent_function_opset_versions if one <= opset]
    if versions:
        data = schema.get_function_with_opset_version(max(versions))
    elif made_for:
        types = [_type(one).SerializeToString() for one in inputs]
        data = schema.get_context_dependent_function_with_opset_version(
            max(made_for), proto.SerializeToString(), types
        )  # fmt: skip
    else:
        raise UnsupportedError(proto.op_type)
    function = onnx.FunctionProto.FromString(data) if isinstance(data, bytes) else data
    defaults = {name: one.default_value for name, one in schema.attributes.items() if one.default_value.name}
    function = _copied(function)
    function.attribute_proto.extend(
        one for name, one in defaults.items() if name not in {other.name for other in function.attribute_proto}
    )
    imports = {one.domain: one.version for one in function.opset_import} or {"": opset}
    return function, proto, inputs, imports


def _copied(function: onnx.FunctionProto) -> onnx.FunctionProto:
    copy = onnx.FunctionProto()
    copy.CopyFrom(function)
    return copy


def _type(value: Tensor | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    kind = helper.np_dtype_to_tensor_dtype(value.detach().numpy().dtype)
    return helper.make_tensor_type_proto(kind, list(value.shape))
