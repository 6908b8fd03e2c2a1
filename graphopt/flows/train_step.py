"""`train_step`: a model as its own training step, which any runtime repeats."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from graphopt.flows.records.gradient import StepRecord
from graphopt.flows.shown import Shown
from graphopt.flows.source import read, resize
from graphopt.flows.written import Written
from graphopt.gradient.differentiate import LossRequest
from graphopt.gradient.optimizers import Optimizer, OptimizerName
from graphopt.gradient.step import Step, make_step
from graphopt.model.dimensions import DimValue
from graphopt.model.load import Source
from graphopt.model.save import data_files, save
from graphopt.model.signature import signature_of


@dataclass(frozen=True, repr=False)
class StepResult(Shown, Written):
    """A training step, and the model that it trains."""

    model: ir.Model
    original: ir.Model  # with the dims that the caller asked for
    step: Step
    optimizer: Optimizer
    nodes_before: int
    source: Path | None
    source_data: frozenset[Path]  # files that the input keeps tensors in

    def __repr__(self) -> str:
        trained = sum(one.kind == "parameter" for one in self.step.carried)
        return f"<StepResult {self.optimizer.name}, {trained} parameters, {len(self.model.graph)} nodes>"

    def _record(self) -> StepRecord:
        return self.record()

    def record(self, output: str = "") -> StepRecord:
        """What was written, as `--json` prints it."""
        signature = signature_of(self.model)
        return StepRecord(
            input="" if self.source is None else str(self.source), output=output, loss=self.step.loss,
            optimizer=self.optimizer.name, seed=self.step.seed,
            carried=tuple((one.input, one.output, one.kind) for one in self.step.carried),
            nodes_before=self.nodes_before, nodes_after=len(self.model.graph),
            inputs=tuple(map(str, signature.inputs)), outputs=tuple(map(str, signature.outputs)),
        )  # fmt: skip

    def _figures(self) -> list[tuple[str, ...]]:
        kinds = [one.kind for one in self.step.carried]
        return [
            ("optimizer", self.optimizer.name),
            *((f"{kind}s", f"{kinds.count(kind):,}") for kind in ("parameter", "statistic", "state") if kind in kinds),
            ("nodes", f"{self.nodes_before:,} -> {len(self.model.graph):,}"),
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the step, its external data beside it. Raises SaveError where nothing can be written."""
        save(self.model, path, source=self.source, source_data=self.source_data)


def train_step(
    source: Source,
    *,
    loss: str,
    optimizer: OptimizerName | Optimizer = "sgd",
    with_respect_to: str | Sequence[str] = "trainable",
    output: str | None = None,
    class_axis: int | None = None,
    ignore_index: int | None = None,
    batch_statistics: bool = True,
    accumulate: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue] | None = None,
) -> StepResult:
    """A model that computes the loss of a batch and its own weights after the step, in ONNX's own operators.

    Weights that train, statistics of BatchNormalization and the optimizer's state are inputs and outputs: what a run
    gives as `NAME_new` the next one takes as `NAME`. Weights and statistics have their first values as defaults of
    these inputs, state begins as zeros, `learning_rate` is an input with a default. `optimizer` is a name or an
    `Optimizer` with its numbers; each has the arithmetic of PyTorch's. Each BatchNormalization normalizes by its batch,
    unless `batch_statistics` is off; a Dropout drops by the input `seed`. With `accumulate` n the gradients of n runs
    are averaged, and weights change in every n-th. The other arguments are those of `gradient`.

    Raises ModelError for an operator without a rule, and OptionError for a request that does not fit the model.
    """
    model, _ = read(source)
    if shapes or dims:
        resize(model, shapes or {}, dims or {})
    data, original = data_files(model), model.clone()
    chosen = Optimizer(name=optimizer) if isinstance(optimizer, str) else optimizer
    step = make_step(
        model, LossRequest(loss, output, class_axis, ignore_index), chosen, with_respect_to=with_respect_to,
        batch_statistics=batch_statistics, accumulate=accumulate,
    )  # fmt: skip
    return StepResult(
        model=model,
        original=original,
        step=step,
        optimizer=chosen,
        nodes_before=len(original.graph),
        source=Path(source) if isinstance(source, (str, os.PathLike)) else None,
        source_data=data,
    )
