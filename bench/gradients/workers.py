"""Training on the workers of a cluster beside one process: `python -m bench.gradients.workers [NAME] [--workers N]`.

A Dask cluster of so many processes of one thread on this machine, each with a shard of eight samples, and one process
with as many threads on the whole batch, by turns. The times are those of a clock, on as many cores as the system gives;
CPU times are of all threads of all processes, and say what handing weights and gradients around costs even where the
machine is busy. Figures are medians of pairwise ratios with a 95 % bootstrap interval, of ONNX Runtime and of programs.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer

import graphopt
from bench.bar import Bar, Sheet, console
from bench.gradients.train import OPTIMIZERS
from bench.kernels.timing import Ratio, ratio
from bench.peers import OURS
from graphopt.flows.fit import first_values
from graphopt.flows.parallel import OverCluster
from graphopt.flows.runners import Engine, InOnnxRuntime, InProgram, Runner
from models import trainable

ISSUE, NUMBER = 23, 7
# Of what the cluster spends, the CPU time of one process: ratchets below 0.62 and 0.30 on a Zen 4.
LEAST: Mapping[Engine, float] = {"onnxruntime": 0.5, "program": 0.25}
ROUNDS, QUICK_ROUNDS, WORKERS = 9, 3, 2
STEPS, WARM = 3, 2  # of each side in a turn, and before the first
Batch = Mapping[str, np.ndarray]


def _sides(name: trainable.Name, engine: Engine, client: Any, workers: int) -> tuple[Runner, Runner, Batch]:
    """One process, the cluster, and a batch."""
    network, optimizer = trainable.NETWORKS[name](0), OPTIMIZERS[name]
    loss = "mse" if name == "mlp" else "cross-entropy"
    size = trainable.BATCH
    wide = graphopt.train_step(network, loss=loss, optimizer=optimizer, dims={"batch": size * workers})
    narrow = graphopt.train_step(network, loss=loss, optimizer=optimizer)
    parts = list(trainable.batches(name, workers))
    batch = {key: np.concatenate([np.asarray(one[key]) for one in parts]) for key in parts[0]}
    kind = InOnnxRuntime if engine == "onnxruntime" else InProgram
    whole, part = wide.to_proto(), narrow.to_proto()
    alone = kind(whole, wide.step, first_values(whole, wide.step), workers)
    apart = OverCluster(client, engine, part, narrow.step, first_values(part, narrow.step), 1)
    return alone, apart, batch


def _measured(runner: Runner, batch: Batch, client: Any, steps: int) -> tuple[float, float]:
    """Seconds of a step by the clock, and of all processes' CPU time."""

    def spent() -> float:
        return time.process_time() + float(sum(client.run(time.process_time).values()))

    before, began = spent(), time.perf_counter()
    for _ in range(steps):
        runner.run(batch)
    ended = time.perf_counter()
    return (ended - began) / steps, (spent() - before) / steps


def _beside(name: trainable.Name, engine: Engine, client: Any, workers: int, rounds: int) -> tuple[Ratio, Ratio]:
    """Times and CPU times of one process by those of the cluster."""
    alone, apart, batch = _sides(name, engine, client, workers)
    for runner in (alone, apart):
        _measured(runner, batch, client, WARM)
    found = [[_measured(runner, batch, client, STEPS) for runner in (alone, apart)] for _ in range(rounds)]
    clock, spent = (
        ratio([one[number] for one, _ in found], [other[number] for _, other in found]) for number in (0, 1)
    )
    return clock, spent


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    name: trainable.Name = "resnet18", workers: int = WORKERS, rounds: int | None = None,
) -> list[Bar]:  # fmt: skip
    """Steps on a cluster of this machine beside one process."""
    text = f"{name} on {workers} workers beside one process"
    target = "CPU time of one process >= " + ", ".join(f"{least:g} x ({engine})" for engine, least in LEAST.items())
    if find_spec("distributed") is None:
        return [Bar(ISSUE, NUMBER, text, target, "not measured: distributed is not installed", None)]
    distributed = importlib.import_module("distributed")  # of an extra, without types
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = {engine: _beside(name, engine, client, workers, rounds) for engine in LEAST}
    sheet.table(
        f"{name}, batch {trainable.BATCH * workers}: one process of {workers} threads by {workers} workers of one",
        ("engine", "time", "CPU time"),
        [
            (engine, *(f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for one in ratios))
            for engine, ratios in found.items()
        ],
    )  # fmt: skip
    figure = ", ".join(f"{spent.median:.2f} x ({engine})" for engine, (_, spent) in found.items())
    met = all(spent.median >= LEAST[engine] for engine, (_, spent) in found.items())
    return [Bar(ISSUE, NUMBER, text, target, figure, met)]


def command(
    name: Annotated[str, typer.Argument(help="A network of models.trainable.")] = "resnet18",
    workers: Annotated[int, typer.Option(help="Processes of one thread.")] = WORKERS,
    rounds: Annotated[int, typer.Option(help="Turns of each side.")] = ROUNDS,
) -> None:
    """Steps on a cluster of this machine beside one process."""
    chosen = next((one for one in get_args(trainable.Name) if one == name and name != "lstm"), None)
    if chosen is None:
        raise typer.BadParameter(f"There is no {name} with samples along the first dim.")
    sheet = Sheet(console())
    sheet.bars(measure(sheet, name=chosen, workers=workers, rounds=rounds))


if __name__ == "__main__":
    typer.run(command)
