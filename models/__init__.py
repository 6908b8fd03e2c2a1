"""The zoo: 34 real exporter graphs as light files, and the nine light networks of the onnx package.

`load(name)` gives a model with seeded weights, the same bytes every time.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test.data
from onnx import numpy_helper

from models.light_files import fill

# One size for each dynamic dim, at which every model runs; a cache of keys and values holds 16, its mask sees one more.
_SIZES = {"batch": 1, "seq": 64, "s10": 1, "s21": 64, "s12": 17}
_CACHE = 16

_LIGHT_FOLDER = Path(__file__).parent / "light"
_ONNX_FOLDER = Path(next(iter(onnx.backend.test.data.__path__))) / "light"


class UnknownModelError(KeyError):
    """A name that the zoo does not hold; the message gives the nearest one."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        super().__init__(f"The zoo has no model {name!r}. The nearest name is {nearest[0]!r}.")

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the sentence.
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class RecordedIO:
    """Inputs of a model and the outputs that the onnx project recorded for them."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def names() -> tuple[str, ...]:
    """Names of the models whose light files lie in this package."""
    return tuple(sorted(file.stem for file in _LIGHT_FOLDER.glob("*.onnx")))


def onnx_light_names() -> tuple[str, ...]:
    """Names of the light networks that the installed onnx package carries."""
    return tuple(sorted(file.stem for file in _ONNX_FOLDER.glob("light_*.onnx")))


def path(name: str) -> Path:
    """The light file of `name`; one of the onnx package's networks is complete as it lies there."""
    if name in names():
        return _LIGHT_FOLDER / f"{name}.onnx"
    if name in onnx_light_names():
        return _ONNX_FOLDER / f"{name}.onnx"
    raise UnknownModelError(name, names() + onnx_light_names())


def load(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model `name` with weights drawn with `seed`.

    The onnx package's own networks make their weights with ConstantOfShape nodes and need no seed.
    """
    model = onnx.load(path(name))
    return model if name in onnx_light_names() else fill(model, seed)


def write(name: str, file: Path, *, outside_from: int | None = None, seed: int = 0) -> None:
    """Write `name` as `file`; tensors of at least `outside_from` bytes lie beside it, in `<file>.data`.

    Tensors of attributes lie there too, as some exporters write them. None keeps everything in the one file.
    """
    model = load(name, seed)
    if outside_from is None:
        onnx.save(model, file)
        return
    onnx.save(
        model, file, save_as_external_data=True, location=f"{file.name}.data", size_threshold=outside_from,
        convert_attribute=True,
    )  # fmt: skip


def sizes(name: str) -> dict[str, int]:
    """A size for each dynamic dim of `name`, with which the model runs; empty when it has none."""
    inputs = onnx.load(path(name)).graph.input
    dims = [dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim if dim.dim_param]
    return {dim: _SIZES.get(dim, _CACHE) for dim in dims}


def recorded_io(name: str) -> RecordedIO:
    """Inputs and recorded outputs of one of `onnx_light_names()`.

    The inputs are not stored: onnx's own test runner makes them as i/n for the i-th of n elements.
    """
    if name not in onnx_light_names():
        raise UnknownModelError(name, onnx_light_names())
    graph = onnx.load(path(name)).graph
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: _ramp(value) for value in graph.input if value.name not in initialized}
    outputs = {
        value.name: numpy_helper.to_array(onnx.load_tensor(_ONNX_FOLDER / f"{name}_output_{position}.pb"))
        for position, value in enumerate(graph.output)
    }
    return RecordedIO(inputs, outputs)


def _ramp(value: onnx.ValueInfoProto) -> np.ndarray:
    dims = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
    elements = int(np.prod(dims))
    return (np.arange(elements).reshape(dims) / elements).astype(np.float32)
