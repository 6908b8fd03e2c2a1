"""What every use case begins with: the model of a caller's source, its inputs fixed as asked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.gradient.step import open_carried
from graphopt.lazy import Lazy
from graphopt.model.dimensions import DimValue, change_dims, symbols_of
from graphopt.model.facts import Facts
from graphopt.model.fixing import fix_inputs
from graphopt.model.load import Source, load
from graphopt.model.misfits import misfit
from graphopt.model.settling import settle
from graphopt.model.tensors import tensors_of
from graphopt.model.text import shown

if TYPE_CHECKING:
    from graphopt.check import samples
else:
    samples = Lazy("graphopt.check.samples")  # with ONNX Runtime

_PART = 1 << 20  # bytes that are read at a time


def read(
    source: Source, values: Mapping[str, object] | None = None, *, fix_defaults: bool = False
) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with the inputs that the caller fixes as constants, and a sentence for each of them.

    `values` by input name; `fix_defaults` fixes the inputs that have defaults. Raises ModelError and OptionError.
    """
    model = load(source)
    open_carried(model, required=fix_defaults)
    return model, fix_inputs(model, values or {}, defaults=fix_defaults)


def resize(
    model: ir.Model, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, DimValue], *, verify: bool = True
) -> None:
    """Change the model's dims as asked (`change_dims`), and those that then can have one size only.

    A fixed first dim is freed for a new `batch`. What is freed is compared with the model as it was, sample by sample,
    unless `verify` is off. Raises OptionError, also where operands do not fit one another at these sizes.
    """
    batch = str(dims.get("batch", ""))
    if batch.isdigit() and int(batch) and "batch" not in symbols_of(model) and _first_dims_are_fixed(model):
        resize(model, {}, {"batch": "batch"}, verify=verify)
    freed = any(not isinstance(size, int) and not size.isdigit() for size in dims.values())
    before = model.clone() if freed else model
    change_dims(model, shapes, dims)
    settle(model)
    if freed and verify:
        fault = samples.freed_fault(before, model)
        if fault is not None:
            raise OptionError(f"the dim cannot be freed: {fault}")
    require_fit(model, {**dims, **{name: "x".join(map(str, shape)) for name, shape in shapes.items()}})


def require_fit(model: ir.Model, sizes: Mapping[str, DimValue]) -> None:
    """Raises OptionError naming `sizes`, which the model has been given, where operands do not fit one another."""
    why = misfit(model.graph, Facts(model))
    if why is not None:
        said = ", ".join(f"{shown(name)}={shown(str(size))}" for name, size in sizes.items())
        raise OptionError(f"the model does not run at {said}: {why}.")


def _first_dims_are_fixed(model: ir.Model) -> bool:
    shapes = [value.shape for value in model.graph.inputs if value.name not in model.graph.initializers]
    firsts = [shape[0] for shape in shapes if shape is not None and len(shape) > 0]
    return bool(firsts) and all(isinstance(first, int) for first in firsts)


def digest_of(source: Source, model: ir.Model) -> str:
    """The SHA-256 of a model's file and of its data files, one after the other in the order of their names.

    That is what `cat model.onnx model.data | sha256sum` prints. `model` is what `load` gives for the source. Empty for
    one that is no file and no bytes.
    """
    total = hashlib.sha256()
    if isinstance(source, (bytes, bytearray, memoryview)):
        total.update(source)
    elif isinstance(source, onnx.ModelProto):
        total.update(source.SerializeToString(deterministic=True))
    elif isinstance(source, (str, os.PathLike)):
        held = {os.fspath(one.path) for one in tensors_of(model) if isinstance(one, ir.ExternalTensor)}
        for path in (source, *sorted(held)):
            with Path(path).open("rb") as file:
                while part := file.read(_PART):
                    total.update(part)
    else:
        return ""
    return total.hexdigest()


def name_of(source: Source) -> str:
    """The file's name; "model" for what is no file."""
    return Path(source).name if isinstance(source, (str, os.PathLike)) else "model"
