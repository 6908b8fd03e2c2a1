"""Training steps under memory budgets: `python -m bench.gradients.budgets [NAME ...]`.

What is shared is the arena for what a step computes beyond parameters, gradients and state: in a program these lie in
the caller's memory, in ONNX Runtime the arena of the file holds the new parameters too, which are taken off. The budget
is a share of what the same graph takes without one, or the least that one node needs, if that is more. Programs run by
turns on one thread, and what they give is compared bit for bit; that without a budget is held to ONNX Runtime, but for
a step of so many nodes that its session, which takes their square, would last for minutes. Where it is too far from
that, the last column says how far: in a deep network on one image, rounding decides at many a ReLU which way a gradient
goes. ONNX Runtime's heap is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer

import graphopt
import models
from bench.bar import Bar, Sheet, console
from bench.kernels.timing import pin, ratio, readings, unpin
from bench.peers import OURS
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.errors import BudgetNotKept, GraphoptError, VerificationError
from graphopt.flows.asked import optimized, planned_target
from graphopt.gradient.step import open_carried
from graphopt.memory.plan import given
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load
from graphopt.program.deploy.compiled import Whole
from graphopt.program.make import make
from graphopt.program.order import region_graph
from memplan.ordering.arrays import arrays_of
from memplan.remat.bounds import least_need
from models import deep, trainable

ISSUE, NUMBER = 23, 3
SHARES: Mapping[float, float] = {0.5: 20.0, 0.33: 35.0}  # of memory, and the extra time in percent that each may take
TEXT, TARGET = "steps under budgets, {} networks", "50 % at 20 % more time, 33 % at 35 %; bits equal; heap 1.05 x plan"
ROUNDS, QUICK_ROUNDS = 11, 5
MOST_HEAP = 1.05  # of what was allowed
BATCH = 8
DEPTH = 1_000
NAME = "step"
MOST_COMPARED = 20_000  # nodes of a step that ONNX Runtime is given
MIB = 1 << 20
Cells = tuple[object, ...]


def _zoo(name: str, loss: str) -> Callable[[], graphopt.StepResult]:
    return lambda: graphopt.train_step(models.load(name), loss=loss, dims=models.sizes(name))


NETWORKS: Mapping[str, Callable[[], graphopt.StepResult]] = {
    "resnet50": _zoo("resnet50_legacy_keepbn", "cross-entropy"),
    "unet": _zoo("unet_own", "mse"),
    "bert": lambda: graphopt.train_step(models.load("bert_base_dyn_legacy"), loss="mse", dims={"batch": 4, "seq": 128}),
    "bert4": lambda: graphopt.train_step(trainable.bert(), loss="cross-entropy"),
    "deep50": lambda: graphopt.train_step(deep.build(50, BATCH), loss="cross-entropy"),
    "deep1000": lambda: graphopt.train_step(deep.build(DEPTH, BATCH), loss="cross-entropy"),
}
ASKED = ("resnet50", "unet", "bert", "deep1000")
QUICK = ("deep50",)


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS, names: Sequence[str] = (),
    heap: bool = True,
) -> list[Bar]:  # fmt: skip
    """Programs and files under each share, network by network."""
    rows: list[Cells] = []
    met: list[bool] = []
    for name in names or (QUICK if quick else ASKED):
        step = NETWORKS[name]()
        model = graphopt.optimize(step.to_proto(), verify=False).to_proto()
        ways = [_programs] if not heap else [_programs, _files]
        for way in ways:
            for row, is_met in way(name, model, QUICK_ROUNDS if quick else ROUNDS):
                sheet.console.print(*row)
                rows.append(row)
                met.append(is_met)
    columns = (
        "network", "what", "MiB", "share", "budget", "kept", "least node", "extra time %", "from", "to", "bits",
        "heap", "s", "as ONNX Runtime",
    )  # fmt: skip
    sheet.table("training steps under budgets; memory beyond parameters, gradients and state", columns, rows)
    figure = f"{sum(met)} of {len(met)} met"
    return [Bar(ISSUE, NUMBER, TEXT.format(len({row[0] for row in rows})), TARGET, figure, all(met))]


def _programs(name: str, model: onnx.ModelProto, rounds: int) -> list[tuple[Cells, bool]]:
    """Programs for one thread, with and without a budget, on the same weights and batch."""
    work, target = optimized(load(model)), planned_target("host", None, 1)

    def made(budget: int | None) -> Whole:
        found = make(work, target, NAME, False, budget, None, 1)
        assert isinstance(found, Whole), "every operator of the step has a kernel"
        return found

    compared = len(work.graph) <= MOST_COMPARED
    alike = "yes" if compared else "not compared"
    try:
        plain = graphopt.compile(model, threads=1) if compared else made(None)
    except VerificationError as refusal:
        plain, alike = made(None), str(refusal).split(";")[0]
    assert plain.program is not None, "this machine runs it"
    alone = plain.linked.listing.arena_bytes
    least = least_need(arrays_of(region_graph(plain.lowered, places=True)))
    feed = _feed(model)
    expected = plain.program.run(None, _copied(feed))
    found: list[tuple[Cells, bool]] = []
    for share, most in SHARES.items():
        begun, budget = time.perf_counter(), max(int(share * alone), least)
        head = (name, "program", alone / MIB, share, budget / MIB)
        try:
            kept = made(budget)
        except BudgetNotKept as refusal:
            took = time.perf_counter() - begun
            found.append(((*head, f"refused: {refusal.least / MIB:.2f}", least / MIB, *[""] * 5, took, alike), False))
            continue
        took = time.perf_counter() - begun
        assert kept.program is not None, "this machine runs it"
        same = all(
            np.array_equal(one, other, equal_nan=True)
            for one, other in zip(expected, kept.program.run(None, _copied(feed)), strict=True)
        )
        pin()
        try:
            calls = {
                "plain": plain.program.bind(_copied(feed)), "kept": kept.program.bind(_copied(feed))
            }  # fmt: skip
            taken = readings(calls, rounds)
        finally:
            unpin()
        slower = ratio(taken["kept"], taken["plain"])
        extra, low, high = (100 * (one - 1) for one in (slower.median, slower.low, slower.high))
        its = kept.linked.listing.arena_bytes
        cells = (*head, its / MIB, least / MIB, extra, low, high, same, "", took, alike)
        found.append((cells, its <= budget and same and extra <= most))
    return found


def _files(name: str, model: onnx.ModelProto, rounds: int) -> list[tuple[Cells, bool]]:
    """ONNX files with and without a budget, in ONNX Runtime under the options that a plan needs."""
    memory = model_memory(load(model), sharing=False)
    alone, least = given(memory).packing.arena_size, least_need(arrays_of(memory.graph))
    found: list[tuple[Cells, bool]] = []
    for share, most in SHARES.items():
        budget, begun = max(int(share * alone), least), time.perf_counter()
        head = (name, "ONNX Runtime", alone / MIB, share, budget / MIB)
        try:
            done = graphopt.optimize(model, level=0, memory_budget=budget)
        except GraphoptError as refusal:
            said = f"{refusal.least / MIB:.2f}" if isinstance(refusal, BudgetNotKept) else str(refusal)
            took = time.perf_counter() - begun
            found.append(((*head, f"refused: {said}", least / MIB, *[""] * 5, took, ""), False))
            continue
        record = done.budgeted.record if done.budgeted is not None else None
        took = time.perf_counter() - begun
        if record is None or record.heap is None:
            found.append(((*head, "not measured", least / MIB, *[""] * 5, took, ""), False))
            continue
        extra, heap = record.slowdown_percent or 0.0, record.heap
        cells = (*head, record.arena / MIB, least / MIB, extra, "", "", record.bit_equal, heap / MIB, took, "")
        is_kept = record.arena <= budget and heap <= MOST_HEAP * budget and record.bit_equal
        found.append((cells, is_kept and extra <= most))
    return found


def _feed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Weights as they are, state that is zero, and a batch."""
    opened = load(model)
    open_carried(opened, required=True)
    return {name: np.asarray(one) for name, one in make_feed(inputs_of(opened), {}, "normal").items()}


def _copied(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A step changes its weights where they lie."""
    return {name: one.copy() for name, one in feed.items()}


def command(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(NETWORKS)}.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer rounds.")] = False,
    heap: Annotated[bool, typer.Option(help="ONNX Runtime's heap too.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Training steps under memory budgets."""
    if unknown := set(names or ()) - set(NETWORKS):
        raise typer.BadParameter(f"There is no {min(unknown)}; there are {', '.join(NETWORKS)}.")
    sheet = Sheet(console())
    bars = measure(sheet, quick=quick, names=names or (), heap=heap)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)
