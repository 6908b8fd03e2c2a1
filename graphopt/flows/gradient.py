"""`gradient`: a model whose further outputs are a loss and its gradients, in operators that every runtime has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx_ir as ir

from graphopt.flows.records.gradient import GradientRecord
from graphopt.flows.shown import Shown
from graphopt.flows.source import read, resize
from graphopt.flows.written import Written
from graphopt.gradient.differentiate import LossRequest, add_outputs, differentiate
from graphopt.model.dimensions import DimValue
from graphopt.model.dims import declared
from graphopt.model.load import Source
from graphopt.model.nodes import remove_unused
from graphopt.model.save import data_files, save
from graphopt.model.signature import signature_of


@dataclass(frozen=True, repr=False)
class GradientResult(Shown, Written):
    """A model with a loss and its gradients among its outputs."""

    model: ir.Model
    loss: str  # the output that is the loss
    gradients: Mapping[str, str]  # by the value that they are taken to: the output
    parameters: int  # elements of these values, those with free dims left out
    nodes_before: int
    source: Path | None
    source_data: frozenset[Path]  # files that the input keeps tensors in

    def __repr__(self) -> str:
        return f"<GradientResult {len(self.gradients)} gradients of '{self.loss}', {len(self.model.graph)} nodes>"

    def _record(self) -> GradientRecord:
        return self.record()

    def record(self, output: str = "") -> GradientRecord:
        """What was written, as `--json` prints it."""
        signature = signature_of(self.model)
        return GradientRecord(
            input="" if self.source is None else str(self.source), output=output, loss=self.loss,
            gradients=dict(self.gradients), parameters=self.parameters, nodes_before=self.nodes_before,
            nodes_after=len(self.model.graph), inputs=tuple(map(str, signature.inputs)),
            outputs=tuple(map(str, signature.outputs)),
        )  # fmt: skip

    def _figures(self) -> list[tuple[str, ...]]:
        return [
            ("loss", self.loss),
            ("gradients", f"{len(self.gradients):,}"),
            ("parameters", f"{self.parameters:,}"),
            ("nodes", f"{self.nodes_before:,} -> {len(self.model.graph):,}"),
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, its external data beside it. Raises SaveError where nothing can be written."""
        save(self.model, path, source=self.source, source_data=self.source_data)


def gradient(
    source: Source,
    *,
    loss: str,
    with_respect_to: str | Sequence[str] = "trainable",
    output: str | None = None,
    class_axis: int | None = None,
    ignore_index: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue] | None = None,
) -> GradientResult:
    """A model with further outputs: a loss, and its gradients as `gradient/NAME`, each of the dims of NAME.

    `loss` is "cross-entropy" (an input `target` of int64 classes), "mse" (a `target` of the output's dims), or the
    name of an output of one element. `with_respect_to` names inputs and initializers, `*` for any text, or is
    "trainable": the weights. `output` is the output that a made loss reads, by default the first one that holds floats;
    a Softmax in front of a cross entropy is passed over. Classes lie along `class_axis`: by default along the axis of
    that Softmax, else along axis 1, but the last one of three. Targets equal to `ignore_index` do not count.
    `shapes` and `dims` fix dims as in `optimize`. Source of the method: Griewank and Walther, Evaluating Derivatives.

    Raises ModelError for an operator without a rule, and OptionError for a request that does not fit the model.
    """
    model, _ = read(source)
    if shapes or dims:
        resize(model, shapes or {}, dims or {})
    data, before = data_files(model), len(model.graph)
    done = differentiate(model, LossRequest(loss, output, class_axis, ignore_index), with_respect_to)
    sizes = [declared(value) for value in done.gradients]
    names = add_outputs(done)
    remove_unused(model.graph)
    return GradientResult(
        model=model,
        loss=done.loss.name or "",
        gradients=names,
        parameters=sum(prod(size) for size in sizes if size is not None),
        nodes_before=before,
        source=Path(source) if isinstance(source, (str, os.PathLike)) else None,
        source_data=data,
    )
