"""One network's losses by torch in float64 and float32, by ONNX Runtime and by our program; and the page of them.

The distance of a run at a step is the largest difference of its losses from float64's up to that step. Torch's own
float32 run has no one distance: where a ReLU or a pool stands on an edge, rounding decides which way a gradient goes,
from there on losses part by orders of magnitude, and when that happens is chance. So torch runs several times, on first
weights that differ by a unit of rounding, and what is allowed at a step is a multiple of the worst of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx
import torch

import graphopt
from bench.gradients.beside import nudged
from bench.gradients.losses import Loss
from bench.gradients.stepper import Stepper
from graphopt.errors import GraphoptError
from graphopt.report.interactive import interactive_page
from models import trainable

Engine = Literal["onnxruntime", "program"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
FOLDER = Path(__file__).parent / "templates"
LAST = 10  # losses whose mean stands for the end
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What is allowed at a step: so many times the worst of the runs that it is given, and never less than a floor."""

    factor: float
    floor: float

    def allowed(self, runs: Sequence[Numbers]) -> Numbers:
        """By step, from the distances of runs."""
        worst: Numbers = np.max(runs, axis=0)
        return np.maximum(self.factor * worst, self.floor)

    def share(self, run: Numbers, runs: Sequence[Numbers]) -> float:
        """The largest distance of a run over what is allowed at that step: up to 1 holds."""
        return float((run / self.allowed(runs)).max())


@dataclass(frozen=True, slots=True)
class Curves:
    """The losses of a network by run, and why an engine has none."""

    name: trainable.Name
    optimizer: graphopt.Optimizer
    wide: Sequence[float]  # torch in float64
    plain: Sequence[Sequence[float]]  # torch in float32: on the weights as they are, then moved by a unit of rounding
    ours: Mapping[Engine, Sequence[float]]
    refused: Mapping[Engine, str]

    def distances(self, losses: Sequence[float]) -> Numbers:
        """By step, the largest difference of losses from float64's until then; infinite from where they broke."""
        apart = np.abs(np.array(losses) - self.wide)
        return np.maximum.accumulate(np.where(np.isfinite(apart), apart, np.inf))

    @property
    def own(self) -> list[Numbers]:
        """The distances of torch's float32 runs."""
        return [self.distances(one) for one in self.plain]

    def shares(self, yardstick: Yardstick) -> dict[Engine, float]:
        """How far the worst step of each engine is of what is allowed, by all of torch's runs."""
        return {engine: yardstick.share(self.distances(one), self.own) for engine, one in self.ours.items()}

    def holds(self, yardstick: Yardstick) -> bool:
        """Whether both engines ran and stay as near as they must."""
        return not self.refused and all(one <= 1 for one in self.shares(yardstick).values())

    def row(self, yardstick: Yardstick) -> tuple[object, ...]:
        """A line of the table of distances after all steps."""
        cells = [self.own[0][-1], max(one[-1] for one in self.own)]
        cells += [self.distances(self.ours[engine])[-1] if engine in self.ours else np.nan for engine in ENGINES]
        return (
            self.name, self.optimizer.name, f"{self.wide[0]:.4f}", f"{np.mean(self.wide[-LAST:]):.4f}",
            *(f"{one:.1e}" for one in cells), self.holds(yardstick),
        )  # fmt: skip

    def rows_by_yardstick(self, yardstick: Yardstick) -> list[tuple[object, ...]]:
        """How each engine stands by several yardsticks, and how many of torch's own runs would hold by them.

        A run of torch is held to the others; by a single run, each but the first to the first one.
        """
        rest = [self.own[:at] + self.own[at + 1 :] for at in range(len(self.own))]
        by_all = sum(yardstick.share(one, others) <= 1 for one, others in zip(self.own, rest, strict=True))
        by_one = sum(yardstick.share(one, self.own[:1]) <= 1 for one in self.own[1:])
        at_end = sum(yardstick.share(one[-1:], [self.own[0][-1:]]) <= 1 for one in self.own[1:])
        found = {engine: self.distances(self.ours[engine]) for engine in ENGINES if engine in self.ours}
        count = len(self.own)

        def line(said: str, runs: Sequence[Numbers], steps: slice, held: str) -> tuple[object, ...]:
            shares = [
                f"{yardstick.share(found[engine][steps], [one[steps] for one in runs]):.2f}" if engine in found else "-"
                for engine in ENGINES
            ]
            return (self.name, said, *shares, held)

        return [
            line(f"every step, worst of {count} runs", self.own, slice(None), f"{by_all} of {count}"),
            line("every step, a single run", self.own[:1], slice(None), f"{by_one} of {count - 1}"),
            line("after all steps, a single run", self.own[:1], slice(-1, None), f"{at_end} of {count - 1}"),
        ]

    def verdict(self, yardstick: Yardstick) -> str:
        """A line for the console."""
        shares = [f"{engine} {share:.2f} of what is allowed" for engine, share in self.shares(yardstick).items()]
        return "; ".join([", ".join(shares), *(f"{engine}: {words}" for engine, words in self.refused.items())])


def train(name: trainable.Name, optimizer: graphopt.Optimizer, steps: int, runs: int) -> Curves:
    """Train a network in every way, with torch in float32 so many times."""
    model, loss = trainable.NETWORKS[name](0), loss_by_name(name)
    wide = by_torch(model, name, loss, optimizer, steps, torch.float64)
    plain = [by_torch(nudged(model, run), name, loss, optimizer, steps, torch.float32) for run in range(runs)]
    ours: dict[Engine, Sequence[float]] = {}
    refused: dict[Engine, str] = {}
    for engine in ENGINES:
        try:
            step = graphopt.train_step(model, loss=loss, optimizer=optimizer)
            ours[engine] = graphopt.fit(step, trainable.batches(name, steps), engine=engine).losses
        except (GraphoptError, RuntimeError) as refusal:
            refused[engine] = str(refusal).splitlines()[0][:160]
    return Curves(name, optimizer, wide, plain, ours, refused)


def loss_by_name(name: trainable.Name) -> Loss:
    """The loss that a network trains with."""
    return "mse" if name == "mlp" else "cross-entropy"


def by_torch(
    model: onnx.ModelProto, name: trainable.Name, loss: Loss, optimizer: graphopt.Optimizer, steps: int,
    dtype: torch.dtype,
) -> list[float]:  # fmt: skip
    """The losses of torch's own optimizer on the model in training mode."""
    stepper = Stepper(model, loss, optimizer, dtype)
    return [stepper.run(batch) for batch in trainable.batches(name, steps)]


def curves_page(found: Sequence[Curves], steps: int, yardstick: Yardstick) -> bytes:
    """The losses of every network and their distances from float64, UTF-8; one file, no network."""
    data = [_drawn(one, yardstick) for one in found]
    shares = {one.name: one.shares(yardstick) for one in found}
    return interactive_page(
        "train.html", data, ("train.js",), {}, folder=FOLDER, record={"model": "training"}, found=found, steps=steps,
        shares=shares, runs=len(found[0].plain), factor=yardstick.factor, floor=yardstick.floor, last=LAST,
        ends={one.name: float(np.mean(one.wide[-LAST:])) for one in found},
    )  # fmt: skip


def _drawn(one: Curves, yardstick: Yardstick) -> dict[str, Any]:
    """The lines of a network's two charts."""
    losses: dict[str, Sequence[float]] = {"torch float64": one.wide, "torch float32": one.plain[0]}
    losses.update({str(engine): run for engine, run in one.ours.items()})
    distances = [("torch float32", run) for run in one.own]
    distances += [(engine, one.distances(run)) for engine, run in one.ours.items()]
    return {
        "name": one.name,
        "losses": [{"name": run, "values": list(values)} for run, values in losses.items()],
        "distances": [{"name": run, "values": values.tolist()} for run, values in distances],
        "allowed": yardstick.allowed(one.own).tolist(),
    }
