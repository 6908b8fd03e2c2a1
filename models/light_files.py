"""Light files: a model whose large weights are kept as four statistics and come back as seeded normal numbers.

`strip` takes the data of every float or 8-bit tensor of more than 256 elements away and notes its mean, standard
deviation and range in the model's metadata; structure, names and all other tensors stay as they were exported.
`fill` draws those tensors again. The same light file and seed give the same model, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

STATISTICS_KEY = "light.tensors"
SMALLEST_KEPT_LIGHT = 257  # elements; smaller tensors are often shapes, axes or scales that a graph depends on

_STRIPPED_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8}
)
_DATA_FIELDS = ("raw_data", "float_data", "int32_data", "double_data", "external_data")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is left of a tensor's values."""

    mean: float
    deviation: float
    low: float
    high: float

    def draw(self, dims: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Normal numbers with this mean and deviation, kept inside the range."""
        values: np.ndarray = rng.standard_normal(dims)
        values *= self.deviation  # in place: a large model's numbers in float64 are gigabytes
        values += self.mean
        return np.clip(values, self.low, self.high, out=values)


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make `model` light, in place, and return it."""
    statistics: dict[str, list[float]] = {}
    for position, tensor in enumerate(_tensors(model)):
        if tensor.data_type not in _STRIPPED_TYPES or _elements(tensor) < SMALLEST_KEPT_LIGHT:
            continue
        values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        statistics[str(position)] = [float(f()) for f in (values.mean, values.std, values.min, values.max)]
        for field in _DATA_FIELDS:
            tensor.ClearField(field)
        tensor.data_location = TensorProto.DEFAULT
    _drop_traces(model.graph)
    model.metadata_props.add(key=STATISTICS_KEY, value=json.dumps(statistics, separators=(",", ":")))
    return model


def fill(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Give the light `model` weights drawn with `seed`, in place, and return it.

    Raises ValueError where the model carries no statistics, that is, where it is not light.
    """
    entry = next((prop for prop in model.metadata_props if prop.key == STATISTICS_KEY), None)
    if entry is None:
        raise ValueError(f"The model {model.graph.name!r} is not light: its metadata has no {STATISTICS_KEY!r}.")
    statistics = {int(position): Statistics(*row) for position, row in json.loads(entry.value).items()}
    for position, tensor in enumerate(_tensors(model)):
        if position not in statistics:
            continue
        # A generator per tensor: the numbers of one do not depend on which others were stripped.
        values = statistics[position].draw(tuple(tensor.dims), np.random.default_rng([seed, position]))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if np.issubdtype(dtype, np.integer):
            values = np.rint(values)
        tensor.raw_data = values.astype(dtype).tobytes()
    model.metadata_props.remove(entry)
    return model


def _elements(tensor: TensorProto) -> int:
    return int(np.prod(tensor.dims, dtype=np.int64))


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor in a fixed order: initializers, attributes, subgraphs where they stand, then functions."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from (attribute.t for attribute in node.attribute if attribute.type == attribute.TENSOR)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors_of_graph(attribute.g)


def _drop_traces(graph: onnx.GraphProto) -> None:
    """Remove the stack traces and source paths that exporters write: they name somebody's folders."""
    for owner in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        for prop in [prop for prop in owner.metadata_props if "stack_trace" in prop.key]:
            owner.metadata_props.remove(prop)
        if "/" in owner.doc_string:
            owner.ClearField("doc_string")
