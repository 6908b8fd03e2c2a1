"""One network's losses by torch in float64 and float32, by ONNX Runtime and by our program; and the page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import torch

import graphopt
from bench.gradients.beside import RUNS, nudged, trained
from bench.gradients.losses import Loss, loss_of
from bench.gradients.torch_graph import Graph, tensor
from graphopt.errors import GraphoptError
from graphopt.report.interactive import interactive_page
from models import trainable

Engine = Literal["onnxruntime", "program"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
WIDE, PLAIN = "torch float64", "torch float32"
FOLDER = Path(__file__).parent / "templates"
LAST = 10  # losses whose mean stands for the end


@dataclass(frozen=True, slots=True)
class Curves:
    """The losses of a network by run, and why an engine has none."""

    name: trainable.Name
    optimizer: graphopt.Optimizer
    losses: Mapping[str, Sequence[float]]
    nudged: Sequence[Sequence[float]]  # of torch in float32 on weights that differ by a unit of rounding
    refused: Mapping[Engine, str]

    def distance(self, run: str) -> float | None:
        """The largest difference of a run's losses from float64; None where it has none, infinite where it broke."""
        if run not in self.losses:
            return None
        runs = [self.losses[run], *(self.nudged if run == PLAIN else ())]
        largest = float(np.abs(np.array(runs) - self.losses[WIDE]).max())
        return largest if np.isfinite(largest) else float("inf")

    def holds(self, factor: float, floor: float) -> bool:
        """Whether both engines ran and stay as near as they must."""
        allowed = max(factor * (self.distance(PLAIN) or 0.0), floor)
        distances = [self.distance(engine) for engine in ENGINES]
        return all(one is not None and one <= allowed for one in distances)

    def row(self, factor: float, floor: float) -> tuple[object, ...]:
        """A line of the table."""
        ends = self.losses[WIDE]
        cells = [self.distance(run) for run in (PLAIN, *ENGINES)]
        return (
            self.name, self.optimizer.name, f"{ends[0]:.4f}", f"{np.mean(ends[-LAST:]):.4f}",
            *("-" if one is None else f"{one:.1e}" for one in cells), self.holds(factor, floor),
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """A line for the console."""
        found = [f"{run} {one:.1e}" for run in (PLAIN, *ENGINES) if (one := self.distance(run)) is not None]
        return "; ".join([", ".join(found), *(f"{engine}: {words}" for engine, words in self.refused.items())])


def train(name: trainable.Name, optimizer: graphopt.Optimizer, steps: int) -> Curves:
    """Train a network in every way."""
    model, loss = trainable.NETWORKS[name](0), _loss(name)
    losses: dict[str, Sequence[float]] = {
        run: by_torch(model, name, loss, optimizer, steps, dtype)
        for run, dtype in ((WIDE, torch.float64), (PLAIN, torch.float32))
    }
    nudges = [by_torch(nudged(model, run), name, loss, optimizer, steps, torch.float32) for run in range(1, RUNS)]
    refused: dict[Engine, str] = {}
    for engine in ENGINES:
        try:
            step = graphopt.train_step(model, loss=loss, optimizer=optimizer)
            losses[engine] = graphopt.fit(step, trainable.batches(name, steps), engine=engine).losses
        except (GraphoptError, RuntimeError) as refusal:
            refused[engine] = str(refusal).splitlines()[0][:160]
    return Curves(name, optimizer, losses, nudges, refused)


def _loss(name: trainable.Name) -> Loss:
    return "mse" if name == "mlp" else "cross-entropy"


def by_torch(
    model: onnx.ModelProto, name: trainable.Name, loss: Loss, optimizer: graphopt.Optimizer, steps: int,
    dtype: torch.dtype,
) -> list[float]:  # fmt: skip
    """The losses of torch's own optimizer on the model in training mode."""
    stepper = Stepper(model, loss, optimizer, dtype)
    return [stepper.run(batch) for batch in trainable.batches(name, steps)]


class Stepper:
    """Torch's eager mode and its own optimizer, step by step, on one thread."""

    def __init__(
        self, model: onnx.ModelProto, loss: Loss, optimizer: graphopt.Optimizer, dtype: torch.dtype = torch.float32
    ) -> None:
        torch.set_num_threads(1)
        self._graph, self._loss = Graph(in_training_mode(model), dtype), loss
        self._output, self._dtype = model.graph.output[0].name, dtype
        weights = [self._graph.initializers[one].requires_grad_() for one in trained(model)]
        self._optimizer = _torch_optimizer(weights, optimizer)

    def run(self, batch: Mapping[str, np.ndarray]) -> float:
        """The loss of a batch; the weights are those after the step."""
        feed = {key: value for key, value in batch.items() if key != "target"}
        output = self._graph.evaluate(feed)[self._output]
        total = loss_of(self._loss, output, tensor(batch["target"], self._dtype))
        self._optimizer.zero_grad()
        total.backward()
        self._optimizer.step()
        return float(total)


def in_training_mode(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every BatchNormalization normalizing by its batch."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    return copy


def _torch_optimizer(parameters: list[torch.Tensor], optimizer: graphopt.Optimizer) -> Any:
    rate, decay = optimizer.learning_rate, optimizer.weight_decay
    if optimizer.name in ("sgd", "momentum"):
        kept = optimizer.momentum if optimizer.name == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=rate, momentum=kept, weight_decay=decay)
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.AdamW
    betas = (optimizer.beta1, optimizer.beta2)
    return kind(parameters, lr=rate, betas=betas, eps=optimizer.epsilon, weight_decay=decay)


def curves_page(found: Sequence[Curves], steps: int) -> bytes:
    """The losses of every network and their distances from float64, UTF-8; one file, no network."""
    data = [
        {
            "name": one.name,
            "losses": [{"name": run, "values": list(losses)} for run, losses in one.losses.items()],
            "distances": [
                {"name": run, "values": np.abs(np.array(losses) - one.losses[WIDE]).tolist()}
                for run, losses in one.losses.items()
                if run != WIDE
            ],
        }
        for one in found
    ]
    return interactive_page(
        "train.html", data, ("train.js",), {}, folder=FOLDER, record={"model": "training"}, found=found, steps=steps
    )
