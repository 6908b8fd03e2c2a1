"""How many waits programs have, and what is left of what they gain where a wait costs something, simulated.

A wait costs `wait_ns` of the device file. What a program gains is what it is faster than one launch for each region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.memory.dims import sizes_of
from bench.peers import OURS
from bench.script import main
from graphopt.errors import GraphoptError
from graphopt.model.dimensions import change_dims
from graphopt.model.load import load
from graphopt.program.tasks import tasks_of
from kernels.target import host
from models.taskgraphs import randwire
from scheduler.device import Device, device
from scheduler.policies.choose import schedule
from scheduler.simulate import simulate
from scheduler.tasks import TaskGraph

ISSUE = 18
DEVICES = ("h200", "v100")
MOST_WAITS = 2.0  # a block
LEAST_KEPT = 0.5  # of the gain
WAIT_NS = 100.0
WORK, QUICK_WORK = 1_500_000, 300_000  # blocks placed
QUICK = ("mlp_tiny", "lstm_bi_op", "squeezenet1_1", "resnet18", "nasnet_a_mobile")
KEPT: Mapping[str, str] = {  # what is printed of each
    "inception_v3": "Inception-V3", "nasnet_a_mobile": "NASNet", "gru_unrolled": "unrolled cells",
    "t5_small_encoder": "T5",
}  # fmt: skip

Row = tuple[str, str, float, float, float, float, float]  # a row of what is gained


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Waits a block of every model of the zoo on every GPU; what is gained at 0 and at 100 ns a wait."""
    work = QUICK_WORK if quick else WORK
    rows, refused = [], []
    most: tuple[float, str] = (0.0, "no waits")
    for name in QUICK if quick else models.names():
        for where in DEVICES:
            place = device(where)
            try:
                graph = _graph(name, place)
            except GraphoptError as error:
                refused.append(f"{name}: {error}")
                continue
            found = schedule(graph, place, work=work)
            blocks = len(found.simulation.region)
            each = found.waits / max(blocks, 1)
            most = max(most, (each, f"{name} on {where}"))
            rows.append((name, where, len(graph.regions), blocks, found.waits, each, found.policy))
    sheet.table("waits", ("model", "device", "regions", "blocks", "waits", "waits / block", "policy"), rows)
    kept = [row for where in DEVICES for row in _kept(device(where), work)]
    columns = ("network", "device", "launches us", "at 0 ns", "at 100 ns", "gain kept", "of the program for 0 ns")
    sheet.table("what is gained over one launch for each region, us, simulated", columns, kept)
    least = min((row[5], f"{row[0]} on {row[1]}") for row in kept)
    figure = f"{most[0]:.2f} ({most[1]})" + (f"; refused: {'; '.join(refused)}" if refused else "")
    return [
        Bar(ISSUE, 14, "scheduler: most waits a block, zoo on GPUs", f"{MOST_WAITS:g}", figure, most[0] <= MOST_WAITS),
        Bar(
            ISSUE, 15, "simulated: gain kept at 100 ns a wait", f"{LEAST_KEPT:.0%}", f"{least[0]:.0%} ({least[1]})",
            least[0] >= LEAST_KEPT,
        ),
    ]  # fmt: skip


def _graph(name: str, place: Device) -> TaskGraph:
    model = load(models.load(name))
    change_dims(model, {}, sizes_of(model))
    return tasks_of(model, place, host(), name).graph


def _kept(place: Device, work: int) -> list[Row]:
    """By network what is gained at either cost, and by the program that was made for none where a wait costs."""
    free, costly = (replace(place, wait_ns=cost) for cost in (0.0, WAIT_NS))
    graphs = {said: _graph(name, place) for name, said in KEPT.items()} | {"RandWire": randwire(place)}
    rows: list[Row] = []
    for said, graph in graphs.items():
        without, found = (schedule(graph, at, work=work) for at in (free, costly))
        baseline = found.figures["launches"]
        gain = baseline - without.makespan
        blind = simulate(without.graph, without.program, costly).makespan
        rows.append((
            said, place.name, baseline / 1e3, without.makespan / 1e3, found.makespan / 1e3,
            (baseline - found.makespan) / gain if gain else 1.0, (baseline - blind) / gain if gain else 1.0,
        ))  # fmt: skip
    return rows


if __name__ == "__main__":
    main(measure)
