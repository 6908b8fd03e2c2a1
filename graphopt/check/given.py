"""The user's own feeds: arrays from Python, .npz files, and folders of them or of ONNX's test data sets.

A .npz file holds one array for each input under its name; arrays under the names of outputs are what the model is
expected to give. A folder holds .npz files, or `input_0.pb`, `output_0.pb` and so on, or folders `test_data_set_0` of
those; each is a feed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from graphopt.check.feeds import Feed
from graphopt.check.inputs import tensor_type
from graphopt.errors import OptionError
from graphopt.model.text import nearest, shown

Source = str | os.PathLike[str] | Mapping[str, object]
Feeds = Source | Sequence[Source]  # what the Python interface takes


@dataclass(frozen=True, slots=True)
class Given:
    """A feed of the user's, with the outputs that the model is expected to give; `name` is where it is from."""

    name: str
    feed: Feed
    expected: Mapping[str, object]


def read_feeds(model: ir.Model, feeds: Feeds | None) -> tuple[Given, ...]:
    """All feeds, each fit for the model's inputs.

    Raises OptionError for files that hold none, for names that are no inputs, missing inputs, and for types and dims
    other than those that the model declares.
    """
    if feeds is None:
        return ()
    sources: list[Source]
    if isinstance(feeds, (str, os.PathLike, Mapping)):
        sources = [feeds]
    else:
        sources = list(feeds)
    found: list[Given] = []
    for number, source in enumerate(sources):
        if isinstance(source, Mapping):
            found.append(_sorted(model, f"feed {number}", source))
        else:
            found += _from_path(model, Path(source))
    return tuple(_fitting(model, given) for given in found)


def _from_path(model: ir.Model, path: Path) -> list[Given]:
    if path.is_file():
        return [_from_npz(model, path)]
    if not path.is_dir():
        raise OptionError(f"'{path}' cannot be read: there is no such file or folder.")
    if any(path.glob("input_*.pb")):
        return [_from_test_data(model, path)]
    sets = sorted((item for item in path.iterdir() if any(item.glob("input_*.pb"))), key=_natural)
    files = sorted(path.glob("*.npz"), key=_natural)
    if not sets and not files:
        raise OptionError(f"'{path}' holds no feeds: put .npz files there, or folders with input_0.pb and so on.")
    return [*(_from_npz(model, file) for file in files), *(_from_test_data(model, item) for item in sets)]


def _natural(path: Path) -> list[str | int]:
    """Numbers in a name by their size: set_2 before set_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _from_npz(model: ir.Model, path: Path) -> Given:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            return _sorted(model, str(path), {name: arrays[name] for name in arrays.files})
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(f"'{path}' cannot be read as a .npz file: {error}.") from error


def _from_test_data(model: ir.Model, folder: Path) -> Given:
    """input_0.pb, input_1.pb ... in the order of the inputs, and output_0.pb ... in that of the outputs."""
    inputs = _protos(folder, "input", model.graph.inputs)
    return Given(str(folder), inputs, _protos(folder, "output", model.graph.outputs))


def _protos(folder: Path, kind: str, values: Sequence[ir.Value]) -> Feed:
    found: Feed = {}
    for path in sorted(folder.glob(f"{kind}_*.pb"), key=_natural):
        number = path.stem.rpartition("_")[2]
        if not number.isdigit() or int(number) >= len(values):
            raise OptionError(f"'{path}' has no {kind} to go to: the model has {len(values)} {kind}s.")
        value = values[int(number)]
        try:
            found[value.name or ""] = _read_proto(path.read_bytes(), ir.to_proto(value).type)
        except Exception as error:  # protobuf's errors share no base class with onnx's
            raise OptionError(f"'{path}' cannot be read as a value of {kind} '{shown(value.name or '')}'.") from error
    return found


def _read_proto(data: bytes, kind: onnx.TypeProto) -> object:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _sorted(model: ir.Model, name: str, arrays: Mapping[str, object]) -> Given:
    """Arrays by name, told apart into those of inputs and those of outputs."""
    inputs = [value.name or "" for value in model.graph.inputs]
    outputs = [value.name or "" for value in model.graph.outputs]
    for key in arrays:
        if key not in inputs and key not in outputs:
            raise OptionError(
                f"{name} has '{shown(key)}', which is neither an input nor an output; {nearest(key, inputs)}."
            )
    feed = {key: value for key, value in arrays.items() if key in inputs}
    return Given(name, feed, {key: value for key, value in arrays.items() if key in outputs and key not in inputs})


def _fitting(model: ir.Model, given: Given) -> Given:
    """The feed with arrays of the declared types; raises OptionError."""
    feed: Feed = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if name not in given.feed:
            if value.const_value is None:
                raise OptionError(f"{given.name} lacks input '{shown(name)}'.")
            continue
        proto = ir.to_proto(value).type
        kind = tensor_type(proto)
        item = given.feed[name]
        if kind is not None and proto.WhichOneof("value") == "tensor_type":
            item = _tensor(given.name, name, item, kind)
        feed[name] = item
    return Given(given.name, feed, given.expected)


def _tensor(source: str, name: str, item: object, kind: onnx.TypeProto.Tensor) -> np.ndarray:
    array = np.asarray(item)
    if kind.elem_type == onnx.TensorProto.STRING:
        return array.astype(object)
    wanted = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if array.dtype != wanted:
        raise OptionError(f"{source}: input '{shown(name)}' takes {wanted}, and the array is of {array.dtype}.")
    if kind.HasField("shape"):
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        fits = len(dims) == array.ndim and all(
            one is None or one < 0 or one == two for one, two in zip(dims, array.shape, strict=False)
        )
        if not fits:
            text = ", ".join("?" if one is None or one < 0 else str(one) for one in dims)
            raise OptionError(
                f"{source}: input '{shown(name)}' has the dims [{text}], and the array {list(array.shape)}."
            )
    return array
