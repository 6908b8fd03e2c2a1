"""`fit`: a plain loop over batches with a training step, in ONNX Runtime or as our own program."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import ModelError, OptionError
from graphopt.files.single import write_file
from graphopt.flows.cluster import Cluster, reached
from graphopt.flows.parallel import OverCluster
from graphopt.flows.records.gradient import FitRecord
from graphopt.flows.runners import Arrays, Engine, InOnnxRuntime, InProgram, Runner
from graphopt.flows.shown import Shown
from graphopt.flows.train_step import StepResult
from graphopt.gradient.step import METADATA, RATE, Step, from_metadata
from graphopt.model.load import Source, load
from graphopt.model.save import save, to_proto
from graphopt.model.text import Progress, silent

Batch = Mapping[str, object]
_LOSSES = "graphopt/losses"  # of a checkpoint: no value has this name, as the step's own names are checked


@dataclass(frozen=True, repr=False)
class FitResult(Shown):
    """What training gave."""

    step: Step
    losses: tuple[float, ...]  # by run, those before a checkpoint included
    values: Mapping[str, np.ndarray]  # what the next run would take, by input
    engine: Engine
    resumed: int  # runs that the checkpoint had at the beginning
    checkpoint: Path | None
    result: StepResult | None  # the step that `fit` was given, where it was one with its model

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return f"<FitResult {len(self.losses)} runs{last}>"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The weights and statistics after training, by their names in the model."""
        return {
            one.input: self.values[one.input] for one in self.step.carried if one.kind in ("parameter", "statistic")
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model that was trained, with its new weights.

        Raises OptionError where `fit` was given a step without its model, and SaveError.
        """
        if self.result is None:
            raise OptionError(
                "the step was read from a file, which does not hold the model; `parameters` has its weights."
            )
        model = self.result.original.clone()
        for name, array in self.parameters.items():
            value = model.graph.initializers[name]
            assert value.const_value is not None, "a weight has data"
            value.const_value = ir.Tensor(array, name=name)
        save(model, path, source=self.result.source, source_data=self.result.source_data)

    def _record(self) -> FitRecord:
        trained = [one.input for one in self.step.carried if one.kind == "parameter"]
        source = self.result.source if self.result is not None else None
        return FitRecord(
            model="model" if source is None else source.name, engine=self.engine, runs=len(self.losses),
            losses=self.losses, parameters=sum(self.values[name].size for name in trained),
            checkpoint="" if self.checkpoint is None else str(self.checkpoint), resumed=self.resumed,
        )  # fmt: skip

    @property
    def record(self) -> FitRecord:
        """What was done, as `json()` gives it."""
        return self._record()

    def _figures(self) -> list[tuple[str, ...]]:
        ends = [("first loss", f"{self.losses[0]:.4g}"), ("last loss", f"{self.losses[-1]:.4g}")] if self.losses else []
        return [("runs", f"{len(self.losses):,}"), *ends, ("engine", self.engine)]


def fit(
    step: StepResult | Source,
    batches: Iterable[Batch],
    *,
    runs: int | None = None,
    learning_rate: float | Callable[[int], float] | None = None,
    seed: int = 0,
    engine: Engine = "onnxruntime",
    threads: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 100,
    dask: Cluster | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train with a step: one run for each of `batches`, arrays by input name, the target's among them.

    `runs` ends the loop after so many, those of a checkpoint included; None: with the batches. `learning_rate` is a
    number, or a function of the run counted from 0; None: the step's default. `seed` decides with the number of the run
    what a Dropout drops. `engine`: "onnxruntime", or "program", our own; `threads` of either, 0: all cores.
    A `checkpoint` (.npz) is written in every `every`-th run and at the end, in place of the last one and never half.
    Where there is one, training goes on from it: as many batches are passed over as it has runs, so that a loop which
    was killed gives what it would have given.

    With `dask`, the address of a cluster's scheduler or a `distributed.Client`, each worker computes the gradients of a
    part of each batch, cut along the first dim, with so many `threads` (0: as many as the worker has in Dask). They are
    averaged, and change the parameters, which live here, as those of the whole batch would, but for rounding, for
    BatchNormalizations, which normalize by their part of the batch, and for what a Dropout drops. A part that a worker
    takes along when it dies is given to another.

    Raises ModelError for a model that is no step of `train_step`, or does not come apart for `dask`, and OptionError
    for a batch that does not fit it and a cluster that does not answer.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"there is no engine '{engine}'; there are {', '.join(get_args(Engine))}.")
    result = step if isinstance(step, StepResult) else None
    proto = step.to_proto() if isinstance(step, StepResult) else to_proto(load(step))
    names = _step_of(proto)
    tell = progress or silent
    place = None if checkpoint is None else Path(checkpoint)
    losses: list[float] = []
    values = first_values(proto, names)
    if place is not None and place.exists():
        values, losses = _resume(place, values)
    resumed = len(losses)
    given = {value.name for value in proto.graph.input} - {one.input for one in names.carried} - {RATE, names.seed}
    with contextlib.ExitStack() as stack:
        runner: Runner
        if dask is not None:
            runner = OverCluster(stack.enter_context(reached(dask)), engine, proto, names, values, threads)
        else:
            runner = (InOnnxRuntime if engine == "onnxruntime" else InProgram)(proto, names, values, threads)
        for number, batch in enumerate(islice(batches, runs)):
            if number < resumed:
                continue
            feeds = _feeds(proto, given, batch)
            rate = learning_rate(number) if callable(learning_rate) else learning_rate
            if rate is not None:
                feeds[RATE] = np.array(rate, np.float32)
            if names.seed is not None:
                feeds[names.seed] = np.array(seed * 1_000_003 + number, np.int64)
            losses.append(runner.run(feeds))
            tell(f"run {number + 1:,}, loss {losses[-1]:.4g}")
            if place is not None and (number + 1) % every == 0:
                _write_checkpoint(place, runner.carried(), losses)
    values = runner.carried()
    if place is not None and len(losses) > resumed:
        _write_checkpoint(place, values, losses)
    return FitResult(names, tuple(losses), values, engine, resumed, place, result)


def _step_of(proto: onnx.ModelProto) -> Step:
    for entry in proto.metadata_props:
        if entry.key == METADATA:
            return from_metadata(entry.value)
    raise ModelError("the model is no training step; make one with 'graphopt train-step' or graphopt.train_step.")


def _kind(value: onnx.ValueInfoProto) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def first_values(proto: onnx.ModelProto, step: Step) -> dict[str, np.ndarray]:
    """What the first run takes: defaults, and zeros for state."""
    defaults = {tensor.name: tensor for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input}
    found = {}
    for one in step.carried:
        if one.input in defaults:
            found[one.input] = onnx.numpy_helper.to_array(defaults[one.input])
        else:
            dims = [dim.dim_value for dim in inputs[one.input].type.tensor_type.shape.dim]
            found[one.input] = np.zeros(dims, _kind(inputs[one.input]))
    return found


def _feeds(proto: onnx.ModelProto, given: set[str], batch: Batch) -> dict[str, np.ndarray]:
    lacking = sorted(given - set(batch))
    strange = sorted(set(batch) - given)
    if lacking or strange:
        said = f"lacks '{lacking[0]}'" if lacking else f"has '{strange[0]}', which the step does not take"
        raise OptionError(f"a batch {said}; the step takes {', '.join(sorted(given))}.")
    kinds = {value.name: _kind(value) for value in proto.graph.input}
    return {name: np.ascontiguousarray(batch[name], kinds[name]) for name in given}


def _write_checkpoint(place: Path, values: Arrays, losses: list[float]) -> None:
    data = io.BytesIO()
    arrays: dict[str, Any] = {_LOSSES: np.array(losses, np.float64), **values}
    np.savez(data, **arrays)
    write_file(place, data.getvalue())


def _resume(place: Path, first: Arrays) -> tuple[dict[str, np.ndarray], list[float]]:
    try:
        with np.load(place, allow_pickle=False) as held:
            values = {name: held[name] for name in held.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise OptionError(f"'{place}' is no checkpoint: {error}; name another file.") from error
    losses = values.pop(_LOSSES, np.zeros(0))
    fits = values.keys() == first.keys() and all(values[name].shape == array.shape for name, array in first.items())
    if not fits:
        raise OptionError(f"'{place}' is a checkpoint of another step; name another file, or remove it.")
    return values, [float(loss) for loss in losses]
