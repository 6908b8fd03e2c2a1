"""Seeded inputs for a model: dims for every dynamic dimension, values by type, indices that stay in range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from graphopt.model.limits import MOST_FED

Feed = dict[str, object]
Assignment = dict[str, int]

# Two sizes for each kind of dynamic dim; image sides must survive the strides of a backbone.
BATCH = (2, 3)
LENGTH = (3, 5)
IMAGE = (64, 96)
FALLBACKS = (1, 2, 4, 7, 8, 10, 16, 32, 50, 128, 224)
DRAWS = 5
POSITIVE, ONES = 3, 4  # draws for models that accept only positive numbers, or only ones (scales of a Resize)
GATHERS = frozenset({"Gather"})


@dataclass(frozen=True, slots=True)
class Input:
    """One input to feed: its name, ONNX type and dims (a string for each dynamic one)."""

    name: str
    type: onnx.TypeProto
    dims: tuple[int | str, ...] | None
    bound: int  # exclusive upper bound of integers


def inputs_of(model: onnx.ModelProto) -> tuple[Input, ...]:
    """The inputs without a default. A dim without a name gets one of its own."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    bounds = _index_bounds(model.graph)
    found = []
    for value in model.graph.input:
        if value.name in defaults:
            continue
        tensor = _tensor_type(value.type)
        dims: tuple[int | str, ...] | None = None
        if tensor is not None and tensor.HasField("shape"):
            dims = tuple(
                dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
                else (dim.dim_param or f"{value.name}.{axis}")
                for axis, dim in enumerate(tensor.shape.dim)
            )  # fmt: skip
        found.append(Input(value.name, value.type, dims, bounds.get(value.name, 2)))
    return tuple(found)


def _tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return kind.tensor_type
    if which == "sequence_type":
        return _tensor_type(kind.sequence_type.elem_type)
    if which == "optional_type":
        return _tensor_type(kind.optional_type.elem_type)
    return None


def _index_bounds(graph: onnx.GraphProto) -> dict[str, int]:
    """For inputs that index a table of known length (token ids into an embedding): that length."""
    lengths = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    bounds: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in GATHERS and len(node.input) == 2 and node.input[0] in lengths:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            size = lengths[node.input[0]][axis] if lengths[node.input[0]] else 1
            bounds[node.input[1]] = min(size, bounds.get(node.input[1], size))
    return bounds


def assignments(inputs: tuple[Input, ...]) -> Iterator[Assignment]:
    """Sizes for the dynamic dims, the likeliest first; the caller keeps those with which the original runs.

    Names are not always honest (past lengths that must agree have different names, a mask is one longer than the
    past), so after the plain guesses single dims are moved one by one.
    """
    kinds: dict[str, tuple[int, int]] = {}
    leading: set[str] = set()
    for item in inputs:
        for axis, dim in enumerate(item.dims or ()):
            if isinstance(dim, str):
                image = axis >= 2 and len(item.dims or ()) >= 4 and _is_float(item.type)
                kind = IMAGE if image else BATCH if axis == 0 and len(item.dims or ()) > 1 else LENGTH
                kinds.setdefault(dim, kind)
                if axis == 0:
                    leading.add(dim)
    if not kinds:
        yield {}
        return
    guesses = [{name: kind[pick] for name, kind in kinds.items()} for pick in (0, 1)]
    uniform = [dict.fromkeys(kinds, size) for size in LENGTH]
    yield from guesses
    yield from uniform
    singles = [{name: 1 if name in leading else size for name, size in plan.items()} for plan in (*guesses, *uniform)]
    yield from singles
    for pair in ((singles[2], singles[3]), (uniform[0], uniform[1])):
        for name in list(kinds)[:12]:
            for base in pair:
                yield {**base, name: base[name] + 1}
    for size in FALLBACKS:
        yield dict.fromkeys(kinds, size)


def _is_float(kind: onnx.TypeProto) -> bool:
    tensor = _tensor_type(kind)
    return tensor is not None and tensor.elem_type in (
        onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE
    )  # fmt: skip


def make_feed(inputs: tuple[Input, ...], sizes: Mapping[str, int], draw: int) -> Feed:
    """Integers: ones, then random within their bound, zeros ... Floats: normal, at last from 0.5 to 1.5, and ones.

    Raises ValueError for inputs of more than `MOST_FED` elements.
    """
    elements = sum(math.prod(_shape(item, sizes)) for item in inputs)
    if elements > MOST_FED:
        raise ValueError(f"its inputs have {elements:,} elements, and {MOST_FED:,} are the most that is tried")
    generator = np.random.default_rng([20261, draw])
    return {item.name: _value(item, item.type, sizes, draw, generator) for item in inputs}


def _shape(item: Input, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in item.dims or ())


def _value(
    item: Input, kind: onnx.TypeProto, sizes: Mapping[str, int], draw: int, generator: np.random.Generator
) -> object:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return [_value(item, kind.sequence_type.elem_type, sizes, draw, generator) for _ in range(2)]
    if which == "optional_type":
        return _value(item, kind.optional_type.elem_type, sizes, draw, generator)
    shape = _shape(item, sizes)
    element = kind.tensor_type.elem_type
    if element == onnx.TensorProto.STRING:
        return generator.choice(np.array(["a", "b", "c"], dtype=object), shape)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    if element == onnx.TensorProto.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if element in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8):
        low, high = (0, 256) if element == onnx.TensorProto.UINT8 else (-128, 128)
        return generator.integers(low, high, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        if draw == 0:
            return np.ones(shape, dtype)
        return generator.integers(0, max(item.bound, 1), shape).astype(dtype) if draw % 2 else np.zeros(shape, dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    if draw == ONES:
        return np.ones(shape, dtype)
    drawn = generator.uniform(0.5, 1.5, shape) if draw == POSITIVE else generator.standard_normal(shape)
    return np.asarray(drawn).astype(dtype)
