"""Feeds for a model nobody described: values for its inputs with which the original really runs.

Two seeded draws, each with two values for the dynamic dims. Where the original refuses a feed, other dims and
plainer integers are tried, because an integer input may be a shape, an axis or an index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

Feed = dict[str, Any]
Style = Literal["random", "integers one", "integers zero", "all one"]

_SIZES = (3, 5, 2, 4, 8, 7, 16, 1, 6, 32)
_LARGE_SIZES = tuple(2**power for power in range(6, 17))  # of a model that needs so many pixels or samples
_SIZES_WANTED = 2
_DRAWS = (11, 12)  # seeds
_MOST_ELEMENTS = 2**26  # of one input
_MOST_TRIES = 400  # runs of the original until a model counts as one we cannot feed
_WORDS = np.array(["to", "be", "or", "not", "question"], dtype=object)


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs a caller must give: those without an initializer."""
    graph = model.graph
    initialized = {tensor.name for tensor in graph.initializer}
    initialized.update(tensor.values.name for tensor in graph.sparse_initializer)
    return [value for value in graph.input if value.name not in initialized]


def taken(session: ort.InferenceSession, feed: Feed) -> bool:
    """Whether the model runs with the feed."""
    try:
        session.run(None, feed)
    except Exception:  # ONNX Runtime's errors share no base class
        return False
    return True


def working_feeds(model: onnx.ModelProto, runs: Callable[[Feed], bool]) -> list[Feed]:
    """Up to four feeds that `runs` accepts; none if nothing that was tried works."""
    inputs = required_inputs(model)
    names = _dynamic_dims(inputs)
    feeds: list[Feed] = []
    sizes_used: set[int] = set()
    tries = 0
    for size, dims in _assignments(names, _leading_dims(inputs)):
        if size in sizes_used or any(math.prod(_shape(value, dims)) > _MOST_ELEMENTS for value in inputs):
            continue
        for style in _styles(inputs):
            tries += 1
            try:
                first = _draw(inputs, dims, style, _DRAWS[0])
            except NotImplementedError:
                return []
            if not runs(first):
                continue
            second = _draw(inputs, dims, style, _DRAWS[1])
            feeds += [first] + ([second] if inputs and runs(second) else [])
            sizes_used.add(size)
            break
        if len(sizes_used) == (_SIZES_WANTED if names else 1) or tries >= _MOST_TRIES:
            break
    return feeds


def _dim_key(value: onnx.ValueInfoProto, axis: int, dim: onnx.TensorShapeProto.Dimension) -> str | None:
    """The name of a dynamic dim: same name, same size. None for a fixed one."""
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return None
    return dim.dim_param or f"{value.name}[{axis}]"


def _tensor_type(value: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor:
    kind = value.type
    while not kind.HasField("tensor_type"):
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        elif kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        else:
            raise NotImplementedError(value.name)
    return kind.tensor_type


def _dynamic_dims(inputs: list[onnx.ValueInfoProto]) -> list[str]:
    names: dict[str, None] = {}
    for value in inputs:
        for axis, dim in enumerate(_tensor_type(value).shape.dim):
            key = _dim_key(value, axis, dim)
            if key is not None:
                names[key] = None
    return list(names)


def _leading_dims(inputs: list[onnx.ValueInfoProto]) -> frozenset[str]:
    """The dynamic dims that are the first of several."""
    found = set()
    for value in inputs:
        dims = _tensor_type(value).shape.dim
        if len(dims) > 1:
            found.add(_dim_key(value, 0, dims[0]))
    return frozenset(found - {None})  # type: ignore[arg-type]


def _assignments(names: list[str], leading: frozenset[str]) -> Iterator[tuple[int, dict[str, int]]]:
    """Sizes for the dims: first all equal, then one larger by one (a mask that covers the past and the new token),
    then one equal to 1 (a batch that must broadcast), then large ones behind `leading` dims of 1, or alone."""
    for size in _SIZES:
        yield size, dict.fromkeys(names, size)
    for size in _SIZES[:4]:
        for other in (size + 1, 1, 2 * size):
            for name in names:
                yield size, {**dict.fromkeys(names, size), name: other}
    for size in _LARGE_SIZES:
        yield size, {name: 1 if name in leading else size for name in names}
        for name in names:
            yield size, {**dict.fromkeys(names, 1), name: size}


def _styles(inputs: list[onnx.ValueInfoProto]) -> tuple[Style, ...]:
    integer = any(
        np.issubdtype(helper.tensor_dtype_to_np_dtype(_tensor_type(value).elem_type), np.integer) for value in inputs
    )
    return ("random", "integers one", "integers zero", "all one") if integer else ("random", "all one")


def _shape(value: onnx.ValueInfoProto, dims: dict[str, int]) -> tuple[int, ...]:
    return tuple(
        dims.get(_dim_key(value, axis, dim) or "", dim.dim_value)
        for axis, dim in enumerate(_tensor_type(value).shape.dim)
    )


def _draw(inputs: list[onnx.ValueInfoProto], dims: dict[str, int], style: Style, seed: int) -> Feed:
    feed: Feed = {}
    for position, value in enumerate(inputs):
        rng = np.random.default_rng([seed, position])
        tensor, shape = _tensor_type(value), _shape(value, dims)
        if value.type.HasField("tensor_type"):
            feed[value.name] = _values(tensor.elem_type, shape, value.name, style, rng)
        else:
            kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
            draws = [_values(tensor.elem_type, shape, value.name, style, rng) for _ in range(2)]
            feed[value.name] = draws if kind.HasField("sequence_type") else draws[0]
    return feed


def _values(kind: int, shape: tuple[int, ...], name: str, style: Style, rng: np.random.Generator) -> np.ndarray:
    if kind == TensorProto.STRING:
        return rng.choice(_WORDS, size=shape)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if style == "all one":  # scales and sizes must agree with a declared output
        return np.ones(shape, dtype)
    if np.issubdtype(dtype, np.floating):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if not np.issubdtype(dtype, np.integer):
        raise NotImplementedError(f"{name}: {dtype}")  # complex and narrow types, which ORT takes no numpy array for
    if style != "random":
        return np.full(shape, 1 if style == "integers one" else 0, dtype)
    if "mask" in name.lower():
        # A mask holds 0 and 1, and at least one token must be seen, or a softmax over nothing gives NaN.
        mask = rng.integers(0, 2, shape).astype(dtype)
        return np.maximum(mask, np.asarray(np.indices(shape)[-1] == 0, dtype)) if shape else mask
    return np.asarray(rng.integers(0, 10, shape)).astype(dtype)
