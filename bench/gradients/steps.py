"""Times of training steps beside torch and ONNX Runtime: `.venv-torch/bin/python -m bench.gradients.steps [NAME ...]`.

One thread each, float32 each, by turns: a step of our program, of ONNX Runtime on the file that graphopt writes, and
of torch in eager mode (forward, backward and its own optimizer) on the same network and batch; torch is driven by an
interpreter of the ONNX graph, which costs small networks more than a module of theirs would. What is carried from step
to step stays where each side keeps it. Figures are medians of pairwise ratios with a 95 % bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import typer

import graphopt
from bench.bar import Bar, Sheet, console
from bench.gradients.train import OPTIMIZERS
from bench.kernels.timing import Ratio, pin, ratio, readings, unpin
from bench.peers import OURS
from graphopt.flows.fit import first_values
from graphopt.flows.runners import InOnnxRuntime, InProgram
from models import trainable

ISSUE, NUMBER = 23, 6
TEXT = "native training steps, {} networks, one thread"
TARGET = ">= 1.0 x torch eager and >= 1.1 x ONNX Runtime (geometric means)"
ROUNDS, QUICK_ROUNDS = 25, 7
PEERS = ("torch", "ONNX Runtime")


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    names: Sequence[trainable.Name] = (),
) -> list[Bar]:  # fmt: skip
    """Steps of each network by turns."""
    names = names or get_args(trainable.Name)
    text = TEXT.format(len(names))
    if find_spec("torch") is None:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: torch is not installed", None)]
    from bench.gradients.stepper import Stepper  # torch is in an environment of its own

    pin()
    try:
        found = {name: _beside(name, QUICK_ROUNDS if quick else ROUNDS, Stepper) for name in names}
    finally:
        unpin()
    sheet.table(
        "a training step: times of the peer by ours",
        ("network", "optimizer", *PEERS),
        [
            (name, OPTIMIZERS[name].name, *(f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for one in ratios))
            for name, ratios in found.items()
        ],
    )
    means = [exp(np.mean([log(ratios[at].median) for ratios in found.values()])) for at in range(len(PEERS))]
    figure = ", ".join(f"{mean:.2f} x {peer}" for mean, peer in zip(means, PEERS, strict=True))
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, means[0] >= 1.0 and means[1] >= 1.1)]


def _beside(name: trainable.Name, rounds: int, stepper: type) -> tuple[Ratio, ...]:
    model = trainable.NETWORKS[name](0)
    loss = "mse" if name == "mlp" else "cross-entropy"
    made = graphopt.train_step(model, loss=loss, optimizer=OPTIMIZERS[name])
    proto, step = made.to_proto(), made.step
    batch = {key: np.asarray(value) for key, value in next(iter(trainable.batches(name, 1))).items()}
    runners = [kind(proto, step, first_values(proto, step), 1) for kind in (InProgram, InOnnxRuntime)]
    by_torch = stepper(model, loss, OPTIMIZERS[name])
    calls = {
        "ours": lambda: runners[0].run(batch),
        "ONNX Runtime": lambda: runners[1].run(batch),
        "torch": lambda: by_torch.run(batch),
    }
    times = readings(calls, rounds)
    return tuple(ratio(times[peer], times["ours"]) for peer in PEERS)


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Networks; all without any.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer rounds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Training steps by turns with torch and ONNX Runtime."""
    sheet = Sheet(console())
    chosen = [name for name in get_args(trainable.Name) if name in (names or ())]
    if unknown := set(names or ()) - set(chosen):
        raise typer.BadParameter(f"There is no {min(unknown)}; there are {', '.join(get_args(trainable.Name))}.")
    bars = measure(sheet, quick=quick, names=chosen)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)
