"""Training steps beside torch: `.venv-torch/bin/python -m bench.gradients.train [NAME ...] [--page FILE]`.

Five networks train on generated data for 200 steps: with torch in float64, which is the truth, with torch in float32,
and with the step that graphopt writes, in ONNX Runtime and as our program.

The yardstick: at every step, the largest difference from float64's losses up to it may be twice torch's in float32, or
1e-6. Torch's is the worst of eight runs, all but the first on weights that are moved by a unit of rounding: where ReLUs
and pools decide by rounding which way a gradient goes, losses part by chance, and one run says little about how far.
A second table says what a single run of torch gives as a yardstick, and how many of torch's own runs would hold by
either. The page has the curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, get_args

import typer

import graphopt
from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from models import trainable

ISSUE, NUMBER = 23, 2
TEXT = "training beside torch for {} steps, {} networks"
FACTOR, FLOOR = 2.0, 1e-6
STEPS, QUICK_STEPS = 200, 20
RUNS, QUICK_RUNS = 8, 3  # of torch in float32
TARGET = f"at every step: distance from float64 <= max({FACTOR:g} x torch float32's, worst of {RUNS} runs, {FLOOR:g})"
QUICK: tuple[trainable.Name, ...] = ("mlp", "bert")
Optimizer = graphopt.Optimizer
OPTIMIZERS: Mapping[trainable.Name, Optimizer] = {
    "mlp": Optimizer(name="sgd", learning_rate=0.05),
    "lstm": Optimizer(name="adam", learning_rate=2e-3),
    "bert": Optimizer(name="adamw", learning_rate=5e-4, weight_decay=0.01),
    "resnet18": Optimizer(name="momentum", learning_rate=5e-4),
    "mobilenet_v2": Optimizer(name="momentum", learning_rate=5e-3, weight_decay=1e-4),
}


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    names: Sequence[trainable.Name] = (), page: Path | None = None,
) -> list[Bar]:  # fmt: skip
    """Losses of 200 steps, and their distance from float64."""
    names = names or (QUICK if quick else get_args(trainable.Name))
    steps, runs = (QUICK_STEPS, QUICK_RUNS) if quick else (STEPS, RUNS)
    text = TEXT.format(steps, len(names))
    if find_spec("torch") is None:
        return [Bar(ISSUE, NUMBER, text, TARGET, "not measured: torch is not installed", None)]
    from bench.gradients.curves import Curves, Yardstick, curves_page, train  # torch is in an environment of its own

    yardstick = Yardstick(FACTOR, FLOOR)
    found: list[Curves] = []
    for name in names:
        found.append(train(name, OPTIMIZERS[name], steps, runs))
        sheet.console.print(f"{name}: {found[-1].verdict(yardstick)}", highlight=False)
    sheet.table(
        f"{steps} steps: largest distance of a loss from torch's float64",
        ("network", "optimizer", "first loss", "last ten", "torch float32", f"worst of {runs}", "ONNX Runtime",
         "program", "holds"),
        [one.row(yardstick) for one in found],
    )  # fmt: skip
    sheet.table(
        "by yardstick: distance over what is allowed, at the worst step",
        ("network", f"{FACTOR:g} x torch float32", "ONNX Runtime", "program", "torch's own runs that hold"),
        [row for one in found for row in one.rows_by_yardstick(yardstick)],
    )
    if page is not None:
        page.write_bytes(curves_page(found, steps, yardstick))
    held = [one for one in found if one.holds(yardstick)]
    refused = [f"{one.name} ({engine})" for one in found for engine in one.refused]
    figure = f"{len(held)} of {len(found)} hold" + (f"; refused: {', '.join(refused)}" if refused else "")
    return [Bar(ISSUE, NUMBER, text, TARGET, figure, len(held) == len(found))]


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Networks; all without any.")] = None,
    quick: Annotated[bool, typer.Option(help="Two networks, 20 steps.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the curves to this HTML file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
) -> None:
    """Training steps beside torch."""
    sheet = Sheet(console())
    chosen = [name for name in get_args(trainable.Name) if name in (names or ())]
    if unknown := set(names or ()) - set(chosen):
        raise typer.BadParameter(f"There is no {min(unknown)}; there are {', '.join(get_args(trainable.Name))}.")
    bars = measure(sheet, quick=quick, names=chosen, page=page)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(command)
